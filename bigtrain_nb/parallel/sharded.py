"""An optimizer whose state is shared out: each replica keeps a part, updates its part of the weights, and gathers.

Stage 1 of ZeRO: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". The
gradients are reduce-scattered, which together with the gathering sends as much as an all-reduce. (On GPUs and in one
process `sum_own_row` all-reduces them, and a step sends one and a half times as much.) Clipping and the finite check of
loss scaling then need one number of each replica for each weight.

Stage 2 would keep only a part of the sum of gradients, too. That is a reduction after each micro-batch, for which all
replicas would need as many of them. Stage 3 would keep only a part of the weights, and gather those of each layer
before its forward and its backward pass.
"""

from bigtrain_nb.common.keras_gaps import decays
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import on_each_replica, sum_own_row
from bigtrain_nb.parallel.slices import mark_slice, mark_slots, own_slice, refuse_unless_elementwise, whole


def shard(optimizer):
    """Return a Keras optimizer with sharded state; a `LossScaleOptimizer` stays outermost.

    Raises ValueError for an optimizer that does not treat each number by itself.
    """
    if isinstance(optimizer, ShardedOptimizer):
        return optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = shard(optimizer.inner_optimizer)
        return optimizer
    refuse_unless_elementwise(optimizer)
    return ShardedOptimizer(optimizer)


def is_sharded(optimizer):
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return isinstance(optimizer, ShardedOptimizer)


def sum_own_slices(gradients):
    """Return this replica's slices of the sums of the replicas' gradients: reduce-scatter. {index: gradient}."""
    if not gradients:  # every layer is frozen
        return {}
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    tables = []  # [replicas, numbers in a slice]
    for gradient in gradients.values():
        numbers = tf.reshape(gradient, [-1])
        tables.append(tf.reshape(tf.pad(numbers, [[0, -numbers.shape[0] % replicas]]), [replicas, -1]))
    own = sum_own_row(tf.concat(tables, axis=1))
    slices = tf.split(own, [table.shape[1] for table in tables])
    return dict(zip(gradients, slices, strict=True))


@keras.saving.register_keras_serializable("bigtrain_nb")
class ShardedOptimizer(keras.optimizers.Optimizer):
    """Around ``inner_optimizer``, of whose state each of N replicas then keeps 1/N.

    It must be given each replica's slices of the gradients, clipped by the norms of the whole. Its variables, which it
    shows and saves, are the whole state of ``inner_optimizer``, and its config gives an optimizer that is not sharded.
    """

    def __init__(self, inner_optimizer, name=None):
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        inner_optimizer.save_own_variables = _nothing  # it has parts: Keras is to save the whole only
        inner_optimizer.load_own_variables = _nothing
        self._variables_and_parts = []

    def build(self, variables):
        for index, variable in enumerate(variables):
            part = _part_of(variable, f"part{index}_of_{variable.name}")
            self._variables_and_parts.append((variable, part))
        parts = self._parts(variables)
        undecayed = [part for variable, part in self._variables_and_parts if not decays(self.inner_optimizer, variable)]
        self.inner_optimizer.exclude_from_weight_decay(var_list=undecayed)
        self.inner_optimizer.build(parts)
        for part in parts:
            mark_slots(self.inner_optimizer, part)
        super().build(variables)

    def apply(self, grads, trainable_variables):
        if not self.built:
            self.build(trainable_variables)
        for variable, part in self._variables_and_parts:
            part.assign(own_slice(variable.value, part))
        self.inner_optimizer.apply(grads, self._parts(trainable_variables))  # as if the parts were all there is
        self._gather_weights()

    def _parts(self, variables):
        part_of = {id(variable): part for variable, part in self._variables_and_parts}
        for variable in variables:
            if id(variable) not in part_of:
                raise ValueError(f"{variable.path} became trainable after `compile`: compile the model again")
        return [part_of[id(variable)] for variable in variables]

    def _gather_weights(self):
        parts = [part for _, part in self._variables_and_parts]
        row = tf.concat([part.value for part in parts], axis=0)
        rows = tf.distribute.get_replica_context().all_gather(row[None], axis=0)
        tables = tf.split(rows, [part.shape[0] for part in parts], axis=1)
        for (variable, _), table in zip(self._variables_and_parts, tables, strict=True):
            numbers = tf.reshape(table, [-1])[: variable.value.shape.num_elements()]
            value = tf.reshape(numbers, variable.shape)
            variable.assign(variable.constraint(value) if variable.constraint else value)

    def finalize_variable_values(self, var_list):
        if self.inner_optimizer.use_ema:
            self.inner_optimizer.finalize_variable_values(self._parts(var_list))
            on_each_replica(tf.distribute.get_strategy(), self._gather_weights)()

    @property
    def variables(self):
        """The variables that ``inner_optimizer`` would have if it were not sharded, in their order."""
        return [whole(variable) for variable in self.inner_optimizer.variables]

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


def _part_of(variable, name):
    """Return a variable for the numbers of another that one replica has charge of: 1/N of them, in one row."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    size = -(-variable.value.shape.num_elements() // replicas)  # rounded up
    part = keras.Variable("zeros", shape=[size], dtype=variable.dtype, name=name)
    mark_slice(part, 0, variable.shape)
    return part


def _nothing(store):
    pass
