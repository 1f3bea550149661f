"""Uses of private names of Keras and TensorFlow, where there is no public API.

Private names used in only one other file are there, marked ``# private: Keras``, as are those of base classes that our
classes override or read. tests/frame/test_private_names.py counts them, and tests/unit/test_upstream.py fails when
Keras fixes one of them, and says what can then be deleted.
"""

from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import count, product

from bigtrain_nb.common.quiet import keras, tf

# isort: split
from keras.src.losses import loss as loss_module
from keras.src.models.functional import Functional as Functional  # of keras.Model(inputs, outputs); not exported
from keras.src.random import seed_generator as seed_generator  # of keras.random without a seed; not exported
from keras.src.saving.serialization_lib import SafeModeScope as SafeModeScope  # used by `load_model`; not exported
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.framework import ops


def innermost(optimizer):
    """Return the optimizer that updates the weights, unwrapped from any `LossScaleOptimizer`."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def parts_of(optimizer):
    """Return the optimizers that update weights: those of a `MultiOptimizer`, or the innermost one alone."""
    inner = innermost(optimizer)
    return getattr(inner, "optimizers", None) or [inner]


def overriding(model, name="train_step", behind=None):
    """Return the class, other than ours, that overrides a method of `keras.Model`, such as a step; None without one.

    Ours are the classes with ``stands_for_keras``. ``behind``: consider only classes after this one in the method
    resolution order, which it calls by ``super()``.
    """
    kinds = type(model).__mro__
    behind_it = kinds[kinds.index(behind) + 1 :] if behind else kinds
    first = next(kind for kind in behind_it if "stands_for_keras" not in vars(kind) and name in vars(kind))
    return None if vars(first)[name] is getattr(keras.Model, name) else first


@contextmanager
def patched_method(thing, name, function):
    """Replace ``thing.name``, a method that Keras calls, within this context."""
    own = vars(thing).get(name)  # None: that of the class
    vars(thing)[name] = function
    try:
        yield
    finally:  # replicas are threads: another may have replaced or removed it
        if vars(thing).pop(name, None) is function and own is not None:
            vars(thing)[name] = own


@contextmanager
def already_reduced(optimizer):
    """Keep a Keras optimizer from reducing gradients again; there is no public API for that."""
    with ExitStack() as stack:
        for one in parts_of(optimizer):
            stack.enter_context(patched_method(one, "_all_reduce_sum_gradients", list))  # the pairs as they are
        yield


def optimizer_like(optimizer, kind, **settings):
    """Return a new optimizer of class ``kind`` with the settings of another, but these ``settings``, and no state."""
    rate = vars(optimizer)["_learning_rate"]
    with patched_method(optimizer, "_learning_rate", 0.0 if callable(rate) else rate):
        made = kind.from_config({**optimizer.get_config(), **settings})
    if callable(rate):  # a schedule or a function, which a config need not describe
        made.learning_rate = rate
    for name in vars(optimizer).keys() & {"_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"}:
        vars(made)[name] = vars(optimizer)[name]
    return made


def after(data):
    """Make operations in this context wait for the batch. Otherwise, after the end of a dataset of unknown size, Keras
    still decays weights, counts a step and draws Dropout's random numbers, which do not depend on the missing batch.
    """
    return tf.control_dependencies([t for t in tf.nest.flatten(data, expand_composites=True) if t is not None])


@contextmanager
def count_by_examples(model, examples, times=None):
    """Weight batches by their examples in the tracked loss of each output; Keras weights all batches equally.

    ``times`` scales a loss that is no mean over examples, so that its mean over the pieces is that of the full batch.
    """

    def counting(tracker, value, sample_weight=None):
        scaled = value if times is None else value * tf.cast(times, value.dtype)
        return type(tracker).update_state(tracker, scaled, examples)

    with ExitStack() as stack:
        for tracker in model._compile_loss.metrics if model._compile_loss else []:
            stack.enter_context(patched_method(tracker, "update_state", partial(counting, tracker)))
        yield


def as_scalar(loss):
    """Return a loss as a scalar: without examples, Keras returns one of shape [0]."""
    return tf.reduce_sum(loss) if getattr(loss, "shape", ()) == (0,) else loss


def has_seen_examples(model):
    """Return whether any replica has counted an example since the metrics were reset; all workers must call this."""
    return model._loss_tracker is None or float(model._loss_tracker.count.numpy()) > 0


def batch_of_zeros(iterator):
    """Return an example of zeros in the shapes of an epoch's iterator; None if they are unknown."""
    spec = iterator.data_adapter.get_tf_dataset().element_spec
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or not part.shape.rank or not part.shape[1:].is_fully_defined():
            return None
    return tf.nest.map_structure(lambda part: tf.zeros([1, *part.shape[1:]], part.dtype), spec)


