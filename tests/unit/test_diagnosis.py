"""A stage that was made slow is named, wherever it stands and whoever built the dataset."""

import time

import pytest

from bigtrain_nb import Pipeline, diagnose, photo_crops, tf

SECONDS = 0.8
SLOW = 0.004


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    return photo_crops(64, 8, size=32, shards=4, cache=tmp_path_factory.mktemp("cache"))


def slowly(value):
    """The same value, after some milliseconds."""

    def wait(value):
        time.sleep(SLOW)
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


def found_in(crops, parse=quick_parse, finish=quick_finish, **settings):
    settings = {"batch": 8, "rewrites": False, "repeat": True, **settings}
    return diagnose(Pipeline(data=crops, parse=parse, finish=finish, **settings), seconds=SECONDS)


def assert_binds(found, name):
    """The slow stage binds, it takes about what was planted, and without it everything would be much faster."""
    assert found.binding.name.startswith(name), str(found)
    assert 0.7e6 * SLOW < found.binding.microseconds < 10e6 * SLOW
    assert 0.2 * found.rate < found.binding.rate < 10 * found.rate
    assert found.next_best > 3 * found.rate
    assert f"{found.binding.name} binds" in str(found)


@pytest.mark.parametrize(
    "settings",
    [{}, {"rewrites": True}, {"cycle_length": 2, "prefetch": 2}, {"repeat": False, "batch": 64}, {"vectorize": True}],
    ids=str,
)
def test_a_slow_parse_binds(crops, settings):
    assert_binds(found_in(crops, parse=slow_parse, **settings), "parse")


@pytest.mark.parametrize("settings", [{}, {"cache": "memory"}, {"cycle_length": 2, "prefetch": 2}], ids=str)
def test_a_slow_finish_binds(crops, settings):
    assert_binds(found_in(crops, finish=slow_finish, **settings), "finish")


def numbers(count=64):
    return tf.data.Dataset.range(count)


def test_a_slow_stage_of_a_foreign_dataset_binds():
    dataset = numbers(4).interleave(lambda i: numbers(50).map(slowly), cycle_length=2).batch(8)
    found = diagnose(dataset, seconds=SECONDS)
    assert found.binding.name.startswith("map"), str(found)
    others = [stage.microseconds for stage in found.stages if stage is not found.binding]
    assert found.binding.microseconds > 2 * max(others, default=0), str(found)
    assert found.next_best > 2 * found.rate


def test_autotune_tells_what_it_chose(crops):
    auto = "AUTOTUNE"
    found = found_in(crops, slow_parse, num_parallel_calls=auto, cycle_length=auto, prefetch=auto)
    assert {"parse, parallelism", "prefetch, buffer_size"} <= set(found.autotuned), found.autotuned
    assert all(value >= 0 for value in found.autotuned.values())
    assert "AUTOTUNE chose parse, parallelism = " in str(found)


def test_what_holds_no_batches_is_refused():
    empty = tf.data.Dataset.from_tensors(tf.zeros([0, 3]))
    for dataset in (numbers(), numbers(0).batch(8), empty):
        with pytest.raises(ValueError, match="the dataset yielded"):
            diagnose(dataset, seconds=0.2)
