"""Every setting builds and yields the same set of examples; damage, a reader's own data and nonsense."""

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bigtrain_nb import Pipeline, photo_crops, tf

COUNT, TESTS, SIZE, BATCH = 40, 10, 24, 16
AUTOTUNE = "AUTOTUNE"
SETTINGS = {
    "source": ["files"],
    "reads": [2, 3, 8, AUTOTUNE],
    "block_length": [4],
    "map_calls": [2, AUTOTUNE],
    "vectorize": [True],
    "cache": ["memory", "file"],
    "shuffle": [7, 1000],
    "seed": [None, 5],
    "batch": [1, 7, COUNT],
    "prefetch": [1, 4, AUTOTUNE],
    "deterministic": [False],
    "threads": [1, 3],
    "rewrites": [False],
    "skip_damaged": [True],
}
ALONE = [{name: value} for name, values in SETTINGS.items() for value in values]


def combinations(number):
    rng = random.Random(0)
    return [
        {name: rng.choice(values) for name, values in SETTINGS.items() if rng.random() < 0.5} for _ in range(number)
    ]


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    return photo_crops(COUNT, TESTS, size=48, shards=3, cache=tmp_path_factory.mktemp("cache"))


def pipeline(data, **settings):
    return Pipeline(data=data, **{"image_size": SIZE, "batch": BATCH, **settings})


def examples(dataset):
    """Return [(label, the image's bytes)], one for each example, in order."""
    found = []
    for images, labels in dataset:
        assert images.shape == (len(labels), SIZE, SIZE, 3)
        assert images.dtype == tf.float32 and labels.dtype == tf.int64
        pixels = np.rint((images.numpy() + 1) * 127.5).astype(np.uint8)
        found += [(int(label), image.tobytes()) for label, image in zip(labels, pixels, strict=True)]
    return found


@pytest.fixture(scope="module")
def plain(crops):
    return examples(pipeline(crops).dataset())


def sizes(dataset):
    return [len(labels) for _, labels in dataset]


def lines(path, *parts):
    path.write_text("".join(f"{part}\n" for part in parts))
    return str(path)


def test_the_plain_pipeline_yields_the_data_in_order(crops, plain):
    assert len(set(plain)) == COUNT == pipeline(crops).examples
    assert [label for label, _ in plain] == crops.labels().tolist()
    values = np.concatenate([images for images, _ in pipeline(crops).dataset()])
    assert -1 <= values.min() < -0.5 and 0.5 < values.max() <= 1
    assert sizes(pipeline(crops).dataset()) == [16, 16, 8], "the last batch is shorter"


@pytest.mark.parametrize("settings", ALONE + combinations(16), ids=str)
def test_every_setting_yields_the_same_examples(crops, plain, settings):
    made = pipeline(crops, **settings)
    dataset = made.dataset()
    first, second = examples(dataset), examples(dataset)
    assert Counter(first) == Counter(second) == Counter(plain)
    whole, rest = divmod(COUNT, made.batch)
    expected = [made.batch] * whole + [rest] * (rest > 0)
    assert sizes(dataset) == expected or (not made.deterministic and sorted(sizes(dataset)) == sorted(expected))
    one_reader = made.reads == 1 or made.source == "files"
    if made.deterministic and one_reader and not made.shuffle:
        assert first == second == plain
    if made.shuffle > COUNT:
        assert first != plain and first != second


def test_interleaved_reading_keeps_its_order_from_run_to_run(crops, plain):
    made = pipeline(crops, reads=3, map_calls=4)
    first = examples(made.dataset())
    assert first == examples(made.dataset()) != plain
    assert [plain.index(example) for example in first[:6]] == [0, 13, 26, 1, 14, 27], (
        "an example from each shard in turn"
    )


def test_the_seed_repeats_the_shuffle(crops):
    def start(seed):
        return examples(pipeline(crops, shuffle=COUNT, seed=seed).dataset())

    assert start(3) == start(3) != start(4)
    assert start(None) != start(None)


def test_vectorized_work_gives_equal_values(crops):
    one = [images.numpy() for images, _ in pipeline(crops).dataset()]
    many = [images.numpy() for images, _ in pipeline(crops, vectorize=True).dataset()]
    assert all(np.array_equal(a, b) for a, b in zip(one, many, strict=True))


def test_finish_sees_examples_or_batches(crops):
    ranks = []

    def finish(images, labels):
        ranks.append(images.shape.rank)
        return images, labels

    for vectorize in (False, True):
        images, _ = next(iter(pipeline(crops, finish=finish, vectorize=vectorize).dataset()))
        assert images.dtype == tf.uint8
    assert (ranks[0], ranks[-1]) == (3, 4)


def test_files_are_the_same_examples_as_shards(crops, plain):
    assert examples(pipeline(crops, source="files").dataset()) == plain
    assert pipeline(crops, source="files").files == crops.files and pipeline(crops).files == crops.shards


