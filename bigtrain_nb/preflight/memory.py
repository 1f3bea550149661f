"""Does a step fit into memory? The plan and a measurement beside what the device has, and the cheapest way to fit."""

import gc
import os
import pickle
import tempfile

import cloudpickle
import psutil

from bigtrain_nb.common.hardware import gpu_memory, memory_limit
from bigtrain_nb.common.keras_gaps import layers_within
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount, first_sentence
from bigtrain_nb.plan.fitting import cheapest_way
from bigtrain_nb.plan.peak_memory import MIB, peak_within, start_peak_anew
from bigtrain_nb.plan.plans import plan_step
from bigtrain_nb.preflight.report import NotExamined, look, ok, wrong

NEAR = 0.85
"""Of the device: plans are within 15 % on networks that nobody tuned them to (benchmarks/README.md)."""
SHARE_FOR_WAYS = 0.3
"""Of the time that is left, for plans of other ways."""
LEAST_SECONDS = 20
"""Left, for a process of its own, which first loads TensorFlow."""
MEASURED_STEPS = 3


def memory(training):
    """Do planned and measured peak of a step fit into the device?"""
    training.refuse_own_step()
    batch = (training.x, training.y, training.weight)
    try:
        plan = plan_step(training.model, batch)
    except (TypeError, ValueError) as error:
        raise NotExamined(f"the step has no plan: {first_sentence(error).rstrip('.')}") from None
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    has = gpu_memory() if on_gpu else memory_limit()
    if has is None:
        raise NotExamined(f"the plan is {amount(plan.peak, 'bytes')}, and how much the device has is not known")
    beside = 0 if on_gpu else plan.runtime
    measured, words_of_it = (None, "on GPUs it is not measured here") if on_gpu else _measured(training, plan)
    words = f"Planned peak of a step: {amount(plan.peak + beside, 'bytes')}; {words_of_it}. "
    words += f"{'The GPU' if on_gpu else 'This machine'} has {amount(has, 'bytes')}."
    needed = plan.peak + beside if measured is None else measured
    if needed <= NEAR * has and "fails" in words_of_it:
        return look(words, "The plan stands alone: run bt.peak_memory of a step by yourself.", "05")
    if needed <= NEAR * has:
        return ok(words, "05")
    way = cheapest_way(training.model, batch, NEAR * has - beside, SHARE_FOR_WAYS * training.seconds_left)
    advice, notebook = _advice(way, plan)
    if needed <= has:
        return look(f"{words} It is near its end, and plans are within 15 %.", advice, notebook)
    return wrong(f"{words} It does not fit.", advice, notebook)


def _measured(training, plan):
    """Return the peak of a step in bytes, measured in a process of its own, and words; None where that was not done."""
    if training.seconds_left < LEAST_SECONDS:
        return None, "not measured, for lack of time"
    if plan.peak + plan.runtime > psutil.virtual_memory().available / 2:
        return None, "not measured, for that would need as much again"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "training")
        try:
            with open(path, "wb") as file:
                cloudpickle.dump(_own_classes(training.model), file)
                cloudpickle.dump((training.model, keras.tree.map_structure(_array, training.first)), file)
            peak = peak_within(training.seconds_left, _some_steps, {"path": path})
        except Exception as error:  # classes that cannot be sent raise what they like
            last = str(error).strip().splitlines()[-1:] or [""]
            return None, f"not measured, for a process of its own fails: {first_sentence(last[0]).rstrip('.')}"
    return peak.host * MIB, f"measured in a process of its own: {amount(peak.host * MIB, 'bytes')}"


def _own_classes(model):
    """Return {name under which Keras looks for it: class} of the layers that are not Keras' own."""
    kinds = {type(layer) for layer in layers_within(model)}
    own = [kind for kind in kinds if not kind.__module__.startswith("keras.")]
    return {keras.saving.get_registered_name(kind): kind for kind in own}


def _some_steps(path):
    """What is measured."""
    with open(path, "rb") as file, keras.saving.custom_object_scope(pickle.load(file)):
        model, batch = pickle.load(file)
    gc.collect()
    start_peak_anew()  # the file was in memory, too
    data = tf.data.Dataset.from_tensors(batch).repeat(MEASURED_STEPS)
    keras.Model.fit(model, data, verbose=0)  # that of a KerasHub task would preprocess it a second time


def _array(value):
    return None if value is None else value.numpy()


def _advice(way, plan):
    """Return in words how it fits, and the notebook about that."""
    if way is None:
        return "No way fits that was planned, from micro-batches to shards on 8 devices: make the model smaller.", "08"
    more = way.plan.flops.total * way.devices / max(plan.flops.total, 1) - 1
    on = f" on {way.devices} devices" if way.devices > 1 else ""
    peak = amount(way.plan.peak, "bytes")
    notebook = "08" if way.devices > 1 else "07" if "recompute" in way.code or "chunk" in way.code else "05"
    return f"The cheapest way in plans: {way.code}{on}, with {peak} and {max(more, 0):.0%} more operations.", notebook


CHECKS = {"memory": memory}
