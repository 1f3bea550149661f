"""What is needed of Keras and TensorFlow, and they offer no public way to.

All private names stand here, but for those that our classes override or read of what they derive from: `Model`
(train/model.py), attention layers (parallel/attention.py, fused.py, masks.py) and sharded ones (shards.py,
fully_shard.py). watch/trace.py reads the profiler's own format.
tests/unit/test_upstream.py fails when Keras mends one of them, and says what can then be deleted.
"""

from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from itertools import count
from types import FunctionType

from bigtrain_nb.common.quiet import keras, tf

# isort: split
from keras.src import api_export
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow.trainer import reduce_per_replica
from keras.src.losses import loss as loss_module
from keras.src.models.functional import Functional as Functional  # of keras.Model(inputs, outputs); not exported
from keras.src.models.functional import operation_fn
from keras.src.ops.function import Function
from keras.src.saving import object_registration
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.saving.serialization_lib import SafeModeScope as SafeModeScope  # `load_model` has it; alone not exported
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

_groups = count(1)


def innermost(optimizer):
    """Return the optimizer that updates the weights: `LossScaleOptimizer` wraps it."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def parts_of(optimizer):
    """Return the optimizers that update weights: those of a `MultiOptimizer`, or the innermost one alone."""
    inner = innermost(optimizer)
    return getattr(inner, "optimizers", None) or [inner]


def weights_built_for(optimizer):
    """Return the weights that an optimizer was built for, which `apply` takes where it is given gradients alone."""
    return innermost(optimizer)._trainable_variables


@contextmanager
def in_place_of(thing, name, function):
    """Let ``thing.name`` be another function; Keras calls it by that name. Afterwards it is that of the class."""
    vars(thing)[name] = function
    try:
        yield
    finally:
        vars(thing).pop(name, None)  # replicas are threads: another may have been here before


@contextmanager
def calls_seen(layers, around):
    """Let each layer be called as ``around(layer, call, *args, **kwargs)``, where ``call`` is its own."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(in_place_of(layer, "call", partial(around, layer, layer.call)))
        yield


@contextmanager
def already_reduced(optimizer):
    """Keep a Keras optimizer from reducing gradients again; there is no public way to say that they are reduced."""
    with ExitStack() as stack:
        for one in parts_of(optimizer):
            stack.enter_context(in_place_of(one, "_all_reduce_sum_gradients", list))  # the pairs as they are
        yield


def same_weight_decay(optimizer, other):
    """Let an optimizer leave the weights undecayed that another was told to; the config does not hold them."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if name in vars(other):
            vars(optimizer)[name] = vars(other)[name]


def is_undecayed(optimizer, weight):
    """Return whether an optimizer with weight decay was told to leave this weight as it is."""
    if hasattr(optimizer, "_is_excluded_from_weight_decay"):  # since Keras 3.16, which asks it in `build`
        return optimizer._is_excluded_from_weight_decay(weight)
    return not optimizer._use_weight_decay(weight)


def key_of(weight):
    """Return by what an optimizer knows a weight that it was told to leave undecayed."""
    return weight.value._unique_id


def is_undecayed_by_key(optimizer, key):
    return key in getattr(optimizer, "_exclude_from_weight_decay", ())


def leave_undecayed(optimizer, variables):
    """Let an optimizer that is not built, nor asked about them, leave these variables undecayed too."""
    known = getattr(optimizer, "_exclude_from_weight_decay", set())
    optimizer._exclude_from_weight_decay = known | {optimizer._var_key(variable) for variable in variables}


def after(data):
    """Let what is done in this context wait for the batch. Keras decays weights, counts a step and draws the numbers
    of Dropout also when a dataset of unknown size has come to its end: none needs a value of the batch that is not
    there.
    """
    return tf.control_dependencies([t for t in tf.nest.flatten(data, expand_composites=True) if t is not None])


@contextmanager
def count_by_examples(model, examples, times=None):
    """Let the tracked loss of each output count a batch by its examples; Keras counts all batches alike.

    Of a sum, which is ``times`` as large for the whole batch as the mean over its pieces, that is counted.
    """
    with ExitStack() as stack:
        for tracker in model._compile_loss.metrics if model._compile_loss else []:
            stack.enter_context(in_place_of(tracker, "update_state", _counting(tracker, examples, times)))
        yield


def as_scalar(loss):
    """Return a loss as a scalar: of no examples Keras gives one of shape [0]."""
    return tf.reduce_sum(loss) if getattr(loss, "shape", ()) == (0,) else loss


def _counting(tracker, examples, times):
    update = type(tracker).update_state

    def update_state(value, sample_weight=None):
        return update(tracker, value if times is None else value * tf.cast(times, value.dtype), examples)

    return update_state


def examples_counted(model):
    """Return how many examples each replica of this process has trained on since the metrics were reset, as floats.

    Keras' step, and ours, count them in the tracker of the loss, the first of the public ``metrics``: but a model may
    have others there, and other trackers count batches.
    """
    if model._loss_tracker is None:  # a `compile` of somebody's own
        return [0.0]
    counts = model.distribute_strategy.experimental_local_results(model._loss_tracker.count.value)
    return [float(count.numpy()) for count in counts]


def has_seen_examples(model):
    """Return whether any replica has counted an example since the metrics were reset; all workers must ask."""
    return model._loss_tracker is None or float(model._loss_tracker.count.numpy()) > 0


def batch_of_zeros(iterator):
    """Return an example of zeros of the shapes that an epoch's iterator gives; None if it does not tell them."""
    spec = iterator.data_adapter.get_tf_dataset().element_spec
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or not part.shape.rank or not part.shape[1:].is_fully_defined():
            return None
    return tf.nest.map_structure(lambda part: tf.zeros([1, *part.shape[1:]], part.dtype), spec)


