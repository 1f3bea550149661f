"""A training step of a Keras model as graphs: one of the gradients of a slice, one of the optimizer's update."""

from dataclasses import dataclass

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.formulas import SLOTS
from bigtrain_nb.plan.graph import Graph

MOST = 2**20
"""Examples of a batch: TensorFlow counts some shapes in 32 bits."""


@dataclass(frozen=True)
class Step:
    """What a step of ``examples`` examples in ``micro_batches`` slices does, traced and not run.

    Bytes of ``weights``: all variables of the model; ``trainable``: those that train; ``slots``: all variables of the
    optimizer; ``batch``, ``slice``: one batch and one slice of it, inputs and targets; the slice's 0 where it is the
    batch; ``folded``: constants that Grappler keeps, if it may.
    """

    gradients: Graph
    update: Graph
    examples: int
    micro_batches: int
    weights: int
    trainable: int
    slots: int
    batch: int
    slice: int
    folded: int
    optimizer: str
    policies: tuple

    @property
    def slices(self):
        """How many slices the batch is cut into: at most one for each example."""
        return -(-self.examples // self.slice_examples)

    @property
    def slice_examples(self):
        return -(-self.examples // self.micro_batches)


def trace(model, batch, optimizer=None, micro_batches=None, loss=None):
    """Return the `Step` of a built Keras model.

    ``batch``: a number of examples, for a functional or Sequential model, or one batch (x, y) as a dataset yields it.
    ``optimizer``: a Keras optimizer or a name; default: the compiled one, else AdamW. ``loss``: a Keras loss or a
    function; default: the compiled one, else sparse cross-entropy of logits. ``micro_batches``: default: the model's.

    Building the optimizer's variables takes their memory while this runs. Raises ValueError for a model that is not
    built and for settings that make no sense.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a Keras model, not {type(model).__name__}")
    if not model.built or not model.trainable_variables:
        raise ValueError(f"{model.name} has no weights to train yet: give it a keras.Input, or call it once on a batch")
    if micro_batches is None:
        micro_batches = getattr(model, "micro_batches", 1)
    micro_batches = whole_number("micro_batches", micro_batches, 1)
    loss = _loss_of(model, loss)
    x, y = _specs(model, batch, loss)
    examples = keras.tree.flatten(x)[0].shape[0]
    length = -(-examples // micro_batches)
    cut = lambda spec: tf.TensorSpec((length, *spec.shape[1:]), spec.dtype)  # noqa: E731
    small_x, small_y = keras.tree.map_structure(cut, x), keras.tree.map_structure(cut, y)
    made = _optimizer(model, optimizer)
    gradients = _gradients(model, small_x, small_y, loss, keep=micro_batches == 1)
    folds = micro_batches == 1 and tf.config.optimizer.get_experimental_options().get("constant_folding", True)
    return Step(
        gradients=gradients,
        update=_update(made, model.trainable_variables),
        examples=examples,
        micro_batches=micro_batches,
        weights=_size(model.variables),
        trainable=_size(model.trainable_variables),
        slots=_size(made.variables),
        batch=_size([x, y]),
        slice=_size([small_x, small_y]) if micro_batches > 1 else 0,
        folded=gradients.folded if folds else 0,
        optimizer=type(made).__name__,
        policies=tuple(sorted({layer.dtype_policy.name for layer in _layers(model)})),
    )


def _gradients(model, x, y, loss, keep):
    variables, first_backward = model.trainable_variables, []

    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = _value(loss, y, model(x, training=True)) + sum(tf.cast(one, "float32") for one in model.losses)
        first_backward.append(len(value.graph.get_operations()))
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, variables) if g is not None]

    traced = tf.function(gradients, autograph=False).get_concrete_function(x, y)
    results = [t for t in traced.graph.outputs if t.dtype.is_floating]
    if not results:
        raise ValueError(f"the loss depends on no weight of {model.name}: there is nothing to train")
    names = [layer.name for layer in _layers(model)]
    return Graph(traced.graph, results, first_backward[0], names, keep)


def _update(optimizer, variables):
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    apply = tf.function(lambda *gradients: optimizer.apply(list(gradients), variables), autograph=False)
    return Graph(apply.get_concrete_function(*specs).graph, [], 0)


def _value(loss, y, outputs):
    """Return the loss, the sum over outputs where there are several."""
    flat = keras.tree.flatten(outputs)
    pairs = zip(_for_each(loss, len(flat)), keras.tree.flatten(y), flat, strict=True)
    return sum(tf.reduce_mean(tf.cast(one(target, output), "float32")) for one, target, output in pairs if one)


def _loss_of(model, loss):
    """Return the loss or losses to use: the given, the compiled, or else sparse cross-entropy of logits."""
    if loss is None and getattr(model, "compiled", False):
        loss = model.loss
    if loss is None:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if isinstance(loss, dict) and getattr(model, "outputs", None):
        names = sorted(model.output) if isinstance(model.output, dict) else model.output_names
        loss = [loss.get(name) for name in names]
    get = lambda given: keras.tree.map_structure(keras.losses.get, given)  # noqa: E731
    return _from_keras("loss", loss, get, "a Keras loss, or a list with one for each output")


def _for_each(loss, outputs):
    """Return a loss for each output; one that is given alone is that of all."""
    losses = list(loss) if isinstance(loss, list | tuple) else keras.tree.flatten(loss)
    losses = losses * outputs if len(losses) == 1 else losses
    if len(losses) != outputs:
        raise ValueError(f"loss: expected one, or one for each of the {outputs} outputs, not {len(losses)}")
    return losses


def _specs(model, batch, loss):
    """Return the shapes and dtypes of inputs and targets as `tf.TensorSpec`."""
    if isinstance(batch, tuple):
        return _specs_of(batch)
    batch = whole_number("batch", batch, 1, MOST)
    if not getattr(model, "inputs", None):
        raise ValueError(f"{model.name} does not tell its input shapes: give batch=(x, y), one batch of your dataset")
    at = lambda t: tf.TensorSpec((batch, *_known(model, t.shape[1:])), t.dtype)  # noqa: E731
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input  # a Sequential may have none
    x = keras.tree.map_structure(at, inputs)
    losses = _for_each(loss, len(model.outputs))
    targets = [_target(one, at(output)) for one, output in zip(losses, model.outputs, strict=True)]
    return x, targets[0] if len(targets) == 1 else targets


def _target(loss, output):
    named = type(loss).__name__ if not hasattr(loss, "__name__") else loss.__name__
    if "sparse" in named.lower():
        return tf.TensorSpec(output.shape[:-1], "int64")
    return tf.TensorSpec(output.shape, "float32")


def _known(model, shape):
    if None in shape:
        raise ValueError(f"{model.name} takes inputs of any size, {tuple(shape)}: give batch=(x, y), one batch")
    return shape


def _specs_of(batch):
    if len(batch) < 2:
        raise ValueError("batch: expected (x, y), as a dataset for training yields it")
    values = keras.tree.flatten(batch[:2])
    if not all(hasattr(value, "shape") and hasattr(value, "dtype") for value in values):
        raise ValueError("batch: expected tensors or arrays in (x, y), as a dataset for training yields them")
    if any(tf.TensorShape(value.shape).rank in (None, 0) or None in value.shape for value in values):
        raise ValueError("batch: expected (x, y) of known shapes, the examples first: one batch, not its specification")
    lengths = list(dict.fromkeys(value.shape[0] for value in values))
    if lengths == [0]:
        raise ValueError("batch: its tensors have no examples")
    if len(lengths) > 1:
        raise ValueError(f"batch: its tensors have {' and '.join(map(str, lengths))} examples, not one number")
    return tuple(keras.tree.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), part) for part in batch[:2])


def _optimizer(model, optimizer):
    """Return a fresh optimizer of that kind, built, without loss scaling and accumulation."""
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None) or "adamw"
    if optimizer == "momentum":
        optimizer = keras.optimizers.SGD(momentum=0.9)
    allowed = f"a Keras optimizer or one of {', '.join(SLOTS)}"
    optimizer = _from_keras("optimizer", optimizer, keras.optimizers.get, allowed)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    made = type(optimizer).from_config({**optimizer.get_config(), "gradient_accumulation_steps": None})
    made.build(model.trainable_variables)
    return made


def _from_keras(name, value, get, allowed):
    try:
        return get(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}={value!r} must be {allowed}") from error


def _layers(model):
    """Yield the layers that are no models themselves."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            yield layer


def _size(values):
    """Return the bytes of variables or specs."""
    flat = keras.tree.flatten(values)
    types = [tf.as_dtype(keras.backend.standardize_dtype(value.dtype)) for value in flat]
    return sum(t.size * tf.TensorShape(v.shape).num_elements() for t, v in zip(types, flat, strict=True))
