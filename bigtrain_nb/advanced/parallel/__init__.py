"""Training models that do not fit in memory: recomputation, sharded optimizer state, sharded weights.

Which settings of `bt.Model` and functions of this package can be combined. `chunk_attention` and `fuse_attention`
combine with everything that `recompute` combines with, also inside layers that are recomputed or sharded. So does
`chunk_head`, but its head may not be fully sharded.

| | `recompute` | ``shard_optimizer`` | ``fully_shard`` | ``reduce_dtype`` |
|---|---|---|---|---|
| ``micro_batches`` | yes | yes | yes | yes |
| `recompute` | not one inside another | yes | for other layers; these recompute already | yes |
| ``shard_optimizer=True`` | yes | | raises: it shards that too | yes |
| ``fully_shard=...`` | for other layers | raises | | yes |
| ``reduce_dtype="bfloat16"`` | yes | yes | yes, for gradients | |
| "mixed_float16", loss scaling | yes | yes | yes | yes |
| ``global_clipnorm`` | yes | yes | yes | yes |
| ``clipnorm`` | yes | yes | yes | yes |
| ``use_ema`` | yes | yes, without `SwapEMAWeights` | yes | yes |
| ``ema_overwrite_frequency`` | raises with several replicas in one process, whatever the settings | | | |
| LAMB, Muon, Adafactor, custom optimizers | yes | raises | raises | yes |
| regularizers, constraints | yes | yes | raises for these layers | yes |
| ``jit_compile=True`` | yes | TensorFlow raises with several replicas on CPUs, whatever the settings | | |
| `save` | yes | yes, unsharded | yes, unsharded | yes |
| `Resume` | yes | yes, unsharded | yes, unsharded | yes |
| one replica | yes | raises | an ordinary model | no effect |
"""
