"""Pipelines over a reader's own data, over damage, and with nonsense for settings."""

import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from small_crops import AUTOTUNE, COUNT, examples, pipeline

from bigtrain_nb import Pipeline, tf


def sizes(dataset):
    return [len(labels) for _, labels in dataset]


def lines(path, *parts):
    path.write_text("".join(f"{part}\n" for part in parts))
    return str(path)


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


def test_a_truncated_shard_ends_a_pipeline_that_skips(crops, plain, tmp_path):
    cut = damaged(crops, tmp_path, lambda path: os.truncate(path, path.stat().st_size // 2))
    found = examples(pipeline(cut, skip_damaged=True).dataset().take(100))
    assert set(plain[:13] + plain[26:]) <= set(found) < set(plain)


@pytest.mark.parametrize("settings", [{}, {"skip_damaged": True}, {"reads": 2}], ids=str)
def test_a_missing_shard_is_named(crops, settings):
    gone = replace(crops, shards=(crops.shards[0], "/nowhere/gone.tfrecord"))
    with pytest.raises(FileNotFoundError, match="/nowhere/gone.tfrecord: there is no such TFRecord file"):
        pipeline(gone, **settings).dataset()


def test_a_cache_whose_folder_cannot_be_made_is_named(crops, tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "mine")
    with pytest.raises(OSError, match=f"cache='{path}': its folder cannot be made: .*file"):
        pipeline(crops, cache=path).dataset()


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
            (("map_calls", "threads"), (1025,)),
            (("shuffle", "map_calls", "threads"), (10**12,)),
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


@pytest.mark.parametrize("path", [5, None, ["b"]])
def test_what_is_no_path_among_ones_own_is_named(path):
    with pytest.raises(ValueError) as error:
        Pipeline(data=["a", path], parse=unchanged)
    assert str(error.value) == f"data[1]={path!r} must be a path"


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
