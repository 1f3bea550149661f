"""Exercises of notebook 02, "Mirror it": five loops for two replicas, each with one fault in the notebook.

A loop trains ``model``, built on both replicas, for one epoch over ``examples`` in steps of 16 examples. The last loop
counts correct predictions instead.
"""

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.series.exercises._two_replicas import (
    data,
    expect_each_example_once,
    expect_weights_of_one_device,
    losses,
    net,
)
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

FAULTS_OF_E = (
    ((1 + 0.75 + 0.5) / 3, "All replicas' batches have equal weight, although the last ones have 3 and 2 examples."),
    ((1 + 0.75 + 0.4) / 3, "All batches have equal weight, although the last one has 5 examples."),
    ((2 + 1.5 + 1) / 3, "The accuracies of both replicas were summed: sum the correct answers instead."),
    (14 / 16, "The last batch is missing, in which 2 of 5 are correct."),
    (16, "That is the number of correct answers, not their fraction."),
)


def loop_a(strategy, model, optimizer, examples):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for batch in strategy.experimental_distribute_dataset(examples.batch(16)):
        strategy.run(one_replica, args=batch)


@exercise(
    loop_a,
    takes=(
        "a strategy; a model [batch, 4] -> [batch, 3] of its scope; an SGD of its scope; 64 unbatched examples (x, y)"
    ),
    returns="nothing; the model is trained for an epoch of 4 steps",
    minutes=5,
    difficulty=2,
)
def _check_loop_a(answer):
    """How many examples does each replica get per step, and how many steps does the epoch have? It should have four."""
    expect_weights_of_one_device(answer)


def loop_b(strategy, model, optimizer, examples):
    @tf.function
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
            loss = tf.reduce_sum(losses) / 16
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for batch in strategy.experimental_distribute_dataset(examples.batch(16)):
        strategy.run(one_replica, args=batch)


@exercise(loop_b, takes="as loop_a", returns="as loop_a", minutes=6, difficulty=3)
def _check_loop_b(answer):
    """What divides this loss, and by what? A Keras loss object knows the strategy. Does TensorFlow's `reduce_mean`?"""
    expect_weights_of_one_device(answer)


def loop_c(strategy, model, optimizer, examples):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            penalty = sum(model.losses) / strategy.num_replicas_in_sync
            loss = loss_of(y, model(x, training=True)) + penalty
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for batch in strategy.experimental_distribute_dataset(examples.batch(16)):
        strategy.run(one_replica, args=batch)


@exercise(
    loop_c, takes="as loop_a", returns="as loop_a, with the penalty `model.losses` in the loss", minutes=6, difficulty=3
)
def _check_loop_c(answer):
    """The loss has two terms. Which of them depends on a replica's examples, and which does not? Sum the contributions
    of both replicas, term by term."""
    expect_weights_of_one_device(answer, penalty_times=1)


def loop_d(strategy, model, optimizer, examples):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
            variable.assign_sub(optimizer.learning_rate * gradient)

    for batch in strategy.experimental_distribute_dataset(examples.batch(16)):
        strategy.run(one_replica, args=batch)


@exercise(loop_d, takes="as loop_a", returns="as loop_a", minutes=6, difficulty=3)
def _check_loop_d(answer):
    """Plain SGD needs no optimizer. But what else does `apply_gradients` do that this loop does not?"""
    expect_weights_of_one_device(answer)


def loop_e(strategy, model, examples):
    @tf.function
    def one_replica(x, y):
        hits = tf.cast(tf.argmax(model(x), axis=-1) == y, tf.float32)
        return tf.reduce_sum(hits), tf.cast(tf.shape(y)[0], tf.float32)

    right = 0.0
    seen = 0.0
    for batch in strategy.experimental_distribute_dataset(examples.batch(8)):
        hits, count = strategy.run(one_replica, args=batch)
        right += float(strategy.reduce("SUM", hits, axis=None))
        seen += float(strategy.reduce("SUM", count, axis=None))
    return right / seen


@exercise(
    loop_e,
    takes="a strategy; a model of its scope; unbatched examples (x, y)",
    returns="a number from 0 to 1",
    minutes=6,
    difficulty=3,
)
def _check_loop_e(answer):
    """21 examples in batches of 8: how many does each replica get, batch by batch? A mean of means is correct only if
    all of them are means over equally many examples. What can be summed without this condition?"""
    strategy = bt.mirrored(2)
    with strategy.scope():
        model = net()
    wrong = [8, 9, 16, 17, 18]  # by batches 8 of 8, 6 of 8 and 2 of 5 are right: none of 3 and 2 of 2
    got = _answer_for(answer, strategy, model, 21, wrong)
    what = "the fraction of correct answers, 16 of 21"
    for fault, words in FAULTS_OF_E:
        if got is not None and np.allclose(got, fault):
            raise Wrong(f"{what}: got {got:.3f}. {words}")
    expect(got, 16 / 21, what, rel=1e-5)
    expect_each_example_once(model, 21)

    got = _answer_for(answer, strategy, model, 13, wrong=[0, 3, 12])
    expect(got, 10 / 13, "the fraction of correct answers with 13 examples, 10 of 13", rel=1e-5)