def datasets_within(dataset):
    """Return a dataset and all that it was made from; there is no public way to ask."""
    return [dataset, *(one for each in dataset._inputs() for one in datasets_within(each))]


def tracings_of(train_function):
    """Return a function that says how often what `fit` calls for an execution has been traced so far.

    Keras hands out a plain function around those that TensorFlow traces; Keras 3.16 puts one more around them.
    """
    traced = _traced_within(train_function, set())

    def tracings():
        return sum(one.experimental_get_tracing_count() for one in traced)

    return tracings


def _traced_within(function, seen):
    """Return the functions that TensorFlow traces among a function and those that it refers to."""
    if id(function) in seen:
        return []
    seen.add(id(function))
    if hasattr(function, "experimental_get_tracing_count"):
        return [function]
    if not isinstance(function, FunctionType):
        return []
    found = []
    for cell in function.__closure__ or ():
        found += _traced_within(cell.cell_contents, seen)
    return found


class _LossesOfOneDevice:
    """How many replicas, which are threads, are in `losses_of_one_device`, and what Keras has in its place."""

    inside = 0
    stock = {
        "scale_loss_for_distribution": loss_module.scale_loss_for_distribution,
        "unscale_loss_for_distribution": loss_module.unscale_loss_for_distribution,
    }


def _as_it_is(value):
    return value


@contextmanager
def losses_of_one_device():
    """Let losses be those of the examples that they see. Keras divides its own by the number of replicas, but not what
    a `compute_loss` of somebody's own adds to them (1,000 more on two replicas shows 2,000 more).
    """
    _LossesOfOneDevice.inside += 1
    vars(loss_module).update(dict.fromkeys(_LossesOfOneDevice.stock, _as_it_is))
    try:
        yield
    finally:
        _LossesOfOneDevice.inside -= 1
        if _LossesOfOneDevice.inside == 0:
            vars(loss_module).update(_LossesOfOneDevice.stock)


