"""A simulated slow store: its shards, sorted by class, are slow to open; its records are slow to parse."""

import threading
import time

from bigtrain_nb import tf

CLASSES, EACH, BATCH = 8, 17, 16
COUNT = CLASSES * EACH
OPENING, PARSING = 0.15, 0.01
NAIVE_SECONDS = CLASSES * OPENING + COUNT * PARSING
"""The total waiting time of an epoch in which no waits overlap."""


class Slow:
    """A function of a tensor that waits; it records the number of calls and the most that waited at once."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.calls = self.waiting = self.most = 0
        self.lock = threading.Lock()

    def __call__(self, value):
        waited = tf.py_function(self.wait, [value], value.dtype)
        waited.set_shape(value.shape)
        return waited

    def wait(self, value):
        with self.lock:
            self.calls += 1
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        time.sleep(self.seconds)
        with self.lock:
            self.waiting -= 1
        return value


class Store:
    """Eight shards of 17 examples of one class each."""

    def __init__(self):
        self.paths = [str(label) for label in range(CLASSES)]
        self.opening = Slow(OPENING)
        self.parsing = Slow(PARSING)

    def open_shard(self, path):
        """Return the records of one shard as a dataset."""
        opened = tf.data.Dataset.from_tensors(path).map(self.opening)
        return opened.flat_map(_records)

    def parse(self, record):
        """Return an example: number, label and four pixels."""
        number = self.parsing(record)
        return {"number": number, "label": number // EACH, "pixels": tf.fill([4], tf.cast(number, tf.float32))}

    def augment(self, example):
        """Return the example with noisy pixels."""
        return {**example, "pixels": example["pixels"] + tf.random.uniform([4])}


def _records(path):
    first = EACH * tf.strings.to_number(path, tf.int64)
    return tf.data.Dataset.range(first, first + EACH)


def naive(paths, open_shard, parse, augment, batch):
    """A pipeline in which every step waits for the previous one."""
    shards = tf.data.Dataset.from_tensor_slices(paths)
    return shards.flat_map(open_shard).map(parse).map(augment).batch(batch)
