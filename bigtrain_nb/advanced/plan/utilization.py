"""Inputs of model FLOPs utilization: the FLOPs per example, and the accelerator of this machine."""

from bigtrain_nb.advanced.plan.accelerators import ACCELERATORS
from bigtrain_nb.advanced.plan.step import PlannedStep
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.train.own_step import full_outputs


def flops_of_an_example(model, batch=1):
    """Return the FLOPs of forward and backward pass for one example: matmuls and convolutions.

    ``batch``: as in `plan_step`. Recomputation does not count: the result is at most three times the forward pass
    (Chowdhery et al. 2022, "PaLM", appendix B). Raises ValueError and TypeError as `plan_step`, and ValueError for LSTM
    and GRU on a GPU, whose matmuls are inside one cuDNN operation, and for work that the plan cannot examine.
    """
    # With SGD, which has no state: the model may fill its device. A chunked head computes its gradients in forward
    with full_outputs():
        step = PlannedStep(model, batch, "sgd", devices=1, micro_batches=1, shard_optimizer=False, metrics=False)
    if any(op.kind.startswith("CudnnRNN") for op in step.gradients.operations):
        raise ValueError(f"the FLOPs of {model.name} are unknown: its matmuls are inside a cuDNN operation")
    if step.gradients.uncounted_ops:
        kinds = ", ".join(step.gradients.uncounted_ops)
        raise ValueError(f"the FLOPs of {model.name} are unknown: not counted, or of unknown size: {kinds}")
    forward = sum(op.times * op.flops for op in step.gradients.operations if not op.backward)
    both = sum(op.times * op.flops for op in step.gradients.operations)
    return min(both, 3 * forward) / step.examples


def accelerator_here():
    """Return the `Accelerator` of TensorFlow's GPUs on this machine; None if there is none or it is unknown."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "").replace("-", " ")
    if "MIG" in name:
        return None  # part of a GPU
    if "A100" not in name and {"PCIE", "NVL"} & set(name.upper().split()):
        return None  # slower than the one of that name in the table
    if "A100" in name:  # "NVIDIA A100-SXM4-40GB"
        return ACCELERATORS["A100 80 GB" if "80GB" in name else "A100 40 GB"]
    return next((one for one in ACCELERATORS.values() if one.name.split()[0] in name.split()), None)
