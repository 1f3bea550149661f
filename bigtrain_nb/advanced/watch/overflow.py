"""Where did the NaN come from? The first layer that yields a non-finite value, with its inputs."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bigtrain_nb.advanced.shared.fit_data import as_tensor, is_dataset, passes, preprocess_like_fit
from bigtrain_nb.advanced.shared.layers import layers_directly_in
from bigtrain_nb.advanced.watch.watched_step import ARRIVES, Probe, Values, WatchedStep, is_floating, values_of
from bigtrain_nb.common.cards import Shown, table
from bigtrain_nb.common.keras_compat import layers_within
from bigtrain_nb.common.layers import scale_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import number

LEAST_SCALE = 2.0**-14
"""An overflow even at this loss scale is not caused by the scale."""


@dataclass(frozen=True, repr=False)
class Overflow(Shown):
    """The result of `find_overflow`.

    - ``layer``: the name of the layer, its path if several layers have that name, or "loss", or for the batch
      "inputs", "targets", "sample weights".
    - ``where``: "forward" or "backward"; "batch" if the batch itself is not finite.
    - ``dtype``: that of the first non-finite value.
    - ``values``: {input, output, weight or gradient: its `Values`}.
    - ``scale``: the loss scale; None without loss scaling. finite_from: the largest loss scale, by halving, with a
      finite step; None if there is none.
    """

    layer: str
    where: str
    dtype: str
    values: dict[str, Values]
    scale: float | None = None
    finite_from: float | None = None
    remark: str = ""

    @property
    def handled(self) -> bool:
        """Whether loss scaling handles it: it skips steps and halves the scale until gradients are finite."""
        return self.finite_from is not None

    def words(self) -> list[str]:
        """Return the finding as a list of plain sentences."""
        found = {
            "batch": f"The {self.layer} of the batch contain non-finite values.",
            "forward": f"{self.layer} is the first whose result is not finite: forward, in {self.dtype}.",
            "backward": f"{self.layer} is the first whose gradient is not finite: backward, in {self.dtype}.",
        }
        words = [found[self.where], self.remark]
        if self.where in ("forward", "backward"):
            words.append(f"The largest number of {self.dtype} is {float(tf.as_dtype(self.dtype).max):.6g}.")
        if self.handled:
            words.append(
                f"Loss scaling handles it: at a scale of {number(self.finite_from)} the step is finite. Now it is"
                f" {number(self.scale)}, and each step that is skipped halves it."
            )
        elif self.scale is not None:
            words.append(f"Loss scaling does not help: it is not finite at a scale of {LEAST_SCALE:.1g} either.")
        return [sentence for sentence in words if sentence]

    def _card(self):
        rows = [[name, values.dtype, str(values)] for name, values in self.values.items()]
        return table("\n".join(self.words()), ["", "dtype", "values"], rows)


def find_overflow(model: keras.Model, batch: Any) -> Overflow | None:
    """Return an `Overflow` naming the first layer that yields a non-finite value; None for a healthy step.

    One training step of a compiled ``model`` is run on ``batch``, as a dataset for `fit` yields it: (inputs, targets),
    (inputs, targets, sample weights), or only inputs for a model that needs no targets. For a dataset, or an object
    with `.dataset()`, it is the first batch, for a KerasHub task after its preprocessor. The step is the model's own,
    with its dtype policy and micro-batches, but eager and without the update. It is healthy if the loss and all
    gradients are finite: a layer may yield infinities on purpose, as in masks. The model, its optimizers, seeds and
    statistics are unchanged, and the shuffling of a `tf.data.Dataset` does not advance.

    With loss scaling, more steps test whether a smaller scale makes the gradients finite.

    It supports functional, Sequential and subclassed models, also nested or with a custom `train_step` whose optimizers
    are attributes of the model. Overflow between layers in a model's own `call` is found at the next layer, and in a
    layer's own `call` at that layer. A step takes several times as long as in `fit`.

    Raises TypeError if ``model`` is not a Keras model or ``batch`` not a batch, ValueError for a model that is not
    compiled, has several replicas or needs targets that are missing.

    Example::

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, "exponential", name="too_much")])
        model.compile("sgd", "mse")
        print(bt.find_overflow(model, (1000 * tf.ones([4, 8]), tf.ones([4, 1]))))
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"find_overflow takes a compiled Keras model, not {type(model).__name__}")
    if not model.compiled:
        raise ValueError(f"{model.name} is not compiled: call compile(...) with a loss, where the backward pass starts")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(f"{model.name} has several replicas: build it without the strategy, and give the batch of one")
    data = _batch_of(preprocess_like_fit(model, batch))
    inputs, targets, _ = keras.utils.unpack_x_y_sample_weight(data)
    if not model.built and type(model).call is not keras.Model.call:
        model(inputs)

    try:
        step = WatchedStep(model, data)
    except (AttributeError, TypeError, ValueError) as error:  # Keras 3.16 accesses the shape of missing targets
        if targets is None:
            raise ValueError(
                f"a step of {model.name} on inputs alone fails ({type(error).__name__}: {error!s:.199}); if it needs"
                " targets, give (inputs, targets), or a dataset that yields them"
            ) from error
        raise
    if step.is_healthy:
        return None
    found = _in_the_batch(data)
    if found:
        return found
    scale = finite_from = None
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        scale = scale_of(model.optimizer)
        finite_from = _finite_from(model, data, scale)
    return _first(model, step, scale, finite_from)


