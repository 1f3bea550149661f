"""Exercises of notebook 01, "Feed the model"."""

import itertools
import time

import numpy as np

from bigtrain_nb import tf
from bigtrain_nb.series.slow_store import BATCH, COUNT, NAIVE_SECONDS, Store, naive
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def prepare(dataset, parse, buffer):
    return dataset.map(parse).cache().shuffle(buffer)


SAME_ORDER = (
    ". Either a cache keeps it (what differs from epoch to epoch goes after the cache), or the shuffle is set to"
    " repeat its order"
)


@exercise(
    prepare,
    takes="a tf.data.Dataset; parse(element); the size of the shuffle's buffer",
    returns="a tf.data.Dataset",
    minutes=5,
    difficulty=2,
)
def _check_prepare(answer):
    """Put what is the same in every epoch before the cache, and what must differ after it."""
    parsed = []

    def parse(number):
        tf.py_function(lambda n: parsed.append(int(n)), [number], [])
        return number * 10

    dataset = answer(tf.data.Dataset.range(100), parse, 12)
    first = [int(number) for number in dataset]
    second = [int(number) for number in dataset]
    in_order = list(range(0, 1000, 10))
    if sorted(first) != in_order:
        raise Wrong(f"an epoch over 0 ... 99: expected 0, 10, ... 990 in some order, got {first[:5]}...")
    if first == in_order:
        raise Wrong("the first epoch: expected a shuffled order, got the order of the files")
    if first == second:
        raise Wrong(f"the second epoch: expected a new order, got the first one again{SAME_ORDER}")
    expect(len(parsed), 100, "calls of parse in two epochs over 100 examples")
    early = max(number // 10 - place for place, number in enumerate(first))
    if early > 11:
        raise Wrong(f"with buffer=12 an example can be at most 11 positions early, got one that is {early} early")
    if early < 9:  # by chance less than once in 10^10 with a buffer of 12
        raise Wrong("expected a shuffle buffer of 12, got a smaller one")


@_check_prepare.refuses("expected a new order, got the first one again")
def _freezes_the_order(dataset, parse, buffer):
    return dataset.map(parse).shuffle(buffer).cache()


@_check_prepare.refuses("or the shuffle is set to repeat its order")
def _shuffles_once(dataset, parse, buffer):
    return dataset.map(parse).cache().shuffle(buffer, reshuffle_each_iteration=False)


@_check_prepare.refuses("calls of parse in two epochs over 100 examples: expected 100, got 200")
def _parses_again(dataset, parse, buffer):
    return dataset.map(parse).shuffle(buffer)


@_check_prepare.refuses("calls of parse in two epochs over 100 examples: expected 100, got 200")
def _caches_too_early(dataset, parse, buffer):
    return dataset.cache().shuffle(buffer).map(parse)


@_check_prepare.refuses("with buffer=12 an example can be at most 11 positions early, got one that is")
def _takes_a_buffer_of_its_own(dataset, parse, buffer):
    return dataset.map(parse).cache().shuffle(1000)


@_check_prepare.refuses("expected a shuffle buffer of 12, got a smaller one")
def _takes_half_the_buffer(dataset, parse, buffer):
    return dataset.map(parse).cache().shuffle(buffer // 2)


def random_crop(image, size, seed, epoch, place):
    chance = np.random.default_rng([seed, epoch, place])
    height, width = image.shape[:2]
    top = chance.integers(height - size + 1)
    left = chance.integers(width - size + 1)
    part = image[top : top + size, left : left + size]
    if chance.random() < 0.5:
        part = part[:, ::-1]
    return part


HEIGHT, WIDTH, SIZE = 9, 7, 5
PLACES = 200
FAR, FEW = (256, 500, 512, 1000, 1024, 4096, 10_000, 65_536, 100_000, 1_000_000), 40
"""Starts of distant ranges of ``FEW`` places: typical multipliers when seed, epoch and place are combined."""


@exercise(
    random_crop,
    takes=("an image [height, width, channels]; the side of the part; a seed; an epoch; a place, all integers"),
    returns="a part of the image [side, side, channels]",
    minutes=12,
    difficulty=3,
)
def _check_random_crop(answer):
    """Create a generator for this one image, from the three integers alone: `np.random.default_rng` accepts a list of
    them. If you add them up first, images with the same sum get the same crop. In how many rows can the crop's top left
    pixel be? Draw a separate number for each of the three decisions, or they are not independent."""
    image = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH, 1)  # each pixel's value is its position
    asked = [(seed, epoch, place) for seed in (3, 4) for epoch in range(3) for place in range(PLACES)]
    cuts = {key: _cut(answer(image, SIZE, *key)) for key in asked}
    for key in asked[::-3]:
        if _cut(answer(image, SIZE, *key)) != cuts[key]:
            raise Wrong(
                f"{_named(*key)}: expected the same crop on a second call, got a different one. The crop may depend on"
                " the seed, the epoch and the place, but not on earlier crops"
            )
    series = {}
    for (seed, epoch, _), cut in cuts.items():
        series.setdefault((seed, epoch), []).append(cut)
    _expect_chance(series)
    for first, second in itertools.combinations_with_replacement(series, 2):
        for shift in range(-PLACES + FEW, PLACES - FEW + 1):
            if first != second or shift > 0:
                _expect_different(first, series[first], second, series[second], shift)
    for far in FAR:
        later = [_cut(answer(image, SIZE, 3, 0, far + place)) for place in range(FEW)]
        for key, nearer in series.items():
            _expect_different(key, nearer[:FEW], (3, 0), later, 0, far)


def _named(seed, epoch, place):
    return f"seed {seed}, epoch {epoch}, place {place}"


def _cut(part):
    """Return a crop's top, left, and whether it is mirrored."""
    part = np.asarray(part)
    if part.shape != (SIZE, SIZE, 1):
        raise Wrong(
            f"a crop of {SIZE} x {SIZE} from an image with 1 channel: expected the shape (5, 5, 1), got {part.shape}"
        )
    top, left = divmod(int(part.min()), WIDTH)
    pixels = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH, 1)
    expected = pixels[top : top + SIZE, left : left + SIZE]
    for mirrored in (False, True):
        if np.array_equal(part, expected[:, ::-1] if mirrored else expected):
            return top, left, mirrored
    raise Wrong(
        f"expected {SIZE} adjacent rows and {SIZE} adjacent columns of the image, as they are or mirrored, got other"
        " pixels, or these in another order"
    )


