"""A layer that keeps only its input for the backward pass, and computes the rest again there."""

from bigtrain_nb.common.keras_gaps import layers_within
from bigtrain_nb.common.quiet import keras, tf


@keras.saving.register_keras_serializable("bigtrain_nb")
class Recompute(keras.layers.Wrapper):
    """Around ``layer``, a layer or a model: the same outputs and gradients, with less memory and more time.

    Between the forward and the backward pass only the input is kept. The backward pass runs the layer again, with the
    same dropout masks and batch statistics as before, which is about a third more operations if a whole network is
    recomputed (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Put one around each block of a deep
    model: around all blocks together it saves nothing, for then all of it is alive again in the backward pass.

    ``layer`` is called with one argument, a tensor or a structure of tensors, and with ``training`` and ``mask``. It
    works in `fit` and in loops of your own, under strategies, in micro-batches, with mixed precision and with XLA, and
    saves and loads as part of a model.

    Keras' own `RematScope` raises in `fit` (keras issue 21207); it and a plain `tf.recompute_grad` draw another dropout
    mask in the backward pass, which gives a wrong gradient without an error.

    Raises ValueError if a layer within ``layer`` is a `Recompute`.
    """

    def __init__(self, layer, **kwargs):
        # Inputs, weights and statistics stay as they are: the layers inside follow their own dtype policies
        super().__init__(layer, **{**kwargs, "dtype": "float32"})
        self.autocast = False
        self.supports_masking = True
        for inner in layers_within(layer):
            if isinstance(inner, Recompute):
                raise ValueError(
                    f"{inner.name} is a Recompute inside {layer.name}: its layers would be computed three times. Put"
                    " Recompute around the inner or around the outer block, not around both"
                )

    def call(self, inputs, training=None, mask=None):
        settings = {"training": training}
        if mask is not None:
            settings["mask"] = mask
        tensors = tf.nest.flatten(inputs)
        state = self.layer.non_trainable_variables
        before = [tf.identity(variable.value) for variable in state]

        # The seeds of dropout and the moving statistics are those from before, in both runs
        def run(*tensors):
            with keras.StatelessScope(zip(state, before, strict=True), collect_losses=True) as scope:
                outputs = self.layer(tf.nest.pack_sequence_as(inputs, tensors), **settings)
            after = [scope.get_current_value(variable) for variable in state]
            return outputs, after, scope.losses

        outputs, after, losses = tf.recompute_grad(run)(*tensors)

        # What the layer would have changed, once
        for variable, value in zip(state, after, strict=True):
            variable.assign(value)
        for loss in losses:
            self.add_loss(loss)
        return outputs

    def compute_output_spec(self, inputs, training=None, mask=None):
        return self.layer.compute_output_spec(inputs)

    def compute_mask(self, inputs, previous_mask=None):
        return self.layer.compute_mask(inputs, previous_mask)
