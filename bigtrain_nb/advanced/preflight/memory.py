"""Peak device memory while steps of `fit` run."""

from bigtrain_nb.advanced.preflight.report import Skipped, TrainingRaises, needs, ok, warning
from bigtrain_nb.advanced.preflight.training import words_of
from bigtrain_nb.common.hardware import gpu_memory, memory_limit, peak_resident, start_peak_anew
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import amount

NEAR = 0.85
"""Share of the memory: a longer batch, validation or another program may need the rest."""
STEPS = 3


@needs("step", "loss")
def memory(training):
    """Measure peak memory while traced steps run on the first batch, including prior allocations of this process."""
    gpu = "GPU:0" if tf.config.list_logical_devices("GPU") else None
    has = gpu_memory() if gpu else memory_limit()
    if has is None:
        raise Skipped("how much memory the device has is not known")
    counts_anew = start_peak_anew()
    if gpu:
        tf.config.experimental.reset_memory_stats(gpu)
    _take_steps(training)
    peak = tf.config.experimental.get_memory_info(gpu)["peak"] if gpu else peak_resident()
    words = f"{amount(peak, 'bytes')} at most, of the {amount(has, 'bytes')} of {'the GPU' if gpu else 'this machine'},"
    words += f" while {STEPS} steps ran" if gpu or counts_anew else " since this process began"
    words += "." if gpu else ", with all that this process holds."
    if peak > NEAR * has:
        return warning(
            f"{words} That is {peak / has:.0%} of it.",
            "bt.plan_step(model, batch, micro_batches=4) tells beforehand what a setting would leave.",
            "05",
        )
    return ok(words, "05")


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
