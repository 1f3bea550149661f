"""A deliberately slow stage is found, wherever it is and however the dataset was built."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from small_crops import COUNT
from tiers import in_two_tiers

from bigtrain_nb import Pipeline, diagnose, tf
from bigtrain_nb.advanced.watch.diagnose import Diagnosis, Stage, _busy_cores, _pull, _StageTimes

SECONDS = 0.8
SLOW = 0.004


CALLS = []
"""(start, seconds) of each call of `slowly`: on a busy machine a sleep takes longer."""


def slowly(value):
    """Return the value after some milliseconds."""

    def wait(value):
        began = time.perf_counter()
        time.sleep(SLOW)
        CALLS.append((began, time.perf_counter() - began))
        return value

    slow = tf.py_function(wait, [value], value.dtype)
    slow.set_shape(value.shape)
    return slow


def slow_parse(record):
    return tf.strings.length(slowly(record))


def quick_parse(record):
    return tf.strings.length(record)


def slow_finish(length):
    return slowly(length) + 1


def quick_finish(length):
    return length + 1


@pytest.fixture
def measured(monkeypatch):
    """A list with the microseconds of `slowly` per measured example.

    Some examples were processed earlier and buffered, which matters if there are few.
    """
    found = []

    def pull(*arguments):
        began = time.perf_counter()
        examples = _pull(*arguments)
        found[:] = [1e6 * sum(took for start, took in CALLS if start >= began) / examples]
        return examples

    monkeypatch.setattr("bigtrain_nb.advanced.watch.diagnose._pull", pull)
    return found


def found_in(crops, parse=quick_parse, finish=quick_finish, **settings):
    settings = {"batch": 8, "rewrites": False, "repeat": True, **settings}
    return diagnose(Pipeline(data=crops, parse=parse, finish=finish, **settings), seconds=SECONDS)


def assert_is_the_bottleneck(found, name, measured):
    """Assert that the slow stage is the bottleneck, and takes about as long as its calls."""
    assert found.bottleneck.name.startswith(name), str(found)
    assert 0.5 * measured[0] < found.bottleneck.microseconds < 10 * measured[0]
    assert 0.2 * found.rate < found.bottleneck.rate < 10 * found.rate
    assert f"{found.bottleneck.name} is the bottleneck" in str(found)


OTHERS = pytest.mark.more("more places of a slow stage: the first tier has the hardest to tell of each kind")
AHEAD, PASSES = {"cycle_length": 2, "prefetch": 2}, {"repeat": False, "batch": COUNT}
OF_PARSE = in_two_tiers([{"rewrites": True}, AHEAD, PASSES, {"vectorize": True}], [AHEAD, PASSES], OTHERS)


@pytest.mark.parametrize("settings", OF_PARSE, ids=str)
def test_a_slow_parse_is_the_bottleneck(crops, settings, measured):
    found = found_in(crops, parse=slow_parse, **settings)
    assert_is_the_bottleneck(found, "parse", measured)
    adds_none = settings.get("repeat", True) or not {"ForeverRepeat", "Repeat"} & {stage.op for stage in found.stages}
    assert adds_none, str(found)


def test_a_slow_finish_behind_a_cache_is_the_bottleneck(crops, measured):
    assert_is_the_bottleneck(found_in(crops, finish=slow_finish, cache="memory"), "finish", measured)


def numbers():
    return tf.data.Dataset.range(64)


def test_autotune_tells_what_it_chose(crops):
    auto = "AUTOTUNE"
    found = found_in(crops, slow_parse, num_parallel_calls=auto, cycle_length=auto, prefetch=auto)
    assert {"parse, parallelism", "prefetch, buffer_size"} <= set(found.autotuned), found.autotuned
    assert all(value >= 0 for value in found.autotuned.values())
    assert "AUTOTUNE chose parse, parallelism = " in str(found)


def doubled(value):
    return 2 * value


def test_stages_are_numbered_as_the_pipeline_is_written_though_small_ones_are_not_shown():
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    dataset = numbers().map(doubled).map(doubled).map(slowly).batch(8).with_options(options)
    assert diagnose(dataset, seconds=SECONDS).bottleneck.name == "map 3"


def test_the_maps_of_a_pipeline_are_called_by_what_they_do(crops, monkeypatch):
    # On a busy machine a map's share may be tiny
    monkeypatch.setattr("bigtrain_nb.advanced.watch.diagnose._NEGLIGIBLE", 0)

    def maps(**settings):
        found = diagnose(Pipeline(data=crops, image_size=24, batch=8, rewrites=False, **settings), seconds=0.3)
        return [stage.name for stage in found.stages if stage.op == "Map"]

    assert maps() == maps(augment=True) == ["parse", "finish"]
    of_files = maps(source="files", cache="memory", augment=True)
    assert of_files[-2:] == ["parse", "finish"] and set(of_files) <= {"read", "parse", "finish"}


# Computed by hand


def node(name, inputs=(), nanoseconds=0, **parameters):
    """Return a node of TensorFlow's model. A parameter is (current value, planned value, tuned by AUTOTUNE)."""
    found = []
    for key, (state_value, value, tunable) in parameters.items():
        found.append(SimpleNamespace(name=key, state_value=state_value, value=value, tunable=tunable))
    return SimpleNamespace(name=name, inputs=inputs, processing_time=nanoseconds, parameters=found)


