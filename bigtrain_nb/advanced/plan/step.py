"""A training step of a Keras model as graphs: one for the gradients of a micro-batch, one for the update."""

import math
from functools import partial
from numbers import Number

import numpy as np

from bigtrain_nb.advanced.parallel.chunked_head import Deferred
from bigtrain_nb.advanced.parallel.fully_shard import is_fully_sharded
from bigtrain_nb.advanced.parallel.layers import layers_chosen, refuse_nested
from bigtrain_nb.advanced.parallel.row_by_row import RowByRow
from bigtrain_nb.advanced.parallel.shards import refuse_unless_elementwise
from bigtrain_nb.advanced.plan.fully_sharded import fully_sharded, weights_to_train
from bigtrain_nb.advanced.plan.graph import Graph
from bigtrain_nb.advanced.shared.fit_data import compute_loss_like_fit, is_dataset, passes, preprocess_like_fit
from bigtrain_nb.advanced.shared.loss_pairs import loss_pairs
from bigtrain_nb.advanced.shared.operations import number_of_bytes
from bigtrain_nb.common.checks import function, integer, of_kind
from bigtrain_nb.common.keras_compat import innermost, optimizer_like, overriding
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import at_least_32_bits
from bigtrain_nb.common.words import first_sentence
from bigtrain_nb.train.model import Model
from bigtrain_nb.train.own_step import in_own_step
from bigtrain_nb.train.settings import SETTINGS, checked


