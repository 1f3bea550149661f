"""How long will it take, and who waits for whom: the step alone beside the input alone, and the whole run."""

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount, interval
from bigtrain_nb.measure.throughput import throughput
from bigtrain_nb.plan.this_machine import flops_here
from bigtrain_nb.plan.utilization import accelerator_here, flops_of_an_example
from bigtrain_nb.preflight.report import NotExamined, look, ok
from bigtrain_nb.preflight.training import passes_of
from bigtrain_nb.watch.meter import tokens_of_an_example
from bigtrain_nb.watch.profile import batches_of

SHARE_OF_TIME = 0.05
"""Of the time that is left, for each of the two measurements."""
MOST_SECONDS = 3.0


def time(training):
    """Measure the step and the input, each alone; extrapolate to the epochs that are planned."""
    training.refuse_failing()
    if training.no_loss is not None:
        raise NotExamined(training.no_loss)
    step = throughput(_step(training), seconds=_seconds(training))
    fed = input_alone(training)
    words = (
        f"The step alone: {interval(step)} examples/s{_tokens(training, step)}{_utilization(training, step)}; the input"
        f" alone: {interval(fed)} examples/s"
    )
    whole = _whole_run(training, step, fed)
    if fed.high < step.low:
        return look(
            f"{words}: the step waits for the input.{whole}",
            "bt.diagnose(data) names the stage that binds; often a parallel map, a cache or prefetch is missing.",
            "01",
        )
    waits = "the input keeps up" if fed.low > step.high else "they are about as fast, so that either may bind"
    return ok(f"{words}: {waits}.{whole}", "06")


def input_alone(training):
    """Return the `Result` of reading the dataset, without a step; measured once."""
    if training.ends_after_a_pass:
        raise NotExamined("the dataset is empty when it is read again")
    if training.known_input is None:
        training.known_input = throughput(_Passes(training.data), seconds=_seconds(training))
    return training.known_input


def batches_in_an_epoch(training):
    """Return how many batches the dataset has; None where it does not tell."""
    source = batches_of(training.data)
    if isinstance(source, tf.data.Dataset):
        count = int(source.cardinality())
        return count if count >= 0 else None
    return len(source) if hasattr(source, "__len__") else None


class _Passes:
    """A dataset that is read without moving on its shuffling, and without a new start after each epoch: of a few small
    batches the start would be most of the time.
    """

    def __init__(self, data):
        source = batches_of(data)
        self._start = passes_of(source.repeat() if isinstance(source, tf.data.Dataset) else source)

    def __iter__(self):
        return self._start()


def _seconds(training):
    return min(MOST_SECONDS, max(0.1, SHARE_OF_TIME * training.seconds_left))


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


def _tokens(training, step):
    """Return in words how many tokens/s these are; "" where inputs are no tokens."""
    specs = keras.tree.map_structure(tf.type_spec_from_value, training.x)
    tokens = tokens_of_an_example(training.model, (specs,))
    if tokens is None:
        return ""
    return f", {amount(step.low * tokens, 'tokens')}/s to {amount(step.high * tokens, 'tokens')}/s"


def _utilization(training, step):
    """Return in words the model FLOPs utilization of the step (Chowdhery et al. 2022, "PaLM")."""
    model = training.model
    device = accelerator_here()
    try:
        flops = flops_of_an_example(model, (training.x, training.y, training.weight))
        policy = model.dtype_policy.name
        most = device.flops(policy) if device else flops_here(policy)
    except (TypeError, ValueError):
        return ", MFU not known, for no plan knows the FLOPs of the step"
    of = f"what {device.name} can do" if device else "what large matrix products reach here"
    return f", MFU {100 * step.low * flops / most:.2g}% to {100 * step.high * flops / most:.2g}% of {of}"


def _whole_run(training, step, fed):
    """Return in words how long the epochs take at the slower of both rates, with its interval."""
    count = batches_in_an_epoch(training)
    if count is None:
        return " How many batches an epoch has is not known."
    epochs = training.epochs or 1
    examples = count * training.examples * epochs
    slowest = examples / min(step.low, fed.low)
    fastest = examples / min(step.high, fed.high)
    of = f"{epochs:,} epochs take" if epochs > 1 else "An epoch takes"
    return f" {of} {amount(fastest, 's')} to {amount(slowest, 's')} on this machine, without validation."


CHECKS = {"time": time}
