"""A training step of a Keras model as graphs: one of the gradients of a slice, one of the optimizer's update."""

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.graph import Graph
from bigtrain_nb.plan.operations import number_of_bytes

MOST = 2**20
"""Examples of a batch: TensorFlow counts some shapes in 32 bits."""
FORWARD_ENDS = "forward_pass_ends"
"""A node that does nothing; those behind it are the tape's."""


class Step:
    """What a step of ``examples`` examples in ``slices`` of ``slice_examples`` does, traced and not run.

    ``gradients``, ``update``: `Graph`, of a slice's gradients and of the optimizer's update. Bytes of ``weights``: all
    variables of the model; ``trainable``: those that train; ``applied``: the gradients that the update gets; ``slots``:
    all variables of the optimizer; ``batch``, ``slice``: one batch and one slice of it, inputs and targets, 0 where the
    batch is not cut; ``folded``: constants that Grappler keeps, if it may.

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
        micro_batches = whole_number("micro_batches", micro_batches, 1)
        if loss is None:
            loss = model.loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        specs = _given(batch) if isinstance(batch, tuple) else _shapes(model, batch, loss)
        self.examples = keras.tree.flatten(specs)[0].shape[0]
        self.slice_examples = -(-self.examples // micro_batches)
        self.slices = -(-self.examples // self.slice_examples)
        self.policies = sorted({layer.dtype_policy.name for layer in _layers(model)})

        def cut(spec):
            return tf.TensorSpec((self.slice_examples, *spec.shape[1:]), spec.dtype)

        uncut = micro_batches == 1
        slice_specs = keras.tree.map_structure(cut, specs)
        self.batch = _size(specs)
        self.slice = 0 if uncut else _size(slice_specs)

        self.gradients, gradients = _gradients(model, *slice_specs, loss, keep=uncut)
        if not uncut:  # sums over slices are dense
            gradients = {index: tf.TensorSpec(v.shape, v.dtype) for index, v in enumerate(variables)}
        optimizer = _optimizer(model, optimizer)
        self.optimizer = type(optimizer).__name__
        self.update = _update(optimizer, variables, gradients)
        self.weights = _size(model.variables)
        self.trainable = _size(variables)
        self.applied = _size(gradients)
        self.slots = _size(optimizer.variables)
        folds = tf.config.optimizer.get_experimental_options().get("constant_folding", True)
        self.folded = self.gradients.folded if uncut and folds else 0


def _gradients(model, x, y, loss, keep):
    """Return the `Graph` of a slice's gradients, and {variable's index: spec of its gradient}."""
    variables = model.trainable_variables

    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = _value(model, loss, y, model(x, training=True))
        tf.no_op(name=FORWARD_ENDS)
        found = tape.gradient(value, variables)
        return {index: gradient for index, gradient in enumerate(found) if gradient is not None}

    traced = tf.function(gradients, autograph=False).get_concrete_function(x, y)
    if not traced.outputs:
        raise ValueError(f"the loss depends on no weight of {model.name}: there is nothing to train")
    first_backward = traced.graph.get_operations().index(traced.graph.get_operation_by_name(FORWARD_ENDS))
    layers = {layer.name for layer in _layers(model)}
    graph = Graph(traced.graph, traced.outputs, first_backward, layers, keep=keep)
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


def _shapes(model, batch, loss):
    """Return inputs and targets of so many examples as `tf.TensorSpec`."""
    batch = whole_number("batch", batch, 1, MOST)
    if not getattr(model, "inputs", None):
        raise ValueError(f"{model.name} does not tell its input shapes: give batch=(x, y), one batch of your dataset")

    def at(tensor):
        if None in tensor.shape[1:]:
            raise ValueError(f"{model.name} takes inputs of any size, {tensor.shape[1:]}: give batch=(x, y), one batch")
        return tf.TensorSpec((batch, *tensor.shape[1:]), tensor.dtype)

    targets = []
    for one, output in zip(_losses(model, loss, len(model.outputs)), model.outputs, strict=True):
        name = getattr(one, "__name__", type(one).__name__)
        spec = at(output)
        if "sparse" in name.lower():
            targets.append(tf.TensorSpec(spec.shape[:-1], "int64"))
        else:
            targets.append(tf.TensorSpec(spec.shape, "float32"))
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input  # a Sequential may have none
    return keras.tree.map_structure(at, inputs), targets


def _given(batch):
    """Return inputs and targets of a batch as `tf.TensorSpec`."""
    parts = batch[:2]
    lengths = {value.shape[0] for value in keras.tree.flatten(parts)}
    if len(parts) < 2 or len(lengths) > 1:
        raise ValueError(f"batch: expected (x, y) of as many examples each, not {len(parts)} of {lengths} examples")
    return keras.tree.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), parts)


def _optimizer(model, optimizer):
    """Return a fresh optimizer of that kind, built, without loss scaling and accumulation."""
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None) or "adamw"
    if optimizer == "momentum":
        optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer = keras.optimizers.get(optimizer)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    made = type(optimizer).from_config({**optimizer.get_config(), "gradient_accumulation_steps": None})
    made.build(model.trainable_variables)
    return made


def _layers(model):
    """Yield the layers that are no models themselves."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            yield layer


def _size(values):
    """Return the bytes of variables or specs."""
    flat = tf.nest.flatten(values, expand_composites=True)
    return sum(number_of_bytes(tf.TensorSpec(value.shape, value.dtype)) for value in flat)