class PlannedStep:
    """The work of each of ``devices`` in a step: ``examples`` in ``slices`` micro-batches of ``slice_examples``.

    It is traced, not run. ``gradients``, ``update``: `Graph` of a micro-batch's gradients and of the update.
    ``settings``: {name: value} of those of `bt.Model`; ``in_a_loop``: whether a loop runs the micro-batches.
    Bytes of ``weights``: all variables of the model, for fully sharded layers its shards; ``trainable``: those that
    train; ``sums``: their gradients, dense and in 32 bits; ``applied``: the gradients that the update gets; ``sent``:
    the gradients as sent; ``gathered`` and ``scattered``: full weights and gradients of fully sharded layers as sent;
    ``slots``: all variables of the optimizer; ``shards``: what a sharded optimizer updates in addition to the weights;
    ``batch``, ``slice``: inputs and targets of the batch, and of a micro-batch, 0 if the batch is not split;
    ``folded``: constants that Grappler keeps.

    The arguments are those of `plan_step`. Building the optimizer's variables temporarily takes their memory.
    """

    def __init__(self, model, batch, optimizer=None, policy=None, loss=None, devices=None, metrics=True, **settings):
        if tf.distribute.in_cross_replica_context():
            raise ValueError("a step is planned for one replica: call plan_step outside of the strategy's scope")
        model = _built(model, policy)
        _refuse_other_steps(model)
        if devices is None:
            devices = model.distribute_strategy.num_replicas_in_sync
        self.devices = integer("devices", devices, 1)
        self.settings = _settings(model, settings, self.devices)
        kinds = str | keras.optimizers.Optimizer | None
        of_kind("optimizer", optimizer, kinds, "an optimizer's name or a Keras optimizer")
        layers = []
        if self.devices > 1 and self.settings["fully_shard"] is not None:
            layers = layers_chosen(model, self.settings["fully_shard"], "fully_shard")
            refuse_nested(layers, "fully_shard selects both")
        optimizer, accumulated = _fresh(optimizer or getattr(model, "optimizer", None) or "adamw")
        if layers or self.settings["shard_optimizer"]:
            refuse_unless_elementwise(optimizer)
        sharded = {id(weight): weight for layer in layers for weight in weights_to_train(layer)}
        shards = {key: _shard(weight, self.devices) for key, weight in sharded.items()}
        variables = [shards.get(id(one), one) for one in model.trainable_variables]
        has_own_loss = loss is None and overriding(model, "compute_loss")
        loss = loss or model.loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        loss_of = partial(compute_loss_like_fit, model, training=True) if has_own_loss else partial(_value, model, loss)

        # A replica's share of the batch, and a micro-batch of it
        specs = _specs_of_a_batch(model, batch, loss)
        self.examples = -(-keras.tree.flatten(specs)[0].shape[0] // self.devices)
        self.slice_examples = -(-self.examples // self.settings["micro_batches"])
        self.slices = -(-self.examples // self.slice_examples)
        cut = self.slices > 1
        self.in_a_loop = cut and not layers  # else unrolled: replicas cannot communicate within a loop
        slice_specs = _resized(specs, self.slice_examples)
        self.batch = _size(_resized(specs, self.examples))
        self.slice = _size(slice_specs) if cut else 0

        # Gradients of a micro-batch
        reduce_dtype = self.settings["reduce_dtype"]
        with fully_sharded(layers, shards, self.devices, reduce_dtype):
            metrics = metrics and model.compiled and model.distribute_strategy.num_replicas_in_sync == 1
            self.gradients, gradients = _gradients(model, variables, slice_specs, loss_of, metrics)
        summed = {place: tf.TensorSpec(one.shape, at_least_32_bits(one.dtype)) for place, one in enumerate(variables)}
        if cut or self.settings["shard_optimizer"]:  # sums are dense
            gradients = summed
        elif self.devices > 1 or isinstance(model, Model):  # which makes those of embeddings dense
            gradients = {place: tf.TensorSpec(variables[place].shape, variables[place].dtype) for place in gradients}
        self.sums = _size(summed)
        self.applied = _size(gradients)
        self.folded = 0 if cut or self.devices > 1 else self.gradients.folded  # no static sizes there
        whole = [one for one in model.trainable_variables if id(one) not in sharded]
        trained = [weight for weight in sharded.values() if weight.trainable]
        self.sent = sum(_bytes_on_the_way(one, reduce_dtype) for one in whole)
        self.scattered = sum(_bytes_on_the_way(one, reduce_dtype) for one in trained)
        self.gathered = sum(_bytes_on_the_way(one, "float32") for one in sharded.values())

        # The update
        updated = variables
        if self.settings["shard_optimizer"]:
            updated = [_shard(one, self.devices) for one in variables]
            of_shards = enumerate(updated)
            gradients = {place: tf.TensorSpec(one.shape, at_least_32_bits(one.dtype)) for place, one in of_shards}
        elif any(isinstance(one.value, tf.distribute.DistributedValues) for one in variables):  # a replica writes them
            updated = [_stand_in(one, one.shape) for one in variables]
        optimizer.build(updated)
        self.update = _update(optimizer, updated, gradients, accumulated)
        self.optimizer = type(optimizer).__name__
        self.policies = sorted({layer.dtype_policy.name for layer in model.layers})

        self.weights = _size([shards.get(id(one), one) for one in model.variables])
        self.trainable = _size(variables)
        self.slots = _size([*optimizer.variables, *(updated if accumulated else [])])  # it keeps a sum like each weight
        self.shards = _size(updated) if self.settings["shard_optimizer"] else 0


def _built(model, policy):
    """Return the model, which must have weights to train; if it is a function, call it under the policy."""
    if callable(model) and not isinstance(model, keras.layers.Layer):
        function("model", model, "a Keras model, or a function without arguments that builds one", arguments=[])
        before = keras.mixed_precision.dtype_policy()
        try:
            keras.mixed_precision.set_dtype_policy(policy or before)
            model = model()
        finally:
            keras.mixed_precision.set_dtype_policy(before)
    elif isinstance(model, keras.Model) and policy is not None:
        raise ValueError(
            f"policy={policy!r}: a built model already has its policy; give the function that builds it instead"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a Keras model, not {type(model).__name__}")
    if not model.trainable_variables:
        raise ValueError(f"{model.name} has no weights to train yet: give it a keras.Input, or call it once on a batch")
    return model


def _refuse_other_steps(model):
    """Raise TypeError or ValueError for a model whose step differs from the one traced here."""
    kind = overriding(model)
    if kind:
        raise TypeError(
            f"{kind.__name__} has a custom train_step, but a plan covers one forward pass, one backward pass and"
            " one update: plan its Keras models one by one, or measure a step with bt.peak_memory and"
            " bt.throughput. A custom loss is planned if it is in compute_loss(x, y, y_pred, sample_weight)"
        )
    if is_fully_sharded(model):
        raise ValueError(
            f"the layers of {model.name} are already sharded over the replicas: give the function that builds the"
            " model, and call plan_step outside of the strategy's scope, with fully_shard and, for example, devices=2"
        )


def _settings(model, given, devices):
    """Return the settings of `bt.Model` for this step: the given ones, else the model's."""
    settings = {name: getattr(model, name) if isinstance(model, Model) else SETTINGS[name] for name in SETTINGS}
    settings = checked(None, settings | {name: value for name, value in given.items() if value is not None})
    if settings["fully_shard"] is not None:
        if settings["shard_optimizer"] and devices > 1:
            raise ValueError(
                f"fully_shard={settings['fully_shard']!r} and shard_optimizer=True cannot be combined: leave out one"
            )
        if given.get("fully_shard") is not None and devices == 1:
            raise ValueError("fully_shard needs several devices to share the weights: give devices=2 or more")
    if settings["shard_optimizer"] and devices == 1:
        raise ValueError("shard_optimizer=True needs several devices to share the state: give devices=2 or more")
    return settings


# The batch


def _specs_of_a_batch(model, batch, loss):
    """Return (inputs, targets, sample weights) of a batch, each with shapes and types; None for missing parts."""
    if isinstance(batch, Number):
        return _specs_of_examples(model, batch, loss)
    parts = keras.utils.unpack_x_y_sample_weight(_one_batch(model, batch))
    if any(value is not None and not len(getattr(value, "shape", ())) for value in keras.tree.flatten(parts)):
        raise _no_batch(batch)
    return parts


def _one_batch(model, batch):
    """Return one batch: the given one, or the first of a dataset, as `fit` passes it to the model."""
    if isinstance(batch, tuple | list) and not is_dataset(batch):
        return tuple(keras.tree.map_structure(_as_fit_casts, batch))
    source = batch.dataset() if callable(getattr(batch, "dataset", None)) else batch
    if isinstance(source, dict | str) or hasattr(source, "shape") or not hasattr(source, "__iter__"):
        raise _no_batch(batch)
    for first in passes(preprocess_like_fit(model, source))():  # a plan does not change the order in which `fit` trains
        return first
    raise ValueError("the dataset yielded no batch")


def _as_fit_casts(value):
    """Return a floating-point NumPy array as a spec of the type that `fit` makes it."""
    is_cast = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return tf.TensorSpec(value.shape, keras.config.floatx()) if is_cast else value


def _no_batch(batch):
    return TypeError(
        "batch must be a number of examples, one batch (x, y) of arrays or tensors, or a dataset of batches, not"
        f" {batch!r:.99}"
    )


def _specs_of_examples(model, examples, loss):
    """Return inputs and targets of ``examples`` examples as `tf.TensorSpec`."""
    examples = integer("batch", examples, 1)
    if not getattr(model, "inputs", None) or any(None in each.shape[1:] for each in (*model.inputs, *model.outputs)):
        raise ValueError(
            f"{model.name} has no known shapes of inputs and outputs: give batch=(x, y), one batch of your dataset, or"
            " the dataset"
        )
    is_sequential = isinstance(model, keras.Sequential)  # which may have no `input` and `output`
    outputs = model.outputs[0] if is_sequential else model.output
    targets = {id(output): tf.TensorSpec(output.shape, "float32") for output in model.outputs}
    for one, _, output, _ in loss_pairs(model, loss, outputs, outputs):
        if "sparse" in getattr(one, "__name__", type(one).__name__).lower():
            targets[id(output)] = tf.TensorSpec(output.shape[:-1], "int64")
    inputs = model.inputs[0] if is_sequential else model.input
    return _resized((inputs, [targets[id(output)] for output in model.outputs], None), examples)


def _resized(specs, examples):
    """Return `tf.TensorSpec` of tensors, with ``examples`` examples."""

    def resized(value):
        return None if value is None else tf.TensorSpec((examples, *value.shape[1:]), value.dtype)

    return keras.tree.map_structure(resized, specs)


# Gradients


def _gradients(model, variables, specs, loss_of, with_metrics):
    """Return the `Graph` of a micro-batch's gradients, and {variable's index: spec of its gradient}."""
    forward = []

    def gradients(x, y, sample_weight):
        with tf.GradientTape() as tape:
            with in_own_step(model):
                outputs = model(x, training=True)
            value = loss_of(x, y, outputs, sample_weight)
        if with_metrics and not any(isinstance(each, Deferred) for each in keras.tree.flatten(outputs)):
            model.compute_metrics(x, y, outputs, sample_weight)
        forward.extend(value.graph.get_operations())
        found = tape.gradient(value, variables)
        return {index: gradient for index, gradient in enumerate(found) if gradient is not None}

    traced = tf.function(gradients, autograph=False).get_concrete_function(*specs)
    if not traced.outputs:
        raise ValueError(
            f"the loss depends on no weight of {model.name}: nothing is trained, or the batch has no targets"
        )
    graph = Graph(traced.graph, traced.outputs, len(forward), _layer_names(model))
    return graph, tf.nest.map_structure(tf.type_spec_from_value, traced.structured_outputs)


def _value(model, loss, x, y, outputs, sample_weight):
    """Return the loss, summed over outputs, plus losses of layers; sample weights do not change sizes."""
    total = tf.constant(0.0)
    for added in model.losses:
        total += tf.cast(added, "float32")
    if y is None:
        return total
    for one, target, output, _ in loss_pairs(model, loss, y, outputs):
        total += tf.reduce_mean(tf.cast(_of_output(one, target, output), "float32"))
    return total


def _of_output(loss, target, output):
    if not isinstance(output, Deferred):
        return loss(_as_outputs(target, output), output)
    if not isinstance(loss, keras.losses.Loss):
        loss = type("Loss", (keras.losses.Loss,), {"call": lambda self, y, y_pred, own=loss: own(y, y_pred)})()
    return RowByRow(output, loss, target).run()[0]


def _as_outputs(target, output):
    """Return targets [...] as [..., 1] for outputs [..., 1], as Keras does before it calls a loss."""
    if output.shape.rank == target.shape.rank + 1 and output.shape[-1] == 1:
        return target[..., None]
    return target


def _layer_names(model):
    """Return the names of the layers that are not models."""
    names = set()
    for layer in model.layers:
        names |= _layer_names(layer) if isinstance(layer, keras.Model) else {layer.name}
    return names


# The update


def _fresh(optimizer):
    """Return a new optimizer of that kind, without loss scaling or accumulation, and how many steps it accumulates."""
    if optimizer == "momentum":
        optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer = innermost(keras.optimizers.get(optimizer))
    accumulated = optimizer.gradient_accumulation_steps
    changed = {"gradient_accumulation_steps": None} if accumulated else {}
    try:
        return optimizer_like(optimizer, type(optimizer), **changed), accumulated
    except Exception as error:
        raise ValueError(
            f"a plan copies the optimizer, but {type(optimizer).__name__} cannot be made from its get_config()"
            f" ({first_sentence(error)}): give optimizer=, one with as much state, such as 'adam'"
        ) from None


def _update(optimizer, variables, specs, accumulated):
    """Return the `Graph` of the optimizer's update for gradients of these specs, after ``accumulated`` steps if any."""
    chosen = [variables[index] for index in specs]

    def apply(*gradients):
        means = [tf.convert_to_tensor(each) / accumulated for each in gradients] if accumulated else list(gradients)
        optimizer.apply(means, chosen)

    return Graph(tf.function(apply, autograph=False).get_concrete_function(*specs.values()).graph, [])


def _shard(variable, replicas):
    """Return a variable as large as a replica's shard of a weight: one row of elements."""
    return _stand_in(variable, [-(-math.prod(variable.shape) // replicas)])


def _stand_in(variable, shape):
    kind = {"dtype": variable.dtype, "trainable": variable.trainable}
    return keras.Variable("zeros", shape=shape, name=variable.path.replace("/", "_"), **kind)


# Bytes


def _bytes_on_the_way(variable, reduce_dtype):
    """Return the bytes of a variable's gradient as sent: in at least 32 bits, or in ``reduce_dtype``."""
    size = max(4, tf.as_dtype(variable.dtype).size) if reduce_dtype == "float32" else tf.as_dtype(reduce_dtype).size
    return size * math.prod(variable.shape)


def _size(values):
    """Return the bytes of variables or specs."""
    flat = [value for value in tf.nest.flatten(values, expand_composites=True) if value is not None]
    return sum(number_of_bytes(tf.TensorSpec(value.shape, value.dtype)) for value in flat)
