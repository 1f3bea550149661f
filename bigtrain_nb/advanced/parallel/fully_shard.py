"""Layers whose weights are sharded across replicas: ZeRO stage 3, `fully_shard` in PyTorch.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". Each replica keeps 1/N
of the weights, gradients and optimizer state of these layers. The weights are all-gathered before a layer runs, in the
forward pass and again in the backward pass, where its gradients are reduce-scattered. Between the passes only the
layer's inputs are kept, as with `recompute`. Each replica computes on its own share of the batch.

A layer is gathered when its inputs are ready, in the backward pass when the gradients of its outputs are. So one layer
is unsharded at a time, or two while the gradients of the first are being reduced. No layer is prefetched: its
communication does not overlap with computing the layer before.

A step sends 1.5 times the volume of an all-reduce of the gradients, per micro-batch: two all-gathers and a
reduce-scatter. Where GPUs all-reduce instead (see `sum_into_shards`), the factor is 2. Weights are sent in their own
type, which is float32 under a mixed policy too; gradients in ``reduce_dtype``.
"""

import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bigtrain_nb.advanced.parallel.layers import call_as_function, layers_chosen, refuse_nested
from bigtrain_nb.advanced.parallel.recompute import is_recomputed
from bigtrain_nb.advanced.parallel.sharded_weights import build_sharded, refuse_to_shard, shard_weights
from bigtrain_nb.advanced.parallel.shards import MeanOfShards, join_shards, on_replicas, sum_into_shards
from bigtrain_nb.advanced.shared.layers import layers_directly_in
from bigtrain_nb.common.keras_compat import layers_within, moving_statistics, own_weights_to_train
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import at_least_32_bits, full_weights, is_shard, set_full_weights, sum_over_replicas
from bigtrain_nb.train.in_place import made_class
from bigtrain_nb.train.reduction import assign_means, over_valid_places

_thread_state = threading.local()  # replicas of one process are threads


# Sharding


def shard_layers(model, layers, deferred=None):
    """Shard the weights of some built layers of a model over the replicas; ``layers``: as for `layers_chosen`.

    Layers sharded already are skipped. The weights keep their values, or get those of ``deferred`` variables. Returns
    whether there was a layer to shard. Raises ValueError for layers that cannot be sharded.
    """
    chosen = [layer for layer in layers_chosen(model, layers, "fully_shard") if not isinstance(layer, FullySharded)]
    if not chosen:
        return False
    for layer in chosen:
        _refuse(model, layer, chosen)
    refuse_nested(chosen, "fully_shard selects both")
    sharded = {}  # weights and shards of each inner layer, which two chosen ones may share
    with model.distribute_strategy.scope():
        for layer in chosen:
            pairs = []
            for inner in layers_within(layer):
                if id(inner) not in sharded:
                    sharded[id(inner)] = shard_weights(inner, deferred)
                pairs += sharded[id(inner)]
            object.__setattr__(layer, "_weights_and_shards", pairs)  # Keras tracks an ordinary attribute
            layer.__class__ = made_class((FullySharded, type(layer)), own=type(layer))
    for layer in layers_within(model)[1:]:
        layer.get_weights = partial(full_weights, layer)
        layer.set_weights = partial(set_full_weights, layer)
    return True


def _refuse(model, layer, chosen):
    """Raise ValueError for a layer that cannot be sharded, or only together with another one."""
    if not layer.built:
        raise ValueError(f"{layer.name} has no weights to shard yet: build the model, or call it once, first")
    inside = {id(inner) for each in chosen for inner in layers_within(each)}
    for inner in layers_within(layer):
        if is_recomputed(inner):
            raise ValueError(
                f"{inner.name} is already recomputed or sharded, and fully_shard itself recomputes: leave out"
                " bt.recompute"
            )
        refuse_to_shard(own_weights_to_train(inner))
    for outside in layers_within(model):
        if id(outside) not in inside:
            for inner in layers_directly_in(outside):
                if id(inner) in inside and not any(inner is one for one in chosen):
                    raise ValueError(
                        f"{inner.name}, inside {layer.name}, is shared with {outside.name}, which fully_shard does not"
                        " choose: choose both or neither"
                    )


