"""One stage of a `Pipelined` model: what it must be, and what it does in a training step."""

from bigtrain_nb.common.batches import dense
from bigtrain_nb.common.keras_gaps import mask_of
from bigtrain_nb.common.quiet import keras, tf


class StageStep:
    """The passes of one stage in one training step. Each waits for the one before it, whatever else it could begin.

    Without that TensorFlow starts all forward passes as soon as it can, and keeps the activations of all.
    ``gradients`` are the sums so far, one for each of ``variables``.
    """

    def __init__(self, model, device, is_first):
        self.variables = model.trainable_variables
        self.gradients = [0.0] * len(self.variables)
        self._model = model
        self._device = device
        self._is_first = is_first
        self._run = tf.function(self._run_model, autograph=False)  # traced once, whatever the number of micro-batches
        self._kept = {}  # by micro-batch: what its backward pass needs
        self._done = []  # what the pass before has computed

    def _run_model(self, inputs):
        outputs = self._model(inputs, training=True)
        loss = tf.constant(0.0)
        for one in self._model.losses:
            loss += tf.cast(one, tf.float32)
        return outputs, loss

    def forward(self, micro_batch, inputs, loss_of):
        """Return what the stage gives for ``inputs``, and its part of the loss.

        ``loss_of(outputs, loss of the stage's layers)`` gives that part, a scalar, as it is and scaled.
        """
        with tf.device(self._device), tf.control_dependencies(self._done):
            received = [] if self._is_first else _floats(inputs)
            with tf.GradientTape() as tape:
                tape.watch(received)
                outputs, of_layers = self._run(inputs)
                loss, scaled_loss = loss_of(outputs, of_layers)
        self._kept[micro_batch] = tape, received, _floats(outputs), scaled_loss
        self._done = [*tf.nest.flatten(outputs), loss]
        return outputs, loss

    def backward(self, micro_batch, handed_back):
        """Add to the gradients; return those of what the stage has received, for the stage before it.

        ``handed_back`` are the gradients of what this stage has given, None for the last stage.
        """
        tape, received, given, scaled_loss = self._kept.pop(micro_batch)
        with tf.device(self._device), tf.control_dependencies(self._done):
            targets, weights = [scaled_loss], [tf.ones_like(scaled_loss)]
            if handed_back is not None:
                targets += given
                weights += handed_back
            found = tape.gradient(targets, [received, self.variables], weights, tf.UnconnectedGradients.ZERO)
            to_hand_back, gradients = found
            for index, variable in enumerate(self.variables):
                self.gradients[index] += dense(gradients[index], variable)
        self._done = [*self.gradients, *to_hand_back]
        return to_hand_back


def _floats(tensors):
    """Return the tensors of a structure that have gradients."""
    return [tensor for tensor in tf.nest.flatten(tensors) if tensor.dtype.is_floating]


def refuse_stages(stages):
    """Raise ValueError for stages that cannot train as a pipeline, and say which and why."""
    owners = {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, keras.Model) or not getattr(stage, "inputs", None):
            name = getattr(stage, "name", stage)
            raise ValueError(
                f"stage {index}, {name!r}, is no Keras model that knows its inputs: make it one with"
                " keras.Sequential([keras.Input(shape), layer]) or keras.Model(inputs, outputs)"
            )
        if any(mask_of(output) is not None for output in stage.outputs):
            raise ValueError(
                f"stage {index}, {stage.name!r}, gives a mask with its output, which does not reach the next device:"
                " put the layers that use it into the same stage"
            )
        if not stage.weights:
            raise ValueError(
                f"stage {index}, {stage.name!r}, has no weights, so a device would do next to nothing: put its layers"
                " into the stage before or after it"
            )
        for weight in stage.weights:
            first = owners.setdefault(id(weight), index)
            if first != index:
                raise ValueError(
                    f"stages {first} and {index} share {weight.path!r}, which can stand on one device only: give each a"
                    " weight of its own, or put both places into one stage"
                )
