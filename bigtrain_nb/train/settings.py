"""The arguments that `Model` adds to those of `keras.Model`: checked when they are set, and saved with the model."""

from bigtrain_nb.common.checks import one_of, whole_number
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.parallel.local_steps import LocalSteps
from bigtrain_nb.train import refuse


class Settings(keras.Model):
    """A `keras.Model` with ``micro_batches``, ``shard_optimizer``, ``reduce_dtype`` and ``sync_every``."""

    @property
    def micro_batches(self):
        """Number of slices that a step is cut into; a new value holds from the next `fit` on."""
        return self._micro_batches

    @micro_batches.setter
    def micro_batches(self, value):
        self._micro_batches = whole_number("micro_batches", value, 1)
        self.train_function = None

    @property
    def shard_optimizer(self):
        """Whether each replica keeps a part of the optimizer's state only; a new value holds from `compile` on."""
        return self._shard_optimizer

    @shard_optimizer.setter
    def shard_optimizer(self, value):
        refuse.sharding(value, self.distribute_strategy.num_replicas_in_sync)
        self._shard_optimizer = value

    @property
    def reduce_dtype(self):
        """The type in which gradients are summed over replicas; a new value holds from the next `fit` on."""
        return self._reduce_dtype

    @reduce_dtype.setter
    def reduce_dtype(self, value):
        self._reduce_dtype = one_of("reduce_dtype", value, ("float32", "bfloat16"))
        self.train_function = None

    @property
    def sync_every(self):
        """Number of steps between two meetings of the replicas, None for all steps together; before `compile`."""
        return self.local_steps.sync_every if self.local_steps else None

    @sync_every.setter
    def sync_every(self, value):
        self.local_steps = None if value is None else LocalSteps(whole_number("sync_every", value, 1))
        self.train_function = None

    def get_config(self):
        own = {name: getattr(self, name) for name in refuse.SETTINGS}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        own = {name: config.pop(name) for name in refuse.SETTINGS if name in config}
        model = super().from_config(config, custom_objects)
        if model.distribute_strategy.num_replicas_in_sync == 1:
            own.pop("shard_optimizer", None)
        for name, value in own.items():
            setattr(model, name, value)
        return model
