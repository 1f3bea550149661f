"""A model that is cut into stages, each on a device of its own, which work on different micro-batches at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from bigtrain_nb.common.batches import (
    count_examples,
    equal_parts,
    examples_of,
    loss_reduction,
    refuse_sum_with_other_losses,
    refuse_what_needs_one_piece,
    weight_of,
)
from bigtrain_nb.common.keras_gaps import (
    after,
    compiled_loss,
    count_by_examples,
    full_name,
    move,
)
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.parallel.schedule import FORWARD, pipeline_schedule
from bigtrain_nb.parallel.stage import StageStep, refuse_stages


@keras.saving.register_keras_serializable("bigtrain_nb")
class Pipelined(keras.Model):
    """``stages``, Keras models of which each takes what the one before it gives, as one model on several devices.

    Every stage, with its gradients and the optimizer's slots, stands on a device of its own. ``devices`` names one for
    each stage, as `bigtrain_nb.devices` and `bigtrain_nb.cluster_devices` do, and may name one twice; by default they
    are the first GPUs, or where there are too few the first logical CPUs. A stage that stands elsewhere is moved; what
    is too large for that is built under ``tf.device``. A model that is loaded takes devices in turn if they are few.

    A training step cuts the batch into ``micro_batches`` parts that differ by one example at most, and sends them
    through the stages in the order of ``schedule``, "1f1b" or "gpipe": see `bigtrain_nb.pipeline_schedule`. A stage
    keeps the activations of a micro-batch until its backward pass; with `recompute` on its blocks, their inputs only.
    The optimizer gets the gradients of all stages at once, the mean over the batch, as on one device, but for layers
    with batch statistics or random numbers, which see micro-batches. The step is one graph, which grows with
    ``micro_batches``. `evaluate` and `predict` send each batch through the stages in one piece.

    Raises ValueError for a stage that is no built Keras model or has no weights, for a weight in two stages, for a mask
    between stages, for too few devices, for another schedule and under a strategy's scope; in training, ValueError for
    stages that do not fit each other and for an optimizer that accumulates by itself, InvalidArgumentError for a batch
    of fewer examples than ``micro_batches``; TypeError for ``devices`` that are no list of names. With
    ``jit_compile=True`` Keras warns, and goes on without.

    Example::

        devices = bt.devices(at_least=2)
        first = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu")])
        last = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
        model = bt.Pipelined([first, last], micro_batches=4, devices=devices[:2])
        model.compile("sgd", "mse")
        model.fit(tf.ones([64, 8]), tf.ones([64, 1]), batch_size=32)
    """

    def __init__(
        self,
        stages: Sequence[keras.Model],
        micro_batches: int,
        schedule: str = "1f1b",
        devices: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        if not isinstance(stages, list | tuple) or not stages:
            raise ValueError(f"stages={stages!r:.99} must be a list of Keras models, one for each device")
        stages = list(stages)
        refuse_stages(stages)
        if tf.distribute.has_strategy():
            raise ValueError(
                "Pipelined stands under a strategy's scope, but stages have their own devices: build it outside"
            )
        super().__init__(**{**kwargs, "dtype": stages[0].dtype_policy})  # by which `compile` decides on loss scaling
        self.stages = stages
        pipeline_schedule(schedule, len(stages), micro_batches)  # refuses bad ones
        self.micro_batches = micro_batches
        self.schedule = schedule
        self.devices = _one_for_each(stages, devices)
        for stage, device in zip(stages, self.devices, strict=True):
            for variable in stage.variables:
                move(variable, device)
        self.supports_jit = False  # XLA compiles for one device
        self.built = True

    def __setattr__(self, name, value):
        """A new value of ``micro_batches`` or ``schedule`` holds from the next `fit` on."""
        super().__setattr__(name, value)
        if name in ("micro_batches", "schedule"):
            self.train_function = None

    def get_config(self):
        stages = [keras.saving.serialize_keras_object(stage) for stage in self.stages]
        own = {"stages": stages, "micro_batches": self.micro_batches, "schedule": self.schedule}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        stages = [keras.saving.deserialize_keras_object(one, custom_objects) for one in config["stages"]]
        devices = _devices_there(len(stages)) * len(stages)
        return cls(**{**config, "stages": stages, "devices": devices[: len(stages)]})

    def call(self, inputs, training=None):
        x = inputs
        for stage, device in zip(self.stages, self.devices, strict=True):
            with tf.device(device):
                x = stage(x, training=training)
        return x

    def make_train_function(self, force=False):
        """Make the function that `fit` calls, and the optimizer's slots before it is traced, beside the weights."""
        refuse_what_needs_one_piece(self)
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def reset_metrics(self):
        """Reset all metrics, and wait until it is done: one may stand in another process."""
        super().reset_metrics()
        for variable in self.metrics_variables:
            variable.numpy()

    def train_step(self, data):
        """Train on one batch; return the metrics."""
        parts = self._parts(data)
        passes = pipeline_schedule(self.schedule, len(self.stages), self.micro_batches)
        steps = []
        for stage, device in zip(self.stages, self.devices, strict=True):
            steps.append(StageStep(stage, device, is_first=not steps))
        losses = []
        received = {}  # by stage and micro-batch: what the stage before has given
        handed_back = {}  # by stage and micro-batch: the gradients of what this stage has given
        for number, (part, _) in enumerate(parts):
            received[0, number], _, _ = keras.utils.unpack_x_y_sample_weight(part)

        # Forward and gradients, in the order of the schedule
        for each in passes:
            stage, number = each.stage, each.micro_batch
            if each.kind == FORWARD:
                loss_of = partial(self._loss_of_part, stage, *parts[number])
                outputs, loss = steps[stage].forward(number, received.pop((stage, number)), loss_of)
                received[stage + 1, number] = outputs
                losses.append(loss)
            else:
                gradients_of_outputs = handed_back.pop((stage, number), None)
                handed_back[stage - 1, number] = steps[stage].backward(number, gradients_of_outputs)

        refuse_sum_with_other_losses(self, loss_reduction(self.loss))

        # Update
        pairs = []
        for step in steps:
            pairs += zip(step.gradients, step.variables, strict=True)
        with after(data):
            self.optimizer.apply_gradients(pairs)
        self._loss_tracker.update_state(tf.add_n(losses), sample_weight=count_examples(data))
        return self.get_metrics_result()

    def _parts(self, data):
        """Return the micro-batches of a batch, each with its share in the loss."""
        weight = weight_of(data, self.loss)
        parts = []
        for start, length in equal_parts(count_examples(data), self.micro_batches):
            part = examples_of(data, start, length)
            parts.append((part, tf.math.divide_no_nan(weight_of(part, self.loss), weight)))
        return parts

    def _loss_of_part(self, stage, part, share, outputs, loss):
        """Return what one stage adds to the loss with a micro-batch, as it is and scaled; update the metrics.

        ``loss`` is what its layers add.
        """
        if stage == len(self.stages) - 1:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(part)
            with count_by_examples(self, count_examples(x)):
                loss += tf.cast(compiled_loss(self, y, outputs, sample_weight), tf.float32)
            self.compute_metrics(x, y, outputs, sample_weight=sample_weight)
        loss *= share
        return loss, self.optimizer.scale_loss(loss)


def _one_for_each(stages, devices):
    """Return the full name of the device of each stage."""
    count = len(stages)
    if devices is None:
        devices = _devices_there(count)[:count]
    if not isinstance(devices, list | tuple) or not all(isinstance(device, str) for device in devices):
        raise TypeError(f"devices={devices!r:.99} must be a list of names, one for each stage, like ['GPU:0', 'GPU:1']")
    if len(devices) != count:
        raise ValueError(
            f"{count} stages need {count} devices, and here are {len(devices)}: call bt.devices({count}) before"
            " TensorFlow runs anything, or name one for each stage in devices=, where one may stand twice"
        )
    return [full_name(device) for device in devices]


def _devices_there(count):
    gpus = tf.config.list_logical_devices("GPU")
    there = gpus if len(gpus) >= count else tf.config.list_logical_devices("CPU")
    return [device.name for device in there]
