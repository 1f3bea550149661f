"""Variables of which each replica has a slice: seen, saved and loaded whole, and what a training step does about them.

A variable of a strategy is the same on all replicas only because its gradient is averaged over them. That of a slice is
not, so each replica keeps a value of its own. Such a variable has the attributes ``cut_axis`` and ``whole_shape``. If
the replicas do not divide a whole, the last slice ends in zeros. A slice with one axis may be of a whole with several.
"""

import math

from bigtrain_nb.common.keras_gaps import innermost
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import on_each_replica, sum_over_replicas

ELEMENTWISE = ("SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "Ftrl", "Lion")
"""The optimizers of Keras that treat each number of a weight by itself, so that any part of it can be updated alone."""

SECONDS_TO_GATHER = 120
"""So long a worker that reads or saves a variable waits for the others to do so, too."""


def is_slice(variable):
    return hasattr(variable, "cut_axis")


def is_cut(model):
    """Return whether replicas have slices of some of the model's weights."""
    return any(is_slice(variable) for variable in model.weights)


def mark_slice(variable, axis, whole_shape):
    variable.cut_axis = axis
    variable.whole_shape = tuple(whole_shape)


def mark_slots(optimizer, weight):
    """Mark what an optimizer keeps for a weight that is a slice."""
    prefix = weight.path.replace("/", "_") + "_"  # by which Keras names it
    for slot in optimizer.variables:
        if slot.name.startswith(prefix) and slot.shape == weight.shape:
            mark_slice(slot, weight.cut_axis, weight.whole_shape)


def own_slice(tensor, variable):
    """Return this replica's slice of a tensor that is as large as the whole of a variable."""
    context = tf.distribute.get_replica_context()
    shape = list(variable.shape)
    axis = variable.cut_axis
    if len(shape) == 1:
        tensor = tf.reshape(tensor, [-1])
    missing = shape[axis] * context.num_replicas_in_sync - tensor.shape[axis]
    if missing:
        tensor = tf.pad(tensor, [[0, missing if each == axis else 0] for each in range(len(shape))])
    begin = [0] * len(shape)
    begin[axis] = context.replica_id_in_sync_group * shape[axis]
    return tf.slice(tensor, begin, shape)


def whole(variable):
    """Return a variable; in place of a slice, what shows the slices of all replicas as one variable."""
    return Whole(variable) if is_slice(variable) else variable


class Whole:
    """The slices of all replicas as the variable that they would be if it were not cut: what is saved, and loaded.

    With several workers, all of them must read it: one that waits for the others in vain raises RuntimeError.
    """

    def __init__(self, variable):
        self.name = variable.name
        self.path = variable.path
        self.dtype = variable.dtype
        self.shape = variable.whole_shape
        self._variable = variable
        self._strategy = variable.value.distribute_strategy

    def numpy(self):
        try:
            joined = on_each_replica(self._strategy, self._gather)()[0].numpy()
        except tf.errors.DeadlineExceededError:
            raise RuntimeError(
                f"only some workers read or save {self.path}, for {SECONDS_TO_GATHER} s, and each has a part of it. Let"
                " every worker call model.save, the chief with the path, the others with one to throw away"
            ) from None
        return joined.ravel()[: math.prod(self.shape)].reshape(self.shape)

    def assign(self, value):
        on_each_replica(self._strategy, self._assign)(tf.convert_to_tensor(value, self.dtype))

    def _gather(self):
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=SECONDS_TO_GATHER)
        own = tf.identity(self._variable.value)
        return tf.distribute.get_replica_context().all_gather(own, self._variable.cut_axis, options)

    def _assign(self, value):
        self._variable.assign(own_slice(tf.ensure_shape(value, self.shape), self._variable))


def save_whole(saveable, variables):
    """Let a layer or an optimizer write whole values of its ``variables`` to files, and cut what it reads."""

    def save_own_variables(store):
        for index, variable in enumerate(variables):
            store[str(index)] = whole(variable).numpy()

    def load_own_variables(store):
        for index, variable in enumerate(variables):
            whole(variable).assign(store[str(index)])

    saveable.save_own_variables = save_own_variables
    saveable.load_own_variables = load_own_variables


def save_slots_whole(model):
    """Let the optimizer of a model that is cut save the state of each weight whole too, and cut what it loads."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not is_cut(model):
        return
    for weight in filter(is_slice, model.trainable_variables):
        mark_slots(optimizer, weight)
    save_whole(optimizer, optimizer.variables)
    save_whole(innermost(optimizer), innermost(optimizer).variables)


def refuse_unless_elementwise(optimizer):
    if type(optimizer) not in [getattr(keras.optimizers, name) for name in ELEMENTWISE]:
        raise ValueError(
            f"{type(optimizer).__name__} is not known to treat each number of a weight by itself, so it cannot update a"
            f" part of one, as with shard_optimizer=True or in a model that is cut: use one of {', '.join(ELEMENTWISE)}"
        )


# A step of a model that is cut: each replica computes on the whole batch, and keeps the gradients of its slices


def whole_batch(data):
    """Return the global batch, from the replicas' shares of it: a structure of tensors, joined along the first axis."""
    context = tf.distribute.get_replica_context()

    def gather(value):
        return None if value is None else context.all_gather(tf.identity(value), axis=0)

    return keras.tree.map_structure(gather, data)


def own_share(outputs, data):
    """Return the rows of ``outputs``, of the global batch, that belong to ``data``, this replica's share of it."""
    context = tf.distribute.get_replica_context()
    rows = tf.shape(tf.nest.flatten(data)[0])[:1]
    rows_of_each = context.all_gather(rows, axis=0)
    start = tf.reduce_sum(rows_of_each[: context.replica_id_in_sync_group])
    end = start + rows[0]
    return tf.nest.map_structure(lambda output: output[start:end], outputs)


def finish_gradients(gradients, are_cut, optimizer):
    """Return gradients, of which replicas may have slices, clipped by the norms of the whole weights.

    They are {index: gradient}, and ``are_cut`` says of each whether it is of a slice. What is not finite on one replica
    is so on all, which then skip a step of loss scaling together. Keras clips again, by the norms of the slices, which
    are no larger.
    """
    refuse_unless_elementwise(innermost(optimizer))
    own = tf.stack([tf.reduce_sum(tf.square(tf.cast(gradient, tf.float32))) for gradient in gradients.values()])
    squares = tf.where(are_cut, sum_over_replicas(own), own)
    factors = tf.where(tf.math.is_finite(tf.reduce_sum(squares)), tf.ones_like(squares), float("nan"))

    limit, norms = innermost(optimizer).clipnorm, tf.sqrt(squares)
    if not limit:
        limit, norms = innermost(optimizer).global_clipnorm, tf.sqrt(tf.reduce_sum(squares))
    if limit:
        limit = optimizer.scale_loss(tf.constant(limit, tf.float32))  # as the gradients are scaled
        factors *= tf.minimum(1.0, tf.math.divide_no_nan(limit, norms))
    pairs = zip(gradients.items(), tf.unstack(factors), strict=True)
    return {index: gradient * tf.cast(factor, gradient.dtype) for (index, gradient), factor in pairs}
