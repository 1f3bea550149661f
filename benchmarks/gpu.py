"""One NVIDIA GPU beside the cores of the same machine: steps, formats, memory, plans, and what feeds them."""

import argparse
import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from budget_steps import NETWORKS, Case, source
from report import add_arguments, facts, finish, in_words, say, table

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount, interval, number
from bigtrain_nb.plan.this_machine import flops_here, this_machine
from bigtrain_nb.plan.utilization import accelerator_here, flops_of_an_example

LARGE = partial(bt.gpt, width=768, layers=6, heads=12, length=512)
"""Six blocks as wide as those of GPT-2's smallest model: 43 million weights."""
BUILDERS = {**NETWORKS, "GPT, 768 wide": LARGE}
BATCHES = {"conv net": 512, "conv net, 64 wide": 256, "dense": 1024, "LSTM": 256, "GPT": 32, "GPT, 768 wide": 8}
"""{network: global batch}."""
CPU, PLAIN, XLA = "CPU", "GPU", "GPU, XLA"

LARGE_BATCH = 32
FORMATS = {
    "float32, TF32 off": ("float32", False, False),
    "float32": ("float32", True, False),
    "float32, XLA": ("float32", True, True),
    "mixed_bfloat16": ("mixed_bfloat16", True, False),
    "mixed_bfloat16, XLA": ("mixed_bfloat16", True, True),
    "mixed_float16": ("mixed_float16", True, False),
    "mixed_float16, XLA": ("mixed_float16", True, True),
}
"""{way: (dtype policy, whether TF32 is allowed, whether XLA compiles the step)}."""
MEMORY = [
    {"policy": policy, "micro_batches": micro_batches, "recompute": recompute, "jit_compile": jit_compile}
    for jit_compile in (False, True)
    for policy, micro_batches, recompute in (
        ("float32", 1, False),
        ("mixed_bfloat16", 1, False),
        ("mixed_bfloat16", 4, False),
        ("mixed_bfloat16", 1, True),
        ("mixed_bfloat16", 4, True),
    )
]
AT_ONCE = 3
"""So many processes measure their memory side by side: each sees only what its own allocator hands out."""
CROPS, CROP_SIZE = 256, 64
WORDS, LENGTH, DOCUMENTS = 50_257, 1024, 8
IN_PLACE = {
    "stock": (None, False),
    "recomputed": (None, True),
    "4 micro-batches": (4, False),
    "4 micro-batches, recomputed": (4, True),
}
"""{what is done with GPT-2 of KerasHub: (micro-batches, None for stock Keras, whether its blocks are recomputed)}."""


def trained(build, batch, policy="float32", jit_compile=False, device=None, tf32=True, batches=None):
    """Return a step function that has run: one update from ``batch`` examples, their number, without waiting."""
    place = partial(tf.device, device) if device else contextlib.nullcontext
    keras.config.set_dtype_policy(policy)
    with place():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(1e-3), loss, jit_compile=jit_compile)
        model.make_train_function()
        iterator = iter(batches or source(Case(model.name, batch), model))
    keras.config.set_dtype_policy("float32")

    def update():
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        with place():
            model.train_function(iterator)
        return batch

    for _ in range(3):
        update()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    return update


def compared(name, steps, seconds):
    """Compare step functions that are compiled and warm: each block has the same ones."""
    say(f"{name}: {len(steps)} ways, {seconds:.0f} s")
    return bt.compare({way: (lambda step=step: step) for way, step in steps.items()}, seconds=seconds)


def ceilings(arguments):
    """Measure what products of matrices and memory reach, beside the data sheet."""
    sheet, here = accelerator_here(), this_machine()
    rows = [
        [f"products, {policy}", flops_here(policy), sheet.flops(policy), "FLOP/s"]
        for policy in ("float32", "mixed_bfloat16", "mixed_float16")
    ]
    rows.append(["memory, read and written", max(here.bandwidths.values()), sheet.bandwidth, "B/s"])
    shown = [[what, amount(got, unit), amount(said, unit), f"{got / said:.2f}"] for what, got, said, unit in rows]
    text = table(("what", "measured", "data sheet", "share"), shown)
    return f"{text}\n\nAn operation on one number takes {amount(here.start, 's')}.", rows