class _LossesOfOneDevice:
    """The number of replicas (threads) within `losses_of_one_device`, and the functions of Keras that it replaces."""

    inside = 0
    stock = {
        "scale_loss_for_distribution": loss_module.scale_loss_for_distribution,
        "unscale_loss_for_distribution": loss_module.unscale_loss_for_distribution,
    }


@contextmanager
def losses_of_one_device():
    """Keep losses unscaled. Keras divides its own by the number of replicas, but not the terms that a custom
    `compute_loss` adds (adding 1,000 on two replicas shows 2,000 more).
    """
    _LossesOfOneDevice.inside += 1
    vars(loss_module).update(dict.fromkeys(_LossesOfOneDevice.stock, lambda value: value))
    try:
        yield
    finally:
        _LossesOfOneDevice.inside -= 1
        if _LossesOfOneDevice.inside == 0:
            vars(loss_module).update(_LossesOfOneDevice.stock)


class WatchedLoss:
    """Records a return value of a loss of `compile`: its shape (a scalar or one value per example) and its mask."""

    def __init__(self, loss):
        own_function = type(loss).__name__ == "LossFunctionWrapper"
        made_by = loss.fn if own_function else type(loss)
        self.name = getattr(made_by, "__name__", str(made_by))
        self.is_own = not getattr(made_by, "__module__", "").startswith("keras.")
        self.loss = loss
        self.reduces = type(loss).__call__ is not keras.losses.Loss.__call__  # with its own masking, if any
        self._of_examples = loss.call
        self.arguments = None  # their specs
        self.received = []  # for each call by Keras: the sample weight, and the mask of the predictions
        self._is_next = False
        self.shape = None
        self.is_one_number = False
        self.mask = None
        self._operations = []  # those that it has added to the graph

    def call(self, y_true, y_pred):
        """Return the loss of targets and predictions before Keras' reduction, reduced if the loss does so itself."""
        return self.loss(y_true, y_pred, None) if self.reduces else self._of_examples(y_true, y_pred)

    def watched(self, y_true, y_pred):
        """Replace its `call`, which also computes the same loss for another output."""
        if self.received and not self._is_next:
            return self._of_examples(y_true, y_pred)
        self._is_next = False
        values = self._noted(self._of_examples, y_true, y_pred)
        self.is_one_number = len(values.shape) == 0
        self.mask = mask_of(values)
        return values

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Replace the loss where Keras calls it."""
        self.received.append((sample_weight, mask_of(y_pred)))
        self._is_next = True
        if not self.reduces:
            return as_scalar(self.loss(y_true, y_pred, sample_weight))
        self.is_one_number = True
        return self._noted(self.loss, y_true, y_pred, sample_weight)

    def record(self, arguments, mask, *received):
        """Record what a loss that is computed elsewhere takes and returns."""
        self.arguments, self.mask = arguments, mask
        self.received.append(received)

    def changes_variables(self):
        """Return whether it assigns to tables or to variables other than those of Keras' random seeds.

        If it has run eagerly, it is traced.
        """
        if tf.executing_eagerly():
            self._operations = _traced(self.call, self.arguments).get_operations()
        return any(map(_changes_state, operations_within(self._operations)))

    def calls_python(self):
        """Return whether it calls Python functions in each step, whose side effects are unknown."""
        return any("PyFunc" in operation.type for operation in operations_within(self._operations))

    def _noted(self, compute, *arguments):
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        before = len(graph.get_operations()) if graph else 0
        values = compute(*arguments)
        values = values if hasattr(values, "shape") else tf.convert_to_tensor(values)
        self.arguments = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), arguments[:2])
        self._operations = graph.get_operations()[before:] if graph else []
        self.shape = values.shape
        return values


def _traced(function, arguments):
    return tf.function(function, autograph=False).get_concrete_function(*arguments).graph


@contextmanager
def captured_variables_kept(function, arguments):
    """Restore the variables that a function reads or assigns, as of a `tf.random.Generator`; no public call does."""
    with keras.StatelessScope():
        captured = [handle for handle, _ in _traced(function, arguments).captures if handle.dtype == tf.resource]
    kinds = [(handle, handle._handle_data.shape_and_type) for handle in captured]
    values = [(h, tf.raw_ops.ReadVariableOp(resource=h, dtype=kind[0].dtype)) for h, kind in kinds if kind]
    try:
        yield
    finally:
        for handle, value in values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def operations_within(operations):
    """Return operations of a graph, and those of all functions that they call, such as branches of `tf.cond`."""
    found, functions = list(operations), set()
    for operation in found:  # grows during the loop
        for value in operation.node_def.attr.values():
            for called in [value.func, *value.list.func]:
                function = operation.graph._get_function(called.name) if called.name else None
                if function is not None and called.name not in functions:
                    functions.add(called.name)
                    found += function.graph.get_operations()
    return found


def _changes_state(operation):
    """Return whether an operation assigns to a variable or table, other than the two integers of a `SeedGenerator`."""
    if "Assign" in operation.type and operation.type.endswith("VariableOp"):
        value = operation.inputs[1]
        return not (value.dtype.is_integer and value.shape == [2])
    return operation.type.startswith(("ResourceScatter", "ResourceStridedSliceAssign", "LookupTable")) and not (
        operation.type.startswith(("LookupTableFind", "LookupTableSize", "LookupTableExport"))
    )


@contextmanager
def losses_watched(model):
    """Yield a list of `WatchedLoss`, which record the return values of the losses of `compile` in this context.

    Keras itself reduces them and shows only the mean. Before Keras has built the losses, the list is empty.
    """
    compiled = model._compile_loss
    if compiled is None or not compiled.built:
        yield []
        return
    watched = []
    with ExitStack() as stack:
        for index, entry in enumerate(compiled._flat_losses):
            loss = entry.loss.loss if isinstance(entry.loss, WatchedLoss) else entry.loss  # replicas are threads
            watched.append(WatchedLoss(loss))
            stack.callback(compiled._flat_losses.__setitem__, index, entry._replace(loss=loss))
            compiled._flat_losses[index] = entry._replace(loss=watched[-1])
            stack.enter_context(patched_method(loss, "call", watched[-1].watched))
        yield watched


def logs_to_reduce(logs, strategy):
    """Add the axis over which Keras reduces logs with several workers; scalars raise (keras issue 20585)."""
    is_of_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not is_of_workers or strategy.num_replicas_in_sync == len(strategy.extended.worker_devices):
        return logs
    return keras.tree.map_structure(lambda value: tf.expand_dims(value, 0), logs)


def traced_for_each_shape(function):
    """Return a function compiled by XLA, one program for each shape of its arguments.

    Each is traced with static shapes. TensorFlow warns of this retracing, and the only public setting to avoid it,
    ``reduce_retracing``, traces with unknown shapes.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)
    compiled._omit_frequent_tracing_warning = True
    return compiled