def sampled(monkeypatch, *models):
    """Return the stage times sampled from these models, each {node number: node}; 1 is the last stage."""
    times = _StageTimes()
    for nodes in models:
        model = SimpleNamespace(nodes=nodes, output=1)
        monkeypatch.setattr(tf.data.experimental, "get_model_proto", lambda iterator, model=model: model)
        times.sample(None)
    return times


def pipeline_at(first, second, source):
    return {
        1: node("Prefetch", [2], 0, buffer_size=(6, 9, True)),
        2: node("BatchV2", [3], second),
        3: node("ParallelMapV2", [4], first, parallelism=(4, 7, False)),
        4: node("Range", [], source),
    }


def test_stages_have_the_microseconds_the_calls_and_the_thread_that_the_model_says(monkeypatch):
    """Of 1,000,000 ns in total, the source's 1,999 are below 0.2 %, and its 2,000 are not."""
    models = pipeline_at(500_000, 98_001, 999), pipeline_at(900_000, 98_001, 1_999)
    stages, autotuned = sampled(monkeypatch, *models).stages(50, None, {})
    shown = [(stage.name, stage.microseconds, stage.calls) for stage in stages]
    assert shown == [("map", 18.0, 4), ("batch", pytest.approx(1.96002), 1), ("prefetch", 0.0, 1)]
    assert autotuned == {"prefetch, buffer_size": 6}
    of_map, batch, prefetch = stages
    assert of_map.rate == pytest.approx(4 / 18e-6) and len({stage.thread for stage in stages}) == 3
    stages, _ = sampled(monkeypatch, pipeline_at(900_000, 98_000, 2_000)).stages(50, None, {})
    assert (stages[0].name, stages[0].microseconds) == ("range", 0.04)


def test_calls_inside_an_interleave_run_once_for_each_of_its_own(monkeypatch):
    nodes = {
        1: node("ParallelInterleaveV4", [2, 4], 3_000, parallelism=(0, 3, True)),
        2: node("ParallelMapV2", [3], 6_000, parallelism=(2, 5, False)),
        3: node("Range", [], 1_000),
        4: node("ParallelMapV2", [5], 4_000, parallelism=(2, 5, False)),
        5: node("Range", [], 2_000),
    }
    stages, autotuned = sampled(monkeypatch, nodes).stages(2, None, {})
    assert [(stage.name, stage.microseconds, stage.calls) for stage in stages] == [
        ("range", 1.5, 3),
        ("map", 5.0, 6),
        ("interleave", 1.5, 3),
    ]
    assert autotuned == {"interleave, parallelism": 3}


def found_by_hand(rate=1000.0, ceiling=4000.0, cores=4, free=4.0, stages=2):
    """Return a diagnosis of a slow stage of 800 us, a fast one of 100 us in another thread, and an idle one."""
    both = Stage("map", "Map", 1, 800.0, ("a",)), Stage("batch", "Batch", 1, 100.0, ("b",))
    idle = Stage("prefetch", "Prefetch", 1, 0.0, ("c",))
    return Diagnosis(rate, (*both[:stages], idle), ceiling, {}, cores, free)