def sync_frozen(layer):
    """Freeze or thaw both a weight and its shard if one was: LoRA sets a weight, `layer.trainable` the shards."""
    for weight, shard in getattr(layer, "_weights_and_shards", ()):
        if weight.trainable != shard.trainable:
            weight.trainable = shard.trainable = not shard.was_trainable
        shard.was_trainable = shard.trainable


# Computing


class FullySharded:
    """Mixin for sharded layers. On replicas it gathers the weights; elsewhere each weight shows its full value."""

    is_recomputed = True

    def call(self, *args, **kwargs):
        if on_replicas():
            return call_of_shards(self, super().call, self._weights_and_shards, *args, **kwargs)
        return super().call(*args, **kwargs)


@contextmanager
def communicating(reduce_dtype, gather=join_shards, scatter=sum_into_shards, last=list):
    """Let sharded layers be called. ``gather``, ``scatter``: as in shards.py; ``last``: of a layer's gradients."""
    _thread_state.communication = reduce_dtype, gather, scatter, last
    try:
        yield
    finally:
        _thread_state.communication = None


def call_of_shards(layer, own_call, weights_and_shards, *args, **kwargs):
    """Return the result of a layer's ``own_call`` with weights gathered from shards."""
    return call_as_function(layer, own_call, args, kwargs, partial(_gathered, layer.name, weights_and_shards))


def _gathered(name, weights_and_shards, run):
    """Return ``run`` with gathered weights, forward and backward; gradients are summed over the replicas."""
    weights = [weight for weight, _ in weights_and_shards]
    shards = [shard for _, shard in weights_and_shards]
    trains = [shard.trainable for shard in shards]
    communication = getattr(_thread_state, "communication", None)
    if communication is None:
        raise ValueError(
            f"the weights of {name} are sharded across the replicas, and a plain keras.Model cannot train them: use"
            " fit, evaluate and predict of bt.Model.of(model)"
        )
    reduce_dtype, gather, scatter, last = communication

    def gathered(parts, first):
        """Return the full weights, gathered only after the tensors ``first`` are ready: one layer at a time."""
        with tf.control_dependencies(first):
            return gather([tf.identity(part) for part in parts], [weight.shape for weight in weights])

    def computed(values, tensors):
        return run(*tensors, values=list(zip(weights, values, strict=True)))

    @tf.custom_gradient
    def block(*inputs):
        parts, tensors = inputs[: len(shards)], inputs[len(shards) :]

        def backward(*upstream, variables=()):
            begun = [gradient for gradient in upstream if gradient is not None]
            with tf.control_dependencies(begun):
                tensors_again = [tf.identity(tensor) for tensor in tensors]
            values = gathered(parts, begun)
            watched = [value for value, does in zip(values, trains, strict=True) if does]
            with tf.GradientTape() as tape, tf.name_scope(name):
                tape.watch([*watched, *tensors_again])
                outputs = tf.nest.flatten(computed(values, tensors_again))
                with_gradient = [
                    (output, gradient)
                    for output, gradient in zip(outputs, upstream, strict=True)
                    if gradient is not None and output.dtype.is_floating
                ]
            of_values, of_tensors, of_variables = tape.gradient(
                [output for output, _ in with_gradient],
                [watched, tensors_again, list(variables)],
                [gradient for _, gradient in with_gradient],
            )
            with_shapes = [
                None if gradient is None else tf.reshape(gradient, value.shape)  # the tape may not know
                for gradient, value in zip(of_values, watched, strict=True)
            ]
            of_trained = iter(_own_sums(with_shapes, reduce_dtype, scatter))
            of_inputs = last([*(next(of_trained) if does else None for does in trains), *of_tensors])
            return (of_inputs, of_variables) if variables else of_inputs

        return computed(gathered(parts, tensors), tensors), backward

    return lambda *tensors: block(*[shard.value for shard in shards], *tensors)


