"""A stage that was made slow is named, wherever it stands and whoever built the dataset."""

import time

import pytest

from bigtrain_nb import Pipeline, diagnose, photo_crops, tf

SECONDS = 1.0
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


def pipeline(crops, parse=quick_parse, finish=quick_finish, **settings):
    settings = {"batch": 8, "rewrites": False, "repeat": True, **settings}
    return Pipeline(data=crops, parse=parse, finish=finish, **settings)


def assert_binds(found, name):
    """The slow stage binds, it takes about what was planted, and without it everything would be much faster."""
    assert found.binding.name.startswith(name), str(found)
    assert 0.7e6 * SLOW < found.binding.microseconds < 10e6 * SLOW
    assert 0.2 * found.rate < found.binding.rate < 10 * found.rate
    assert found.next_best > 3 * found.rate
    assert f"{found.binding.name} binds" in str(found)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rewrites": True},
        {"reads": 2, "prefetch": 2},
        {"repeat": False},
        {"skip_damaged": True},
        {"vectorize": True},
    ],
    ids=str,
)
def test_a_slow_parse_binds(crops, settings):
    assert_binds(diagnose(pipeline(crops, parse=slow_parse, **settings), seconds=SECONDS), "parse")


@pytest.mark.parametrize("settings", [{}, {"cache": "memory"}, {"reads": 2, "prefetch": 2}], ids=str)
def test_a_slow_finish_binds(crops, settings):
    assert_binds(diagnose(pipeline(crops, finish=slow_finish, **settings), seconds=SECONDS), "finish")


def test_an_empty_finish_that_is_optimized_away_does_not_take_the_name_of_parse(crops):
    for rewrites in (False, True):
        found = diagnose(pipeline(crops, slow_parse, lambda length: length, rewrites=rewrites), seconds=SECONDS)
        assert found.binding.name.startswith("parse"), str(found)


def test_calls_at_once_share_the_work(crops):
    found = diagnose(pipeline(crops, parse=slow_parse, map_calls=4), seconds=SECONDS)
    assert found.binding.name == "parse" and found.binding.calls == 4
    assert found.binding.rate == pytest.approx(4e6 / found.binding.microseconds)


def numbers(count=64):
    return tf.data.Dataset.range(count)


def foreign_interleave():
    return numbers(4).interleave(lambda i: numbers(50).map(slowly), cycle_length=2).batch(8), "map"


def foreign_zip():
    pairs = tf.data.Dataset.zip((numbers().map(quick_finish), numbers().map(slowly)))
    return pairs.batch(8), "map"


def foreign_batched_map():
    return numbers().batch(2).map(lambda x: slowly(x)).prefetch(1), "map"


def foreign_generator():
    def generate():
        for number in range(50):
            time.sleep(5 * SLOW)  # the way out of Python takes milliseconds on a busy machine
            yield number

    spec = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(generate, output_signature=spec).map(quick_finish).batch(8), ""


@pytest.mark.parametrize("build", [foreign_interleave, foreign_zip, foreign_batched_map, foreign_generator])
def test_a_slow_stage_of_a_foreign_dataset_binds(build):
    dataset, name = build()
    found = diagnose(dataset, seconds=SECONDS)
    assert found.binding.name.startswith(name), str(found)
    others = [stage.microseconds for stage in found.stages if stage is not found.binding]
    assert found.binding.microseconds > 2 * max(others, default=0), str(found)
    assert found.next_best > 2 * found.rate


def test_autotune_tells_what_it_chose(crops):
    tuned = pipeline(crops, slow_parse, map_calls="AUTOTUNE", reads="AUTOTUNE", prefetch="AUTOTUNE")
    found = diagnose(tuned, seconds=SECONDS)
    assert {"parse, parallelism", "prefetch, buffer_size"} <= set(found.autotuned), found.autotuned
    assert all(value >= 0 for value in found.autotuned.values())
    assert "AUTOTUNE chose parse, parallelism = " in str(found)


def test_fixed_settings_leave_autotune_nothing_to_choose(crops):
    found = diagnose(pipeline(crops, map_calls=2, reads=2, prefetch=2), seconds=SECONDS)
    assert found.autotuned == {} and "AUTOTUNE" not in str(found)


def test_a_dataset_with_autotune_switched_off():
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = numbers().map(slowly).batch(8).with_options(options)
    assert_binds(diagnose(dataset, seconds=SECONDS), "map")
    assert dataset.options().autotune.enabled is False, "the reader's dataset is not changed"


def test_a_batch_that_takes_longer_than_the_time_is_waited_for():
    found = diagnose(numbers(200).map(slowly).batch(50), seconds=0.05)
    assert found.rate > 0 and found.binding.microseconds > 0.5e6 * SLOW


def test_short_passes_are_added_up(crops):
    found = diagnose(pipeline(crops, slow_parse, repeat=False, batch=64), seconds=SECONDS)
    assert found.binding.name == "parse" and found.rate > 0


def test_the_rates_agree_with_each_other(crops):
    found = diagnose(pipeline(crops), seconds=SECONDS)
    assert found.speedup_left == pytest.approx(max(1.0, found.ceiling / found.rate))
    assert [stage.name for stage in found.stages if stage.name in ("parse", "finish")] == ["parse", "finish"]
    assert all(stage.rate == pytest.approx(1e6 * stage.calls / stage.microseconds) for stage in found.stages)


def test_words_and_html(crops):
    found = diagnose(pipeline(crops, slow_parse), seconds=SECONDS)
    assert repr(found) == str(found) and f"{found.rate:,.0f} examples/s as it runs" in str(found)
    page = found._repr_html_()
    assert "<td>parse <b>binds</b></td>" in page and "µs per example" in page
    assert page.count("<tr>") == len(found.stages) + 1 and page.count("<b>binds</b>") == 1


def test_unbatched_elements_are_refused():
    with pytest.raises(ValueError, match="the dataset yielded .* without a leading dimension: batch it first"):
        diagnose(numbers(), seconds=0.2)


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="the dataset yielded no batch"):
        diagnose(numbers(0).batch(8), seconds=0.2)


def test_batches_of_no_examples_are_refused():
    with pytest.raises(ValueError, match="the dataset yielded a batch of 0 examples"):
        diagnose(tf.data.Dataset.from_tensors(tf.zeros([0, 3])), seconds=0.2)


@pytest.mark.parametrize("what", [[[1, 2]], None, 5, lambda: None])
def test_what_is_no_pipeline_is_refused(what):
    with pytest.raises(
        TypeError, match="diagnose takes a Pipeline or a tf.data.Dataset, not (list|NoneType|int|function)"
    ):
        diagnose(what)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "3", None])
def test_nonsensical_seconds_are_refused(seconds):
    with pytest.raises(ValueError, match="seconds=.* must be a positive, finite number of seconds"):
        diagnose(numbers().batch(8), seconds=seconds)


def test_an_error_in_the_pipeline_propagates():
    def fail(value):
        with tf.control_dependencies([tf.debugging.assert_less(value, tf.constant(20, tf.int64), "too large")]):
            return tf.identity(value)

    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        diagnose(numbers().map(fail).batch(8), seconds=0.5)