def test_the_words_have_the_numbers():
    assert found_by_hand().words() == [
        "map is the bottleneck: alone it reaches 1,250 examples/s (1 at once).",
        "4 cores running only this pipeline would reach 4,000 examples/s, including the work between stages.",
        "Up to 4.0x is possible by doing the same work on more cores.",
    ]
    said = str(found_by_hand())
    assert "map (bottleneck)" in said and "batch (bottleneck)" not in said
    assert found_by_hand(rate=3300).words()[-1].startswith("They are busy. To go faster, do less work per example")


def test_cores_that_other_programs_keep_busy_are_not_counted_as_left():
    words = found_by_hand(free=1.5).words()
    assert words[-2:] == [
        "Other programs keep 2.5 of them busy.",
        "Up to 1.5x is possible by doing the same work on more cores.",
    ]
    assert "They are busy" in found_by_hand(free=1.2).words()[-1]


def test_a_single_stage_that_takes_time_has_no_next_one_and_no_cache_is_spoken_of():
    said = str(found_by_hand(stages=1))
    assert "inf" not in said and "other stages" not in said and "cache" not in said


def test_the_cores_are_those_of_the_container(monkeypatch):
    monkeypatch.setattr("bigtrain_nb.advanced.watch.diagnose.core_limit", lambda: 0.5)
    found = diagnose(numbers().batch(8).map(slowly), seconds=0.3)
    assert found.cores == 0.5 and found.free_cores <= 0.5 and "0.5 cores running only this pipeline" in str(found)


def test_busy_cores_are_the_sum_over_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(
        "bigtrain_nb.advanced.watch.diagnose.psutil.cpu_percent", lambda percpu: [50.0, 100.0, 25.0, 100.0]
    )
    monkeypatch.setattr("bigtrain_nb.advanced.watch.diagnose.usable_cores", lambda: {0, 2})
    assert _busy_cores() == 0.75


def test_what_the_pipeline_computes_itself_is_not_taken_for_other_programs(monkeypatch):
    monkeypatch.setattr("bigtrain_nb.advanced.watch.diagnose._busy_cores", lambda: 0.05)  # less than this process uses
    data = tf.data.Dataset.range(100_000).map(lambda number: tf.linalg.norm(tf.random.normal([300, 300]))).batch(8)
    found = diagnose(data, seconds=0.3)
    assert found.free_cores == found.cores


def in_python(number):
    return tf.numpy_function(lambda value: np.float32(sum(range(3000)) + value), [number], tf.float32)


def from_python():
    def examples():
        for number in range(100_000):
            yield np.float32(sum(range(3000)) + number)

    return tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec((), tf.float32))


@pytest.mark.parametrize(
    ("make", "stage"),
    [(from_python, "generator"), (lambda: tf.data.Dataset.range(100_000).map(in_python, 2), "map")],
)
def test_stages_in_python_take_turns_and_are_not_promised_more_cores(make, stage):
    found = diagnose(make().prefetch(2).batch(16), seconds=0.5)
    (python,) = [one for one in found.stages if one.in_python]
    assert python.name == stage
    words = " ".join(found.words())
    assert f"{stage}: Python calls that compute run one at a time" in words and "with the tf.data service" in words
    one_core = 1e6 / python.microseconds  # calls are sequential, however many run in parallel
    assert found.ceiling <= 1.01 * max(found.rate, one_core)


def test_python_that_waits_overlaps_and_is_not_limited_to_one_call():
    def waits(number):
        time.sleep(0.1)
        return number

    data = tf.data.Dataset.range(100_000).map(lambda n: tf.numpy_function(waits, [n], tf.int64), 2)
    found = diagnose(data.map(lambda n: tf.ensure_shape(n, [])).batch(4), seconds=1.0)
    assert found.rate > 12 and not any(stage.in_python for stage in found.stages)
    assert "one at a time" not in " ".join(found.words())


def test_the_last_words_name_python_or_waiting_where_cores_are_not_the_limit():
    python = Stage("generator", "Generator", 1, 1500.0, ("a",), True), Stage("map", "ParallelMap", 2, 10.0, ("b",))
    assert Diagnosis(612, python, 637, {}, 64, 63.5).words()[-1].startswith("More cores would not help")
    storage = Stage("read TFRecord", "TFRecord", 1, 10_000.0, ("a",)), Stage("map", "ParallelMap", 16, 90.0, ("b",))
    assert Diagnosis(100, storage, 640_000, {}, 64, 63).words()[-1].startswith("read TFRecord mostly waits: make more")
    shared = (Stage("map", "ParallelMap", 8, 4000.0, ("a",)),)  # 1 ms of each call on 2 cores
    assert "They are busy" in Diagnosis(1900, shared, 2000, {}, 2, 2).words()[-1]