def test_the_test_split(crops, plain):
    made = pipeline(crops, split="test", batch=4)
    assert (made.files, made.examples) == (crops.test_shards, TESTS)
    found = examples(made.dataset())
    assert len(found) == TESTS and not set(found) & set(plain)
    assert examples(replace(made, source="files").dataset()) == found


def test_repeat_starts_again_for_ever(crops, plain):
    dataset = pipeline(crops, repeat=True).dataset()
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert sizes(dataset.take(7)) == [16, 16, 8, 16, 16, 8, 16]
    assert examples(dataset.take(6)) == plain * 2


def test_options_reach_the_dataset(crops):
    options = pipeline(crops, threads=3, deterministic=False, rewrites=False).dataset().options()
    assert options.threading.private_threadpool_size == 3 and options.deterministic is False
    assert options.experimental_optimization.apply_default_optimizations is False
    options = pipeline(crops).dataset().options()
    assert options.threading.private_threadpool_size is None and options.deterministic is True
    assert options.experimental_optimization.apply_default_optimizations is not False


def test_a_memory_cache_parses_once_and_finishes_again(crops):
    parsed, finished = [], []

    def parse(record):
        tf.py_function(lambda: parsed.append(1), [], [])
        return tf.strings.length(record)

    def finish(length):
        tf.py_function(lambda: finished.append(1), [], [])
        return length

    dataset = pipeline(crops, parse=parse, finish=finish, cache="memory").dataset()
    assert sum(map(len, dataset)) == sum(map(len, dataset)) == COUNT
    assert (len(parsed), len(finished)) == (COUNT, 2 * COUNT)


def test_a_cache_path_of_ones_own_stays(crops, plain, tmp_path):
    made = pipeline(crops, cache=tmp_path / "mine")
    assert examples(made.dataset()) == plain
    assert any(path.name.startswith("mine") for path in tmp_path.iterdir())
    assert examples(made.dataset()) == plain


