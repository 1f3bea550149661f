"""Logical devices on one CPU, and strategies of several sizes over them, each in a separate process."""

import subprocess
import sys

import pytest

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch import strategy
from bigtrain_nb.train import devices as of_devices
from bigtrain_nb.train.devices import devices

START = "import bigtrain_nb as bt\nfrom bigtrain_nb import tf\ntf.config.set_visible_devices([], 'GPU')\n"


def run(code):
    """Run code in a fresh Python without GPUs; return the lines that it printed.

    It has no timeout besides pytest's: with ten busy loops on two cores, seven small fits took 20 times as long, 210 s,
    because in each step the replicas' threads wait for each other, and each for a core.
    """
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout.splitlines()


TRAIN = """
import keras, numpy as np
def train(strategy):
    with strategy.scope():
        x = keras.Input((4,))
        model = bt.Model(x, keras.layers.Dense(3, kernel_initializer="ones")(x))
        model.compile("sgd", "mse")
    inputs = np.arange(96, dtype="float32").reshape(24, 4) / 96
    return model.fit(inputs, inputs[:, :3], batch_size=12, shuffle=False, verbose=0, epochs=2).history["loss"][0]
"""


def test_the_cpu_is_split_and_strategies_of_several_sizes_train_alike_in_one_process():
    """The last three rows are as on GPUs; with TensorFlow's own group numbers the second of them aborts."""
    said = run(
        "from bigtrain_nb.train.devices import mirrored_with_own_groups\n"
        "print(*bt.devices())\n"
        "print(*bt.devices(4))\n"
        "print(*bt.devices(2))\n" + TRAIN + "for size in (3, 1, None):\n"
        "    strategy = bt.mirrored(size)\n"
        "    print(type(strategy).__name__, strategy.num_replicas_in_sync, train(strategy))\n"
        "for names in (['CPU:0', 'CPU:1'], bt.devices()[:3], ['CPU:1', 'CPU:2']):\n"
        "    print('of its own', len(names), train(mirrored_with_own_groups(names)))\n"
        "bt.devices(4)  # as many as there are: nothing to split\n"
        "for make in (bt.devices, bt.mirrored):\n"
        "    try: make(5)\n"
        "    except RuntimeError as error: print(error)\n"
    )
    four = "CPU:0 CPU:1 CPU:2 CPU:3"
    assert said[:3] == ["CPU:0 CPU:1", four, four]
    rows = [line.rsplit(maxsplit=2) for line in said[3:9]]
    mirrored = [("MirroredStrategy", str(size)) for size in (3, 1, 4)]
    assert [(kind, size) for kind, size, _ in rows] == mirrored + [("of its own", str(size)) for size in (2, 3, 2)]
    losses = [float(loss) for *_, loss in rows]
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-5)
    for message in said[9:]:
        assert message.startswith("TensorFlow is already initialized") and "bt.devices(at_least=5)" in message
    assert len(said) == 11


def test_a_split_made_by_the_reader_is_taken():
    said = run(
        "parts = [tf.config.LogicalDeviceConfiguration()] * 3\n"
        "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], parts)\n"
        "tf.ones(1)\n"
        "print(*bt.devices(2))\n"
    )
    assert said == ["CPU:0 CPU:1 CPU:2"]


@pytest.mark.more("what TensorFlow itself does")
def test_tensorflows_own_groups_of_several_sizes_still_meet():
    """tensorflow issue 61314. Once fixed, delete `mirrored_with_own_groups`."""
    code = (
        "bt.devices(3)\n"
        + TRAIN
        + "for size in (2, 3):\n    train(tf.distribute.MirroredStrategy(bt.devices(3)[:size]))\n"
    )
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "that group has size" in done.stderr


def test_a_strategy_over_gpus_has_the_gpus_though_the_cpu_was_split_before(monkeypatch, capsys):
    """Simulates `devices(8)` on a machine with GPUs."""
    monkeypatch.setattr(of_devices, "_devices", [f"CPU:{i}" for i in range(8)])
    monkeypatch.setattr(of_devices, "mirrored_with_own_groups", list)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: 4 * [kind])
    for name in ("TF_CONFIG", "SLURM_STEP_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert strategy.strategy() == ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    assert capsys.readouterr().out == "MirroredStrategy over all 4 visible GPUs\n"


def test_too_few_gpus_leave_parts_of_the_cpu_and_that_is_said(monkeypatch, capsys):
    there = tf.config.get_visible_devices("CPU")
    monkeypatch.setattr(of_devices, "_devices", [])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"] if kind == "GPU" else there)
    assert devices(at_least=2)[:2] == devices()[:2] == ["CPU:0", "CPU:1"]
    assert capsys.readouterr().out == "2 devices are requested, but only one GPU is available: using parts of the CPU\n"