def _answer_for(answer, strategy, model, examples, wrong):
    """Return an answer's result for this many examples; the model predicts all but the `wrong` ones correctly."""
    points, _ = data()
    points = points[:examples]
    chosen = np.argmax(model(points), axis=-1)
    labels = chosen.copy()
    labels[wrong] = (chosen[wrong] + 1) % 3
    model.get_layer("count").counts.clear()
    return answer(strategy, model, tf.data.Dataset.from_tensor_slices((points, labels)))


def _loop(loss_of, batch=16, is_distributed=True):
    """Return a loop with the per-replica loss `loss_of(model, x, y)`."""

    def loop(strategy, model, optimizer, examples):
        @tf.function
        def one_replica(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(model, x, y)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        batches = examples.batch(batch)
        for shares in strategy.experimental_distribute_dataset(batches) if is_distributed else batches:
            strategy.run(one_replica, args=shares)

    return loop


def _mean_of_share(model, x, y):
    return tf.reduce_mean(losses(model, x, y))


def _right_loss(model, x, y):
    return _mean_of_share(model, x, y) / 2


def _divided_twice(model, x, y):
    return _mean_of_share(model, x, y) / 4


def _sum_of_share(model, x, y):
    return 8 * _mean_of_share(model, x, y)


def _half_sum_of_share(model, x, y):
    return 4 * _mean_of_share(model, x, y)


def _with_whole_penalty(model, x, y):
    return _right_loss(model, x, y) + sum(model.losses)


def _with_penalty_and_loss_as_they_are(model, x, y):
    return _mean_of_share(model, x, y) + sum(model.losses) / 2


_check_loop_a.refuses("the weights of steps of 8 examples")(_loop(_right_loss, batch=8))
_check_loop_a.refuses("every replica does all the work")(_loop(_right_loss, is_distributed=False))
_check_loop_a.refuses("the weights of steps of 32 examples")(_loop(_right_loss, batch=32))
_check_loop_b.refuses("a loss that counts twice")(_loop(_mean_of_share))
_check_loop_b.refuses("a loss that counts half")(_loop(_divided_twice))
_check_loop_b.refuses("never divided by 16")(_loop(_sum_of_share))
_check_loop_b.refuses("divided by 2, not by 16")(_loop(_half_sum_of_share))
_check_loop_c.refuses("The penalty counts twice")(_loop(_with_whole_penalty))
_check_loop_c.refuses("The penalty is missing")(_loop(_right_loss))
_check_loop_c.refuses("a loss that counts twice")(_loop(_with_penalty_and_loss_as_they_are))


@_check_loop_d.refuses("expected equal weights on both replicas")
def _reduces_nothing(strategy, model, optimizer, examples):
    @tf.function
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            loss = _right_loss(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
            variable.assign_sub(optimizer.learning_rate * gradient)

    for batch in strategy.experimental_distribute_dataset(examples.batch(16)):
        strategy.run(one_replica, args=batch)


_check_loop_d.refuses("a loss that counts half")(_loop(_divided_twice))


@_check_loop_e.refuses("All replicas' batches have equal weight")
def _a_mean_of_all_means(strategy, model, examples):
    @tf.function
    def one_replica(x, y):
        return tf.reduce_mean(tf.cast(tf.argmax(model(x), axis=-1) == y, tf.float32))

    shares = []
    for batch in strategy.experimental_distribute_dataset(examples.batch(8)):
        shares.append(float(strategy.reduce("MEAN", strategy.run(one_replica, args=batch), axis=None)))
    return np.mean(shares)


@_check_loop_e.refuses("All batches have equal weight")
def _a_mean_of_batches(strategy, model, examples):
    shares = []
    for x, y in examples.batch(8):
        shares.append(np.mean(np.argmax(model(x), axis=-1) == y))
    return np.mean(shares)


@_check_loop_e.refuses("The accuracies of both replicas were summed")
def _a_sum_of_means(strategy, model, examples):
    return 2 * _a_mean_of_all_means(strategy, model, examples)


@_check_loop_e.refuses("The last batch is missing")
def _drops_the_last_batch(strategy, model, examples):
    return _a_mean_of_batches(strategy, model, examples.take(16))


@_check_loop_e.refuses("not their fraction")
def _only_counts(strategy, model, examples):
    return 21 * loop_e(strategy, model, examples)


@_check_loop_e.refuses("with 13 examples, 10 of 13: expected about 0.769231, got 0.47619")
def _knows_how_many(strategy, model, examples):
    return sum(float(np.argmax(model(x[None]), axis=-1)[0] == y) for x, y in examples) / 21
