"""Two workers train each example once per epoch, in the batches of one device, or report why they cannot."""

import json
import re

import pytest
import shared_data
from launching import ON_CPUS, ended
from shared_data import BATCH, EXAMPLES, KINDS

import bigtrain_nb as bt

SECONDS = 600
IN_ONE_ORDER = {"in files", "shuffled by a seed", "arrays, seeded"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder, results = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("results")
    shared_data.write(folder)
    job = ended(bt.run_workers(shared_data.__file__, arguments=[folder, results], env=ON_CPUS, timeout=SECONDS))
    assert job.codes == [0, 0], "\n".join(job.logs(index)[-3000:] for index in range(2))
    return [json.loads((results / f"{index}.json").read_text(encoding="utf-8")) for index in range(2)]


@pytest.mark.parametrize("kind", sorted(IN_ONE_ORDER))
def test_each_example_is_trained_once_and_each_worker_has_half_of_each_batch(kind, found):
    first, second = (of_worker[kind] for of_worker in found)
    assert [len(part) for part in first] == [len(part) for part in second] == [BATCH // 2] * (EXAMPLES // BATCH)
    together = [sorted(one + other) for one, other in zip(first, second, strict=True)]
    assert sorted(sum(together, [])) == list(range(EXAMPLES))
    if kind == "in files":
        assert together == [list(range(start, start + BATCH)) for start in range(0, EXAMPLES, BATCH)]


def test_backups_of_all_workers_in_one_folder_are_refused_and_resume_named(found):
    for of_worker in found:
        assert "in several workers" in of_worker["one folder for all backups"]
        assert "bt.Resume" in of_worker["one folder for all backups"]


def test_backups_of_different_epochs_are_refused_by_all_workers_and_resume_named(found):
    for of_worker in found:
        assert re.search("would restore different steps: use bt.Resume", of_worker["backups of different epochs"])


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - IN_ONE_ORDER - {"what is ready first"}))
def test_workers_with_orders_of_their_own_raise_and_name_the_seed(kind, found):
    why = "shuffles without a seed" if kind == "shuffled" else "read 2 different first batches"
    for of_worker in found:
        assert why in of_worker[kind], of_worker[kind]
        assert "dataset.shuffle(n, seed=1)" in of_worker[kind] and "set_random_seed(1)" in of_worker[kind]


def test_workers_that_are_handed_what_is_ready_first_raise_and_name_the_setting(found):
    for of_worker in found:
        assert "deterministic=False and yields elements in nondeterministic order" in of_worker["what is ready first"]