def _expect_chance(series):
    """Raise `Wrong` unless all crop positions are equally likely in every epoch, and so is mirroring."""
    tops, lefts = HEIGHT - SIZE + 1, WIDTH - SIZE + 1
    for (seed, epoch), cuts in series.items():
        for what, index, values in (
            (f"crops that begin in row {{}} (rows 0 to {tops - 1} are equally likely)", 0, range(tops)),
            (f"crops that begin in column {{}} (columns 0 to {lefts - 1} are equally likely)", 1, range(lefts)),
            ("crops for which mirrored is {} (both are equally likely)", 2, (False, True)),
        ):
            for value in values:
                times = [cut[index] for cut in cuts].count(value)
                share = 1 / len(values)
                expected = PLACES * share
                if abs(times - expected) > 5 * np.sqrt(expected * (1 - share)):  # five standard deviations
                    raise Wrong(
                        f"{what.format(value)}: expected about {expected:.0f} among {PLACES} images (epoch {epoch},"
                        f" seed {seed}), got {times}"
                    )
    together = [cut for cuts in series.values() for cut in cuts]
    kinds = 2 * tops * lefts
    if len(set(together)) < kinds:
        raise Wrong(
            f"row, column and mirrored together: expected all {kinds} combinations among {len(together)} images, got"
            f" {len(set(together))}. Each distribution is correct, but the three are not independent"
        )


