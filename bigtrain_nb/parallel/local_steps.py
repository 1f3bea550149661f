"""Replicas that train apart and meet now and then: with a slow link between them, few bytes are sent."""

from bigtrain_nb.common.keras_gaps import already_reduced, innermost, moving_statistics
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import mean_over_replicas, on_each_replica, several_workers
from bigtrain_nb.parallel.reduction import Mean

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


class LocalSteps(Mean, keras.callbacks.Callback):
    """Lets the replicas meet after every ``sync_every`` steps of an epoch, and at its end.

    With ``steps_per_execution`` they meet after the execution in which so many are done.

    This is DiLoCo: Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models". Since
    the last meeting each replica has moved its copy of the weights by itself. The mean of how far they have come is
    the gradient with which an outer optimizer, Nesterov momentum with the rate and momentum of the paper, moves the
    weights from which all then start again. `BatchNormalization`'s moving statistics become their mean.

    It is a reduction that reduces nothing in a step, and the callback that does so at a meeting: `Model.fit` puts it
    before the other callbacks, so that these find equal replicas. The outer optimizer is ``model.outer_optimizer``, and
    saved with the model.
    """

    def __init__(self, model):
        keras.callbacks.Callback.__init__(self)
        self.replicas = model.distribute_strategy.num_replicas_in_sync
        self.set_model(model)
        self._built_for = None  # an optimizer

    @classmethod
    def asked_for(cls, model):
        return f"sync_every={model.sync_every}" if model.sync_every else None

    def reduce(self, step, data):
        return {**step, "gradients": overflow_together(step["gradients"], self.model.optimizer)}

    def callbacks(self):
        return [self]

    def train_function(self):
        if innermost(self.model.optimizer).use_ema:
            raise ValueError(
                f"sync_every={self.model.sync_every} and use_ema=True do not go together: each replica would keep an"
                " average of its own weights. Leave out one of them"
            )
        if several_workers(self.model.distribute_strategy):
            return steps_without_logs(self.model)
        return None

    def before_files(self):
        if self.model.compiled and self.model.built:
            self.build()  # Keras saves or reads its state next

    def build(self):
        """Make the outer optimizer, unless it is there since `compile`."""
        model = self.model
        if self._built_for is model.optimizer:
            return
        self._built_for = model.optimizer
        self._weights = weights = model.trainable_variables
        with model.distribute_strategy.scope():
            self._starts = [keras.Variable(tf.zeros(weight.shape), dtype=weight.dtype) for weight in weights]
            for start, weight in zip(self._starts, weights, strict=True):
                start.constraint = weight.constraint  # which the outer step holds, too
            model.outer_optimizer = keras.optimizers.SGD(OUTER_RATE, OUTER_MOMENTUM, nesterov=True)
            model.outer_optimizer.build(self._starts)
        self._meet = on_each_replica(model.distribute_strategy, self._outer_step)

    def on_train_begin(self, logs=None):
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

        with already_reduced(self.model.outer_optimizer):
            self.model.outer_optimizer.apply_gradients(zip(means["gradients"], self._starts, strict=True))
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


def steps_without_logs(model):
    """Return what `fit` calls for one execution with several workers; Keras' own sums each step's logs over them."""

    @tf.function(reduce_retracing=True, autograph=False, jit_compile=model.jit_compile)
    def step(iterator):
        model.distribute_strategy.run(model.train_step, args=(next(iterator),))

    def execution(iterator):
        for _ in range(model.steps_per_execution):
            step(iterator)
        return {}

    return execution