class WatchedLoss:
    """What a loss of `compile` has returned: one number or one for each example, with places masked or not."""

    def __init__(self, loss):
        own_function = type(loss).__name__ == "LossFunctionWrapper"
        made_by = loss.fn if own_function else type(loss)
        self.name = getattr(made_by, "__name__", str(made_by))
        self.is_own = not getattr(made_by, "__module__", "").startswith("keras.")
        self.loss = loss
        self.reduces = type(loss).__call__ is not keras.losses.Loss.__call__  # and masks, or not, in its own way
        self._of_examples = loss.call
        self.arguments = None  # the specs of what it was given
        self.shape = None
        self.is_one_number = False
        self.mask = None
        self._operations = []  # that it has added to the graph

    def call(self, y_true, y_pred):
        """Return what the loss makes of targets and predictions: where it reduces by itself, what Keras adds up."""
        return self.loss(y_true, y_pred, None) if self.reduces else self._of_examples(y_true, y_pred)

    def watched(self, y_true, y_pred):
        """Stand in the place of its `call`."""
        values = self._noted(self._of_examples, y_true, y_pred)
        self.is_one_number = len(values.shape) == 0
        self.mask = mask_of(values)
        return values

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Stand in the place of a loss that reduces by itself, perhaps what its `call` has returned."""
        self.is_one_number = True
        return self._noted(self.loss, y_true, y_pred, sample_weight)

    def told(self, y_true, y_pred, mask):
        """Note of a loss that is computed elsewhere the specs of what it is given, and places masked or not."""
        self.arguments, self.mask = (y_true, y_pred), mask

    def changes_variables(self):
        """Return whether it assigns to variables, not only to where random numbers of Keras are, or to tables.

        It is traced where it has run eagerly.
        """
        if tf.executing_eagerly():
            self._operations = _traced(self.call, self.arguments).get_operations()
        return any(map(_changes_state, operations_within(self._operations)))

    def calls_python(self):
        """Return whether it calls functions of Python in each step, of which nobody knows what they change."""
        return any("PyFunc" in operation.type for operation in operations_within(self._operations))

    def _noted(self, compute, *arguments):
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        before = len(graph.get_operations()) if graph else 0
        values = compute(*arguments)
        self.arguments = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), arguments[:2])
        self._operations = graph.get_operations()[before:] if graph else []
        self.shape = values.shape
        return values


def _traced(function, arguments):
    return tf.function(function, autograph=False).get_concrete_function(*arguments).graph


def operations_within(operations):
    """Return operations of a graph, and those of all functions that they call, as branches of `tf.cond`."""
    found, functions = list(operations), set()
    for operation in found:  # which grows meanwhile
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
def captured_variables_kept(function, arguments):
    """Give the variables that a function reads or assigns their values back, as the state of a `tf.random.Generator`.

    There is no public way from what it captures to the variable.
    """
    with keras.StatelessScope():
        captured = [handle for handle, _ in _traced(function, arguments).captures if handle.dtype == tf.resource]
    kinds = [(handle, handle._handle_data.shape_and_type) for handle in captured]
    values = [(h, tf.raw_ops.ReadVariableOp(resource=h, dtype=kind[0].dtype)) for h, kind in kinds if kind]
    try:
        yield
    finally:
        for handle, value in values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def watcher_of(loss):
    """Return the `WatchedLoss` that looks on while a loss is computed, or None."""
    return getattr(vars(loss).get("call"), "__self__", None)


def unwatched(loss):
    """Return a loss of the same class and settings, whose `call` is that of the class."""
    same = object.__new__(type(loss))
    vars(same).update(vars(loss))
    vars(same).pop("call", None)
    return same


@contextmanager
def losses_watched(model):
    """Give a list of `WatchedLoss`, which say what the losses of `compile` return while they are computed in here.

    Keras reduces what they return, and shows the mean only. Before it has built them the list is empty.
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
            if watched[-1].reduces:
                stack.callback(compiled._flat_losses.__setitem__, index, entry._replace(loss=loss))
                compiled._flat_losses[index] = entry._replace(loss=watched[-1])
            stack.enter_context(in_place_of(loss, "call", watched[-1].watched))
        yield watched


def logs_to_reduce(logs, strategy):
    """Give logs the axis over which Keras reduces them with several workers; scalars raise (keras issue 20585)."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return logs
    if strategy.num_replicas_in_sync == len(strategy.extended.worker_devices):
        return logs
    return keras.tree.map_structure(lambda value: tf.expand_dims(value, 0), logs)


def traced_for_each_shape(function):
    """Return a function that XLA compiles, one program for each shape of what it is given.

    Each is traced with shapes that are numbers. TensorFlow warns of that as of a mistake, and the only public setting
    against it, ``reduce_retracing``, traces with shapes that are not known.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)
    compiled._omit_frequent_tracing_warning = True
    return compiled


def converting_optionals(model, step):
    """Return a step that takes what is missing in a batch as None, as Keras' own functions do."""
    return model._autoconvert_optionals(step)


