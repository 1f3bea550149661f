"""A model that does not fit: recompute it, shard its state, its weights, its layers.

What goes together, of the settings of `bt.Model` and of this folder ("recompute" stands for `chunk_attention` and
`fuse_attention` too):

| | `recompute` | ``shard_optimizer`` | ``fully_shard`` | ``reduce_dtype`` | ``tensor_parallel`` |
|---|---|---|---|---|---|
| ``micro_batches`` | yes | yes | yes | yes | yes, with as many examples in a batch |
| `recompute` | no nests | yes | of other layers; these do so already | yes | yes |
| ``shard_optimizer=True`` | yes | | raises: it shards that too | yes | raises |
| ``fully_shard=...`` | of other layers | raises | | yes | raises |
| ``reduce_dtype="bfloat16"`` | yes | yes | yes, for gradients | | no effect: no gradients are sent |
| "mixed_float16", loss scaling | yes | yes | yes | yes | yes |
| ``global_clipnorm`` | yes | yes | yes | yes | yes |
| ``clipnorm`` | yes | yes | yes | yes | yes |
| ``use_ema`` | yes | yes | yes | yes | not tried |
| ``ema_overwrite_frequency`` | raises with several replicas in one process, whatever the settings | | | | |
| LAMB, Muon, Adafactor, one of your own | yes | raises | raises | yes | raises |
| regularizers, constraints | yes | yes | raises for these layers | yes | raises |
| ``jit_compile=True`` | yes | TensorFlow raises with several replicas on CPUs, whatever the settings | | | |
| `save` | yes | yes, whole | yes, whole | yes | yes, whole |
| `Resume` | yes | yes, whole | yes, whole | yes | yes, whole |
| one replica | yes | raises | an ordinary model | no effect | an ordinary model |

`Pipelined` is a model of its own, for stages on devices without a strategy: it has ``micro_batches`` and works with
`recompute` in its stages, clipping, loss scaling and `save`; under a strategy's scope it raises.
"""