def _own_sums(gradients, reduce_dtype, scatter):
    """Return this replica's shards of the sums of gradients over the replicas; None where no replica has one."""
    places = [place for place, gradient in enumerate(gradients) if gradient is not None]
    sent = []
    for place in places:
        dtype = gradients[place].dtype
        sent.append(tf.cast(gradients[place], tf.bfloat16 if reduce_dtype == "bfloat16" else at_least_32_bits(dtype)))
    sums = [None] * len(gradients)
    for place, own in zip(places, scatter(sent), strict=True):
        sums[place] = tf.cast(own, gradients[place].dtype)
    return sums


# Reducing


class FullyShardedMean(MeanOfShards):
    """The mean over the replicas; gradients of sharded layers are already summed in the backward pass."""

    communicates_in_forward = True

    @classmethod
    def asked_for(cls, model):
        there = model.built and model.distribute_strategy.num_replicas_in_sync > 1
        return f"fully_shard={model.fully_shard!r}" if there or is_fully_sharded(model) else None

    @staticmethod
    def build(build, layers):
        """Return the model that ``build()`` makes, with some layers sharded before they have weights."""
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return build()
        return build_sharded(build, lambda model, deferred: shard_layers(model, layers, deferred))

    @staticmethod
    def prepare(model):
        if model.built and model.fully_shard is not None and shard_layers(model, model.fully_shard):
            model.train_function = model.test_function = model.predict_function = None  # traced with full weights
        for layer in layers_within(model):
            sync_frozen(layer)

    def step_context(self):
        return communicating(self.model.reduce_dtype)

    def share(self, data, training):
        """Return a share that training scales by its part of the batch, so that the replicas' sum is the mean."""
        share = super().share(data, training)
        if not training:
            return share
        _refuse_statistics_of_no_examples(self.model, share.examples)
        return replace(share, part=tf.math.divide_no_nan(share.weight, sum_over_replicas(tf.identity(share.weight))))

    def reduce(self, step, share):
        are_shards = dict(zip(step["gradients"], self.are_shards(step["gradients"]), strict=True))
        dtype = self.model.reduce_dtype
        whole = {
            index: tf.cast(gradient, at_least_32_bits(gradient.dtype) if dtype == "float32" else dtype)
            for index, gradient in step["gradients"].items()
            if not are_shards[index]
        }
        statistics = moving_statistics(self.model)
        of_statistics = [tf.math.multiply_no_nan(tf.cast(one.value, tf.float32), share.part) for one in statistics]
        others = {name: value for name, value in step.items() if name != "gradients"}
        sums = sum_over_replicas({**others, "share": share.part, "statistics": of_statistics, "whole": whole})
        assign_means(statistics, sums["statistics"], sums["share"])
        gradients = {
            index: own if are_shards[index] else tf.cast(sums["whole"][index], own.dtype)
            for index, own in step["gradients"].items()
        }
        return over_valid_places({**{name: sums[name] for name in others}, "gradients": gradients})

    def are_shards(self, gradients):
        return [is_shard(self.model.trainable_variables[index]) for index in gradients]


def _refuse_statistics_of_no_examples(model, examples):
    """Raise, at run time, if a replica has fewer examples than micro-batches and normalizes over them."""
    if moving_statistics(model):
        tf.debugging.assert_greater_equal(
            examples,
            model.micro_batches,
            f"fully_shard runs every layer in each of micro_batches={model.micro_batches} on every replica, but one of"
            " them has fewer examples: BatchNormalization over no examples gives NaN. Use larger batches, drop a short"
            " last one with batch(..., drop_remainder=True), or use GroupNormalization",
        )


def is_fully_sharded(model):
    return any(isinstance(layer, FullySharded) for layer in layers_within(model))
