"""What a `Model` cannot do right: an error before it is done wrong in silence."""

from difflib import get_close_matches

_ARGUMENTS = ("inputs", "outputs", "name", "trainable", "micro_batches")


def unknown_arguments(kwargs):
    """Keras takes any argument beside inputs and outputs, and does nothing with it."""
    for name in kwargs:
        if name not in _ARGUMENTS:
            nearest = get_close_matches(name, _ARGUMENTS, 1, cutoff=0)[0]
            raise TypeError(f"Model(inputs, outputs) has no argument {name!r}; the nearest is {nearest!r}")


def logs_without_metric(model, logs):
    unknown = set(logs) - set(model.get_metrics_result())
    if unknown:
        raise ValueError(
            f"compute_metrics returns {', '.join(sorted(unknown))}, which would show one slice only: make each a"
            " keras.metrics.Metric and an attribute of the model"
        )


def sum_with_other_losses(model, reduction):
    if reduction == "sum" and model.micro_batches > 1 and model.losses:
        raise ValueError(
            'with the reduction "sum", micro_batches would count regularisers and add_loss once for each slice: use'
            ' "sum_over_batch_size"'
        )
