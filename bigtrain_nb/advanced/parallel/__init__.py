"""A model that does not fit: recompute it, shard its state, its weights.

What goes together, of the settings of `bt.Model` and of this folder. `chunk_attention` and `fuse_attention` go with all
that `recompute` goes with, also inside layers that are recomputed or sharded. So does `chunk_head`, but its head itself
may not be fully sharded.

| | `recompute` | ``shard_optimizer`` | ``fully_shard`` | ``reduce_dtype`` |
|---|---|---|---|---|
| ``micro_batches`` | yes | yes | yes | yes |
| `recompute` | not one inside another | yes | of other layers; these do so already | yes |
| ``shard_optimizer=True`` | yes | | raises: it shards that too | yes |
| ``fully_shard=...`` | of other layers | raises | | yes |
| ``reduce_dtype="bfloat16"`` | yes | yes | yes, for gradients | |
| "mixed_float16", loss scaling | yes | yes | yes | yes |
| ``global_clipnorm`` | yes | yes | yes | yes |
| ``clipnorm`` | yes | yes | yes | yes |
| ``use_ema`` | yes | yes, without `SwapEMAWeights` | yes | yes |
| ``ema_overwrite_frequency`` | raises with several replicas in one process, whatever the settings | | | |
| LAMB, Muon, Adafactor, one of your own | yes | raises | raises | yes |
| regularizers, constraints | yes | yes | raises for these layers | yes |
| ``jit_compile=True`` | yes | TensorFlow raises with several replicas on CPUs, whatever the settings | | |
| `save` | yes | yes, whole | yes, whole | yes |
| `Resume` | yes | yes, whole | yes, whole | yes |
| one replica | yes | raises | an ordinary model | no effect |
"""
