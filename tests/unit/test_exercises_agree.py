"""TensorFlow, Keras and the package agree with the exercises' solutions."""

import json
import math

import pytest
from logical_cpus import mirrored
from workbook.exercises import all_of_it, half_the_bits, many_workers, mirror_it

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.launch.cluster_spec import cluster_spec


def test_tensorflow_cuts_batches_as_the_solution_says():
    strategy = mirrored(3)
    for batch in (1, 4, 7, 64):
        dataset = tf.data.Dataset.range(batch).batch(batch)
        (cut,) = strategy.experimental_distribute_dataset(dataset)
        sizes = [len(share) for share in strategy.experimental_local_results(cut)]
        assert sizes == mirror_it.shares(batch, 3)


def test_the_rate_rises_as_that_of_the_helper_does():
    schedule = bt.warmup_cosine(0.8, 9, 100)
    for step in range(10):
        assert mirror_it.rate_at(step, 256, 0.1, 32, 9) == pytest.approx(float(schedule(step)))


def test_the_config_is_one_that_a_worker_takes():
    config = many_workers.tf_config(["ann", "ben", "cid"], 2222, 2)
    found = cluster_spec({"TF_CONFIG": json.dumps(config)})
    assert found.rank == 2
    assert found.addresses == ["ann:2222", "ben:2222", "cid:2222"]


def test_dealing_batches_is_what_shard_does():
    files = [list(range(12)), list(range(12, 24))]
    for worker in range(2):
        shard = tf.data.Dataset.range(24).batch(3).shard(2, worker).unbatch()
        assert list(shard.as_numpy_iterator()) == many_workers.reads("DATA", files, 6, worker, 2)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_ring_takes_as_long_as_the_plan_says(workers):
    planned = bt.all_reduce_seconds(3e7, workers, 2e9, 1e-4)
    assert many_workers.ring_seconds(3e7, workers, 2e9, 1e-4) == pytest.approx(planned)


def test_updates_follow_keras():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 1024.0, dynamic_growth_steps=3)
    weight = keras.Variable(0.0)
    ours = 0.0
    scale, good = 1024.0, 0
    for scaled in [5.0, 6.0, math.inf, 1.0, 2.0, 3.0, math.nan, 4.0]:
        optimizer.apply([tf.constant(scaled)], [weight])
        gradients, scale, good = half_the_bits.update([scaled], scale, good, 3)
        if gradients:
            ours -= gradients[0]
        assert scale == float(optimizer.dynamic_scale)
        assert good == int(optimizer.step_counter)
        assert float(weight) == pytest.approx(ours)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_tensors_have_the_dtypes_that_the_solution_says(policy):
    layer = keras.layers.Dense(2, dtype=policy)
    optimizer = keras.optimizers.AdamW()
    with tf.GradientTape() as tape:
        activation = layer(tf.ones([3, 4]))
        loss = keras.losses.MeanSquaredError()(tf.zeros([3, 2]), activation)
    gradient = tape.gradient(loss, layer.kernel)
    optimizer.build([layer.kernel])
    tensors = {
        "weight": layer.kernel,
        "activation": activation,
        "loss": loss,
        "gradient of a weight": gradient,
        "optimizer state": optimizer.variables[-1],
    }
    for name, tensor in tensors.items():
        assert keras.backend.standardize_dtype(tensor.dtype) == half_the_bits.dtype_of(policy, name), name


def test_the_days_are_those_of_the_plan_without_attention_and_waiting():
    model = bt.Transformer(32, 4096, 32, vocabulary=1, length=1)
    plan = bt.plan_cluster(model, 1024, devices=8, mfu=0.5)
    days = all_of_it.days(model.weights, plan.tokens, 8, plan.device.flops("mixed_bfloat16"), 0.5)
    assert 86_400 * days == pytest.approx(plan.time["computing"], rel=0.01)
