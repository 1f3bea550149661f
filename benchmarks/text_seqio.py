"""Packs documents by seqio when it is asked to. It runs in seqio's own environment; text.py starts it there.

It reads a line for each wish, and answers each by a line of JSON:

build FILE LENGTH TIMES  rows of so many tokens, of the documents in this file of text.py's, so many times over
pack                     packs them from the first to the last; the answer: how many rows and how many tokens came
"""

import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import seqio
import tensorflow as tf

BATCH_TOKENS = 32_768


def packed(file, length, times):
    """Return batches of packed rows. For seqio a token 0 is padding, so each token is one more here."""
    with np.load(file) as found:
        documents = tf.RaggedTensor.from_row_lengths(found["tokens"] + 1, found["sizes"])
    dataset = tf.data.Dataset.from_tensor_slices(documents).repeat(times)
    dataset = dataset.map(lambda tokens: {"targets": tf.ensure_shape(tokens, [None])})
    rows = seqio.trim_and_pack_dataset(dataset, {"targets": length}, use_custom_ops=False)
    return rows.batch(BATCH_TOKENS // length)


def counted(batches):
    """Return how many rows there are, and how many of their places hold a token."""
    rows = tokens = 0
    for batch in batches.as_numpy_iterator():
        rows += len(batch["targets"])
        tokens += np.count_nonzero(batch["targets_segment_ids"])
    return rows, int(tokens)


def main():
    answer = {"seqio": seqio.__version__}
    batches = None
    while True:
        print(json.dumps(answer), flush=True)
        wish, *words = sys.stdin.readline().split() or ["end"]
        if wish == "end":
            return
        if wish == "build":
            file, length, times = words
            batches = packed(file, int(length), int(times))
            answer = "built"
        else:
            answer = counted(batches)


if __name__ == "__main__":
    main()
