"""The settings that `Model` adds to `keras.Model`, and their valid values."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from bigtrain_nb.common.checks import integer, one_of, switch
from bigtrain_nb.common.layers import Listed, refuse_choice
from bigtrain_nb.common.replicas import is_shard


class Settings(TypedDict, total=False):
    """Types of the settings, for type checkers and Shift-Tab."""

    micro_batches: int
    shard_optimizer: bool
    fully_shard: str | Callable | Sequence | None
    reduce_dtype: str


def _shard_optimizer(model, value):
    if switch("shard_optimizer", value) and model is not None and model.distribute_strategy.num_replicas_in_sync == 1:
        raise ValueError(
            "shard_optimizer=True needs several replicas, but this model has one: build it in the scope of a strategy,"
            " such as bt.mirrored() or bt.strategy() with several workers, or leave it out"
        )
    return value


def _fully_shard(model, value):
    if value is not None:
        refuse_choice(value, "fully_shard")
    elif getattr(model, "fully_shard", None) is not None and any(map(is_shard, model.weights)):
        raise ValueError("fully_shard=None cannot unshard this model's layers: build it again")
    return Listed(value) if isinstance(value, list | tuple) else value


_EACH = {  # (default, function that returns the value to keep, or raises ValueError or TypeError)
    "micro_batches": (1, lambda _, value: integer("micro_batches", value, 1)),
    "shard_optimizer": (False, _shard_optimizer),
    "fully_shard": (None, _fully_shard),
    "reduce_dtype": ("float32", lambda _, value: one_of("reduce_dtype", value, ("float32", "bfloat16"))),
}
SETTINGS = {name: default for name, (default, _) in _EACH.items()}
"""The arguments of `Model` that `keras.Model` does not have, and their defaults."""

REDUCTIONS = {
    "shard_optimizer": ("bigtrain_nb.advanced.parallel.sharded", "ShardedMean"),
    "fully_shard": ("bigtrain_nb.advanced.parallel.fully_shard", "FullyShardedMean"),
}
"""The reduction that a setting needs instead of `Mean`: module and class, imported when it is used."""


def checked(model, settings):
    """Return the settings as a model keeps them; raise for values that it, or if it is None every model, refuses."""
    return {name: _EACH[name][1](model, value) for name, value in settings.items()}


def naming_settings(function):
    """Return the signature of a function whose last argument is ``**settings``, with the settings in its place.

    ``**kwargs``, which accepts more than settings, is kept too: Keras recognizes by ``*args, **kwargs`` a class that it
    can recreate from a functional model's config.
    """
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    types = Settings.__annotations__
    named = [keyword(name, default=default, annotation=types[name]) for name, default in SETTINGS.items()]
    return signature.replace(parameters=[*others, *named, *([last] if last.name == "kwargs" else [])])
