"""The planner: its controls, what it shows, and that it is the same path without a screen."""

from xml.etree import ElementTree

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.plan.accelerators import ACCELERATORS

pytest.importorskip("ipywidgets")
Planner = bt.Planner


@pytest.fixture
def planner():
    return Planner()


def shown(planner):
    planner._repr_mimebundle_()
    return planner


def test_it_shows_memory_time_and_what_fits_before_anything_is_chosen(planner):
    view = shown(planner)
    (memory,) = ElementTree.fromstring(view.results.value).findall("{http://www.w3.org/2000/svg}svg")
    assert "6.58 B weights" in memory.get("aria-label") and "Time of a training step" in view.results.value
    assert 'role="status"' in view.status.value and "6.58 B weights" in view.status.value
    assert all(name in view.results.value for name in ACCELERATORS)


def test_what_cannot_be_is_said_and_then_forgotten(planner):
    view = shown(planner)
    view.fields["devices"].label = "1"
    assert "needs at least" in view.status.value and not view.results.value
    view.fields["size"].label = "GPT-2"
    assert "It fits" in view.status.value and "<svg" in view.results.value


def test_the_same_path_without_a_screen(planner):
    plan = planner.plan(size="1 T", on="A100 80 GB", devices=512)
    assert plan.layout.devices == 512 and plan.fits
    assert planner.plan(size="70 B", devices=64, zero_stage=3).layout.zero_stage == 3
    fits = {line.split("  ")[0]: line for line in str(planner.fits(size="70 B")).splitlines()}
    assert "not built here" in fits["H100"] and "MFU" in fits["H100"] and "built" not in fits["T4"]
    assert "  yes  " in next(line for line in str(planner.fits()).splitlines() if line.startswith("H100"))
    with pytest.raises(ValueError, match="unknown setting 'sise': expected one of size, "):
        planner.plan(sise="7 B")
    with pytest.raises(ValueError, match="on=H1000 is not among the choices"):
        planner.plan(on="H1000")
    assert "picture" in repr(planner.picture()) and "Planner" in repr(planner)


def test_long_sequences_experts_and_overlap_are_controls_too(planner):
    mixture = planner.plan(size="Mixtral 8x7B", devices=64, expert_parallel=8)
    assert mixture.fits and mixture.communication_volume["experts in the node"] > 0
    whole, shared = (planner.plan(length=8192, devices=64, context_parallel=c) for c in (1, 4))
    assert shared.memory["activations: logits"] == whole.memory["activations: logits"] / 4
    slow, hidden = (planner.plan(devices=64, overlap=share) for share in (0.0, 1.0))
    assert hidden.time.total < slow.time.total
    assert planner.plan(chunk_attention=8).memory["activations: scores"] > 0
    view = shown(planner)
    assert {"sequence_parallel", "context_parallel", "expert_parallel", "overlap", "chunk_attention"} < set(view.fields)
    view.fields["devices"].label = "64"
    view.fields["context_parallel"].label = "4"
    assert "Where is there code for it?" in view.results.value and "nowhere known in TensorFlow" in view.results.value


def test_a_keras_model_is_planned_from_its_graph():
    with pytest.raises(ValueError, match="has no weights to train yet: give it a keras.Input"):
        Planner(keras.Sequential([keras.layers.Dense(3)]))
    planner = Planner(bt.conv_net(image_size=32, blocks=1))
    view = shown(planner)
    assert {"batch", "micro_batches", "optimizer"} <= set(view.fields) and "policy" not in view.fields
    assert "lower bounds" in view.results.value
    before = planner.plan().peak
    view.fields["batch"].value = 256
    assert planner.plan(batch=256).peak > 2 * before and "activations" in view.results.value


def test_a_function_that_builds_is_called_under_the_policy_and_quoted_if_it_raises():
    def build():
        assert keras.mixed_precision.dtype_policy().name != "mixed_float16", "no such layer"
        return bt.conv_net(image_size=32, blocks=1)

    planner = Planner(build)
    wide = planner.plan(batch=64, policy="float32").memory["activations"]
    assert planner.plan(batch=64, policy="mixed_bfloat16").memory["activations"] < 0.8 * wide
    view = shown(planner)
    view.fields["policy"].label = "mixed_float16"
    assert "AssertionError: no such layer" in view.status.value and not view.results.value