def beside_the_cpu(arguments):
    """Compare steps on the cores with steps on the GPU, by single operations and by XLA; plans beside the fastest."""
    rows, plans, rounds = [], [], {}
    for name, batch in BATCHES.items():
        build = BUILDERS[name]
        say(f"{name}: building")
        steps = {
            CPU: trained(build, batch, device="CPU:0"),
            PLAIN: trained(build, batch, device="GPU:0"),
            XLA: trained(build, batch, device="GPU:0", jit_compile=True),
        }
        comparison = compared(name, steps, arguments.seconds)
        rounds[name] = comparison.to_dict()
        rates = {way: result.median for way, result in comparison.results.items()}
        ratios = [comparison.ratio(*pair) for pair in ((PLAIN, CPU), (XLA, CPU), (XLA, PLAIN))]
        rows.append([name, batch, *map(number, rates.values()), *map(interval, ratios)])
        fastest = batch / max(rates[PLAIN], rates[XLA])
        least = [bt.plan_step(build, batch, on=on).seconds for on in (accelerator_here().name, "here")]
        plans.append(
            [name, batch, *(amount(seconds, "s") for seconds in (*least, fastest)), f"{least[1] / fastest:.2f}"]
        )
    text = table(("network", "batch", *rates, "GPU of CPU", "GPU, XLA, of CPU", "XLA of GPU"), rows)
    head = ("network", "batch", "at least, by the data sheet", "at least, on=here", "measured", "on=here / measured")
    return f"In examples/s:\n\n{text}\n\nWhat plans say of the fastest step on the GPU:\n\n{table(head, plans)}", rounds


def formats(arguments):
    """Compare formats and XLA for the large model on the GPU."""
    steps = {}
    for way, (policy, tf32, jit_compile) in FORMATS.items():
        say(f"GPT, 768 wide, {way}: building")
        steps[way] = trained(LARGE, LARGE_BATCH, policy, jit_compile=jit_compile, tf32=tf32)
    comparison = compared("GPT, 768 wide", steps, 6 * arguments.seconds)
    flops, sheet = flops_of_an_example(LARGE(), LARGE_BATCH), accelerator_here()
    rows = []
    for way, (policy, _, _) in FORMATS.items():
        rate = comparison.results[way].median
        ratio = interval(comparison.ratio(way, "float32")) if way != "float32" else ""
        mfu = f"{rate * flops / sheet.flops(policy):.0%}"
        rows.append([way, number(rate), amount(LARGE_BATCH / rate, "s"), ratio, mfu])
    return table(("format", "examples/s", "a step", "of float32", "MFU"), rows), comparison.to_dict()


def three_updates(recompute, micro_batches, **settings):
    from gpu import LARGE, LARGE_BATCH, trained

    trained(partial(LARGE, recompute=recompute, micro_batches=micro_batches), LARGE_BATCH, **settings)


def memory(arguments):
    """Measure the peak of fresh processes, beside what plans say of them."""
    say(f"memory: {len(MEMORY)} processes")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        peaks = list(pool.map(lambda case: bt.peak_memory(three_updates, **case), MEMORY))
    rows = []
    for case, peak in zip(MEMORY, peaks, strict=True):
        policy, micro_batches, recompute, by_xla = case.values()
        plan = bt.plan_step(
            partial(LARGE, recompute=recompute), LARGE_BATCH, policy=policy, micro_batches=micro_batches
        )
        told = [amount(plan.peak, "bytes"), amount(2**20 * peak, "bytes"), f"{plan.peak / 2**20 / peak:.2f}"]
        rows.append([policy, micro_batches, "yes" if recompute else "no", "yes" if by_xla else "no", *told])
    head = ("policy", "K", "recomputed", "XLA", "planned", "measured", "planned / measured")
    return table(head, rows), [dict(case, mib=peak) for case, peak in zip(MEMORY, peaks, strict=True)]


def gpt2_of_keras_hub(micro_batches, recompute):
    """Return GPT-2 as large as its smallest preset, 124 million weights, random ones."""
    from keras_hub.models import GPT2Backbone, GPT2CausalLM

    model = GPT2CausalLM(GPT2Backbone(WORDS, 12, 12, 768, 3072, max_sequence_length=LENGTH), preprocessor=None)
    if recompute:
        bt.recompute(model.backbone, r"transformer_layer_\d+")
    if micro_batches:
        bt.Model.of(model, micro_batches=micro_batches)
    return model


