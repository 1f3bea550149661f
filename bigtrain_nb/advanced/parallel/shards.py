"""Variables of which each replica has a shard: shown, saved and loaded whole, and updated by optimizers that can do so.

A variable of a strategy is the same on all replicas only because its gradient is averaged over them. That of a shard is
not, so each replica keeps a value of its own. A shard is a Keras variable with one axis and one more attribute,
``unsharded_shape``: it is a part of the whole's numbers in a row. If the number of replicas does not divide these, the
last shard ends in zeros.
"""

import math
import os
import secrets
import tempfile
import zlib
from functools import partial

from bigtrain_nb.common.files import write_once
from bigtrain_nb.common.in_place import become, own_class
from bigtrain_nb.common.keras_compat import (
    UnmadeVariables,
    infers_shapes,
    innermost,
    is_undecayed_by_key,
    key_of,
    leave_undecayed,
    let_stand_for,
    own_weights_to_train,
    same_path,
    same_weight_decay,
    value_from,
)
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import (
    all_gather,
    gather_over_replicas,
    in_rows,
    on_each_replica,
    on_replicas,
    several_workers,
    sum_over_replicas,
    value_of_first,
)

ELEMENTWISE = ("SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "Ftrl", "Lion")
"""The optimizers of Keras that treat each number of a weight by itself, so that any part of it can be updated alone."""

SECONDS_TO_GATHER = 120
"""So long a worker that reads or saves a variable waits for the others to do so, too."""


def is_shard(variable):
    return hasattr(variable, "unsharded_shape")


def mark_shard(variable, unsharded_shape):
    variable.unsharded_shape = tuple(unsharded_shape)


def own_shard(tensor):
    """Return this replica's shard of a tensor that is as large as the whole of a variable."""
    context = tf.distribute.get_replica_context()
    return in_rows(tensor, context.num_replicas_in_sync)[context.replica_id_in_sync_group]


def unsharded(variable):
    """Return a variable; in place of a shard, what shows the shards of all replicas as one variable."""
    return Unsharded(variable) if is_shard(variable) else variable


class Unsharded:
    """The shards of all replicas as the one variable that they are together: what is shown, saved, and loaded.

    ``value`` is what each replica has of it. With several workers, all of them must read the whole: one that waits for
    the others in vain raises RuntimeError.
    """

    def __init__(self, variable):
        self.name = variable.name
        self.path = variable.path
        self.dtype = variable.dtype
        self.shape = variable.unsharded_shape
        self.value = variable.value
        self._variable = variable
        self._strategy = variable.value.distribute_strategy

    def numpy(self):
        try:
            joined = on_each_replica(self._strategy, self._gather)()[0].numpy()
        except tf.errors.DeadlineExceededError:
            raise RuntimeError(
                f"only some workers read or save {self.path}, for {SECONDS_TO_GATHER} s, and each has a shard of it:"
                " every worker must do so, as all call model.save with the same path"
            ) from None
        return joined.ravel()[: math.prod(self.shape)].reshape(self.shape)

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype or self.dtype)  # which the legacy HDF5 format asks for

    def assign(self, value):
        on_each_replica(self._strategy, self._assign)(tf.convert_to_tensor(value, self.dtype))

    def _gather(self):
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=SECONDS_TO_GATHER)
        own = tf.identity(self._variable.value)
        return gather_over_replicas(own, 0, options)

    def _assign(self, value):
        self._variable.assign(own_shard(tf.ensure_shape(value, self.shape)))


def show_whole_weights(layer):
    """Let a layer give whole weights in `get_weights`, and take them in `set_weights`."""
    layer.get_weights = partial(whole_weights, layer)
    layer.set_weights = partial(give_whole_weights, layer)


def whole_weights(layer):
    return [unsharded(variable).numpy() for variable in layer.weights]


def give_whole_weights(layer, weights):
    """Give each of the ``layer.weights`` a value; each replica takes its shard of those that are sharded."""
    wholes = [unsharded(variable) for variable in layer.weights]
    shapes = [tuple(whole.shape) for whole in wholes]
    if [tuple(value.shape) for value in weights] != shapes:
        raise ValueError(f"set_weights of {layer.name} takes arrays of these shapes: {shapes}")
    for whole, value in zip(wholes, weights, strict=True):
        whole.assign(value)