def test_a_private_cache_file_is_removed_at_exit(crops, tmp_path):
    code = f"""
import sys
from bigtrain_nb import Pipeline
parse = lambda record: record
data = {list(crops.shards)!r}
for _ in Pipeline(data=data, parse=parse, finish=parse, cache="file").dataset(): pass
import pathlib
print(len([p for p in pathlib.Path({str(tmp_path)!r}).rglob("*") if p.is_file()]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2, "the cache was written there"
    assert list(tmp_path.iterdir()) == []


# A reader's own data


def test_own_texts(tmp_path):
    files = [lines(tmp_path / f"{i}.txt", i, i + 1, i + 2) for i in range(5)]
    made = Pipeline(data=files, source="files", parse=tf.io.read_file, finish=lambda text: text, batch=2)
    texts = [text for batch in made.dataset() for text in batch.numpy()]
    assert texts == [Path(file).read_bytes() for file in files] and made.examples is None


def test_own_records_as_dictionaries(tmp_path):
    path = tmp_path / "numbers.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(10):
            writer.write(str(number).encode())

    def parse(record):
        number = tf.strings.to_number(record, tf.int32)
        return {"number": number, "word": tf.strings.join(["n", record])}

    def finish(element):
        return {**element, "double": 2 * element["number"]}

    for vectorize in (False, True):
        made = Pipeline(
            data=[path],
            parse=parse,
            finish=finish,
            batch=4,
            vectorize=vectorize,
            cache="memory",
            shuffle=3,
            map_calls=2,
        )
        batches = list(made.dataset())
        assert [len(batch["word"]) for batch in batches] == [4, 4, 2], "a batch may be larger than what is left"
        doubles = sorted(int(n) for batch in batches for n in batch["double"])
        assert doubles == list(range(0, 20, 2))
        assert sorted(w for b in batches for w in b["word"].numpy()) == [b"n%d" % i for i in range(10)]


def test_own_data_smaller_than_a_batch_is_one_short_batch(crops):
    made = Pipeline(data=crops.shards, parse=unchanged, finish=unchanged, batch=1000)
    assert [len(batch) for batch in made.dataset()] == [COUNT]


def unchanged(element):
    return element


# Damage


def records(shard):
    return [record.numpy() for record in tf.data.TFRecordDataset(shard)]


def damaged(crops, tmp_path, change):
    """The crops with their second shard rewritten by ``change(path)``."""
    path = tmp_path / "damaged.tfrecord"
    path.write_bytes(Path(crops.shards[1]).read_bytes())
    change(path)
    return replace(crops, shards=(crops.shards[0], str(path), crops.shards[2]))


@pytest.fixture
def with_corrupt_jpeg(crops, tmp_path):
    def spoil(path):
        kept = records(str(path))
        example = tf.train.Example.FromString(kept[5])
        jpeg = example.features.feature["image"].bytes_list.value
        jpeg[0] = jpeg[0][:20] + b"\x00" * 100
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in [*kept[:5], example.SerializeToString(), *kept[6:]]:
                writer.write(record)

    return damaged(crops, tmp_path, spoil)


@pytest.mark.parametrize("settings", [{}, {"map_calls": 4, "reads": 2, "prefetch": 2}, {"rewrites": False}], ids=str)
def test_only_the_corrupt_image_is_left_out_if_the_reader_says_so(with_corrupt_jpeg, plain, settings):
    lost = plain[13 + 5]
    found = examples(pipeline(with_corrupt_jpeg, skip_damaged=True, **settings).dataset())
    assert Counter(found) == Counter(plain) - Counter([lost])


@pytest.mark.parametrize("settings", [{}, {"map_calls": 4, "reads": 2, "prefetch": 2}], ids=str)
def test_a_corrupt_image_raises_otherwise(with_corrupt_jpeg, settings):
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?i)jpeg|image"):
        examples(pipeline(with_corrupt_jpeg, **settings).dataset())


@pytest.mark.parametrize("settings", [{}, {"reads": AUTOTUNE, "map_calls": AUTOTUNE}], ids=str)
def test_a_truncated_shard_raises(crops, tmp_path, settings):
    cut = damaged(crops, tmp_path, lambda path: os.truncate(path, path.stat().st_size // 2))
    with pytest.raises(tf.errors.DataLossError):
        examples(pipeline(cut, **settings).dataset())
    with pytest.raises(ValueError, match=r"damaged\.tfrecord: record \d+ .*cut off or damaged"):
        cut.verify()


def test_a_truncated_shard_ends_a_pipeline_that_skips(crops, plain, tmp_path):
    cut = damaged(crops, tmp_path, lambda path: os.truncate(path, path.stat().st_size // 2))
    found = examples(pipeline(cut, skip_damaged=True).dataset().take(100))
    assert set(plain[:13] + plain[26:]) <= set(found) < set(plain)


def test_a_missing_shard_is_named(crops):
    gone = replace(crops, shards=(crops.shards[0], "/nowhere/gone.tfrecord"))
    with pytest.raises(tf.errors.NotFoundError, match="gone.tfrecord"):
        examples(pipeline(gone).dataset())


# Nonsense


@pytest.mark.parametrize(
    "settings",
    [
        {name: value}
        for names, values in [
            (("batch", "image_size", "block_length", "threads", "map_calls", "reads"), (0, -1, 1.5, "many", True)),
            (("shuffle", "prefetch", "seed"), (-1, 0.5, "many", False)),
            (("batch", "image_size", "block_length", "shuffle", "reads", "map_calls", "prefetch"), (None,)),
            (("batch", "shuffle", "threads"), (AUTOTUNE,)),
            (("vectorize", "repeat", "deterministic", "rewrites", "skip_damaged"), (None, "no", 1)),
            (("cache",), (True, 5, "", b"memory")),
            (("split",), ("validation", None, ["train"])),
            (("source",), ("tar", None)),
            (("parse", "finish"), ("scale", 5)),
        ]
        for name in names
        for value in values
    ],
    ids=str,
)
def test_a_bad_setting_is_named_with_its_value(crops, settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError) as error:
        pipeline(crops, **settings)
    assert str(error.value).startswith(f"{name}={value!r} must be ")


def test_a_batch_larger_than_the_data_is_refused(crops):
    with pytest.raises(ValueError, match="batch=41 is larger than the data: at most 40 examples"):
        pipeline(crops, batch=41)
    with pytest.raises(ValueError, match="batch=11 is larger than the data: at most 10 examples"):
        pipeline(crops, batch=11, split="test")


@pytest.mark.parametrize("data", [None, 5, "one.tfrecord", b"one", Path("one.tfrecord"), (p for p in "ab"), {"a", "b"}])
def test_data_that_is_no_list_of_paths_is_refused(data):
    with pytest.raises(ValueError, match="data=.* must be an ImageData or a list of paths"):
        Pipeline(data=data, parse=unchanged)


def test_no_files_and_no_parse_are_refused(crops):
    with pytest.raises(ValueError, match="data holds no train shards: there is nothing to read"):
        Pipeline(data=[], parse=unchanged)
    with pytest.raises(ValueError, match="data holds no test files: there is nothing to read"):
        Pipeline(data=replace(crops, test_files=()), split="test", source="files", batch=1)
    with pytest.raises(ValueError, match="data of your own needs parse="):
        Pipeline(data=["some.tfrecord"])


def test_unknown_settings_and_changes_are_refused(crops):
    with pytest.raises(TypeError, match="shufle"):
        pipeline(crops, shufle=10)
    with pytest.raises(AttributeError):
        pipeline(crops).batch = 3
    with pytest.raises(ValueError, match="batch=0"):
        replace(pipeline(crops), batch=0)


def test_building_starts_no_python_threads(crops):
    before = threading.active_count()
    examples(pipeline(crops, reads=3, map_calls=4, prefetch=4).dataset())
    assert threading.active_count() == before
