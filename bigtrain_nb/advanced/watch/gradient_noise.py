"""Measure the gradient noise in steps of `Model`, for `bt.Meter(gradients=True)`; `Model` calls `GradientNoise`.

The squared norm of the gradient of b examples is |G|² + tr(Σ) / b on average, with G the true gradient and Σ the
covariance of one example's gradient. A step has a large gradient, of all B examples, and small ones, of its pieces: a
micro-batch on one replica, or on all. The two squares give unbiased estimates of tr(Σ) and |G|² (McCandlish et al.
2018, "An Empirical Model of Large-Batch Training", appendix A.1). Both are sums over weights, so sharded weights, which
have other pieces, are counted separately.
"""

from bigtrain_nb.advanced.parallel.shards import square_norms
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import is_shard, sum_over_replicas
from bigtrain_nb.train.batches import loss_reduction


class GradientNoise:
    """Sums over the steps since the last `restart`, float32 [5], on each replica.

    tr(Σ), |G|² and their number of steps; the norm of the applied gradient before clipping, and its number of steps.
    Nonfinite steps, which loss scaling skips, are excluded; steps with a single piece count only in the last two.
    """

    def __init__(self, model):
        self._model = model
        with model.distribute_strategy.scope():
            self._sums = tf.Variable(
                tf.zeros([5]),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    def restart(self):
        self._sums.assign(tf.zeros([5]))

    def sums(self):
        """Return the mean of the sums over this process's replicas, NumPy [5]."""
        own = self._model.distribute_strategy.experimental_local_results(self._sums)
        return sum(value.numpy() for value in own) / len(own)

    # In a step

    def micro_batch_squares(self, gradients, part, replicas):
        """Return a piece's weighted squares of unsharded and of sharded weights, then its counts in both: [4].

        Its ``gradients`` are already multiplied by its ``part``, and the results of all pieces are summed.
        A piece of b of B examples is the part b / B, which is the weight of its square: for n pieces of any sizes, the
        mean is |G|² + tr(Σ) n / B on average.
        """
        square, square_of_shards = self._sums_of(square_norms(gradients))
        part = part_of_shards = tf.cast(part, tf.float32)
        counted = 1
        if any(is_shard(self._model.trainable_variables[index]) for index in gradients):
            square_of_shards = sum_over_replicas(square_of_shards)
            part_of_shards = sum_over_replicas(tf.identity(part))  # their gradients are sums over the replicas
            counted = replicas  # equal on all replicas, and summed over them
        return tf.stack(
            [
                tf.math.divide_no_nan(square, part),
                tf.math.divide_no_nan(square_of_shards, part_of_shards) / counted,
                tf.cast(part > 0, tf.float32),
                tf.cast(part_of_shards > 0, tf.float32) / counted,
            ]
        )

    def add(self, pieces, step, share):
        """Count a step: the sums over this replica's pieces, and the global batch's step before clipping."""
        gradients = step["gradients"]
        pieces, examples = _of_all_replicas(pieces, share)
        small, count = tf.math.divide_no_nan(pieces[:2], step.get("left", 1.0)), pieces[2:]

        large = tf.stack(self._sums_of(square_norms(gradients, share.reduction.are_shards(gradients))))

        unscaled = tf.square(tf.cast(self._model.optimizer.scale_loss(tf.constant(1.0)), tf.float32))
        small, large = small / unscaled, large / unscaled
        covariance = tf.math.divide_no_nan((small - large) * examples, count - 1)
        true_square = large - covariance / examples
        is_finite = tf.reduce_all(tf.math.is_finite([small, large]))
        is_cut = is_finite & tf.reduce_all((count > 1) | (large == 0))
        estimates = [tf.reduce_sum(covariance), tf.reduce_sum(true_square), 1.0]
        norm = [tf.sqrt(tf.reduce_sum(large)), 1.0]
        counts = tf.stack([is_cut] * len(estimates) + [is_finite] * len(norm))
        self._sums.assign_add(tf.where(counts, tf.stack(estimates + norm), 0.0))

    def _sums_of(self, squares):
        """Return the sums of squared norms, {index: scalar}, of unsharded and of sharded weights."""
        weights = self._model.trainable_variables
        shards = [square for index, square in squares.items() if is_shard(weights[index])]
        whole = [square for index, square in squares.items() if not is_shard(weights[index])]
        return [tf.add_n(each) if each else tf.constant(0.0) for each in (whole, shards)]


def _of_all_replicas(pieces, share):
    """Return the pieces of the global batch, and its number of examples."""
    examples = tf.cast(share.examples, tf.float32)
    if share.reduction.replicas == 1:
        return pieces, examples
    if share.reduction.communicates_in_forward:  # a part is then one of the global batch
        return sum_over_replicas([pieces, examples])
    weighted = tf.math.multiply_no_nan(pieces[:2], share.weight)
    squares, count, examples, weight = sum_over_replicas([weighted, pieces[2:], examples, share.weight])
    return tf.concat([tf.math.divide_no_nan(squares, weight), count], axis=0), examples


def refuse_unmeasurable(model):
    """Raise ValueError for a model whose steps cannot measure gradient noise."""
    reduction = model.replica_reduction
    if loss_reduction(model.loss) == "sum":
        raise ValueError(
            'gradients=True needs losses that are means, but the reduction is "sum": use "sum_over_batch_size"'
        )
    if model.micro_batches * (1 if reduction.communicates_in_forward else reduction.replicas) > 1:
        return
    asked = type(reduction).asked_for(model)
    where = f"with {asked}, " if asked else ""
    raise ValueError(
        "gradients=True compares the gradient of a batch with those of its micro-batches, but"
        f" {where}micro_batches=1 does not split it: set model.micro_batches to 2 or more"
        f"{'' if reduction.communicates_in_forward else ', or train on several replicas'}"
    )