def steps_in_turn(model, step):
    """Return what `fit` or `evaluate` calls for one execution, whose steps Python takes one after the other.

    Keras has them in a loop of the graph, in which replicas cannot talk to each other as GPUs and workers do:
    TensorFlow then asks for the value of a placeholder. The logs are those of the last step, as in Keras.
    """
    strategy = model.distribute_strategy
    step = converting_optionals(model, step)

    def on_batch(data):
        logs = strategy.run(step, args=(data,))
        return reduce_per_replica(logs, strategy, "auto")

    def one_step(iterator):
        return on_batch(next(iterator))

    if not model.run_eagerly:
        on_batch = tf.function(on_batch, reduce_retracing=True, autograph=False, jit_compile=model.jit_compile)
        one_step = tf.function(one_step, reduce_retracing=True, autograph=False)

    def execution(iterator):
        logs = None
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):  # of `train_on_batch`
            for _, data in zip(range(model.steps_per_execution), iterator, strict=False):
                logs = on_batch(data)
            return logs
        for _ in range(model.steps_per_execution):
            try:
                logs = one_step(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise
                break  # fewer steps were left
        return logs

    return execution


def mirrored_with_groups_of_its_own(devices):
    """Return a MirroredStrategy that shares no collective group with others.

    TensorFlow numbers the groups of each strategy from the same start, so the second of another size would abort
    (tensorflow issue 61314). There is no public way to set the start; its own tests do it like this.
    """
    start = {"_collective_key_base": 100_000 * next(_groups)}
    return type("MirroredStrategy", (tf.distribute.MirroredStrategy,), start)(devices)


def launcher_here():
    """Return what launches TensorFlow's collectives on the device of this replica; None where it launches none.

    It knows the group, numbers the exchanges, and keeps their order on each device, without which NCCL would wait for
    ever. It launches none step by step: the replicas run one after the other then, and the first would wait.
    """
    context = tf.distribute.get_replica_context()
    launchers = getattr(context.strategy.extended._cross_device_ops, "_launchers", None)
    return None if launchers is None or tf.executing_eagerly() else launchers[context._replica_id]


def all_gather_rows(launcher, row):
    """Return the replicas' rows, all of one length, as a table [replicas, numbers]: all-gather.

    The public one first tells all how long each is, and makes the table of a hundred operations.
    """
    rows = launcher._all_gather(row[None], options=None)
    return tf.reshape(rows, [launcher._group_size, *row.shape])


def function_graph(node, name):
    """Return the graph of the function that an attribute of a node names, as "body" of a loop."""
    return node.graph._get_function(node.get_attr(name).name).graph


MOVING = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")
"""Of BatchNormalization; the last three where it renormalizes."""


def moving_statistics(model):
    """Return what training changes on each replica by itself: unreduced, replicas would drift apart unseen."""
    layers = [layer for layer in _batch_normalizations(model) if layer.trainable]
    found = [getattr(layer, name, None) for layer in layers for name in MOVING]  # None: not built, or without renorm
    return [variable for variable in found if variable is not None]


def synchronized_layers(model):
    """Return the layers that talk to other replicas in the forward pass, which therefore all replicas must run."""
    return [layer for layer in _batch_normalizations(model) if layer.synchronized]


def assigned_together(model):
    """Return the variables of which replicas make one value wherever a layer assigns to them, all at the same time."""
    of_keras = [weight for weight in model.non_trainable_weights if weight.aggregation not in (None, "none")]
    attributes = [each for layer in layers_within(model) for each in vars(layer).values()]
    of_tensorflow = [each for each in attributes if isinstance(each, tf.Variable) and not each.trainable]
    return of_keras + [each for each in of_tensorflow if each.aggregation != tf.VariableAggregation.NONE]


def device_of(tensor):
    """Return the name of the device on which a tensor is computed, as far as it is known while a step is traced.

    In a function that is called within `tf.device` its tensors have none; the eager context knows.
    """
    return tensor.device or context.context().device_name or ""


def outputs_of(model, x, training):
    """Return what a model makes of a batch, called as Keras' steps call it."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def mask_of(tensor):
    """Return the mask that a layer has put on what it made, as `Embedding(mask_zero=True)` does, or None."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor, mask):
    """Return the tensor, with a mask for the layers that read it, unless that is None."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def functional_of(model, ours):
    """Return the functional model that calls a model's layers: itself, or that in a Sequential one; else None.

    Also None where another class than ``ours`` has a `call` of its own, which may do more than that.
    """
    calls = next(kind for kind in type(model).__mro__ if "call" in vars(kind) and kind is not ours)
    return {Functional: model, keras.Sequential: getattr(model, "_functional", None)}.get(calls)


def made_by(tensor):
    """Return the layer or operation that made a symbolic tensor, and the symbolic tensors that it took."""
    operation, index, _ = tensor._keras_history
    return operation, operation._inbound_nodes[index].input_tensors


def part_until(functional, tensors):
    """Return ``call(inputs, training=, mask=)``, which gives the values of symbolic tensors in a functional model."""
    return keras.Model(functional._inputs_struct, tensors, name=functional.name).call


class PartAfter:
    """What a functional model makes of the values of symbolic tensors within it, until its output."""

    def __init__(self, tensors, output):
        self._function = Function(tensors, output)
        self.operations = self._function.operations

    def __call__(self, values, training):
        return self._function._run_through_graph(values, partial(operation_fn, training=training))


class ValuesFor(keras.StatelessScope):
    """A scope in which given tensors are the values of variables, as they are: Keras would cast them to their types.

    ``read`` are the ids of those that were asked for.
    """

    def __init__(self, variables, values):
        super().__init__()
        self.state_mapping = {id(one): value for one, value in zip(variables, values, strict=True)}
        self.read = set()

    def get_current_value(self, variable):
        self.read.add(id(variable))
        return super().get_current_value(variable)


def layers_within(layer):
    """Return a layer or model and all layers inside it."""
    return list(layer._flatten_layers())


def layers_directly_in(layer):
    """Return the layers that a layer or model calls itself, without those inside them."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def layers_and_operations(model):
    """Return a model's layers and the operations between them, such as `keras.ops.exp`, that a functional one has."""
    found = {}
    for layer in layers_within(model):
        inside = layer.operations if isinstance(layer, Functional) else []
        found.update({id(each): each for each in [layer, *inside]})
    return list(found.values())


def layers_that_add_losses(model):
    """Return the layers that have added losses in the last call, by `add_loss` or an activity regularizer.

    The public ``losses`` do not say whose they are, and hold those of weights too.
    """
    return [layer for layer in layers_within(model) if layer._losses]


@contextmanager
def attributes_kept(model):
    """Put back what a call changes in attributes of layers, as tensors of its own graph, and the losses they added."""
    layers = layers_within(model)
    before = [(dict(vars(layer)), list(layer._losses), set(layer._loss_ids)) for layer in layers]
    try:
        yield
    finally:
        for layer, (attributes, losses, ids) in zip(layers, before, strict=True):
            for name in set(vars(layer)) - set(attributes):
                del vars(layer)[name]
            vars(layer).update(attributes)
            layer._losses[:] = losses
            layer._loss_ids.update(ids)


def adds_a_mean_only(layer):
    """Return whether all that a layer has added is a regularizer of Keras of its outputs, a mean over the examples."""
    kinds = keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2
    return len(layer._losses) == 1 and type(layer.activity_regularizer) in kinds


def path_within(outer, layer):
    """Return the names on the way from a layer or model to one inside it, "block_1/dense"; None if it is not there.

    Its public ``path`` begins where it was built, and so within a nested model at that.
    """
    for inner in layers_directly_in(outer):
        if inner is layer:
            return inner.name
        rest = path_within(inner, layer)
        if rest:
            return f"{inner.name}/{rest}"


def _batch_normalizations(model):
    return [layer for layer in layers_within(model) if isinstance(layer, keras.layers.BatchNormalization)]


# Objects that are changed in place: see in_place.py


def known_as(made, own):
    """Let files name a class that is made at run time as they name ``own``; Keras looks up the very class."""
    object_registration.GLOBAL_CUSTOM_NAMES[made] = keras.saving.get_registered_name(own)
    if name := api_export.get_name_from_symbol(own):
        api_export.REGISTERED_OBJS_TO_NAMES[made] = name


def bytes_of_file(thing):
    """Return a layer or model as Keras pickles it, without the class that reads it: pickle could not find that."""
    _, (file,) = KerasSaveable.__reduce__(thing)
    return file


def object_of_file(own, file):
    """Return the layer or model of class ``own`` that `bytes_of_file` has written."""
    return own._unpickle_model(file)


_SCOPES = ("current_call_ctx", "autocast_scope")


def scopes_of_call():
    """Return what layers inside a call take from outside: ``training`` and its like, the type weights are cast to."""
    call, autocast = (global_state.get_global_attribute(name) for name in _SCOPES)
    return copy(call), autocast  # a copy, for layers that are called later write into it


@contextmanager
def within_scopes(scopes):
    """Call layers as they were called where `scopes_of_call` was asked: in the backward pass all that is gone."""
    before = [global_state.get_global_attribute(name) for name in _SCOPES]
    _set_scopes(scopes)
    try:
        yield
    finally:
        _set_scopes(before)


def _set_scopes(scopes):
    for name, value in zip(_SCOPES, scopes, strict=True):
        global_state.set_global_attribute(name, value)


# Weights in whose place others stand: see shards.py


def weights_to_train(layer):
    """Return the weights of a layer and of those inside it that train, or would if they were not frozen."""
    return [weight for inner in layers_within(layer) for weight in own_weights_to_train(inner)]


def own_weights_to_train(layer):
    """Return those of a layer itself."""
    return list(layer._trainable_variables)


def let_stand_for(layer, pairs):
    """Let the second variable of each pair stand for the first, in what a built layer itself trains and saves.

    Its attributes, such as ``kernel``, stay what they were.
    """
    other_of = {id(variable): other for variable, other in pairs}
    layer._tracker.unlock()
    for index, variable in enumerate(layer._trainable_variables):
        layer._trainable_variables[index] = other_of.get(id(variable), variable)
    layer._tracker.lock()


def value_from(variable, function):
    """Let a variable keep no value of its own; who reads it gets ``function(shape, dtype=...)``."""
    variable._value = None
    variable._initializer = function


def same_path(variable, other):
    """Give a variable another one's path, by which optimizers know what not to decay."""
    variable._path = other.path


def infers_shapes():
    """Return whether Keras only asks for the shapes that a layer gives."""
    return in_stateless_scope()


class UnmadeVariables:
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


# A training that is examined and left as it was


def build_as_fit_does(model, batch, with_optimizer=True):
    """Make all variables of a compiled model, its optimizer and its metrics, from the shapes of a batch.

    A call would do it too, but layers with random numbers would go on from another seed then.
    """
    optimizer = model.optimizer
    if not with_optimizer:
        object.__setattr__(model, "optimizer", None)  # Keras tracks an ordinary attribute
    try:
        model._symbolic_build(data_batch=batch)
    finally:
        object.__setattr__(model, "optimizer", optimizer)


@contextmanager
def random_numbers_of_keras_kept():
    """Put back where the random numbers of TensorFlow and Keras go on that are drawn without a seed of one's own.

    There is no public way to ask where `tf.random.set_seed` and `keras.utils.set_random_seed` have come to.
    """
    drawn = getattr(context.context(), "_rng", None)  # which is there once a seed was set
    place = drawn and drawn.getstate()
    generator = stateful_random_ops.global_generator
    states = []
    if generator is not None:
        states.append((generator.state, generator.state.numpy()))
    of_keras = global_state.get_global_attribute("global_seed_generator")
    if of_keras is not None:
        states.append((of_keras.state, of_keras.state.numpy()))
    try:
        yield
    finally:
        if drawn and drawn.getstate() != place:
            drawn.setstate(place)
            context.context().clear_kernel_cache()  # kernels of the seeds that come again would go on from theirs
        for variable, value in states:
            variable.assign(value)
        stateful_random_ops.global_generator = generator
        global_state.set_global_attribute("global_seed_generator", of_keras)


# Operations that only XLA has


def custom_call(target, operands, results, config):
    """Emit a custom call of XLA, and return tensors of the specs in ``results``; ``config`` is for the target to read.

    `tf.raw_ops` leaves the operation out.
    """
    return xla.custom_call_v2(target, operands, results, config)


# What callbacks of Keras know of a training: a restart gives it back to them

STATE_OF_CALLBACKS = {
    keras.callbacks.EarlyStopping: ("best", "best_epoch", "stopped_epoch", "wait"),
    keras.callbacks.ReduceLROnPlateau: ("best", "cooldown_counter", "wait"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.TensorBoard: ("_global_train_batch",),
}
"""The attributes in which they keep it; they have no `get_state`."""


def callbacks_in(callbacks):
    """Return as a list what `fit` takes for ``callbacks``: a list, one alone, or a CallbackList."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks
    return keras.tree.flatten(callbacks) if callbacks else []
