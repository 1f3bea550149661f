"""A training step of a Keras model as graphs: one of the gradients of a slice, one of the optimizer's update."""

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.keras_gaps import innermost
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.graph import Graph
from bigtrain_nb.plan.operations import number_of_bytes


class Step:
    """What a step of ``examples`` examples in ``slices`` of ``slice_examples`` does, traced and not run.

    ``gradients``, ``update``: `Graph`, of a slice's gradients and of the optimizer's update. Bytes of ``weights``: all
    variables of the model; ``trainable``: those that train; ``applied``: the gradients that the update gets; ``slots``:
    all variables of the optimizer; ``batch``, ``slice``: one batch and one slice of it, inputs and targets, 0 where the
    batch is not cut; ``folded``: constants that Grappler keeps.

    ``batch``: a number of examples, for a functional or Sequential model, or one batch (x, y) as a dataset yields it.
    ``optimizer``: a Keras optimizer or a name; default: the compiled one, else AdamW. ``loss``: a Keras loss or a
    function; default: the compiled one, else sparse cross-entropy of logits. ``micro_batches``: default: the model's.

    Building the optimizer's variables takes their memory for a moment. Raises ValueError for a model that is not
    built and for settings that make no sense, TypeError for no Keras model.
    """

    def __init__(self, model, batch, optimizer=None, micro_batches=None, loss=None):
        if not isinstance(model, keras.Model):
            raise TypeError(f"expected a Keras model, not {type(model).__name__}")
        variables = model.trainable_variables
        if not model.built or not variables:
            raise ValueError(
                f"{model.name} has no weights to train yet: give it a keras.Input, or call it once on a batch"
            )
        if micro_batches is None:
            micro_batches = getattr(model, "micro_batches", 1)
        loss = loss or model.loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        specs = _specs(batch[:2]) if isinstance(batch, tuple) else _specs_of_examples(model, batch, loss)
        self.examples = keras.tree.flatten(specs)[0].shape[0]
        self.slice_examples = -(-self.examples // whole_number("micro_batches", micro_batches, 1))
        self.slices = -(-self.examples // self.slice_examples)
        cut = self.slices > 1

        slice_specs = _specs(specs, self.slice_examples)
        self.gradients, gradients = _gradients(model, *slice_specs, loss, keep=not cut)
        if cut:  # sums over slices are dense
            gradients = dict(enumerate(_specs(variables)))
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
    if len(loss) != outputs:
        raise ValueError(f"loss: expected one, or one for each of the {outputs} outputs, not {len(loss)}")
    return [keras.losses.get(one) for one in loss]


def _specs_of_examples(model, examples, loss):
    """Return inputs and targets of so many examples as `tf.TensorSpec`."""
    inputs = getattr(model, "inputs", None)
    if not inputs or any(None in tensor.shape[1:] for tensor in inputs):
        raise ValueError(f"{model.name} does not tell its input shapes: give batch=(x, y), one batch of your dataset")

    targets = []
    for one, output in zip(_losses(model, loss, len(model.outputs)), model.outputs, strict=True):
        if "sparse" in getattr(one, "__name__", type(one).__name__).lower():
            targets.append(tf.TensorSpec(output.shape[:-1], "int64"))
        else:
            targets.append(tf.TensorSpec(output.shape, "float32"))
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input  # a Sequential may have none
    return _specs((inputs, targets), whole_number("batch", examples, 1))


def _specs(values, examples=None):
    """Return `tf.TensorSpec` of tensors, of so many examples."""

    def spec(value):
        shape = value.shape if examples is None else (examples, *value.shape[1:])
        return tf.TensorSpec(shape, value.dtype)

    return keras.tree.map_structure(spec, values)


def _optimizer(model, optimizer):
    """Return a fresh optimizer of that kind, built, without loss scaling and accumulation."""
    optimizer = optimizer or getattr(model, "optimizer", None) or "adamw"
    if optimizer == "momentum":
        optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer = innermost(keras.optimizers.get(optimizer))
    made = type(optimizer).from_config({**optimizer.get_config(), "gradient_accumulation_steps": None})
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