def documents():
    """Return batches of as many tokens as it takes at once: x, the next tokens."""
    tokens = tf.random.stateless_uniform([DOCUMENTS, LENGTH + 1], [1, 2], maxval=WORDS, dtype="int32")
    x = {"token_ids": tokens[:, :-1], "padding_mask": tf.ones([DOCUMENTS, LENGTH], "int32")}
    return tf.data.Dataset.from_tensors((x, tokens[:, 1:])).repeat()


def train_gpt2(micro_batches, recompute):
    from gpu import DOCUMENTS, documents, gpt2_of_keras_hub, trained

    build = partial(gpt2_of_keras_hub, micro_batches, recompute)
    return trained(build, DOCUMENTS, "mixed_bfloat16", jit_compile="auto", batches=documents())


def in_place(arguments):
    """Train GPT-2 of KerasHub as stock Keras does, and with what is changed of it in place: rate and memory."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        peaks = list(
            pool.map(lambda way: bt.peak_memory(train_gpt2, micro_batches=way[0], recompute=way[1]), IN_PLACE.values())
        )
    say("GPT-2 of KerasHub: memory is measured")
    comparison = compared(
        "GPT-2 of KerasHub", {name: train_gpt2(*way) for name, way in IN_PLACE.items()}, 4 * arguments.seconds
    )
    rows = []
    for (name, result), peak in zip(comparison.results.items(), peaks, strict=True):
        ratio = interval(comparison.ratio(name, "stock")) if name != "stock" else ""
        rows.append([name, number(LENGTH * result.median), ratio, amount(2**20 * peak, "bytes")])
    found = {**comparison.to_dict(), "mib": list(map(float, peaks))}
    return table(("GPT-2 of KerasHub", "tokens/s", "of stock", "peak memory"), rows), found


def fed(arguments):
    """Compare one training fed by pipelines, and fed one batch again and again."""
    data, build = bt.photo_crops(), partial(bt.conv_net, width=64, image_size=CROP_SIZE)
    pipelines = {
        "one step after the other": {"exact": True, "rewrites": False},
        "tuned": {"num_parallel_calls": bt.cores(), "vectorize": True, "prefetch": 2},
    }
    steps, alone = {}, {}
    for way, settings in pipelines.items():
        made = bt.Pipeline(data=data, image_size=CROP_SIZE, batch=CROPS, repeat=True, **settings)
        alone[way] = number(bt.throughput(made, seconds=5).median)
        steps[way] = trained(build, CROPS, "mixed_bfloat16", jit_compile=True, batches=made.dataset())
    unfed = "one batch again and again"
    steps[unfed] = trained(build, CROPS, "mixed_bfloat16", jit_compile=True)
    comparison = compared("fed", steps, 3 * arguments.seconds)
    rows = []
    for way, result in comparison.results.items():
        ratio = interval(comparison.ratio(way, unfed)) if way in alone else ""
        rows.append([way, alone.get(way, ""), number(result.median), ratio])
    return table(
        ("fed by", "pipeline alone, examples/s", "training, examples/s", f"of {unfed}"), rows
    ), comparison.to_dict()


PARTS = {
    "Ceilings": ceilings,
    "Beside the CPU": beside_the_cpu,
    "Formats": formats,
    "Memory": memory,
    "In place": in_place,
    "Fed": fed,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="for a comparison of three ways (default: 30)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some parts of it")
    add_arguments(parser)
    arguments = parser.parse_args()
    if accelerator_here() is None:
        parser.error(f"none of {', '.join(bt.ACCELERATORS)} is here, or TensorFlow does not see it")
    tf.get_logger().setLevel("ERROR")  # it takes one function per contender for retracing
    about = facts()
    text, found = [f"{in_words(about)} {arguments.seconds:.0f} s for three ways."], {}
    for name in arguments.only:
        shown, found[name] = PARTS[name](arguments)
        text.append(f"**{name}**\n\n{shown}")
        say(f"\n{text[-1]}")
    finish(arguments, "gpu", "\n\n".join(text), {"facts": about, "parts": found})


if __name__ == "__main__":
    main()
