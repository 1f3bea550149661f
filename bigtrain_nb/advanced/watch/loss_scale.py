"""Record the loss scale of "mixed_float16", step by step."""

from typing import Any

from bigtrain_nb.common.keras_compat import innermost
from bigtrain_nb.common.layers import scale_of
from bigtrain_nb.common.quiet import keras


class LossScaleHistory(keras.callbacks.Callback):
    """Records, for each training step, the loss scale after it and whether its update was skipped.

    For any Keras model compiled with loss scaling, as by the policy "mixed_float16". ``scale`` and ``skipped`` are
    lists; a second `fit` appends to them. With ``steps_per_execution`` above 1, there is one entry per execution: the
    scale after its last step, and ``skipped`` is True if the scale has fallen since the previous entry or no step was
    applied. Reading the scale waits for the step to end.

    `fit` raises ValueError if the model has no loss scaling.

    Example::

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
        history = bt.LossScaleHistory()
        model.fit(tf.ones([64, 8]), tf.ones([64, 1]), callbacks=[history])
        print(history.scale, history.skipped)
    """

    def __init__(self):
        super().__init__()
        self.scale: list[float] = []
        self.skipped: list[bool] = []
        self._steps = 1

    def on_train_begin(self, logs=None):
        optimizer = self.model.optimizer
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                f"{self.model.name} has no loss scaling to watch: build it under the dtype policy 'mixed_float16', or"
                " compile it with keras.optimizers.LossScaleOptimizer(optimizer)"
            )
        self._steps = self.model.steps_per_execution
        self._before = self._state()

    def on_train_batch_end(self, batch, logs=None):
        last_scale, last_applied = self._before
        scale, applied = self._state()
        self.scale.append(scale)
        self.skipped.append(scale < last_scale or applied == last_applied)
        self._before = scale, applied

    def figure(self) -> Any:
        """Return a figure of the scale over steps, with skipped steps marked."""
        from bigtrain_nb.plots import stairs_figure

        step = "training step" if self._steps == 1 else f"execution of {self._steps} training steps"
        skipped = f"{sum(self.skipped)} of {len(self.skipped)} skipped (crosses)"
        return stairs_figure(self.scale, self.skipped, f"{step}\n{skipped}", "loss scale")

    def _state(self):
        """Return the scale, and the number of steps applied so far: with accumulation `iterations` counts updates."""
        steps = innermost(self.model.optimizer).variables[0]
        return scale_of(self.model.optimizer), int(steps.numpy())