def _batch_of(given):
    """Return a batch, or the first batch of a dataset, as tensors."""
    batch = next(passes(given)(), None) if is_dataset(given) else given
    if batch is None and given is not None:
        raise ValueError("the dataset yielded no batch")
    try:
        data = keras.tree.map_structure(as_tensor, batch)
        has_examples = all(value is None or value.shape.rank != 0 for value in keras.tree.flatten(data))
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    except (TypeError, ValueError):
        inputs = None
    if inputs is None or not has_examples:
        raise TypeError(
            "find_overflow takes a batch of arrays or dense tensors, (inputs, targets), (inputs, targets, sample"
            f" weights) or inputs alone, or a dataset of such batches, not {batch!r:.99}"
        )
    return data


def _in_the_batch(data):
    parts = keras.utils.unpack_x_y_sample_weight(data)
    for name, part in zip(("inputs", "targets", "sample weights"), parts, strict=True):
        for value in filter(is_floating, keras.tree.flatten(part)):
            values = values_of(value)
            if not values.finite:
                return Overflow(name, "batch", values.dtype, {name: values})


def _weights(model, layer):
    """Return {name: `Values`} of a layer's own weights, without those of inner layers."""
    owners = _owners(model)
    own = [variable for variable in layer.weights if owners[id(variable)] is layer and is_floating(variable.value)]
    return {variable.name: values_of(variable.value) for variable in own}


def _owners(model):
    """Return {id of a weight: the innermost layer with it}."""
    owners = {}
    for layer in layers_within(model):  # outer layers first
        owners.update({id(variable): layer for variable in layer.weights})
    return owners


def _finite_from(model, data, scale):
    """Return the largest of scale, scale / 2, scale / 4, ... with a healthy step; None if there is none."""
    if not WatchedStep(model, data, LEAST_SCALE).is_healthy:
        return None
    while scale > LEAST_SCALE and not WatchedStep(model, data, scale).is_healthy:
        scale /= 2
    return scale


def _first(model, step, scale, finite_from):
    """Return the `Overflow` of an unhealthy step."""
    where = "backward" if all(values.finite for values in step.losses) else "forward"
    probes = _with_weights(model, step)
    given = {probe.call for probe in probes if probe.where == "input" and not probe.values.finite}
    healed = [probe.where == "output" and probe.values.finite and probe.call in given for probe in probes]
    later = len(healed) - healed[::-1].index(True) if any(healed) else 0  # a softmax removes the infinities of a mask
    probes = [probe for probe in [*probes[later:], *probes[:later]] if not probe.values.finite]
    found = next((probe for probe in probes if probe.is_backward == (where == "backward")), None)
    if found is None:
        loss = next((values for values in step.losses if not values.finite), step.losses[0])
        values = {f"gradient of {variable.path}": values_of(gradient) for gradient, variable in step.gradients}
        values = {"loss": loss} | {name: one for name, one in values.items() if not one.finite}
        return Overflow("loss", where, loss.dtype, values, scale, finite_from, "All layers are finite.")

    layer, remark = _blame(model, found)
    values = {}
    for probe in step.probes:
        if probe.call is found.call:
            values.setdefault(probe.where, probe.values)
    if isinstance(found.call.layer, keras.layers.Layer):
        values.update(_weights(model, found.call.layer))
    values[found.where] = found.values
    return Overflow(layer, where, found.values.dtype, values, scale, finite_from, remark)


def _with_weights(model, step):
    """Return all probes, with those at weight gradients inserted after the gradient that arrives at their layer."""
    owners = _owners(model)
    probes = list(step.probes)
    for gradient, variable in reversed(step.gradients):
        layer = owners.get(id(variable))  # None: the step's own variable
        arrived = [place for place, probe in enumerate(probes) if probe.where == ARRIVES and probe.call.layer is layer]
        if arrived:
            values = replace(values_of(gradient), dtype=layer.compute_dtype)
            probes.insert(arrived[-1] + 1, Probe(f"gradient of {variable.name}", probes[arrived[-1]].call, values))
    return probes


def _name_of(model, layer):
    """Return a layer's name, or its path if several layers have that name."""
    alike = [one for one in layers_within(model) if one.name == layer.name]
    return path_within(model, layer) or layer.name if len(alike) > 1 else layer.name


def _blame(model, probe):
    """Return the name of the layer where a value originates, and a remark."""
    name_of = partial(_name_of, model)
    layer = probe.call.layer
    caller = probe.call.caller
    if probe.where not in ("input", ARRIVES):
        return name_of(layer), ""
    if caller is None and probe.where == "input":
        place = f"{name_of(layer)}, in {probe.values.dtype}"
        return "inputs", f"The batch is finite, but no longer at {place}: look for a cast, or at the step's code."
    if caller is None:
        return "loss", "The gradient of the loss itself is not finite."
    between = f"It happens next to {name_of(layer)}: in a cast, a sum of branches or code of {name_of(caller.layer)}."
    return name_of(layer if isinstance(caller.layer, keras.Model) else caller.layer), between


def path_within(outer, layer):  # private: Keras
    """Return the path from a layer or model to a layer inside it, "block_1/dense"; None if it is not there.

    Its public ``path`` begins where it was built: for a nested model, at that model.
    """
    for inner in layers_directly_in(outer):
        if inner is layer:
            return inner.name
        rest = path_within(inner, layer)
        if rest:
            return f"{inner.name}/{rest}"
