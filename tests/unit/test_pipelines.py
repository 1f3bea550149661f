"""Every setting builds and yields the same set of examples."""

import gc
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from small_crops import AUTOTUNE, COUNT, examples, pipeline, sizes

from bigtrain_nb import Pipeline, tf
from bigtrain_nb.advanced.shared.fit_data import passes

SETTINGS = {
    "source": ["files"],
    "cycle_length": [2, 8, AUTOTUNE],
    "num_parallel_calls": [2, AUTOTUNE],
    "vectorize": [True],
    "cache": ["memory", "file"],
    "shuffle": [7, 1000],
    "seed": [None],
    "batch": [1, 7, COUNT],
    "prefetch": [1, AUTOTUNE],
    "rewrites": [False],
}
ALONE = [{name: value} for name, values in SETTINGS.items() for value in values]


def combinations(number):
    """Yield random halves of the settings, with random values."""
    rng = random.Random(0)
    found = []
    for _ in range(number):
        names = [name for name in SETTINGS if rng.random() < 0.5]
        found.append({name: rng.choice(SETTINGS[name]) for name in names})
    return found


@pytest.mark.parametrize("settings", ALONE + combinations(5), ids=str)
def test_every_setting_yields_the_same_examples(crops, plain, settings):
    made = pipeline(crops, **settings)
    dataset = made.dataset()
    batches = list(dataset)
    first, second = examples(batches), examples(dataset)
    assert Counter(first) == Counter(second) == Counter(plain)
    whole, rest = divmod(COUNT, made.batch)
    expected = [made.batch] * whole + [rest] * (rest > 0)
    assert sizes(batches) == expected
    in_order = made.cycle_length == 1 or made.source == "files"
    if in_order and not made.shuffle:
        assert first == second == plain
    if made.shuffle > COUNT:
        assert first != plain and first != second


def test_the_seed_repeats_the_shuffle(crops):
    def start(seed):
        return examples(pipeline(crops, shuffle=COUNT, seed=seed).dataset())

    assert start(3) == start(3) != start(4)
    assert start(None) != start(None)


def test_repeat_starts_again_for_ever(crops, plain):
    dataset = pipeline(crops, repeat=True).dataset()
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert sizes(dataset.take(4)) == [16, 16, 8, 16]
    assert examples(dataset.take(6)) == plain * 2


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


@pytest.mark.parametrize("settings", [{}, {"vectorize": True}], ids=str)
def test_augmented_files_are_kept_in_a_cache_and_not_their_paths(crops, tmp_path, settings):
    copies = []
    for file in map(Path, crops.files):
        copies.append(tmp_path / file.parent.name / file.name)
        copies[-1].parent.mkdir(exist_ok=True)
        copies[-1].write_bytes(file.read_bytes())
    copied = replace(crops, files=tuple(map(str, copies)))
    settings = {"source": "files", "augment": True, **settings}
    made = pipeline(copied, cache="memory", **settings).dataset()
    assert examples(made) == examples(pipeline(copied, **settings).dataset())
    for copy in copies:
        copy.unlink()
    labels = [label for label, _ in examples(made)]
    assert labels == [crops.classes.index(copy.parent.name) for copy in copies]


def test_a_private_cache_file_is_removed_with_its_dataset_or_at_exit(crops, tmp_path):
    code = f"""
import gc, pathlib
from bigtrain_nb import Pipeline
same = lambda record: record
made = Pipeline(data={list(crops.shards)!r}, parse=same, finish=same, cache="file")
def files():
    gc.collect()
    return len(list(pathlib.Path({str(tmp_path)!r}).rglob("cache*")))
dataset = made.dataset().prefetch(1)
iterator = iter(dataset)
list(iterator)
print(files())
del dataset
print(files())
del iterator
print(files())
kept = made.dataset()
list(kept)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written, kept_by_an_iterator, removed = map(int, done.stdout.split())
    assert written == kept_by_an_iterator >= 2 and removed == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cache_path_of_ones_own_stays_and_is_not_read_with_other_settings_or_files(crops, plain, tmp_path):
    train = pipeline(crops, cache=tmp_path / "new" / "mine")
    assert examples(train.dataset()) == examples(train.dataset()) == plain
    assert any(path.name.startswith("mine") for path in (tmp_path / "new").iterdir())
    test = replace(train, split="test")
    assert examples(test.dataset()) == examples(pipeline(crops, split="test").dataset())
    assert examples(replace(train, cycle_length=3).dataset()) == examples(pipeline(crops, cycle_length=3).dataset())


def test_what_was_cached_of_files_that_were_written_anew_is_not_read(tmp_path):
    def written(word):
        with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
            writer.write(word)
        [batch] = made.dataset()
        return batch.numpy().tolist()

    paths = [str(tmp_path / "a.tfrecord")]
    made = Pipeline(data=paths, parse=tf.identity, finish=tf.identity, cache=tmp_path / "cached" / "mine")
    assert written(b"old") == [b"old"]
    assert written(b"newer") == [b"newer"]


@pytest.mark.parametrize(
    "parses",
    [
        [partial(tf.strings.substr, pos=0, len=length) for length in (1, 2)],
        [lambda record: tf.constant("w"), lambda record: tf.constant("wo")],
    ],
    ids=["partials", "lambdas"],
)
def test_what_another_parse_made_is_not_read(parses, tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(b"word")
    given = {"data": [str(tmp_path / "a.tfrecord")], "cache": tmp_path / "cached" / "mine"}
    made = [Pipeline(parse=parse, **given) for parse in parses]
    assert [batch.numpy()[0] for each in (*made, *made) for batch in each.dataset()] == [b"w", b"wo"] * 2


def test_a_private_cache_file_lives_as_long_as_what_reads_it(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(b"word")
    made = Pipeline(data=[str(tmp_path / "a.tfrecord")], parse=tf.identity, cache="file", shuffle=2)
    several = passes(made)
    gc.collect()
    assert [len(list(several())) for _ in range(2)] == [1, 1]
    assert len(list(tf.data.Dataset.range(2).flat_map(lambda _: made.dataset()))) == 2


def test_the_runtime_opens_few_of_many_shards_at_once(tmp_path):
    resource = pytest.importorskip("resource")
    paths = [tmp_path / f"{number}.tfrecord" for number in range(300)]
    for path in paths:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(20):
                writer.write(b"1")
    made = Pipeline(data=paths, parse=tf.identity, finish=tf.identity, cycle_length=AUTOTUNE)
    open_now = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 100
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 120, before[1]))
    try:
        assert sum(len(batch) for batch in made.dataset()) == 6000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
