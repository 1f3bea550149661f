"""Language models of KerasHub on one NVIDIA GPU: the gain of each setting, compared with PyTorch and Keras on JAX.

Each row is a process that trains repeatedly on one batch. They compile concurrently; then each in sequence has the GPU
to itself. SMALL=1 runs tiny models, also on a CPU, to try the script.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

SMALL = bool(os.environ.get("SMALL"))
TINY = {"vocabulary": 500, "layers": 2, "heads": 4, "kv_heads": 2, "width": 64, "inner": 128}
MODELS = {
    "gpt2": TINY | {"kv_heads": 4}
    if SMALL
    else {"vocabulary": 50_257, "layers": 12, "heads": 12, "kv_heads": 12, "width": 768, "inner": 3072},
    "llama": TINY
    if SMALL
    else {"vocabulary": 128_256, "layers": 16, "heads": 32, "kv_heads": 8, "width": 2048, "inner": 8192},
}
MODELS["gpt2-padded"] = MODELS["gpt2"] | {"vocabulary": 512 if SMALL else 50_304}
"""GPT-2 small, Llama 3.2 1B, and GPT-2 with its vocabulary padded to a multiple of 128, as llm.c pads it."""

WAYS = {
    "stock": (),
    "attention": ("attention",),
    "head": ("attention", "head"),
    "bt": ("attention", "head", "bt"),
    "steps": ("attention", "head", "bt", "steps"),
    "no-logits": ("attention", "head", "bt", "steps", "chunks"),
    "float8": ("attention", "head", "bt", "steps", "float8"),
    "stock-bt": ("bt",),
}
"""Changes to the KerasHub model: fused attention, a 16-bit head, conversion to a `bt.Model`, eight steps in one
program, the head in chunks, and matmuls in float8."""

TORCH, TUNED_TORCH, JAX = "torch", "torch-tuned", "jax"
STEPS = 8  # in one program
ROUNDS, IN_A_ROUND = 5, 16
PEAK = 989e12
"""FLOP/s of an H100 or H200 in bfloat16, dense: NVIDIA's data sheet."""


def flops_of_a_token(name, length):
    """Return the FLOPs of a step per token: 6 per matmul parameter, and half of PaLM's attention (appendix B)."""
    shape = MODELS[name]
    width, heads = shape["width"], shape["heads"]
    of_attention = 2 * width * width + 2 * width * width * shape["kv_heads"] // heads
    of_mlp = (3 if name == "llama" else 2) * width * shape["inner"]
    weights = shape["layers"] * (of_attention + of_mlp) + width * shape["vocabulary"]
    return 6 * weights + 6 * shape["layers"] * width * length


# A row


class Turn:
    """After compiling, this process waits until all have compiled and its predecessors are done.

    Then it waits until the file ``after`` exists, if there is one to wait for.
    """

    def __init__(self, folder, number, count, deadline, after):
        self.folder, self.number, self.count, self.deadline = Path(folder), number, count, deadline
        self.after = Path(after) if after else self.folder

    def wait(self):
        (self.folder / f"ready-{self.number}").touch()
        while time.time() < self.deadline and len([*self.folder.glob("ready-*")]) < self.count:
            time.sleep(0.1)
        while any(not (self.folder / f"done-{before}").exists() for before in range(self.number)):
            time.sleep(0.02)
        while not self.after.exists():
            time.sleep(0.02)

    def end(self):
        (self.folder / f"ready-{self.number}").touch()
        (self.folder / f"done-{self.number}").touch()