def test_without_autotuning_there_are_no_times():
    options = tf.data.Options()
    options.autotune.enabled = False
    with pytest.raises(ValueError, match="leave out options.autotune.enabled = False"):
        diagnose(tf.data.Dataset.range(100).batch(10).with_options(options), seconds=0.3)


def of_python_inside(number):
    return tf.data.Dataset.range(100_000).map(in_python)


def of_nothing_inside(number):
    return tf.data.Dataset.range(100_000).map(lambda number: number + 1)


def by_python(number):
    return tf.data.Dataset.range(100_000 + tf.cast(in_python(number), tf.int64))


def is_taken(number):
    return tf.numpy_function(lambda value: value >= 0, [number], tf.bool)


INSIDE = {
    "a map in an interleave": (lambda data: data.interleave(of_python_inside, 2, num_parallel_calls=2), ["map"]),
    "a map in a flat map": (lambda data: data.map(lambda n: n).flat_map(of_python_inside), ["map"]),
    "an interleave": (lambda data: data.interleave(by_python, 2), ["interleave"]),
    "a filter": (lambda data: data.flat_map(of_nothing_inside).filter(is_taken), ["filter"]),
    "a generator": (lambda data: data.interleave(lambda n: from_python(), 2), ["generator"]),
    "one of two maps": (lambda data: data.flat_map(of_nothing_inside).map(in_python), ["map 2", "map + batch"]),
    "none": (lambda data: data.interleave(of_nothing_inside, 2), []),
}


@pytest.mark.parametrize("where", in_two_tiers(INSIDE, ["a map in an interleave", "one of two maps", "none"], OTHERS))
def test_stages_in_python_are_found_where_they_stand_inside_another(where):
    make, stages = INSIDE[where]
    found = diagnose(make(tf.data.Dataset.range(100_000)).batch(8), seconds=0.3)
    in_turn = [one.name for one in found.stages if one.in_python]
    assert len(in_turn) == min(len(stages), 1) and set(in_turn) <= set(stages)


def test_a_first_pass_that_fills_a_cache_is_awaited_or_said_to_be_measured():
    def examples():
        return numbers().repeat(3).map(slowly).cache().map(doubled).batch(8)

    filled = diagnose(examples(), seconds=3)
    assert not filled.note and not filled.bottleneck.in_python, str(filled)
    assert diagnose(examples(), seconds=0.1).words()[-1].startswith("This is the first pass, which fills the cache")


def test_calls_of_a_map_are_at_most_its_threads_and_python_next_to_computing_maps_may_wait():
    def waits(value):
        time.sleep(0.04)
        return value

    def of_python(value):
        return tf.ensure_shape(tf.numpy_function(waits, [value], tf.int64), [])

    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    dataset = numbers().map(of_python, num_parallel_calls=16).batch(8).repeat()
    found = diagnose(dataset.with_options(options), seconds=1)
    assert max(stage.calls for stage in found.stages) == 2 and found.bottleneck.rate < 8 * found.rate, str(found)

    def computes(value):
        return tf.linalg.norm(tf.random.normal([600, 600]) @ tf.random.normal([600, 600]) + tf.cast(value, tf.float32))

    both = numbers().map(of_python).prefetch(8).map(computes).batch(8).repeat()
    assert not any(stage.in_python for stage in diagnose(both, seconds=2).stages)


def test_time_in_short_inner_datasets_is_said_to_be_missing():
    read = Stage("interleave", "ParallelInterleave", 1, 70.0, ("a",))
    assert "TensorFlow does not report short datasets in interleave" in str(Diagnosis(700, (read,), 1400, {}, 2, 2.0))
    assert "short datasets" not in str(Diagnosis(10_000, (read,), 14_000, {}, 2, 2.0))


def test_python_is_alone_at_least_as_fast_as_the_pipeline_that_has_it():
    python = Stage("map", "ParallelMap", 4, 4000.0, ("a",), in_python=True)
    assert "alone it reaches 1,000 examples/s (4 at once)" in str(Diagnosis(1000, (python,), 1000, {}, 2, 2.0))
