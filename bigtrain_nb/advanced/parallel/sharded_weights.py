"""Shards in place of a layer's weights: for training, showing, saving and loading."""

import math
from functools import partial

from bigtrain_nb.advanced.parallel.shards import is_shard, new_shard, on_replicas, value_of_first
from bigtrain_nb.common.keras_compat import own_weights_to_train
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import several_workers

# isort: split
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope


def build_sharded(build, shard):
    """Return the model that ``build()`` makes, with some weights sharded before they are initialized.

    ``shard(model, deferred)`` shards them, so no replica ever holds one of these weights in full. Initial values are
    those of a model that is built first and then sharded; with several workers, those of the first one.
    """
    with tf.device("CPU"), DeferredVariables() as deferred:
        model = build()
    if isinstance(model, keras.Model):
        shard(model, deferred)
    with tf.distribute.get_strategy().scope():
        deferred.make_rest()
    return model


def shard_weights(layer, deferred=None):  # private: Keras
    """Replace the weights that a layer itself trains by shards, for training and saving.

    Reading such a weight returns its full value; on a replica it raises ValueError. Weights keep their values, or get
    those of ``deferred`` variables. Returns pairs of a weight and its shard.
    """
    pairs = []
    for weight in own_weights_to_train(layer):
        shard = _shard_of(weight, deferred)
        weight._value, weight._initializer = None, partial(_shown, weight, shard)  # which a read calls
        pairs.append((weight, shard))
    swap_variables(layer, pairs)
    if pairs:
        _save_whole(layer, pairs)
    return pairs


def refuse_to_shard(weights):
    """Raise ValueError for weights that are shards already, or whose regularizer or constraint needs them in full."""
    for weight in weights:
        if is_shard(weight):
            raise ValueError(f"{weight.path} is sharded already: shard a layer in one way only")
        if weight.regularizer or weight.constraint:
            raise ValueError(
                f"{weight.path} has a regularizer or a constraint, which would see a shard where it needs the full"
                " weight: leave it out (the optimizer's weight_decay works), or do not shard this layer"
            )


def _shard_of(weight, deferred):  # private: Keras
    """Return a variable with this replica's part of a weight."""
    strategy = tf.distribute.get_strategy()
    shard = new_shard(weight, trainable=weight.trainable, name=weight.name, autocast=False)  # the weight is cast
    shard._path = weight.path  # by which optimizers know what not to decay
    shard.was_trainable = shard.trainable  # see `sync_frozen`
    if deferred is None:
        value = weight.value
        shard.key_of_weight = weight.value._unique_id  # by which they know one that is excluded itself
    else:
        with tf.device("CPU"):
            value = deferred.take(weight)
        if several_workers(strategy):
            value = value_of_first(strategy, value)
    shard.whole.assign(value)
    return shard


def _shown(weight, shard, *_, **__):
    """Return the value of a sharded weight outside of replicas, where no layer gathers it."""
    if on_replicas():
        raise ValueError(
            f"{weight.path} is sharded over the replicas, and only its own layer gathers it: shard the layer that reads"
            " it too, or neither of the two"
        )
    if infers_shapes():
        return tf.zeros(weight.shape, shard.dtype)
    strategy = shard.value.distribute_strategy
    if tf.executing_eagerly():
        return tf.convert_to_tensor(shard.whole.numpy())
    if several_workers(strategy):
        raise ValueError(
            f"{weight.path} is sharded over the workers, so one worker alone cannot read it: use fit, evaluate"
            " or predict, or save the model and load the file in one process"
        )
    parts = [tf.convert_to_tensor(part) for part in strategy.experimental_local_results(shard.value)]
    return tf.reshape(tf.concat(parts, 0)[: math.prod(weight.shape)], weight.shape)


def _save_whole(layer, pairs):
    """Make a layer save and load full weights instead of shards."""
    save, load = layer.save_own_variables, layer.load_own_variables
    back = [(shard, weight) for weight, shard in pairs]

    def save_own_variables(store):
        swap_variables(layer, back)
        try:
            save(store)
        finally:
            swap_variables(layer, pairs)

    def load_own_variables(store):
        swap_variables(layer, back)
        try:
            with keras.StatelessScope() as scope:
                load(store)
        finally:
            swap_variables(layer, pairs)
        for weight, shard in pairs:
            shard.whole.assign(scope.get_current_value(weight))

    layer.save_own_variables = save_own_variables
    layer.load_own_variables = load_own_variables


def swap_variables(layer, pairs):  # private: Keras
    """Replace the first variable of each pair by the second, among those that a built layer itself trains and saves.

    Its attributes, such as ``kernel``, are unchanged.
    """
    other_of = {id(variable): other for variable, other in pairs}
    layer._tracker.unlock()
    for index, variable in enumerate(layer._trainable_variables):
        layer._trainable_variables[index] = other_of.get(id(variable), variable)
    layer._tracker.lock()


def infers_shapes():  # private: Keras
    """Return whether Keras is only inferring a layer's output shapes."""
    return in_stateless_scope()


class DeferredVariables:  # private: Keras
    """A scope in which layers are built with uninitialized variables; `take` and `make_rest` initialize them later.

    A value assigned to a variable meanwhile, from a file say, is kept. Otherwise values are those of immediate
    initialization, because an initializer draws its seed when it is constructed.
    """

    def __enter__(self):
        self._scope = keras.StatelessScope(initialize_variables=False)
        self._scope.__enter__()
        return self

    def __exit__(self, *exception):
        self._scope.__exit__(*exception)
        self._unmade = global_state.get_global_attribute("uninitialized_variables", [])
        global_state.set_global_attribute("uninitialized_variables", [])

    def take(self, variable):
        """Return the initial value of a variable, which `make_rest` then skips."""
        self._unmade = [one for one in self._unmade if one is not variable]
        given = self._scope.state_mapping.pop(id(variable), None)
        return variable.value if given is None else given

    def make_rest(self):
        for variable in self._unmade:
            variable._deferred_initialize()
            if id(variable) in self._scope.state_mapping:
                variable.assign(self._scope.state_mapping.pop(id(variable)))