def save_together(strategy, path, save):
    """Call ``save(path)`` on all workers, for each must read the shards; the first given this path keeps the file.

    It is written beside ``path`` and then renamed. The others write into one that they throw away, and wait.

    Raises RuntimeError if only some workers call this, and on all if one could not save.
    """
    path = os.path.abspath(path)
    mine = [zlib.crc32(path.encode()), secrets.randbits(62)]
    try:
        of_all = all_gather(strategy, tf.identity, SECONDS_TO_GATHER)(tf.constant(mine, tf.int64)).tolist()
    except tf.errors.DeadlineExceededError:
        raise RuntimeError(
            f"only some workers save {path}, for {SECONDS_TO_GATHER} s, and each has shards of it: every worker must"
            " call save with the same path"
        ) from None
    first_of_this_path = next(one for one in of_all if one[0] == mine[0])
    problem = None
    try:
        if first_of_this_path == mine:
            write_once(path, save)
        else:
            with tempfile.TemporaryDirectory() as folder:
                save(os.path.join(folder, os.path.basename(path)))
    except OSError as error:
        problem = error
    saved = all_gather(strategy, tf.identity)(tf.constant(problem is None, tf.int32))
    if problem:
        raise problem
    if not saved.all():
        raise RuntimeError(f"another worker could not save {path}; its own error says why")


# Layers: shards stand for their weights


def build_sharded(build, shard):
    """Return the model that ``build()`` makes, some of whose weights are sharded before they are made.

    ``shard(model, unmade)`` does that. So no replica ever has one of these weights whole. They start as they would if
    the model was built first and sharded then, and with several workers as on the first one.
    """
    with tf.device("CPU"), UnmadeVariables() as unmade:
        model = build()
    if isinstance(model, keras.Model):
        shard(model, unmade)
    with tf.distribute.get_strategy().scope():
        unmade.make_rest()
    return model


def shard_weights(layer, unmade=None):
    """Let shards stand for the weights that a layer itself trains, in what it trains and what it saves.

    Who reads such a weight gets the whole of it, and on a replica a ValueError. The values are those that the weights
    have, or those of ``unmade`` variables. Returns pairs of a weight and its shard.
    """
    pairs = []
    for weight in own_weights_to_train(layer):
        shard = _shard_of(weight, unmade)
        value_from(weight, partial(_shown, weight, shard))
        pairs.append((weight, shard))
    let_stand_for(layer, pairs)
    if pairs:
        _save_whole(layer, pairs)
    return pairs


def freeze_as_weights(layer):
    """Freeze shards of weights that were frozen since they were sharded, as LoRA freezes a kernel of a layer."""
    attributes = [one for one in vars(layer).values() if isinstance(one, keras.Variable) and not is_shard(one)]
    frozen = {weight.path for weight in attributes if not weight.trainable}
    for shard in own_weights_to_train(layer):
        if is_shard(shard) and shard.path in frozen:
            shard.trainable = False


def refuse_to_shard(weights):
    """Raise ValueError for weights that are shards already, or are looked at as a whole."""
    for weight in weights:
        if is_shard(weight):
            raise ValueError(f"{weight.path} is sharded already: shard a layer in one way only")
        if weight.regularizer or weight.constraint:
            raise ValueError(
                f"{weight.path} has a regularizer or a constraint, which would see a shard where it needs the full"
                " weight: leave it out (the optimizer's weight_decay works), or do not shard this layer"
            )


