"""What is needed of Keras and TensorFlow, and they offer no public way to.

All private names stand here, but for those of `keras.Model` that `Model` inherits or overrides.
tests/unit/test_upstream.py fails when Keras mends one of them, and says what can then be deleted.
"""

from contextlib import ExitStack, contextmanager
from itertools import count

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import several_workers

# isort: split
from keras.src.models.functional import Functional as Functional  # of keras.Model(inputs, outputs); not exported

_groups = count(1)


def innermost(optimizer):
    """Return the optimizer that updates the weights: `LossScaleOptimizer` and `ShardedOptimizer` wrap it."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


@contextmanager
def in_place_of(thing, name, function):
    """Let ``thing.name`` be another function; Keras calls it by that name."""
    vars(thing)[name] = function
    try:
        yield
    finally:
        vars(thing).pop(name, None)  # replicas are threads: another may have been here before


def already_reduced(optimizer):
    """Keep a Keras optimizer from reducing gradients again; there is no public way to say that they are reduced."""
    return in_place_of(innermost(optimizer), "_all_reduce_sum_gradients", list)  # the pairs as they are


def decays(optimizer, variable):
    """Return whether the optimizer's weight decay, if it has any, touches a variable."""
    return optimizer._use_weight_decay(variable)


def after(data):
    """Let what is done in this context wait for the batch. Keras decays weights and counts a step also when a dataset
    of unknown size has come to its end, for neither needs a value of the batch that is not there.
    """
    return tf.control_dependencies([t for t in tf.nest.flatten(data, expand_composites=True) if t is not None])


@contextmanager
def count_by_examples(model, examples):
    """Let the tracked loss of each output count a batch by its examples; Keras counts all batches alike."""
    with ExitStack() as stack:
        for tracker in model._compile_loss.metrics if model._compile_loss else []:
            stack.enter_context(in_place_of(tracker, "update_state", _counting(tracker, examples)))
        yield


def _counting(tracker, examples):
    update = type(tracker).update_state

    def update_state(value, sample_weight=None):
        return update(tracker, value, examples)

    return update_state


def compiled_loss(model, y, y_pred, sample_weight):
    """Return the loss that `compile` names, alone: the public `compute_loss` adds those of all layers."""
    return model._compile_loss(y, y_pred, sample_weight)


def logs_to_reduce(logs, strategy):
    """Give logs the axis over which Keras reduces them with several workers; scalars raise (keras issue 20585)."""
    if not several_workers(strategy):
        return logs
    if strategy.num_replicas_in_sync == len(strategy.extended.worker_devices):
        return logs
    return keras.tree.map_structure(lambda value: tf.expand_dims(value, 0), logs)


def mirrored_with_groups_of_its_own(devices):
    """Return a MirroredStrategy that shares no collective group with others.

    TensorFlow numbers the groups of each strategy from the same start, so the second of another size would abort
    (tensorflow issue 61314). There is no public way to set the start; its own tests do it like this.
    """
    start = {"_collective_key_base": 100_000 * next(_groups)}
    return type("MirroredStrategy", (tf.distribute.MirroredStrategy,), start)(devices)


def function_graph(node, name):
    """Return the graph of the function that an attribute of a node names, as "body" of a loop."""
    return node.graph._get_function(node.get_attr(name).name).graph


def full_name(device):
    """Return a device's name as tensors and variables have it, "/job:localhost/replica:0/task:0/device:CPU:0"."""
    with tf.device(device):
        return tf.zeros([]).device


def move(variable, device):
    """Let a Keras variable stand on a device, by its full name. Publicly it stays where it was made."""
    if variable.value.device != device:
        with tf.device(device):
            variable._initialize(variable.numpy())


def moving_statistics(model):
    """Return what training changes on each replica by itself: unreduced, replicas would drift apart unseen."""
    layers = [layer for layer in _batch_normalizations(model) if layer.trainable]
    return [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]


def refuse_what_needs_one_piece(model):
    """Raise ValueError for what cannot be in a step of several slices or replicas.

    That are an optimizer that accumulates by itself, the scales of float8, which Keras hands on as gradients and which
    are not to be summed, and slices with layers that talk to other replicas in the forward pass.
    """
    if getattr(innermost(model.optimizer), "gradient_accumulation_steps", None):
        raise ValueError(
            "gradient_accumulation_steps works on one device and without micro_batches only: leave it out of the"
            " optimizer and give micro_batches to the model"
        )
    if any(variable.overwrite_with_gradient for variable in model.trainable_variables):
        raise ValueError("float8 works on one device and without micro_batches only")
    if model.micro_batches == 1 or model.distribute_strategy.num_replicas_in_sync == 1:
        return
    for layer in synchronized_layers(model):
        raise ValueError(
            f"{layer.name}: synchronized=True on several replicas needs micro_batches=1. Its forward pass waits for"
            " every replica, and one with a smaller share of the batch has fewer slices. Leave it out (moving"
            " statistics are averaged all the same) or use GroupNormalization"
        )


def synchronized_layers(model):
    """Return the layers that talk to other replicas in the forward pass, which therefore all replicas must run."""
    return [layer for layer in _batch_normalizations(model) if layer.synchronized]


def has_mask(tensor):
    """Say whether a layer that made a tensor has put a mask on it, as `Embedding(mask_zero=True)` does."""
    return getattr(tensor, "_keras_mask", None) is not None


def layers_within(layer):
    """Return a layer or model and all layers inside it."""
    return list(layer._flatten_layers())


def keep_mask(tensor, same):
    """Return ``same``, another tensor of the same values, with the mask that Keras hands on as an attribute."""
    mask = getattr(tensor, "_keras_mask", None)
    if mask is not None:
        same._keras_mask = mask
    return same


def _batch_normalizations(model):
    return [layer for layer in layers_within(model) if isinstance(layer, keras.layers.BatchNormalization)]
