"""How long will it take, and who waits for whom: the step alone beside the input alone, and the whole run."""

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import amount, interval
from bigtrain_nb.measure.benchmark import throughput
from bigtrain_nb.preflight.report import NotExamined, look, ok
from bigtrain_nb.preflight.training import passes
from bigtrain_nb.watch.profile import batches_of

SHARE_OF_TIME = 0.05
"""Of the time that is left, for each of the two measurements."""
MOST_SECONDS = 3.0


def time(training):
    """Measure the step and the input, each alone; extrapolate to the epochs that are planned."""
    if training.fails_with is not None:
        raise NotExamined("a step on the first batch fails")
    if training.no_loss is not None:
        raise NotExamined(training.no_loss)
    seconds = min(MOST_SECONDS, SHARE_OF_TIME * training.seconds_left)
    step = throughput(_step(training), seconds=seconds)
    fed = throughput(_Passes(training.data), seconds=seconds)
    words = f"The step alone: {interval(step)} examples/s, the input alone: {interval(fed)} examples/s"
    whole = _whole_run(training, step, fed)
    if fed.high < step.low:
        return look(
            f"{words}: the step waits for the input.{whole}",
            "bt.diagnose(data) names the stage that binds; often a parallel map, a cache or prefetch is missing.",
            "01",
        )
    waits = "the input keeps up" if fed.low > step.high else "they are about as fast, so that either may bind"
    return ok(f"{words}: {waits}.{whole}", "06")


class _Passes:
    """A dataset that is read without moving on its shuffling."""

    def __init__(self, data):
        self._start = passes(data)

    def __iter__(self):
        return self._start()


def _step(training):
    """Return a function that takes a step as `fit` does, traced, on the first batch; it returns how many examples."""
    model = training.model
    before = model.train_function
    model.make_train_function(force=True)
    train, model.train_function = model.train_function, before
    batches = iter(tf.data.Dataset.from_tensors(training.first).repeat())
    examples = training.examples * model.steps_per_execution

    def step():
        train(batches)
        return examples

    return step


def _whole_run(training, step, fed):
    """Return in words how long the epochs take at the slower of both rates, with its interval; "" if unknown."""
    source = batches_of(training.data)
    count = len(source) if not isinstance(source, tf.data.Dataset) and hasattr(source, "__len__") else None
    if isinstance(source, tf.data.Dataset):
        count = int(source.cardinality())
    if count is None or count < 0:
        return " How many batches an epoch has is not known."
    epochs = training.epochs or 1
    examples = count * training.examples * epochs
    slowest = examples / min(step.low, fed.low)
    fastest = examples / min(step.high, fed.high)
    of = f"{epochs} epochs" if training.epochs else "An epoch"
    takes = "takes" if not training.epochs else "take"
    return f" {of} {takes} {amount(fastest, 's')} to {amount(slowest, 's')} on this machine, without validation."


CHECKS = {"time": time}