def _expect_different(first, cuts, second, others, shift, far=0):
    """Raise `Wrong` if one series of crops repeats another, `shift` places later; `far`: the start of the other."""
    start = max(0, -shift)
    cuts, others = cuts[start : len(cuts) - max(0, shift)], others[start + shift :]
    others = others[: len(cuts)]
    alike = sum(one == other for one, other in zip(cuts, others, strict=True))
    if alike > len(cuts) / 2:
        raise Wrong(
            f"{_named(*first, start)} and {_named(*second, start + shift + far)}: expected two independent crops, got"
            f" the same crop for {alike} of the next {len(cuts)} places"
        )


def _cropped(image, size, chance, rows_less=0):
    height, width = image.shape[:2]
    top = chance.integers(height - size + 1 - rows_less)
    left = chance.integers(width - size + 1)
    part = image[top : top + size, left : left + size]
    return part[:, ::-1] if chance.random() < 0.5 else part


_ONE_FOR_ALL = np.random.default_rng(0)


@_check_random_crop.refuses("expected the same crop on a second call, got a different one")
def _one_generator_for_all(image, size, seed, epoch, place):
    return _cropped(image, size, _ONE_FOR_ALL)


@_check_random_crop.refuses("seed 3, epoch 0, place 0 and seed 3, epoch 1, place 0: expected two independent crops")
def _forgets_the_epoch(image, size, seed, epoch, place):
    return _cropped(image, size, np.random.default_rng([seed, place]))


@_check_random_crop.refuses("seed 3, epoch 0, place 1 and seed 3, epoch 1, place 0: expected two independent crops")
def _adds_epoch_and_place(image, size, seed, epoch, place):
    return _cropped(image, size, np.random.default_rng([seed, epoch + place]))


@_check_random_crop.refuses("seed 3, epoch 1, place 0 and seed 4, epoch 0, place 0: expected two independent crops")
def _adds_seed_and_epoch(image, size, seed, epoch, place):
    return _cropped(image, size, np.random.default_rng([seed + epoch, place]))


@_check_random_crop.refuses("seed 3, epoch 0, place 10 and seed 3, epoch 1, place 0: expected two independent crops")
def _multiplies_the_epoch(image, size, seed, epoch, place):
    return _cropped(image, size, np.random.default_rng([seed, 10 * epoch + place]))


@_check_random_crop.refuses("seed 3, epoch 1, place 0 and seed 3, epoch 0, place 1000: expected two independent crops")
def _takes_a_thousand_places_for_all(image, size, seed, epoch, place):
    return _cropped(image, size, np.random.default_rng([seed, 1000 * epoch + place]))


@_check_random_crop.refuses("seed 3, epoch 0, place 0 and seed 3, epoch 0, place 100: expected two independent crops")
def _forgets_the_hundreds(image, size, seed, epoch, place):
    return _cropped(image, size, np.random.default_rng([seed, epoch, place % 100]))


@_check_random_crop.refuses(
    "crops that begin in row 4 (rows 0 to 4 are equally likely): expected about 40 among 200 images"
)
def _never_the_last_row(image, size, seed, epoch, place):
    return _cropped(image, size, np.random.default_rng([seed, epoch, place]), rows_less=1)


@_check_random_crop.refuses("Each distribution is correct, but the three are not independent")
def _one_number_for_all(image, size, seed, epoch, place):
    number = np.random.default_rng([seed, epoch, place]).random()
    top, left = int(5 * number), int(3 * number)
    part = image[top : top + size, left : left + size]
    return part[:, ::-1] if number < 0.5 else part


