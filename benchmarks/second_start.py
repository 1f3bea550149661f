"""Seconds of a first and a second start of KerasHub's GPT-2 small with XLA, with programs kept on disk in between.

A start is a process, from Python's first line to the end of the first step. Weights are random, and a batch is one
sequence of 64 tokens, so that hardly anything is computed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

WAYS = {
    "stock": "stock KerasHub",
    "built": "stock, `optimizer.build` before",
    "bt": "`bt.Model`",
}


def start(way, layers):
    began = time.perf_counter()
    import keras
    import keras_hub
    import numpy as np

    import bigtrain_nb as bt

    keras.utils.set_random_seed(7)
    backbone = keras_hub.models.GPT2Backbone(50_257, layers, 12, 768, 3072, max_sequence_length=64)
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    if way == "bt":
        bt.Model.of(model)
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
    if way == "built":
        model.optimizer.build(model.trainable_variables)
    tokens = np.random.default_rng(0).integers(0, 50_257, (1, 65))
    x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((1, 64), int)}
    ends, losses = [time.perf_counter()], []
    for _ in range(5):
        losses.append(float(model.train_on_batch(x, tokens[:, 1:])[0]))
        ends.append(time.perf_counter())
    print(json.dumps({"built": ends[0] - began, "step": ends[1] - ends[0], "all": ends[1] - began, "losses": losses}))


def seconds_of(way, layers, folder):
    """Start a process; return its seconds and losses."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "device_compilation_profiler=1",  # says how long XLA takes
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={folder}",
    }
    command = [sys.executable, __file__, "--start", way, "--layers", str(layers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    in_xla = sum(map(int, re.findall(r"compile time: (\d+) us", done.stderr))) / 1e6
    return {**json.loads(done.stdout.splitlines()[-1]), "xla": in_xla}


def compare(layers):
    print("| | start | import, building | tracing | XLA | in all, s | of the first |\n|---|---|---|---|---|---|---|")
    for way, name in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            first, second = (seconds_of(way, layers, folder) for _ in range(2))
            (program,) = os.scandir(folder)
            size = program.stat().st_size / 2**20
        assert first["losses"] == second["losses"], "the stored program computes something else"
        for which, one in (("first", first), ("second", second)):
            parts = [one["built"], one["step"] - one["xla"], one["xla"], one["all"]]
            times = " | ".join(f"{part:.1f}" for part in parts)
            print(f"| {name} | {which} | {times} | {one['all'] / first['all']:.2f} |", flush=True)
        print(f"{name}: a file of {size:.0f} MiB", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--start", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start:
        start(given.start, given.layers)
    else:
        compare(given.layers)
