"""What training here needs of Keras and TensorFlow, and they offer no public way to.

All private names stand here, but for those of `keras.Model` that `Model` inherits or overrides.
tests/unit/test_upstream.py fails when Keras mends one of them, and says what can then be deleted.
"""

from contextlib import contextmanager
from itertools import count

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.micro_batches import count_examples

# isort: split
from keras.src.models.functional import Functional as Functional  # of keras.Model(inputs, outputs); not exported

_groups = count(1)


def innermost(optimizer):
    """Return the optimizer that updates the weights: a `LossScaleOptimizer` wraps it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


@contextmanager
def already_reduced(optimizer):
    """Keep a Keras optimizer from reducing gradients again; there is no public way to say that they are reduced."""
    inner = innermost(optimizer)
    inner._all_reduce_sum_gradients = _unchanged
    try:
        yield
    finally:
        vars(inner).pop("_all_reduce_sum_gradients", None)  # replicas are threads: another may have been here before


def _unchanged(grads_and_vars):
    return list(grads_and_vars)


def after(data):
    """Let what is done in this context wait for the batch. Keras decays weights and counts a step also when a dataset
    of unknown size has come to its end, for neither needs a value of the batch that is not there.
    """
    return tf.control_dependencies([t for t in tf.nest.flatten(data, expand_composites=True) if t is not None])


@contextmanager
def count_by_examples(model, x):
    """Let the tracked loss of each output count a batch by its examples; Keras counts all batches alike."""
    trackers = model._compile_loss.metrics if model._compile_loss else []
    for tracker in trackers:
        tracker.update_state = _counting(tracker, count_examples(x))
    try:
        yield
    finally:
        for tracker in trackers:
            vars(tracker).pop("update_state", None)


def _counting(tracker, examples):
    update = type(tracker).update_state

    def update_state(value, sample_weight=None):
        return update(tracker, value, examples)

    return update_state


def logs_to_reduce(logs, strategy):
    """Give logs the axis over which Keras reduces them with several workers; scalars raise (keras issue 20585)."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
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


def moving_statistics(model):
    """Return what training changes on each replica by itself: unreduced, replicas would drift apart unseen."""
    layers = [layer for layer in _batch_normalizations(model) if layer.trainable]
    return [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]


def refuse_what_needs_one_piece(model):
    """Raise ValueError for what cannot be in a step of several slices or replicas.

    That are an optimizer that accumulates by itself, the scales of float8, which Keras hands on as gradients and which
    are not to be summed, and layers that talk to other replicas in the forward pass, which is run as often as
    a replica has slices: those that have fewer would be waited for.
    """
    if getattr(innermost(model.optimizer), "gradient_accumulation_steps", None):
        raise ValueError(
            "gradient_accumulation_steps works on one device and without micro_batches only: leave it out of the"
            " optimizer and give micro_batches to the model"
        )
    if any(variable.overwrite_with_gradient for variable in model.trainable_variables):
        raise ValueError("float8 works on one device and without micro_batches only")
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    for layer in _batch_normalizations(model):
        if layer.synchronized:
            raise ValueError(
                f"{layer.name}: synchronized=True does not work in a bt.Model on several replicas: leave it out (moving"
                " statistics are averaged all the same) or use GroupNormalization"
            )


def _batch_normalizations(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
