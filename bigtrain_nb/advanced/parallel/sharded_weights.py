"""Shards in place of a layer's weights: in what it trains, shows, saves and loads."""

import math
from functools import partial

from bigtrain_nb.advanced.parallel.shards import is_shard, mark_shard, on_replicas, value_of_first
from bigtrain_nb.common.keras_compat import own_weights_to_train
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import give_whole_weights, several_workers, whole_weights

# isort: split
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope


def show_whole_weights(layer):
    """Let a layer give whole weights in `get_weights`, and take them in `set_weights`."""
    layer.get_weights = partial(whole_weights, layer)
    layer.set_weights = partial(give_whole_weights, layer)


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
    shard.whole.assign(value)
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
        return tf.convert_to_tensor(shard.whole.numpy())
    if several_workers(strategy):
        raise ValueError(
            f"{weight.path} is sharded over the workers, so a function of one worker cannot read it: use fit, evaluate"
            " or predict, or save the model and load the file in one process"
        )
    parts = [tf.convert_to_tensor(part) for part in strategy.experimental_local_results(shard.value)]
    return tf.reshape(tf.concat(parts, 0)[: math.prod(weight.shape)], weight.shape)


def _save_whole(layer, pairs):
    """Let a layer save and load as ever, with whole weights in place of shards."""
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
            shard.whole.assign(scope.get_current_value(weight))

    layer.save_own_variables = save_own_variables
    layer.load_own_variables = load_own_variables


def key_of(weight):  # private: Keras
    """Return by what an optimizer knows a weight that it was told to leave undecayed."""
    return weight.value._unique_id


def let_stand_for(layer, pairs):  # private: Keras
    """Let the second variable of each pair stand for the first, in what a built layer itself trains and saves.

    Its attributes, such as ``kernel``, stay what they were.
    """
    other_of = {id(variable): other for variable, other in pairs}
    layer._tracker.unlock()
    for index, variable in enumerate(layer._trainable_variables):
        layer._trainable_variables[index] = other_of.get(id(variable), variable)
    layer._tracker.lock()


def value_from(variable, function):  # private: Keras
    """Let a variable keep no value of its own; who reads it gets ``function(shape, dtype=...)``."""
    variable._value = None
    variable._initializer = function


def same_path(variable, other):  # private: Keras
    """Give a variable another one's path, by which optimizers know what not to decay."""
    variable._path = other.path


def infers_shapes():  # private: Keras
    """Return whether Keras only asks for the shapes that a layer gives."""
    return in_stateless_scope()


class UnmadeVariables:  # private: Keras
    """Within this scope layers are built whose variables have no values yet; `take` and `make_rest` make them later.

    What is assigned to a variable meanwhile, from a file say, is its value then. The numbers are those that Keras would
    have made at once, for an initializer draws its seed when it is constructed.
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
        """Return the first value of a variable, which is not made any more."""
        self._unmade = [one for one in self._unmade if one is not variable]
        given = self._scope.state_mapping.pop(id(variable), None)
        return variable.value if given is None else given

    def make_rest(self):
        for variable in self._unmade:
            variable._deferred_initialize()
            if id(variable) in self._scope.state_mapping:
                variable.assign(self._scope.state_mapping.pop(id(variable)))
