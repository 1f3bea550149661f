"""The same images through other people's loaders. Worker processes import this file, so it must not load TensorFlow."""

import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image

logging.getLogger("absl").setLevel(logging.ERROR)  # Grain warns that JAX is missing, which it does not need
import grain  # noqa: E402

cv2.setNumThreads(1)  # the loaders bring the parallelism; OpenCV's own threads would only get in the way


def fast_image(jpeg, size):
    """Decode and resize with simplejpeg and OpenCV to uint8 [size, size, 3]."""
    return cv2.resize(simplejpeg.decode_jpeg(jpeg), (size, size))


def fast_example(file, size):
    return scaled(fast_image(Path(file).read_bytes(), size))


def pillow_example(file, size):
    with Image.open(file) as image:
        return scaled(np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)))


def scaled(image):
    return image.astype(np.float32) / np.float32(127.5) - np.float32(1)


class Examples:
    """Random access to (image, label), as PyTorch and Grain want it."""

    def __init__(self, data, size, example):
        self.files, self.labels, self.size, self.example = data.files, data.labels(), size, example

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.example(self.files[index], self.size), self.labels[index]


class ForEver:
    """A sampler without an end: no contender pays for starting again."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return itertools.cycle(range(self.count))


def pytorch(data, size, batch, workers, example):
    """Batches of `torch.utils.data.DataLoader` with worker processes."""
    return torch.utils.data.DataLoader(
        Examples(data, size, example),
        batch_size=batch,
        sampler=ForEver(data.count),
        num_workers=workers,
        multiprocessing_context="spawn",
    )


def grain_threads(data, size, batch, threads):
    """Batches of Grain, each made by one of ``threads`` threads."""
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    return _grain_batches(data, size, batch).to_iter_dataset(options)


def grain_processes(data, size, batch, workers):
    """Batches of Grain from worker processes of one reading thread each."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    batches = _grain_batches(data, size, batch).to_iter_dataset(options)
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))


def _grain_batches(data, size, batch):
    return grain.MapDataset.source(Examples(data, size, fast_example)).repeat().batch(batch)


def decoding(jpegs, size, batch, threads):
    """A step function: each of ``threads`` threads decodes and resizes ``batch`` images from memory."""
    endless = itertools.cycle(jpegs)
    pool = ThreadPoolExecutor(threads)

    def decode_all(share):
        for jpeg in share:
            fast_image(jpeg, size)

    def step():
        shares = [list(itertools.islice(endless, batch)) for _ in range(threads)]
        list(pool.map(decode_all, shares))
        return batch * threads

    return step
