"""Pipelines over a handful of crops, and their examples in a comparable form."""

import numpy as np

from bigtrain_nb import Pipeline, tf

COUNT, TESTS, SIZE, BATCH = 40, 10, 24, 16
AUTOTUNE = "AUTOTUNE"


def pipeline(data, **settings):
    size = {} if "parse" in settings else {"image_size": SIZE}
    return Pipeline(data=data, **{**size, "batch": BATCH, **settings})


def sizes(dataset):
    return [len(labels) for _, labels in dataset]


def examples(dataset):
    """Return [(label, image bytes)] of all examples, in order."""
    found = []
    for images, labels in dataset:
        assert images.shape == (len(labels), SIZE, SIZE, 3)
        assert images.dtype == tf.float32 and labels.dtype == tf.int64
        pixels = np.rint((images.numpy() + 1) * 127.5).astype(np.uint8)
        found += [(int(label), image.tobytes()) for label, image in zip(labels, pixels, strict=True)]
    return found
