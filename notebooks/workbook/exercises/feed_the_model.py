"""Exercises of notebook 01, "Feed the model"."""

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def overlapped(producer, consumer):
    return max(producer, consumer)


@exercise(overlapped, minutes=2, difficulty=1)
def _check_overlapped(answer):
    """With prefetch both work at the same time, so a step lasts as long as the slower of the two."""
    expect(answer(30.0, 20.0), 30.0, "milliseconds a step for a producer of 30 ms and a consumer of 20 ms")
    expect(answer(5.0, 40.0), 40.0, "milliseconds a step for a producer of 5 ms and a consumer of 40 ms")
    expect(answer(25.0, 0.0), 25.0, "milliseconds a step when the consumer takes no time")


@_check_overlapped.refuses("expected about 30, got 50")
def _adds(producer, consumer):
    return producer + consumer


@_check_overlapped.refuses("expected about 30, got 25")
def _halves(producer, consumer):
    return (producer + consumer) / 2


@_check_overlapped.refuses("expected about 30, got 20")
def _takes_the_faster(producer, consumer):
    return min(producer, consumer)


def pipeline_rate(stages):
    rates = [1e6 * calls / microseconds for microseconds, calls in stages]
    return min(rates)


@exercise(pipeline_rate, minutes=4, difficulty=2)
def _check_pipeline_rate(answer):
    """A stage of t microseconds with c calls at once gives c * 1e6 / t examples/s; the slowest stage sets the pace."""
    expect(answer([(100.0, 1), (500.0, 1), (50.0, 1)]), 2000.0, "examples/s of stages of 100, 500 and 50 us")
    expect(answer([(100.0, 1), (500.0, 10)]), 10_000.0, "examples/s of stages of 100 us, and 500 us ten at once")


@_check_pipeline_rate.refuses("expected about 2000, got 1538.46")
def _one_thread_for_all(stages):
    return 1e6 / sum(microseconds for microseconds, calls in stages)


@_check_pipeline_rate.refuses("expected about 10000, got 2000")
def _forgets_the_calls(stages):
    return 1e6 / max(microseconds for microseconds, calls in stages)


@_check_pipeline_rate.refuses("expected about 2000, got 20000")
def _takes_the_best_stage(stages):
    return max(1e6 * calls / microseconds for microseconds, calls in stages)


def prepare(dataset, parse, buffer):
    return dataset.map(parse).cache().shuffle(buffer)


@exercise(prepare, minutes=5, difficulty=2)
def _check_prepare(answer):
    """What is the same in every epoch goes before the cache, what must differ goes after it."""
    from bigtrain_nb.common.quiet import tf

    parsed = []

    def parse(number):
        tf.py_function(lambda n: parsed.append(int(n)), [number], [])
        return number * 10

    dataset = answer(tf.data.Dataset.range(100), parse, 50)
    first = [int(number) for number in dataset]
    second = [int(number) for number in dataset]
    in_order = list(range(0, 1000, 10))
    if sorted(first) != in_order:
        raise Wrong(f"an epoch over 0 ... 99: expected 0, 10, ... 990 in some order, got {first[:5]}...")
    if first == in_order:
        raise Wrong("the first epoch: expected a shuffled order, got the order of the files")
    if first == second:
        raise Wrong("the second epoch: expected a new order, got the first one again, frozen in the cache")
    expect(len(parsed), 100, "calls of parse in two epochs over 100 examples")


@_check_prepare.refuses("expected a new order, got the first one again")
def _freezes_the_order(dataset, parse, buffer):
    return dataset.map(parse).shuffle(buffer).cache()


@_check_prepare.refuses("calls of parse in two epochs over 100 examples: expected 100, got 200")
def _parses_again(dataset, parse, buffer):
    return dataset.map(parse).shuffle(buffer)


@_check_prepare.refuses("calls of parse in two epochs over 100 examples: expected 100, got 200")
def _caches_too_early(dataset, parse, buffer):
    return dataset.cache().shuffle(buffer).map(parse)


def repair(settings):
    return {**settings, "num_parallel_calls": "AUTOTUNE", "vectorize": True, "cache": "memory", "prefetch": "AUTOTUNE"}


@exercise(repair, minutes=5, difficulty=3)
def _check_repair(answer):
    """Four settings waste time and leave what is learnt alone. `{**settings, 'name': value}` is a changed copy."""
    bad = {"num_parallel_calls": 1, "vectorize": False, "cache": None, "prefetch": 0, "batch": 64, "shuffle": 256}
    good = answer(dict(bad))
    if not isinstance(good, dict) or set(good) != set(bad):
        raise Wrong(f"the settings: expected a dictionary with {', '.join(bad)}, got {good!r}")
    for name in ("batch", "shuffle"):
        expect(good[name], bad[name], f"{name}, which changes what is learnt and so must stay")
    if good["num_parallel_calls"] == 1:
        raise Wrong("num_parallel_calls: expected more than 1 or AUTOTUNE, got 1: decoding has only one core")
    if good["cache"] is None:
        raise Wrong("cache: expected 'memory' or 'file', got None: every epoch decodes the same JPEGs again")
    if not good["vectorize"]:
        raise Wrong("vectorize: expected True, got False: the cheap steps pay the price of a call per image")
    if not good["prefetch"]:
        raise Wrong("prefetch: expected 1 or more or AUTOTUNE, got 0: the model waits while a batch is made")


@_check_repair.refuses("batch, which changes what is learnt and so must stay: expected 64, got 512")
def _bigger_batches(settings):
    return {**repair(settings), "batch": 512}


@_check_repair.refuses("cache: expected 'memory' or 'file', got None")
def _forgets_the_cache(settings):
    return {**repair(settings), "cache": None}


@_check_repair.refuses("num_parallel_calls: expected more than 1")
def _only_prefetches(settings):
    return {**settings, "prefetch": 100}