_uid, _numbers = ops.uid, count(10**12)


@contextmanager
def same_names_in_next_process():
    """Number the functions traced in this context from 10**12, in any process. XLA's cache on disk finds a program only
    by its name, and TensorFlow's numbers in it depend on all tensors made before.
    """
    ops.uid = partial(next, _numbers)
    try:
        yield
    except tf.errors.OutOfRangeError as error:  # Keras would take it for the end of the data
        raise ValueError("a file in the folder of --tf_xla_persistent_cache_directory is cut off: delete it") from error
    finally:
        ops.uid = _uid


MOVING = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")
"""Attributes of BatchNormalization; the last three exist with renormalization."""


def moving_statistics(model):
    """Return the statistics that each replica updates separately: unreduced, replicas would diverge silently."""
    layers = [layer for layer in _batch_normalizations(model) if layer.trainable]
    found = [getattr(layer, name, None) for layer in layers for name in MOVING]  # None: not built, or without renorm
    return [variable for variable in found if variable is not None]


def synchronized_layers(model):
    """Return the layers that communicate with other replicas in the forward pass, so that all replicas must run it."""
    return [layer for layer in _batch_normalizations(model) if layer.synchronized]


def assigned_together(model):
    """Return the variables whose assignments are aggregated over replicas, which must all assign at the same time."""
    of_keras = [weight for weight in model.non_trainable_weights if weight.aggregation not in (None, "none")]
    attributes = [each for layer in layers_within(model) for each in vars(layer).values()]
    of_tensorflow = [each for each in attributes if isinstance(each, tf.Variable) and not each.trainable]
    return of_keras + [each for each in of_tensorflow if each.aggregation != tf.VariableAggregation.NONE]


