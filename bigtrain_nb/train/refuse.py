"""What a `Model` cannot do right: an error before it is done wrong in silence."""

from difflib import get_close_matches

from bigtrain_nb.common.checks import one_of, whole_number
from bigtrain_nb.common.keras_gaps import innermost
from bigtrain_nb.parallel.slices import is_cut

SETTINGS = ("micro_batches", "shard_optimizer", "reduce_dtype", "sync_every")
"""The arguments of `Model` that `keras.Model` does not have."""

_ARGUMENTS = ("inputs", "outputs", "name", "trainable", *SETTINGS)


def unknown_arguments(kwargs):
    """Keras takes any argument beside inputs and outputs, and does nothing with it."""
    for name in kwargs:
        if name not in _ARGUMENTS:
            nearest = get_close_matches(name, _ARGUMENTS, 1, cutoff=0)[0]
            raise TypeError(f"Model(inputs, outputs) has no argument {name!r}; the nearest is {nearest!r}")


def other_values(model, name, value):
    """Return what a setting gets; raise ValueError for what it does not take."""
    if name == "micro_batches" or (name == "sync_every" and value is not None):
        return whole_number(name, value, 1)
    if name == "reduce_dtype":
        return one_of(name, value, ("float32", "bfloat16"))
    if name == "shard_optimizer" and not isinstance(value, bool):
        raise ValueError(f"shard_optimizer must be True or False, not {value!r}")
    if name == "shard_optimizer" and value and model.distribute_strategy.num_replicas_in_sync == 1:
        raise ValueError(
            "shard_optimizer=True needs several replicas, and this model has one: build it in the scope of a strategy,"
            " as bt.mirrored() or bt.strategy() with several workers, or leave it out"
        )
    return value


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


def what_does_not_go_together(model):
    chosen = {
        "shard_optimizer=True": model.shard_optimizer,
        f"sync_every={model.sync_every}": model.sync_every,
        "a model that is cut over the replicas": is_cut(model),
        "use_ema=True": model.sync_every and innermost(model.optimizer).use_ema,
    }
    names = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(names) > 1:
        raise ValueError(
            f"{names[0]} and {names[1]} do not go together, for each needs whole weights that are equal on all replicas"
            " after a step: leave out one of them"
        )
