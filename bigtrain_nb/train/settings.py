"""The arguments that `Model` adds to those of `keras.Model`: checked when they are set, and saved with the model."""

from bigtrain_nb.common.quiet import keras
from bigtrain_nb.parallel.local_steps import LocalSteps
from bigtrain_nb.train import refuse


class Settings(keras.Model):
    """A `keras.Model` with ``micro_batches``, ``shard_optimizer``, ``reduce_dtype`` and ``sync_every``.

    A new value holds from the next `fit` on, of ``shard_optimizer`` from `compile` on.
    """

    def __setattr__(self, name, value):
        if name in refuse.SETTINGS:
            value = refuse.other_values(self, name, value)
            self.train_function = None
        if name == "sync_every":
            self.local_steps = None if value is None else LocalSteps(value)
        super().__setattr__(name, value)

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
