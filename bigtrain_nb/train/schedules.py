"""Learning rates for large batches: warm-up and decay."""

from bigtrain_nb.common.checks import integer, positive
from bigtrain_nb.common.quiet import keras


def warmup_cosine(peak: float, warmup_steps: int, total_steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return a Keras learning rate schedule: linear warm-up to ``peak``, then cosine decay to 0.

    The learning rate of step t, from 0, is peak * (t + 1) / (warmup_steps + 1) while t < warmup_steps, so that the
    first step changes the weights too; peak at t = warmup_steps; 0 from t = total_steps on. The warm-up is from Goyal
    et al. 2017, the cosine from Loshchilov & Hutter 2017, "SGDR". Pass it as an optimizer's learning_rate.

    Raises ValueError for a peak that is not above 0 and unless 0 <= warmup_steps < total_steps.

    Example::

        rate = bt.warmup_cosine(0.4, warmup_steps=10, total_steps=100)
        optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        print(float(rate(10)), float(rate(100)))  # 0.4 and 0
    """
    peak = positive("peak", peak)
    total_steps = integer("total_steps", total_steps, 1)
    warmup_steps = integer("warmup_steps", warmup_steps, 0, total_steps - 1)
    if warmup_steps == 0:
        return keras.optimizers.schedules.CosineDecay(peak, total_steps)
    return keras.optimizers.schedules.CosineDecay(
        peak / (warmup_steps + 1), total_steps - warmup_steps, warmup_target=peak, warmup_steps=warmup_steps
    )