def outputs_of(model, x, training):
    """Return the outputs of a model, called as in Keras' steps."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def mask_of(tensor):
    """Return the mask that a layer has attached to its output, as `Embedding(mask_zero=True)` does, or None."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor, mask):
    """Return the tensor, with the mask attached for the next layers unless it is None."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def layers_within(layer):
    """Return a layer or model and all layers inside it."""
    return list(layer._flatten_layers())


def own_weights_to_train(layer):
    """Return a layer's own trainable weights, even if frozen, without those of layers inside it."""
    return list(layer._trainable_variables)


def layers_that_add_losses(model):
    """Return the layers that added losses in the last call, by `add_loss` or an activity regularizer.

    The public ``losses`` do not name the layer, and include weight regularizers.
    """
    return [layer for layer in layers_within(model) if layer._losses]


def _batch_normalizations(model):
    return [layer for layer in layers_within(model) if isinstance(layer, keras.layers.BatchNormalization)]


def build_like_fit(model, batch, with_optimizer=True):
    """Create all variables of a compiled model, its optimizer and its metrics, from the shapes of a batch.

    Calling the model would do so too, but would advance the seeds of random layers.
    """
    optimizer, call = model.optimizer, model.call

    def in_training(*args, training=None, **kwargs):
        return call(*args, training=True, **kwargs)

    is_custom = overriding(model, "call") not in (None, Functional, keras.Sequential)
    if not with_optimizer:
        object.__setattr__(model, "optimizer", None)  # Keras tracks an ordinary attribute
    try:
        takes_training = with_optimizer and is_custom and model._call_has_training_arg and not model.run_eagerly
        with patched_method(model, "call", in_training) if takes_training else nullcontext():
            model._symbolic_build(data_batch=batch)  # which leaves out outputs that only training has
    finally:
        object.__setattr__(model, "optimizer", optimizer)


# State of Keras callbacks, restored at a restart

STATE_OF_CALLBACKS = {
    keras.callbacks.EarlyStopping: ("best", "best_epoch", "stopped_epoch", "wait"),
    keras.callbacks.ReduceLROnPlateau: ("best", "cooldown_counter", "wait"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
}
"""The attributes with their state; they have no `get_state`."""


@contextmanager
def numbered_from(first, callbacks):
    """Add ``first()``, the batches done before a restart, to the numbers of training batches that callbacks receive."""

    def numbered(method):
        return lambda batch, logs=None: method(batch + first(), logs=logs)

    with ExitStack() as stack:
        for one, name in product(callbacks, ("on_train_batch_begin", "on_train_batch_end")):
            stack.enter_context(patched_method(one, name, numbered(getattr(one, name))))
        yield


def callbacks_in(callbacks):
    """Return the ``callbacks`` of `fit` as a list: it accepts a list, a single one, or a CallbackList."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks
    return keras.tree.flatten(callbacks) if callbacks else []


def custom_call(target, operands, results, config):
    """Emit an XLA custom call, and return tensors of the specs in ``results``; the target reads ``config``.

    `tf.raw_ops` does not include the operation.
    """
    return xla.custom_call_v2(target, operands, results, config)


def datasets_within(dataset):
    """Return a dataset and all its inputs, recursively; there is no public API for that."""
    return [dataset, *(one for each in dataset._inputs() for one in datasets_within(each))]