def run_row(way, name, length, batch, turn, flags):
    shape = MODELS[name]
    took = time.time()
    make = {TORCH: with_torch, TUNED_TORCH: with_torch, JAX: with_jax}.get(way, with_tensorflow)
    train, peak, profile = make(way, name, shape, length, batch)
    made = time.time() - took
    ((_, loss),) = train(STEPS, 1)
    first = time.time() - took - made
    turn.wait()
    rounds = train(IN_A_ROUND, 1 + ROUNDS)  # (when it ended, its loss); the first one is warm-up
    last = rounds[-1][1]
    seconds = sorted((after[0] - before[0]) / IN_A_ROUND for before, after in pairwise(rounds))
    median = seconds[len(seconds) // 2]
    rate = batch * length / median
    row = {
        "way": way,
        "flags": flags,
        "model": name,
        "length": length,
        "batch": batch,
        "tokens_per_second": rate,
        "step_ms": [1e3 * one for one in (median, seconds[0], seconds[-1])],
        "mfu": rate * flops_of_a_token(name, length) / PEAK,
        "peak_mib": peak(),
        "built_s": made,
        "first_s": first,
        "losses": [loss, last],
    }
    if profile and os.environ.get("TOP"):
        row["kernels"] = profile(train)
    return row


def tokens(shape, length, batch):
    import numpy as np

    return np.random.default_rng(0).integers(0, shape["vocabulary"], (batch, length + 1)).astype("int32")


def keras_hub_model(name, shape, length):
    import keras_hub

    if name != "llama":
        backbone = keras_hub.models.GPT2Backbone(
            shape["vocabulary"], shape["layers"], shape["heads"], shape["width"], shape["inner"], dropout=0.0,
            max_sequence_length=length,
        )  # fmt: skip
        return keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    backbone = keras_hub.models.Llama3Backbone(
        vocabulary_size=shape["vocabulary"], num_layers=shape["layers"], num_query_heads=shape["heads"],
        hidden_dim=shape["width"], intermediate_dim=shape["inner"], num_key_value_heads=shape["kv_heads"],
        rope_max_wavelength=500_000, tie_word_embeddings=True,
    )  # fmt: skip
    return keras_hub.models.Llama3CausalLM(backbone, preprocessor=None)


def ends_of_epochs(keras, fit):
    """Return (time, loss) at the end of each epoch of ``fit(settings)``; differences exclude the start of `fit`."""
    ends = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            loss = float(logs["loss"])
            ends.append((time.perf_counter(), loss))

    fit({"callbacks": [Clock()], "verbose": 0})
    return ends


def with_tensorflow(way, name, shape, length, batch):
    import tensorflow as tf

    import bigtrain_nb as bt
    from bigtrain_nb.common.quiet import keras

    gpus = tf.config.list_physical_devices("GPU")
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.utils.set_random_seed(1)
    model = keras_hub_model(name, shape, length)
    done = WAYS[way]
    if "float8" in done:
        model.quantize("float8")
    if "attention" in done:
        bt.fuse_attention(model)
    if "head" in done:
        model.backbone.token_embedding.reverse_dtype = "bfloat16"
    if "bt" in done:
        bt.Model.of(model)
    if "chunks" in done:
        bt.chunk_head(model)
    model.compile(
        keras.optimizers.AdamW(1e-4, weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
        steps_per_execution=STEPS if "steps" in done else 1,
    )
    given = tokens(shape, length, batch)
    x = {"token_ids": given[:, :-1], "padding_mask": given[:, :-1] * 0 + 1}
    data = tf.data.Dataset.from_tensors((x, given[:, 1:])).cache().repeat().prefetch(2)

    def train(steps, rounds):
        return ends_of_epochs(keras, lambda clock: model.fit(data, steps_per_epoch=steps, epochs=rounds, **clock))

    def peak():
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20 if gpus else 0

    return train, peak, kernels_of_tensorflow if gpus else None


def kernels_of_tensorflow(train):
    """Return milliseconds per step of the slowest kernels, and of all."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    folder = mkdtemp()
    tf.profiler.experimental.start(folder)
    train(2 * STEPS, 1)
    tf.profiler.experimental.stop()
    file = next(Path(folder).rglob("*.xplane.pb"))
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    sums, counts, ends = Counter(), Counter(), []
    for plane in space.planes:
        if "/device:GPU" not in plane.name:
            continue
        for line in plane.lines:
            if "Stream" not in line.name:
                continue
            for event in line.events:
                kernel = plane.event_metadata[event.metadata_id].name
                sums[kernel] += event.duration_ps / 1e9 / (2 * STEPS)
                counts[kernel] += 1
                ends.append((line.timestamp_ns + event.offset_ps / 1e3, event.duration_ps / 1e3))
    ends.sort()
    gaps = sorted((b[0] - a[0] - a[1] for a, b in zip(ends, ends[1:], strict=False)), reverse=True)
    most = [[round(value, 3), counts[kernel] / (2 * STEPS), kernel[:110]] for kernel, value in sums.most_common(30)]
    return {"ms": sum(sums.values()), "count": sum(counts.values()) / (2 * STEPS), "gaps_us": gaps[:12], "most": most}


def with_jax(way, name, shape, length, batch):
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import keras

    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.utils.set_random_seed(1)
    task = keras_hub_model(name, shape, length)
    model = keras.Model(task.inputs, task.outputs)  # KerasHub's own `fit` makes a tf.data dataset
    model.compile(
        keras.optimizers.AdamW(1e-4, weight_decay=0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    given = tokens(shape, length, batch)
    x = {"token_ids": given[:, :-1], "padding_mask": given[:, :-1] * 0 + 1}

    def batches():
        while True:
            yield x, given[:, 1:]

    def train(steps, rounds):
        return ends_of_epochs(keras, lambda clock: model.fit(batches(), steps_per_epoch=steps, epochs=rounds, **clock))

    def peak():
        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**20

    return train, peak, None


def with_torch(way, name, shape, length, batch):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    if name != "llama":
        config = GPT2Config(
            vocab_size=shape["vocabulary"], n_positions=length, n_embd=shape["width"], n_layer=shape["layers"],
            n_head=shape["heads"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        model = GPT2LMHeadModel(config).to(device)
    else:
        config = LlamaConfig(
            vocab_size=shape["vocabulary"], hidden_size=shape["width"], intermediate_size=shape["inner"],
            num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"], max_position_embeddings=length, tie_word_embeddings=True,
        )  # fmt: skip
        model = LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=device == "cuda")
    given = torch.tensor(tokens(shape, length, batch), dtype=torch.long, device=device)

    def loss_of(given):
        with torch.autocast(device, torch.bfloat16):
            logits = model(given[:, :-1], use_cache=False).logits
        logits = logits.float().reshape(-1, shape["vocabulary"])
        return torch.nn.functional.cross_entropy(logits, given[:, 1:].reshape(-1))

    compiled = torch.compile(loss_of, mode="max-autotune" if way == TUNED_TORCH else None)

    def train(steps, rounds):
        ends = []
        for _ in range(rounds):
            for _ in range(steps):
                optimizer.zero_grad(set_to_none=True)
                loss = compiled(given)
                loss.backward()
                optimizer.step()
            last = float(loss)
            ends.append((time.perf_counter(), last))
        return ends

    def peak():
        return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0

    return train, peak, None


# All rows


def start(number, row, count, folder, deadline, arguments):
    way, name, length, batch, *flags = row.split(":")
    command = [sys.executable, __file__, "--row", f"{way}:{name}:{length}:{batch}", "--turn", str(number)]
    command += ["--count", str(count), "--folder", folder, "--deadline", str(deadline), "--flags", " ".join(flags)]
    command += ["--after", arguments.after]
    environment = dict(os.environ)
    for setting in flags:
        key, _, value = setting.partition("=")
        environment[key] = f"{environment.get(key, '')} {value}".strip()
    if way in (TORCH, TUNED_TORCH, JAX) and arguments.others:
        command = [*shlex.split(arguments.others), *command[1:]]
    log = open(Path(folder) / f"log-{number}", "w")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def report(row, log, out):
    """Print the result of a row that has ended, and append it to the file; return whether it succeeded."""
    lines = log.read_text(errors="replace").splitlines()
    found = [line[4:] for line in lines if line.startswith("ROW ")]
    if not found:
        end = "\n".join(line[:400] for line in lines[-8:])
        print(row, "FAILED", end, flush=True)
        print(json.dumps({"row": row, "failed": end}), file=out, flush=True)
        return False
    print(found[0], file=out, flush=True)
    one = json.loads(found[0])
    print(
        f"{row}: {one['tokens_per_second']:,.0f} tokens/s, {one['step_ms'][0]:.2f} ms a step"
        f" ({one['step_ms'][1]:.2f} to {one['step_ms'][2]:.2f}), MFU {one['mfu']:.1%},"
        f" {one['peak_mib']:,.0f} MiB, first {STEPS} steps {one['first_s']:.0f} s,"
        f" losses {one['losses']}",
        flush=True,
    )
    if "kernels" in one:
        print(json.dumps(one["kernels"])[:6000], flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="WAY:MODEL:LENGTH:BATCH[:VARIABLE=VALUE ...]")
    parser.add_argument("--seconds", type=float, default=400, help="for compiling; rows that take longer are left out")
    parser.add_argument("--after", default="", metavar="FILE", help="compile at once, but time only once FILE exists")
    parser.add_argument("--others", help="the Python of PyTorch and JAX, where it is another")
    parser.add_argument("--out", default="gpu.jsonl")
    for name in ("row", "folder", "flags"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name in ("turn", "count", "deadline"):
        parser.add_argument(f"--{name}", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        way, name, length, batch = arguments.row.split(":")
        turn = Turn(arguments.folder, int(arguments.turn), int(arguments.count), arguments.deadline, arguments.after)
        try:
            row = run_row(way, name, int(length), int(batch), turn, arguments.flags)
            print("ROW " + json.dumps(row), flush=True)
        finally:
            turn.end()
        return 0
    if not arguments.rows:
        parser.error("name at least one row, such as bt:gpt2:1024:8")
    folder, deadline = Path(mkdtemp()), time.time() + arguments.seconds
    running = {
        number: start(number, row, len(arguments.rows), str(folder), deadline, arguments)
        for number, row in enumerate(arguments.rows)
    }
    failed = False
    with open(arguments.out, "w") as out:
        while running:
            time.sleep(0.2)
            for number, job in [*running.items()]:
                ready, done = folder / f"ready-{number}", folder / f"done-{number}"
                if job.poll() is None:
                    if time.time() > deadline and not ready.exists():
                        job.kill()
                    continue
                ready.touch()  # also where it crashed
                done.touch()
                del running[number]
                failed |= not report(arguments.rows[number], folder / f"log-{number}", out)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