def pipeline(paths, open_shard, parse, augment, batch):
    shards = tf.data.Dataset.from_tensor_slices(paths)
    records = shards.interleave(open_shard, cycle_length=len(paths), num_parallel_calls=len(paths))
    examples = records.map(parse, num_parallel_calls=8).cache().shuffle(1000)
    return examples.map(augment, num_parallel_calls=2).batch(batch).prefetch(2)


TARGET = 3
MOVED = 10
"""In places. A buffer of b moves an example by about b; a full shuffle, by a third of their number, 45."""


def _epochs(build, store, count):
    """Return the batches and the seconds of each of ``count`` epochs."""
    dataset = build(store.paths, store.open_shard, store.parse, store.augment, BATCH)
    if not isinstance(dataset, tf.data.Dataset):
        raise Wrong(f"expected a tf.data.Dataset, got {dataset!r}")
    options = tf.data.Options()
    options.threading.private_threadpool_size = 16
    options.experimental_optimization.apply_default_optimizations = False
    dataset = dataset.take(2 * COUNT).with_options(options)
    found = []
    for _ in range(count):
        began = time.perf_counter()
        batches = list(dataset.as_numpy_iterator())
        found.append((batches, time.perf_counter() - began))
    return found


@exercise(
    pipeline,
    takes=("a list of paths; open_shard(path) -> dataset of records; parse(record); augment(example); the batch"),
    returns='a tf.data.Dataset of batches, dictionaries with "number", "label" and "pixels"',
    minutes=20,
    difficulty=4,
)
def _check_pipeline(answer):
    """Go through the steps in order. For each one ask: is its result the same in every epoch? Does it wait, and for
    what? Waiting needs threads but no cores, so more parallel calls than cores make sense here."""
    store = Store()
    (first, _), (second, _) = _epochs(answer, store, 2)
    _check_content(first)
    labels = set(first[0]["label"].tolist())
    if len(labels) < 4:
        raise Wrong(f"classes in the first batch: expected at least 4, got {len(labels)}; a shard holds one class")
    expect(store.parsing.calls, COUNT, f"calls of parse in two epochs over {COUNT} examples")
    if _numbers(first) == _numbers(second):
        raise Wrong(f"the order of the second epoch: expected a new one, got the first one again{SAME_ORDER}")
    if _groups(first) == _groups(second):
        raise Wrong(
            "the batches of the second epoch: expected newly mixed batches, got the same batches in another order"
        )
    moved = _moved(_numbers(first), _numbers(second))
    if moved < MOVED:
        raise Wrong(
            f"positions that an example moves from one epoch to the next: expected at least {MOVED} on average, got"
            f" {moved:.1f}. The buffer of the shuffle is too small"
        )
    if _pixels(first) == _pixels(second):
        raise Wrong("augmentation: expected other pixels in the second epoch, got those of the first, from a cache")
    for _ in range(3):
        speedup, store = _speedup(answer)
        waits_together = min(store.opening.most, store.parsing.most) >= TARGET  # true on a busy machine too
        if speedup >= TARGET or waits_together:
            return
        if speedup < 0.6 * TARGET:
            break  # too slow to blame a busy machine
    raise Wrong(
        f"the first epoch: expected at least {TARGET} times as fast as the naive one, got {speedup:.1f} times; "
        f"at most {_at_once(store.opening, 'shard')} opened and {_at_once(store.parsing, 'record')} parsed at once"
    )


def _speedup(answer):
    """Return the speedup of the first epoch over strictly sequential waiting, and the store that it read."""
    store = Store()
    ((_, seconds),) = _epochs(answer, store, 1)
    return NAIVE_SECONDS / seconds, store


def _check_content(batches):
    """Raise `Wrong` unless these batches of 16 contain each example once."""
    numbers = _numbers(batches)
    shapes = [batch["number"].shape for batch in batches]
    if (BATCH,) not in shapes:
        raise Wrong(f"expected batches of {BATCH} examples, got first batches of the shapes {shapes[:3]}")
    if sorted(numbers) != list(range(COUNT)):
        raise Wrong(
            f"an epoch: expected each of the {COUNT} examples once, got {len(numbers)} examples, "
            f"{len(set(numbers))} of them distinct"
        )


