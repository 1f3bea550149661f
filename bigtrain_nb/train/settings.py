"""What a `Model` is told that a `keras.Model` is not: its settings, and what each takes."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from bigtrain_nb.advanced.parallel.shards import is_shard
from bigtrain_nb.common.checks import integer, one_of, switch
from bigtrain_nb.common.layers import Listed, refuse_choice


class Settings(TypedDict, total=False):
    """Their types, for type checkers and for Shift-Tab."""

    micro_batches: int
    shard_optimizer: bool
    fully_shard: str | Callable | Sequence | None
    reduce_dtype: str


def _micro_batches(model, value):
    return integer("micro_batches", value, 1)


def _shard_optimizer(model, value):
    if switch("shard_optimizer", value) and model is not None and model.distribute_strategy.num_replicas_in_sync == 1:
        raise ValueError(
            "shard_optimizer=True needs several replicas, and this model has one: build it in the scope of a strategy,"
            " as bt.mirrored() or bt.strategy() with several workers, or leave it out"
        )
    return value


def _fully_shard(model, value):
    if value is not None:
        refuse_choice(value, "fully_shard")
    elif getattr(model, "fully_shard", None) is not None and any(is_shard(weight) for weight in model.weights):
        raise ValueError("fully_shard=None: the layers of this model are sharded already and stay so; build it again")
    return Listed(value) if isinstance(value, list | tuple) else value


def _reduce_dtype(model, value):
    return one_of("reduce_dtype", value, ("float32", "bfloat16"))


_EACH = {  # (default, what gives the value that is kept, or raises ValueError or TypeError)
    "micro_batches": (1, _micro_batches),
    "shard_optimizer": (False, _shard_optimizer),
    "fully_shard": (None, _fully_shard),
    "reduce_dtype": ("float32", _reduce_dtype),
}
SETTINGS = {name: default for name, (default, _) in _EACH.items()}
"""The arguments of `Model` that `keras.Model` does not have, and their defaults."""


def checked(model, settings):
    """Return the settings as a model keeps them; raise for a value that one does not take, or no model does: None."""
    return {name: _EACH[name][1](model, value) for name, value in settings.items()}


def naming_settings(function):
    """Return the signature of a function whose last argument is ``**settings``, with the settings in its place.

    Of ``**kwargs``, which takes more than settings, both: by ``*args, **kwargs`` Keras knows a class that it can make
    anew of the config of a functional model.
    """
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    types = Settings.__annotations__
    named = [keyword(name, default=default, annotation=types[name]) for name, default in SETTINGS.items()]
    return signature.replace(parameters=[*others, *named, *([last] if last.name == "kwargs" else [])])
