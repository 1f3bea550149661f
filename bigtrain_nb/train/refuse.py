"""What a `Model` cannot do right: an error before it is done wrong in silence."""

from difflib import get_close_matches

SETTINGS = ("micro_batches", "shard_optimizer", "reduce_dtype", "sync_every")
"""The arguments of `Model` that `keras.Model` does not have."""

_ARGUMENTS = ("inputs", "outputs", "name", "trainable", *SETTINGS)


def unknown_arguments(kwargs):
    """Keras takes any argument beside inputs and outputs, and does nothing with it."""
    for name in kwargs:
        if name not in _ARGUMENTS:
            nearest = get_close_matches(name, _ARGUMENTS, 1, cutoff=0)[0]
            raise TypeError(f"Model(inputs, outputs) has no argument {name!r}; the nearest is {nearest!r}")


def sharding(shard_optimizer, replicas):
    if not isinstance(shard_optimizer, bool):
        raise ValueError(f"shard_optimizer must be True or False, not {shard_optimizer!r}")
    if shard_optimizer and replicas == 1:
        raise ValueError(
            "shard_optimizer=True needs several replicas, and this model has one: build it in the scope of a strategy,"
            " as bt.mirrored() or bt.strategy() with several workers, or leave it out"
        )


def train_on_batch_with_local_steps(model):
    if model.sync_every:
        raise ValueError(
            f"sync_every={model.sync_every} works in fit, where an epoch's end brings the replicas together:"
            " train_on_batch has no end"
        )


def resume_with_local_steps(model):
    if getattr(model, "sync_every", None):
        raise ValueError(
            f"Resume cannot go on exactly with sync_every={model.sync_every}: each replica has an optimizer state of"
            " its own, and a checkpoint holds that of the first. Save the model at the end of an epoch instead, with"
            " keras.callbacks.ModelCheckpoint"
        )


def slices_with_whole_weights(model):
    """For a model that is cut over the replicas."""
    for name in ("shard_optimizer", "sync_every"):
        if getattr(model, name):
            raise ValueError(
                f"{model.name} is cut over the replicas, so that none of them has whole weights, which"
                f" {name}={getattr(model, name)} needs: leave it out"
            )
