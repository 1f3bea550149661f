"""A model that does not fit: recompute it, shard its state, shard its layers; and replicas that say less.

What goes together, of the settings of `bt.Model` and of this folder ("tensor parallel": with `ColumnDense`, `RowDense`
or `TensorParallelAttention`, as in ``bt.gpt(tensor_parallel=2)``; "recompute" stands for `chunk_attention` too):

| | `recompute` | ``shard_optimizer`` | ``reduce_dtype`` | ``sync_every`` | tensor parallel |
|---|---|---|---|---|---|
| ``micro_batches`` | yes | yes | yes | yes | yes, with as many examples in a batch |
| `recompute` | no nests | yes | yes | yes | yes |
| ``shard_optimizer=True`` | yes | | yes | raises | raises |
| ``reduce_dtype="bfloat16"`` | yes | yes | | yes | no effect: no gradients are sent |
| ``sync_every=H`` | yes | raises | yes | | raises |
| "mixed_float16", loss scaling | yes | yes | yes | yes | yes |
| ``global_clipnorm`` | yes | yes | yes | yes, of each replica's own gradient | yes |
| ``clipnorm`` | yes | yes | yes | yes | yes |
| ``use_ema`` | yes | yes | yes | raises | not tried |
| ``ema_overwrite_frequency`` | raises with several replicas in one process, whatever the settings | | | | |
| ``outer_optimizer`` | yes | raises | yes | needs it, else raises | raises |
| LAMB, Muon, Adafactor, one of your own | yes | raises | yes | yes | raises |
| ``jit_compile=True`` | yes | TensorFlow raises with several replicas on CPUs, whatever the settings | | | |
| `save` | yes | yes, whole | yes | yes, the first replica's slots | yes, whole |
| `Resume` | yes | yes, whole | yes | raises | yes, whole |
| one replica | yes | raises | no effect | yes | an ordinary model |

`Pipelined` is a model of its own, for stages on devices without a strategy: it has ``micro_batches`` and works with
`recompute` in its stages, clipping, loss scaling and `save`; under a strategy's scope it raises.
"""
