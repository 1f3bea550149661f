"""Peak device memory while steps of `fit` run."""

from bigtrain_nb.advanced.parallel.model_head import Head
from bigtrain_nb.advanced.plan.plans import plan_step
from bigtrain_nb.advanced.preflight.report import Skipped, TrainingRaises, needs, ok, warning
from bigtrain_nb.advanced.preflight.training import words_of
from bigtrain_nb.advanced.shared.resident_memory import peak_resident, reset_peak
from bigtrain_nb.common.hardware import gpu_memory, memory_limit
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import amount

NEAR = 0.85
"""Share of the memory: a longer batch, validation or another program may need the rest."""
STEPS = 3
LOGITS = 0.25
"""Of the planned peak, one tensor of logits: a step keeps up to three of that size."""


@needs("step", "loss")
def memory(training):
    """Measure peak memory while traced steps run on the first batch, including prior allocations of this process."""
    gpu = "GPU:0" if tf.config.list_logical_devices("GPU") else None
    has = gpu_memory() if gpu else memory_limit()
    if has is None:
        raise Skipped("how much memory the device has is not known")
    peak_was_reset = reset_peak()
    if gpu:
        tf.config.experimental.reset_memory_stats(gpu)
    _take_steps(training)
    peak = tf.config.experimental.get_memory_info(gpu)["peak"] if gpu else peak_resident()
    words = f"{amount(peak, 'bytes')} at most, of the {amount(has, 'bytes')} of {'the GPU' if gpu else 'this machine'},"
    words += f" while {STEPS} steps ran" if gpu or peak_was_reset else " since this process began"
    words += "." if gpu else ", with all that this process holds."
    advice = _without_logits(training)
    notebook = "07" if advice else "05"
    if peak > NEAR * has:
        plan = "bt.plan_step(model, batch, micro_batches=4) predicts the memory that a setting would need."
        return warning(f"{words} That is {peak / has:.0%} of it.", advice or plan, notebook)
    return {**ok(words, notebook), "advice": advice}


def _without_logits(training):
    """Return what to do about logits, [batch, places, vocabulary], over a quarter of the planned peak; "" if less."""
    model, y = training.model, training.y
    (output, *others) = getattr(model, "outputs", None) or [None]
    is_chunked = getattr(model, "rows_of_logits", False)
    if is_chunked or others or output is None or len(output.shape) != 3 or len(getattr(y, "shape", ())) < 2:
        return ""
    try:
        Head(model).refuse_rows_together()
        with tf.device("CPU:0"):  # a plan makes an optimizer's variables for a moment
            planned = plan_step(model, training.first, prefetched=0).peak
    except Exception:  # it has no chunks, or no plan: what was measured is said without advice
        return ""
    size = y.shape[0] * y.shape[1] * output.shape[-1] * tf.as_dtype(output.dtype).size
    part = size / getattr(model, "micro_batches", 1) / planned
    words = f"Logits of {amount(size, 'bytes')} are {part:.0%} of the planned peak: use bt.chunk_head(model)."
    return words if part > LOGITS else ""


def _take_steps(training):
    batches = iter(tf.data.Dataset.from_tensors(training.first).repeat())
    train = train_function_of(training.model)
    try:
        for _ in range(STEPS):
            train(batches)
    except Exception as error:
        raise TrainingRaises(words_of(error)) from error


def train_function_of(model):
    """Return a new traced function that takes steps as `fit` does; the model's own is unchanged."""
    before = model.train_function
    model.make_train_function(force=True)
    train, model.train_function = model.train_function, before
    return train


CHECKS = {"memory": memory}