def _numbers(batches):
    numbers = []
    for batch in batches:
        numbers.extend(batch["number"].ravel().tolist())
    return numbers


def _groups(batches):
    return {frozenset(batch["number"].tolist()) for batch in batches}


def _moved(first, second):
    """Return how many places an example moves between two epochs, on average."""
    places = {number: place for place, number in enumerate(second)}
    return sum(abs(place - places[number]) for place, number in enumerate(first)) / len(first)


def _pixels(batches):
    found = {}
    for batch in batches:
        found.update(zip(batch["number"].tolist(), batch["pixels"].tolist(), strict=True))
    return found


def _at_once(slow, thing):
    return f"1 {thing} was" if slow.most == 1 else f"{slow.most} {thing}s were"


def _interleaved(paths, open_shard):
    shards = tf.data.Dataset.from_tensor_slices(paths)
    return shards.interleave(open_shard, cycle_length=8, num_parallel_calls=8)


@_check_pipeline.refuses("classes in the first batch: expected at least 4, got 1")
def _naive(paths, open_shard, parse, augment, batch):
    return naive(paths, open_shard, parse, augment, batch)


@_check_pipeline.refuses("at most 1 shard was opened and")
def _shuffles_but_opens_one_by_one(paths, open_shard, parse, augment, batch):
    records = tf.data.Dataset.from_tensor_slices(paths).flat_map(open_shard)
    return records.map(parse, num_parallel_calls=8).cache().shuffle(1000).map(augment).batch(batch)


@_check_pipeline.refuses("and 1 record was parsed at once")
def _parses_one_by_one(paths, open_shard, parse, augment, batch):
    return _interleaved(paths, open_shard).map(parse).cache().shuffle(1000).map(augment).batch(batch)


@_check_pipeline.refuses("augmentation: expected other pixels in the second epoch, got those of the first")
def _caches_after_the_augmentation(paths, open_shard, parse, augment, batch):
    examples = _interleaved(paths, open_shard).map(parse, num_parallel_calls=8).map(augment)
    return examples.cache().shuffle(1000).batch(batch)


@_check_pipeline.refuses("expected newly mixed batches, got the same batches in another order")
def _shuffles_after_the_batch(paths, open_shard, parse, augment, batch):
    examples = _interleaved(paths, open_shard).map(parse, num_parallel_calls=8)
    return examples.cache().map(augment).batch(batch).shuffle(1000)


@_check_pipeline.refuses("the order of the second epoch: expected a new one, got the first one again")
def _caches_after_the_shuffle(paths, open_shard, parse, augment, batch):
    examples = _interleaved(paths, open_shard).map(parse, num_parallel_calls=8)
    return examples.shuffle(1000).cache().map(augment).batch(batch)


@_check_pipeline.refuses("expected at least 10 on average, got 1.")
def _hardly_shuffles(paths, open_shard, parse, augment, batch):
    examples = _interleaved(paths, open_shard).map(parse, num_parallel_calls=8)
    return examples.cache().shuffle(2).map(augment).batch(batch)


@_check_pipeline.refuses("calls of parse in two epochs over 136 examples: expected 136, got 272")
def _caches_the_records(paths, open_shard, parse, augment, batch):
    records = _interleaved(paths, open_shard).cache()
    return records.shuffle(1000).map(parse, num_parallel_calls=8).map(augment).batch(batch)


@_check_pipeline.refuses("expected each of the 136 examples once, got 128 examples")
def _drops_the_last_batch(paths, open_shard, parse, augment, batch):
    examples = _interleaved(paths, open_shard).map(parse, num_parallel_calls=8)
    return examples.cache().shuffle(1000).map(augment).batch(batch, drop_remainder=True)
