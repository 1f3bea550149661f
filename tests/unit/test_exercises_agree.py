"""TensorFlow, Keras and the package agree with the exercises' solutions."""

from logical_cpus import mirrored

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.series.exercises import all_of_it, ask_a_server, many_workers, mirror_it
from bigtrain_nb.series.worker_clock import staleness_of_updates


def test_tensorflow_cuts_batches_as_the_solution_says():
    strategy = mirrored(3)
    for batch in (1, 4, 7, 64):
        dataset = tf.data.Dataset.range(batch).batch(batch)
        (cut,) = strategy.experimental_distribute_dataset(dataset)
        sizes = [len(share) for share in strategy.experimental_local_results(cut)]
        assert sizes == mirror_it.shares(batch, 3)


def test_dealing_batches_is_what_shard_does():
    files = [list(range(12)), list(range(12, 24))]
    for worker in range(2):
        shard = tf.data.Dataset.range(24).batch(3).shard(2, worker).unbatch()
        assert list(shard.as_numpy_iterator()) == many_workers.reads("DATA", files, 6, worker, 2)


def test_the_unshared_state_is_that_of_the_plan_but_for_gradients_in_16_bits():
    model = bt.Transformer(32, 4096, 32)
    state = model.states().total - 2 * model.weights
    assert all_of_it.which_stage(model.weights, {8: state, 16: state}) == (0, 0)


def test_updates_on_the_clock_are_as_stale_as_the_solution_says():
    seconds = [1.0, 1.0, 2.5]
    found = staleness_of_updates(seconds, until=10.0)
    _, expected = ask_a_server.asynchronous(0.0, lambda worker, weights: 0.0, seconds, rate=0.1, steps=len(found))
    assert len(found) == 10 + 10 + 4 and found == expected
