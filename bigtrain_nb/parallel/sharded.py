"""An optimizer whose state is shared out: each replica keeps a part, updates its part of the weights, and gathers.

Stage 1 of ZeRO: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". There
the gradients are reduce-scattered, which together with the gathering sends as much as an all-reduce. Here they are
all-reduced, for clipping and loss scaling look at all of them; so a step sends one and a half times as much.

Stage 2 would keep only a part of the sum of gradients, too. That is a reduction after each micro-batch, for which all
replicas would need as many of them. Stage 3 would keep only a part of the weights, and gather those of each layer
before its forward and its backward pass.
"""

import math

from bigtrain_nb.common.keras_gaps import already_clipped, clip, decays
from bigtrain_nb.common.quiet import keras, tf

ELEMENTWISE = ("SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "Ftrl", "Lion")
"""The optimizers of Keras that treat each number of a weight by itself, so that any part of it can be updated alone."""

SECONDS_TO_SAVE = 120
"""So long a worker that saves waits for the others to save, too."""


def shard(optimizer):
    """Return a Keras optimizer with sharded state; a `LossScaleOptimizer` stays outermost.

    Raises ValueError for an optimizer that does not treat each number by itself.
    """
    if isinstance(optimizer, ShardedOptimizer):
        return optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = shard(optimizer.inner_optimizer)
        return optimizer
    if type(optimizer) not in [getattr(keras.optimizers, name) for name in ELEMENTWISE]:
        raise ValueError(
            f"shard_optimizer=True cannot cut the state of {type(optimizer).__name__} into parts: it is not known to"
            f" treat each number of a weight by itself. Use one of {', '.join(ELEMENTWISE)}, or shard_optimizer=False"
        )
    return ShardedOptimizer(optimizer)


@keras.saving.register_keras_serializable("bigtrain_nb")
class ShardedOptimizer(keras.optimizers.Optimizer):
    """Around ``inner_optimizer``, of whose state each of N replicas then keeps 1/N.

    Each replica also keeps a copy of its 1/N of the weights. It must be given gradients that are the same on all
    replicas.

    What it shows as its variables, and saves, is the whole state of ``inner_optimizer``, and its config gives an
    optimizer that is not sharded.
    """

    def __init__(self, inner_optimizer, name=None):
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        inner_optimizer.save_own_variables = _nothing  # it has parts: Keras is to save the whole only
        inner_optimizer.load_own_variables = _nothing
        self._parts = {}

    def build(self, variables):
        for variable in variables:
            if not tf.distribute.get_strategy().extended.variable_created_in_scope(variable.value):
                raise ValueError(
                    f"{variable.path} was made outside of the strategy's scope, and shard_optimizer=True needs a copy"
                    " of it on each replica: make the layers, too, inside `with strategy.scope():`"
                )
        for index, variable in enumerate(variables):
            self._parts[id(variable)] = Part(variable, f"part{index}_of_{variable.name}")
        parts = self._parts.values()
        undecayed = [part.weights for part in parts if not decays(self.inner_optimizer, part.variable)]
        self.inner_optimizer.exclude_from_weight_decay(var_list=undecayed)
        self.inner_optimizer.build([part.weights for part in parts])
        super().build(variables)

    def apply(self, grads, trainable_variables):
        if not self.built:
            self.build(trainable_variables)
        for variable in trainable_variables:
            if id(variable) not in self._parts:
                raise ValueError(f"{variable.path} became trainable after `compile`: compile the model again")
        parts = [self._parts[id(variable)] for variable in trainable_variables]

        # Clip by the norm of the whole, then take this replica's part
        own = []
        for part, gradient in zip(parts, clip(self.inner_optimizer, grads), strict=True):
            own.append(None if gradient is None else part.own(gradient))
        self._take_weights()

        # Update, as if the parts were all there is
        with already_clipped(self.inner_optimizer):
            self.inner_optimizer.apply(own, [part.weights for part in parts])

        self._gather_weights()

    def _take_weights(self):
        for part in self._parts.values():
            part.weights.assign(part.own(part.variable.value))

    def _gather_weights(self):
        parts = self._parts.values()
        kind = keras.backend.result_type(*[part.variable.dtype for part in parts])
        row = tf.concat([tf.cast(part.weights.value, kind) for part in parts], axis=0)
        rows = tf.distribute.get_replica_context().all_gather(row[None], axis=0)
        tables = tf.split(rows, [part.size for part in parts], axis=1)
        for part, table in zip(parts, tables, strict=True):
            value = part.whole(table)
            constraint = part.variable.constraint
            part.variable.assign(value if constraint is None else constraint(value))

    def finalize_variable_values(self, var_list):
        if not self.inner_optimizer.use_ema:
            return
        self.inner_optimizer.finalize_variable_values([part.weights for part in self._parts.values()])
        _run(tf.distribute.get_strategy(), self._gather_weights)

    @property
    def variables(self):
        """The variables that ``inner_optimizer`` would have if it were not sharded, in their order."""
        whole = []
        for variable in self.inner_optimizer.variables:
            part = [part for part in self._parts.values() if variable.name.startswith(part.prefix)]
            whole.append(WholeSlot(variable, part[0]) if part else variable)
        return whole

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def get_config(self):
        return {"inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Return the inner optimizer: the model's `compile` shards it, if the model is to be sharded here, too."""
        return keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects)


class Part:
    """The numbers of a variable that one replica has charge of: 1/N of them, in one row, ``size`` on every replica.

    ``weights`` is a copy of them. The last replica's row ends in zeros where N does not divide.
    """

    def __init__(self, variable, name):
        self.variable = variable
        self.strategy = tf.distribute.get_strategy()
        self._count = math.prod(variable.shape)
        self.size = -(-self._count // self.strategy.num_replicas_in_sync)
        self.weights = keras.Variable("zeros", shape=[self.size], dtype=variable.dtype, name=name)
        self.prefix = self.weights.path.replace("/", "_") + "_"  # of the names that Keras gives to its slots

    def own(self, tensor):
        """Return this replica's row of a tensor of the variable's shape."""
        start = tf.distribute.get_replica_context().replica_id_in_sync_group * self.size
        row = tf.reshape(tensor, [-1])[start : start + self.size]
        row = tf.pad(row, [[0, self.size - tf.size(row)]])
        return tf.ensure_shape(row, [self.size])

    def whole(self, table):
        """Return the variable's value, from the rows of all replicas."""
        value = tf.reshape(tf.reshape(table, [-1])[: self._count], self.variable.shape)
        return tf.cast(value, self.variable.dtype)


class WholeSlot:
    """All parts of one slot, as the variable that they would be without sharding: what is saved, and loaded.

    With several workers, all of them must read it: one that waits for the others in vain raises RuntimeError.
    """

    def __init__(self, slot, part):
        self.name = slot.name
        self.path = slot.path
        self.dtype = slot.dtype
        self.shape = part.variable.shape
        self._slot = slot
        self._part = part

    def numpy(self):
        strategy = self._part.strategy
        try:
            wholes = _run(strategy, self._gather)
        except tf.errors.DeadlineExceededError:
            raise RuntimeError(
                f"only some workers read or save the optimizer's state, for {SECONDS_TO_SAVE} s: its parts are on all"
                " of them. Let every worker call model.save, the chief with the path, the others with one to throw away"
            ) from None
        return strategy.experimental_local_results(wholes)[0].numpy()

    def assign(self, value):
        _run(self._part.strategy, self._cut, tf.convert_to_tensor(value, self.dtype))

    def _gather(self):
        row = tf.identity(self._slot.value)
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=SECONDS_TO_SAVE)
        table = tf.distribute.get_replica_context().all_gather(row[None], axis=0, options=options)
        return self._part.whole(table)

    def _cut(self, value):
        self._slot.assign(self._part.own(tf.ensure_shape(value, self.shape)))


def _run(strategy, function, *tensors):
    """Run a function on each replica, once, as a graph."""

    def on_each(*tensors):
        return strategy.run(function, tensors)

    graph = tf.function(on_each, autograph=False).get_concrete_function(*tensors)
    return graph(*tensors)


def _nothing(store):
    pass
