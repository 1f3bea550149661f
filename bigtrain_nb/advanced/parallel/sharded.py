"""Sharded optimizer state: each replica updates its shard of the weights, then the shards are all-gathered.

Stage 1 of ZeRO: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". The
gradients are reduce-scattered, which together with the all-gather sends as much as an all-reduce. (Where GPUs
all-reduce instead, see `sum_into_shards`, a step sends 1.5 times as much.) Clipping and the finite check of loss
scaling then need one scalar per weight from each replica.

Stage 2 would also keep only a shard of the summed gradients. That needs a reduction after each micro-batch, so all
replicas would need the same number of them. Stage 3, `fully_shard`, keeps only a shard of the weights, and gathers
those of each layer before its forward and its backward pass.
"""

from bigtrain_nb.advanced.parallel.shards import (
    MeanOfShards,
    OptimizerOfShards,
    join_shards,
    leave_undecayed,
    new_shard,
    own_shard,
    sum_into_shards,
)
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.common.replicas import on_each_replica


class ShardedOptimizer(OptimizerOfShards):
    """Mixin for an optimizer whose state is sharded: each of N replicas keeps 1/N.

    It needs each replica's shards of the gradients, clipped by the norms of the full gradients. It shows and saves the
    full state; its config is unchanged.
    """

    def build(self, variables):
        if self.built:
            return
        shards = [new_shard(weight, name=f"shard{index}_of_{weight.name}") for index, weight in enumerate(variables)]
        # Keras would track an ordinary attribute
        object.__setattr__(self, "_weights_and_shards", list(zip(variables, shards, strict=True)))
        leave_undecayed(self, [shard for weight, shard in self._weights_and_shards if is_undecayed(self, weight)])
        super().build(shards)

    def apply(self, grads, trainable_variables):
        self.build(trainable_variables)
        for weight, shard in self._weights_and_shards:
            shard.assign(own_shard(weight.value))
        super().apply(grads, self._shards_of(trainable_variables))  # as if the shards were the weights
        self._gather_weights()

    def finalize_variable_values(self, var_list):
        if self.use_ema:
            super().finalize_variable_values(self._shards_of(var_list))
            strategy = var_list[0].value.distribute_strategy  # `fit` may be called outside of its scope
            on_each_replica(strategy, self._gather_weights)()

    def _shards_of(self, weights):
        shard_of = {id(weight): shard for weight, shard in self._weights_and_shards}
        for weight in weights:
            if id(weight) not in shard_of:
                raise ValueError(
                    f"{weight.path} was frozen when this optimizer was built: compile the model with a new optimizer"
                )
        return [shard_of[id(weight)] for weight in weights]

    def _gather_weights(self):
        """Assign to each weight the joined shards of all replicas."""
        shards = [shard.value for _, shard in self._weights_and_shards]
        values = join_shards(shards, [weight.shape for weight, _ in self._weights_and_shards])
        for (weight, _), value in zip(self._weights_and_shards, values, strict=True):
            weight.assign(weight.constraint(value) if weight.constraint else value)


class ShardedMean(MeanOfShards):
    """The mean over the replicas for an optimizer with sharded state: each replica keeps its shards of it."""

    optimizer_class = ShardedOptimizer

    @classmethod
    def asked_for(cls, model):
        return "shard_optimizer=True" if model.shard_optimizer else None

    @staticmethod
    def sum_gradients(gradients):
        """Return this replica's shards of the summed gradients, {index: gradient}."""
        return dict(zip(gradients, sum_into_shards(list(gradients.values())), strict=True))

    def are_shards(self, gradients):
        return [True] * len(gradients)

    def refuse_callbacks(self, callbacks):
        if any(isinstance(one, keras.callbacks.SwapEMAWeights) for one in callbacks):
            raise ValueError(
                "SwapEMAWeights swaps weights with the optimizer's averages, but with shard_optimizer=True each replica"
                " has only a shard of them: leave it out, and the averages replace the weights at the end of fit;"
                " or leave out shard_optimizer"
            )


def is_undecayed(optimizer, weight):  # private: Keras
    """Return whether an optimizer with weight decay excludes this weight from it."""
    if hasattr(optimizer, "_is_excluded_from_weight_decay"):  # since Keras 3.16, which calls it in `build`
        return optimizer._is_excluded_from_weight_decay(weight)
    return not optimizer._use_weight_decay(weight)