def _shard_of(weight, unmade):
    """Return a variable for this replica's part of a weight, with its value."""
    strategy = tf.distribute.get_strategy()
    shape = [-(-math.prod(weight.shape) // strategy.num_replicas_in_sync)]  # rounded up
    kind = {"dtype": weight.dtype, "trainable": weight.trainable, "name": weight.name}
    shard = keras.Variable("zeros", shape=shape, autocast=False, **kind)  # the weight that it stands for is cast
    same_path(shard, weight)
    mark_shard(shard, weight.shape)
    weight.trainable = True  # until somebody freezes it, see `freeze_as_weights`
    if unmade is None:
        value = weight.value
        shard.key_of_weight = key_of(weight)
    else:
        with tf.device("CPU"):
            value = unmade.take(weight)
        if several_workers(strategy):
            value = value_of_first(strategy, value)
    Unsharded(shard).assign(value)
    return shard


def _shown(weight, shard, *_, **__):
    """Return the value that a sharded weight shows outside of replicas, where no layer gathers it."""
    if on_replicas():
        raise ValueError(
            f"{weight.path} is sharded over the replicas and only its own layer gathers it: shard the layer that reads"
            " it too, or neither of the two"
        )
    if infers_shapes():
        return tf.zeros(weight.shape, shard.dtype)
    strategy = shard.value.distribute_strategy
    if tf.executing_eagerly():
        return tf.convert_to_tensor(Unsharded(shard).numpy())
    if several_workers(strategy):
        raise ValueError(
            f"{weight.path} is sharded over the workers, so a function of one worker cannot read it: use fit, evaluate"
            " or predict, or save the model and load the file in one process"
        )
    parts = [tf.convert_to_tensor(part) for part in strategy.experimental_local_results(shard.value)]
    return tf.reshape(tf.concat(parts, 0)[: math.prod(weight.shape)], weight.shape)


def _save_whole(layer, pairs):
    """Let a layer save and load as ever, with whole weights in the place of shards."""
    save, load = layer.save_own_variables, layer.load_own_variables
    back = [(shard, weight) for weight, shard in pairs]

    def save_own_variables(store):
        let_stand_for(layer, back)
        try:
            save(store)
        finally:
            let_stand_for(layer, pairs)

    def load_own_variables(store):
        let_stand_for(layer, back)
        try:
            with keras.StatelessScope() as scope:
                load(store)
        finally:
            let_stand_for(layer, pairs)
        for weight, shard in pairs:
            Unsharded(shard).assign(scope.get_current_value(weight))

    layer.save_own_variables = save_own_variables
    layer.load_own_variables = load_own_variables


# Optimizers


class OptimizerOfShards:
    """What an optimizer becomes whose weights may be shards: its state is shown, saved and loaded whole."""

    def build(self, variables):
        keys = [(shard, getattr(shard, "key_of_weight", None)) for shard in variables]
        leave_undecayed(self, [shard for shard, key in keys if key and is_undecayed_by_key(self, key)])
        super().build(variables)

    def add_variable_from_reference(self, reference_variable, *args, **kwargs):
        slot = super().add_variable_from_reference(reference_variable, *args, **kwargs)
        if is_shard(reference_variable):
            mark_shard(slot, reference_variable.unsharded_shape)
        return slot

    @property
    def variables(self):
        return [unsharded(variable) for variable in super().variables]


def taken_optimizer(optimizer, wanted, weights):
    """Return an optimizer with the class ``wanted`` in place, `OptimizerOfShards` or one derived from it; None: stock.

    A stock optimizer without state is changed in place. One that has state, or another class of ours, is copied
    together with its state, of ``weights``.

    Raises ValueError for an optimizer that does not treat each number by itself.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = taken_optimizer(optimizer.inner_optimizer, wanted, weights)
        return optimizer
    if wanted is not None:
        refuse_unless_elementwise(optimizer)
    is_stock = not isinstance(optimizer, OptimizerOfShards)
    has_class = is_stock if wanted is None else isinstance(optimizer, wanted)
    if has_class:
        return optimizer
    if is_stock and not optimizer.built:
        return become(optimizer, wanted)

    copied = own_class(optimizer).from_config(optimizer.get_config())
    same_weight_decay(copied, optimizer)
    if wanted is not None:
        become(copied, wanted)
    if optimizer.built:
        copied.build(weights)
        for variable, with_value in zip(copied.variables, optimizer.variables, strict=True):
            variable.assign(with_value.numpy())
    return copied


def refuse_unless_elementwise(optimizer):
    stock = own_class(optimizer)
    if stock not in [getattr(keras.optimizers, name) for name in ELEMENTWISE]:
        raise ValueError(
            f"{stock.__name__} is not known to update each element of a weight independently, so it cannot update a"
            f" part of one, as with shard_optimizer=True or fully_shard: use one of {', '.join(ELEMENTWISE)}"
        )


def square_norms(gradients, are_shards=None):
    """Return the squared norms of gradients, {index: float32 scalar}; those of shards are summed over the replicas.

    ``are_shards`` says of each gradient whether it is a replica's shard; None for the norms of what this replica has.
    """
    if not gradients:  # every layer is frozen
        return {}
    own = tf.stack([tf.reduce_sum(tf.square(tf.cast(gradient, tf.float32))) for gradient in gradients.values()])
    squares = tf.where(are_shards, sum_over_replicas(own), own) if are_shards and any(are_shards) else own
    return dict(zip(gradients, tf.unstack(squares, len(gradients)), strict=True))


def finish_gradients(gradients, are_shards, optimizer):
    """Return gradients, of which replicas may have shards, clipped by the norms of the whole weights.

    They are {index: gradient}, and ``are_shards`` says of each whether it is of a shard. What is not finite on one
    replica is so on all, which then skip a step of loss scaling together. Keras clips again, by the norms of the
    shards, which are no larger.
    """
    if not gradients:  # every layer is frozen
        return gradients
    squares = tf.stack(list(square_norms(gradients, are_shards).values()))
    factors = tf.where(tf.math.is_finite(tf.reduce_sum(squares)), tf.ones_like(squares), float("nan"))

    limit, norms = innermost(optimizer).clipnorm, tf.sqrt(squares)
    if not limit:
        limit, norms = innermost(optimizer).global_clipnorm, tf.sqrt(tf.reduce_sum(squares))
    if limit:
        limit = optimizer.scale_loss(tf.constant(limit, tf.float32))  # as the gradients are scaled
        factors *= tf.minimum(1.0, tf.math.divide_no_nan(limit, norms))
    pairs = zip(gradients.items(), tf.unstack(factors), strict=True)
    return {index: gradient * tf.cast(factor, gradient.dtype) for (index, gradient), factor in pairs}
