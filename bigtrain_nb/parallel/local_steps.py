"""Replicas that train apart and meet now and then: with a slow link between them, few bytes are sent."""

from bigtrain_nb.common.keras_gaps import already_reduced, innermost, moving_statistics, same_weight_decay
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import mean_over_replicas, on_each_replica, several_workers
from bigtrain_nb.parallel.reduction import Mean


class LocalSteps(Mean, keras.callbacks.Callback):
    """Lets the replicas meet after every ``sync_every`` steps of an epoch, and at its end.

    With ``steps_per_execution`` they meet after the execution in which so many are done.

    Since the last meeting each replica has moved its copy of the weights by itself, on its own share of each batch. At
    a meeting all go on from the mean of the copies, each of which counts alike however many examples it has seen
    (Stich 2019, "Local SGD Converges Fast and Communicates Little"). With ``sync_every=1``, SGD without momentum and
    shares of one size this is ordinary training; with shares of unlike size it is not, for that weighs replicas by
    their examples. `BatchNormalization`'s moving statistics become their mean, too.

    With an ``outer_optimizer`` the mean of how far the copies have come is the gradient with which it moves the weights
    from which all started. ``keras.optimizers.SGD(0.7, 0.9, nesterov=True)`` is DiLoCo: Douillard et al. 2023, "DiLoCo:
    Distributed Low-Communication Training of Language Models", who chose it for 500 steps between meetings. Steady
    moves add up to rate / (1 - momentum), here 7, times their length. The best rate rises with the steps between
    meetings and with the number of replicas (Charles et al. 2025, arXiv 2503.09799).

    It is a reduction that reduces nothing in a step, and the callback that does so at a meeting: `Model.fit` puts it
    before the other callbacks, so that these find equal replicas. ``model.outer_optimizer`` becomes a copy of the one
    that was given, so that several models may be given one; it is saved with the model.
    """

    def __init__(self, model):
        keras.callbacks.Callback.__init__(self)
        self.replicas = model.distribute_strategy.num_replicas_in_sync
        self.set_model(model)
        self.reduces_logs = not several_workers(model.distribute_strategy)
        self._built_for = None  # the optimizer and the outer one

    @classmethod
    def asked_for(cls, model):
        return f"sync_every={model.sync_every}" if model.sync_every else None

    def reduce(self, step, data):
        return {**step, "gradients": overflow_together(step["gradients"], self.model.optimizer)}

    def callbacks(self):
        return [self]

    def before_files(self):
        if self.model.compiled and self.model.built:
            self.build()  # Keras saves or reads its state next

    def build(self):
        """Make what a meeting needs, unless it is there since `compile`, and for the same outer optimizer."""
        model = self.model
        if self._built_for == (model.optimizer, model.outer_optimizer):
            return
        self._weights = weights = model.trainable_variables
        with model.distribute_strategy.scope():
            self._starts = [keras.Variable(tf.zeros(w.shape), dtype=w.dtype, name=w.name) for w in weights]
            for start, weight in zip(self._starts, weights, strict=True):
                start.constraint = weight.constraint  # which the outer step holds, too
            if model.outer_optimizer is None:
                self._outer = keras.optimizers.SGD(1.0)  # goes to the mean itself
            else:
                self._outer = model.outer_optimizer = _without_state(model.outer_optimizer)
            self._outer.build(self._starts)
        self._built_for = model.optimizer, model.outer_optimizer
        self._meet = on_each_replica(model.distribute_strategy, self._outer_step)

    def on_train_begin(self, logs=None):
        if innermost(self.model.optimizer).use_ema:
            raise ValueError(
                f"sync_every={self.model.sync_every} and use_ema=True do not go together: each replica would keep an"
                " average of its own weights. Leave out one of them"
            )
        self.build()
        self._begins = True
        self._apart = False

    def on_epoch_begin(self, epoch, logs=None):
        if self._begins:
            self._start()  # after other callbacks may have set weights, as BackupAndRestore does when training begins
            self._begins = False
        self._steps = 0

    def _start(self):
        for start, weight in zip(self._starts, self._weights, strict=True):
            value = tf.identity(weight.value)  # the first replica's, if an earlier `fit` was interrupted
            start.assign(value)
            weight.assign(value)

    def on_train_batch_end(self, batch, logs=None):
        before = self._steps
        self._steps = batch + 1
        self._apart = True
        if self._steps // self.model.sync_every > before // self.model.sync_every:
            self._meet_if_apart()

    def on_test_begin(self, logs=None):
        self._meet_if_apart()

    def on_epoch_end(self, epoch, logs=None):
        self._meet_if_apart()

    def _meet_if_apart(self):
        if self._apart:
            self._meet()
            self._apart = False

    def _outer_step(self):
        """What each replica does when they meet."""
        moves = []
        for start, weight in zip(self._starts, self._weights, strict=True):
            moves.append(start.value - weight.value)  # a gradient points backwards
        statistics = moving_statistics(self.model)
        apart = {"gradients": moves, "statistics": [variable.value for variable in statistics]}
        means, _ = mean_over_replicas(apart, tf.constant(1.0), self.model.reduce_dtype)

        with already_reduced(self._outer):
            self._outer.apply(means["gradients"], self._starts)
        for weight, start in zip(self._weights, self._starts, strict=True):
            weight.assign(start.value)
        for variable, mean in zip(statistics, means["statistics"], strict=True):
            variable.assign(mean)


def overflow_together(gradients, optimizer):
    """Return gradients that are not finite if those of another replica of this process are not.

    Keras' loss scaling asks the first replica of a process only, and skips the step on all or on none.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return gradients
    own = tf.add_n([tf.reduce_sum(0.0 * gradient) for gradient in gradients.values()])  # 0 or NaN

    def add(strategy, values):
        return tf.add_n(strategy.experimental_local_results(values))

    of_all = tf.distribute.get_replica_context().merge_call(add, args=(own,))
    return {index: gradient + of_all for index, gradient in gradients.items()}


def checked_outer_optimizer(value):
    """Return what can be an ``outer_optimizer``; raise ValueError for what cannot."""
    is_optimizer = isinstance(value, keras.optimizers.Optimizer)
    if value is not None and (not is_optimizer or isinstance(value, keras.optimizers.LossScaleOptimizer)):
        raise ValueError(
            f"outer_optimizer={value!r} must be None, for the mean, or an optimizer of Keras that scales no loss, as"
            " keras.optimizers.SGD(0.7, 0.9, nesterov=True)"
        )
    for name in ("use_ema", "gradient_accumulation_steps", "loss_scale_factor"):
        if getattr(value, name, None):
            raise ValueError(
                f"outer_optimizer: {name}={getattr(value, name)!r} has no meaning for the few steps between the"
                " replicas: leave it out of this optimizer"
            )
    return value


def _without_state(optimizer):
    copied = type(optimizer).from_config(optimizer.get_config())
    same_weight_decay(copied, optimizer)
    return copied
