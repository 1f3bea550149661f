"""Every setting builds and yields the same set of examples."""

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from small_crops import AUTOTUNE, COUNT, TESTS, examples, pipeline

from bigtrain_nb import tf

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


def sizes(dataset):
    return [len(labels) for _, labels in dataset]


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
    made = pipeline(crops, cache=tmp_path / "new" / "mine")
    assert examples(made.dataset()) == plain
    assert any(path.name.startswith("mine") for path in (tmp_path / "new").iterdir())
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
