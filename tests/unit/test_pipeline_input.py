"""Pipelines over a reader's own data, and over damaged data."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_crops import AUTOTUNE, examples, pipeline

from bigtrain_nb import Pipeline, tf


@pytest.mark.parametrize("vectorize", [False, True])
def test_own_records_as_dictionaries(tmp_path, vectorize):
    path = tmp_path / "numbers.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(10):
            writer.write(str(number).encode())

    def parse(record):
        number = tf.strings.to_number(record, tf.int32)
        return {"number": number, "word": tf.strings.join(["n", record])}

    def finish(element):
        return {**element, "double": 2 * element["number"]}

    settings = {"vectorize": vectorize, "cache": "memory", "shuffle": 3, "num_parallel_calls": 2}
    batches = list(Pipeline(data=[path], parse=parse, finish=finish, batch=4, **settings).dataset())
    assert [len(batch["word"]) for batch in batches] == [4, 4, 2]
    doubles = sorted(int(number) for batch in batches for number in batch["double"])
    assert doubles == list(range(0, 20, 2))
    assert sorted(word for batch in batches for word in batch["word"].numpy()) == [b"n%d" % i for i in range(10)]


# Damage


def damaged(crops, tmp_path, change):
    """Return the crops with their second shard changed by ``change(path)``."""
    path = tmp_path / "damaged.tfrecord"
    path.write_bytes(Path(crops.shards[1]).read_bytes())
    change(path)
    return replace(crops, shards=(crops.shards[0], str(path), crops.shards[2]))


def spoil(path):
    """Replace the sixth image by a corrupt JPEG."""
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    example = tf.train.Example.FromString(records[5])
    jpeg = example.features.feature["image"].bytes_list.value
    jpeg[0] = jpeg[0][:20] + b"\x00" * 100
    records[5] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("settings", [{}, {"num_parallel_calls": 4, "cycle_length": 2, "prefetch": 2}], ids=str)
def test_a_corrupt_image_raises(crops, tmp_path, settings):
    data = damaged(crops, tmp_path, spoil)
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?i)jpeg|image"):
        examples(pipeline(data, **settings).dataset())


def test_a_truncated_shard_raises(crops, tmp_path):
    data = damaged(crops, tmp_path, cut)
    for settings in ({}, {"cycle_length": AUTOTUNE, "num_parallel_calls": AUTOTUNE}):
        with pytest.raises(tf.errors.DataLossError):
            examples(pipeline(data, **settings).dataset())


def test_a_missing_shard_is_named(crops):
    gone = replace(crops, shards=(crops.shards[0], "/nowhere/gone.tfrecord"))
    with pytest.raises(FileNotFoundError, match="/nowhere/gone.tfrecord: there is no such TFRecord file"):
        pipeline(gone).dataset()


@pytest.mark.parametrize(
    "example", [(tf.constant([300, 7]), tf.constant(7)), {"tokens": tf.constant([300, 7])}, tf.constant([0.5, 1.0])]
)
def test_what_a_parse_of_ones_own_makes_stays_as_it_is(tmp_path, example):
    path = str(tmp_path / "one")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(b"")
    (batch,) = Pipeline(data=[path], parse=lambda record: example, batch=1).dataset()
    tf.nest.map_structure(np.testing.assert_array_equal, batch, tf.nest.map_structure(lambda one: one[None], example))
