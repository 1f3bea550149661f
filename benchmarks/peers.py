"""The same images through third-party loaders. Worker processes import this file, so it must not load TensorFlow."""

import itertools
import logging
import math
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image

logging.getLogger("absl").setLevel(logging.ERROR)  # Grain warns about JAX, which it does not need
import grain  # noqa: E402

cv2.setNumThreads(1)  # the loaders provide the parallelism; OpenCV's threads would interfere


def fast_image(jpeg, size):
    """Decode and resize with simplejpeg and OpenCV to uint8 [size, size, 3]; the decoder downscales if it can."""
    return cv2.resize(simplejpeg.decode_jpeg(jpeg, min_height=size, min_width=size), (size, size))


def fast_example(file, size):
    return scaled(fast_image(Path(file).read_bytes(), size))


def fast_augmented(file, size):
    """A random crop of an image, mirrored with probability one half."""
    jpeg = Path(file).read_bytes()
    height, width, _, _ = simplejpeg.decode_jpeg_header(jpeg)
    top, left, rows, columns = random_window(height, width)
    least = {"min_height": height * size // rows, "min_width": width * size // columns}
    image = simplejpeg.decode_jpeg(jpeg, **least)
    scale = image.shape[0] / height
    top, left, bottom, right = [round(edge * scale) for edge in (top, left, top + rows, left + columns)]
    return scaled(mirrored(cv2.resize(image[top:bottom, left:right], (size, size))))


def pillow_example(file, size):
    with Image.open(file) as image:
        image.draft("RGB", (size, size))
        return scaled(np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)))


def pillow_augmented(file, size):
    with Image.open(file) as image:
        width, height = image.size
        top, left, rows, columns = random_window(height, width)
        image.draft("RGB", (width * size // columns, height * size // rows))
        scale = image.size[0] / width
        box = (left * scale, top * scale, (left + columns) * scale, (top + rows) * scale)
        part = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box)
        return scaled(mirrored(np.asarray(part)))


def random_window(height, width):
    """Return top, left, height and width of 8 to 100 % of the area, with sides of 3:4 to 4:3."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        sides = random.uniform(3 / 4, 4 / 3)
        rows, columns = round(math.sqrt(area / sides)), round(math.sqrt(area * sides))
        if rows <= height and columns <= width:
            return random.randint(0, height - rows), random.randint(0, width - columns), rows, columns
    return 0, 0, height, width


def mirrored(image):
    return image[:, ::-1] if random.random() < 0.5 else image


def scaled(image):
    return image.astype(np.float32) / np.float32(127.5) - np.float32(1)


class Examples:
    """Random access to (image, label), for PyTorch and Grain."""

    def __init__(self, data, size, example):
        self.files, self.size, self.example = data.files, size, example
        self.labels = np.searchsorted(data.classes, [Path(file).parent.name for file in data.files])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.example(self.files[index], self.size), self.labels[index]


class ForEver:
    """An infinite sampler, so that no contender pays for restarts."""

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


def grain_threads(data, size, batch, threads, example):
    """Batches of Grain, each made by one of ``threads`` threads."""
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    return _grain_batches(data, size, batch, example).to_iter_dataset(options)


def grain_processes(data, size, batch, workers, example):
    """Batches of Grain from worker processes of one reading thread each."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    batches = _grain_batches(data, size, batch, example).to_iter_dataset(options)
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))


def _grain_batches(data, size, batch, example):
    return grain.MapDataset.source(Examples(data, size, example)).repeat().batch(batch)


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
