"""Memory and processor time of training steps with bt.chunk_head and stock Keras; `--memory` or `--time` alone.

A GPT-2 of two blocks with random weights and GPT-2's vocabulary. Times are CPU seconds of complete steps, which are
valid on a busy machine too, with both models interleaved in one process.
"""

import argparse
import os
import time
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
VOCABULARY, LENGTH = 50_257, 512


def steps(vocabulary, width, batch, rows, xla=None):
    """Return a function that makes one step; ``rows`` None: stock Keras."""
    import keras
    import keras_hub
    import numpy as np

    import bigtrain_nb as bt

    backbone = keras_hub.models.GPT2Backbone(vocabulary, 2, 4, width, 4 * width, max_sequence_length=LENGTH)
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"])
    model.jit_compile = bool(xla)
    if rows is not None:
        bt.chunk_head(model, rows=rows or None)
    tokens = np.random.default_rng(0).integers(0, vocabulary, (batch, LENGTH + 1))
    x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((batch, LENGTH), int)}
    return lambda: model.train_on_batch(x, tokens[:, 1:])


def two_steps(**settings):
    step = steps(**settings)
    step()
    step()


def built(**settings):
    steps(**settings)


def memory():
    import bigtrain_nb as bt

    print("Peak of two steps above the built model, MiB: 4 x 512 tokens, width 256")
    for vocabulary in (VOCABULARY, 2 * VOCABULARY):
        given = {"vocabulary": vocabulary, "width": 256, "batch": 4}
        base = bt.peak_memory(built, **given, rows=None)
        stock = bt.peak_memory(two_steps, **given, rows=None) - base
        print(f"  vocabulary {vocabulary:,}: stock {stock:,.0f}", flush=True)
        for rows in (256, 384, 512):
            chunked = bt.peak_memory(two_steps, **given, rows=rows) - base
            print(f"    in chunks of {rows} rows {chunked:,.0f}, {chunked / stock:.2f} of it", flush=True)


def times(rounds, width):
    for xla in (False, True):
        both = {rows: steps(VOCABULARY, width, 2, rows, xla) for rows in (None, 0)}
        seconds = {rows: [] for rows in both}
        for number in range(rounds + 1):
            for rows, step in both.items():
                began = time.process_time()
                step()
                if number:  # the first one compiles
                    seconds[rows].append(time.process_time() - began)
        stock, chunked = seconds.values()
        ratio = median(one / other for one, other in zip(chunked, stock, strict=True))
        print(f"Processor seconds of a step: 2 x 512 tokens, width {width}, {'with' if xla else 'without'} XLA")
        print(f"  stock {median(stock):.2f}, in chunks {median(chunked):.2f}; {ratio:.2f} of it", end=", ")
        print(f"of the least {min(chunked) / min(stock):.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--width", type=int, default=768)
    given = parser.parse_args()
    if given.memory or not given.time:
        memory()
    if given.time or not given.memory:
        times(given.rounds, given.width)
