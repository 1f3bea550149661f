"""A training step of a Keras model as graphs: one of the gradients of a slice, one of the optimizer's update."""

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.keras_gaps import innermost
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.graph import Graph
from bigtrain_nb.plan.operations import number_of_bytes


class Step:
    """What each of ``devices`` does in a step of ``examples`` examples in ``slices`` of ``slice_examples``.

    It is traced and not run. ``gradients``, ``update``: `Graph`, of a slice's gradients and of the optimizer's update.
    Bytes of ``weights``: all variables of the model; ``trainable``: those that train; ``applied``: the gradients that
    the update gets; ``slots``: all variables of the optimizer; ``batch``, ``slice``: one batch and one slice of it,
    inputs and targets, 0 where the batch is not cut; ``folded``: constants that Grappler keeps.

    The arguments are those of `plan_step`. Building the optimizer's variables takes their memory for a moment.
    """

    def __init__(self, model, batch, optimizer=None, micro_batches=None, policy=None, loss=None, devices=1):
        model = _built(model, policy)
        variables = model.trainable_variables
        loss = loss or model.loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        specs = batch[:2] if isinstance(batch, tuple) else _specs_of_examples(model, batch, loss)
        self.examples = -(-keras.tree.flatten(specs)[0].shape[0] // devices)
        specs = _specs(specs, self.examples)
        if micro_batches is None:
            micro_batches = getattr(model, "micro_batches", 1)
        self.slice_examples = -(-self.examples // whole_number("micro_batches", micro_batches, 1))
        self.slices = -(-self.examples // self.slice_examples)
        cut = self.slices > 1

        slice_specs = _specs(specs, self.slice_examples)
        self.gradients, gradients = _gradients(model, *slice_specs, loss, keep=not cut)
        if cut:  # sums over slices are dense
            gradients = {place: tf.TensorSpec(one.shape, one.dtype) for place, one in enumerate(variables)}
        optimizer = _optimizer(model, optimizer)
        self.update = _update(optimizer, variables, gradients)
        self.optimizer = type(optimizer).__name__
        self.policies = sorted({layer.dtype_policy.name for layer in model.layers})

        self.batch = _size(specs)
        self.slice = _size(slice_specs) if cut else 0
        self.weights = _size(model.variables)
        self.trainable = _size(variables)
        self.applied = _size(gradients)
        self.slots = _size(optimizer.variables)
        self.folded = 0 if cut else self.gradients.folded


def _built(model, policy):
    """Return the model, which has weights to train; call a function for it under the policy."""
    if callable(model) and not isinstance(model, keras.Model):
        before = keras.mixed_precision.dtype_policy()
        try:
            keras.mixed_precision.set_dtype_policy(policy or before)
            model = model()
        finally:
            keras.mixed_precision.set_dtype_policy(before)
    elif policy is not None:
        raise ValueError(
            f"policy={policy!r}: a built model has its policy already; give the function that builds it instead"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a Keras model, not {type(model).__name__}")
    if not model.trainable_variables:
        raise ValueError(f"{model.name} has no weights to train yet: give it a keras.Input, or call it once on a batch")
    return model


def _gradients(model, x, y, loss, keep):
    """Return the `Graph` of a slice's gradients, and {variable's index: spec of its gradient}."""
    forward = []

    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = _value(model, loss, y, model(x, training=True))
        forward.extend(value.graph.get_operations())
        found = tape.gradient(value, model.trainable_variables)
        return {index: gradient for index, gradient in enumerate(found) if gradient is not None}

    traced = tf.function(gradients, autograph=False).get_concrete_function(x, y)
    if not traced.outputs:
        raise ValueError(f"the loss depends on no weight of {model.name}: there is nothing to train")
    graph = Graph(traced.graph, traced.outputs, len(forward), _layer_names(model), keep=keep)
    return graph, tf.nest.map_structure(tf.type_spec_from_value, traced.structured_outputs)


def _update(optimizer, variables, specs):
    """Return the `Graph` of the optimizer's update from gradients of these specs."""
    chosen = [variables[index] for index in specs]

    def apply(*gradients):
        optimizer.apply(list(gradients), chosen)

    return Graph(tf.function(apply, autograph=False).get_concrete_function(*specs.values()).graph, [])


def _value(model, loss, y, outputs):
    """Return the loss, summed over outputs, with what layers add to it."""
    outputs = keras.tree.flatten(outputs)
    total = sum(tf.cast(added, "float32") for added in model.losses)
    for one, target, output in zip(_losses(model, loss, len(outputs)), keras.tree.flatten(y), outputs, strict=True):
        if one is not None:
            total += tf.reduce_mean(tf.cast(one(target, output), "float32"))
    return total


def _losses(model, loss, outputs):
    """Return a loss for each output, None where it has none; one that is given alone is that of all."""
    if isinstance(loss, dict):
        names = sorted(model.output) if isinstance(model.output, dict) else model.output_names
        loss = [loss.get(name) for name in names]
    if not isinstance(loss, list | tuple):
        loss = [loss] * outputs
    return [keras.losses.get(one) for one in loss]


def _specs_of_examples(model, examples, loss):
    """Return inputs and targets of so many examples as `tf.TensorSpec`."""
    if not getattr(model, "inputs", None) or any(None in tensor.shape[1:] for tensor in model.inputs):
        raise ValueError(f"{model.name} does not tell its input shapes: give batch=(x, y), one batch of your dataset")
    targets = []
    for one, output in zip(_losses(model, loss, len(model.outputs)), model.outputs, strict=True):
        if "sparse" in getattr(one, "__name__", type(one).__name__).lower():
            targets.append(tf.TensorSpec(output.shape[:-1], "int64"))
        else:
            targets.append(tf.TensorSpec(output.shape, "float32"))
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input  # a Sequential may have none
    return _specs((inputs, targets), whole_number("batch", examples, 1))


def _specs(values, examples):
    """Return `tf.TensorSpec` of tensors, of so many examples."""
    return keras.tree.map_structure(lambda value: tf.TensorSpec((examples, *value.shape[1:]), value.dtype), values)


def _optimizer(model, optimizer):
    """Return a fresh optimizer of that kind, built, without loss scaling."""
    optimizer = optimizer or getattr(model, "optimizer", None) or "adamw"
    if optimizer == "momentum":
        optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer = innermost(keras.optimizers.get(optimizer))
    made = type(optimizer).from_config(optimizer.get_config())
    made.build(model.trainable_variables)
    return made


def _layer_names(model):
    """Return the names of the layers that are no models themselves."""
    names = set()
    for layer in model.layers:
        names |= _layer_names(layer) if isinstance(layer, keras.Model) else {layer.name}
    return names


def _size(values):
    """Return the bytes of variables or specs."""
    flat = tf.nest.flatten(values, expand_composites=True)
    return sum(number_of_bytes(tf.TensorSpec(value.shape, value.dtype)) for value in flat)
