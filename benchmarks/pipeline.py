"""Our tuned input pipeline beside PyTorch's DataLoader and Grain: same JPEG files, same output, one interleaved run."""

import argparse
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from report import add_arguments, facts, finish, in_words, table
from scipy.optimize import linear_sum_assignment

import bigtrain_nb as bt

SIZE, BATCH = 160, 64
CORES = bt.cores()
TUNED = {"cycle_length": 1, "num_parallel_calls": CORES, "vectorize": True, "prefetch": 2}
AUTO = {"cycle_length": "AUTOTUNE", "num_parallel_calls": "AUTOTUNE", "vectorize": True, "prefetch": "AUTOTUNE"}
LIMIT = "limit: one TensorFlow thread"
PACKAGES = ("torch", "grain", "simplejpeg", "opencv-python-headless", "pillow")
TOLERANCE = 0.03
"""Mean absolute difference of two images in -1..1 that still count as the same; Pillow's resizing smooths more."""


def loaders(data):
    """Return {name: factory of endless batches (float32 [64, 160, 160, 3] in -1..1, int64 [64])}."""

    def ours(**settings):
        return lambda: bt.Pipeline(data=data, image_size=SIZE, batch=BATCH, repeat=True, **settings).dataset()

    return {
        "tuned": ours(**TUNED),
        "tuned, from single files": ours(source="files", **TUNED),
        "everything AUTOTUNE": ours(**AUTO),
        "plain, with the runtime's rewrites": ours(),
        "naive, one step after the other": ours(rewrites=False),
        **peer_loaders(data),
    }


def peer_loaders(data):
    peers = find_peers()
    if not peers:
        return {}
    return {
        f"PyTorch, {CORES} workers, Pillow": partial(peers.pytorch, data, SIZE, BATCH, CORES, peers.pillow_example),
        f"PyTorch, {CORES} workers, simplejpeg": partial(peers.pytorch, data, SIZE, BATCH, CORES, peers.fast_example),
        f"Grain, {CORES} threads, simplejpeg": partial(peers.grain_threads, data, SIZE, BATCH, CORES),
        f"Grain, {CORES} processes, simplejpeg": partial(peers.grain_processes, data, SIZE, BATCH, CORES),
    }


def limits(data):
    """Return {name: factory of sources that only decode and resize bytes in memory}."""
    jpegs = [Path(file).read_bytes() for file in data.files]
    found = {LIMIT: partial(decoding, jpegs, 1), f"limit: {CORES} TensorFlow threads": partial(decoding, jpegs, CORES)}
    if peers := find_peers():
        found["limit: one simplejpeg thread"] = partial(peers.decoding, jpegs, SIZE, BATCH, 1)
        found[f"limit: {CORES} simplejpeg threads"] = partial(peers.decoding, jpegs, SIZE, BATCH, CORES)
    return found


@cache
def find_peers():
    try:
        import peers
    except ImportError as error:
        print(f'No peers ({error.name} is missing): pip install -e ".[peers]" adds them.', file=sys.stderr)
        return None
    return peers


def decoding(jpegs, threads):
    """A dataset that decodes and resizes ``jpegs`` with TensorFlow's kernels and hands on one number of each image."""
    from bigtrain_nb.data.records import decode_image

    tf = bt.tf

    def one_pixel(jpeg):
        return decode_image(jpeg, SIZE)[0, 0, 0]

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    dataset = tf.data.Dataset.from_tensor_slices(jpegs).repeat()
    dataset = dataset.map(one_pixel, num_parallel_calls=threads if threads > 1 else None)
    return dataset.batch(BATCH).with_options(options)


def check_same(factories, data):
    """Raise ValueError unless the first pass of every loader holds the same images, each with the same label."""
    expected = None
    for name, factory in factories.items():
        images, labels = first_pass(factory(), data.count, name)
        if expected is None:
            expected, expected_labels, places = images, labels, thumbnails(images)
        at = partners(thumbnails(images), places)
        if (labels != expected_labels[at]).any():
            raise ValueError(f"{name} does not give the same labels for the same images as the others")
        apart = max(np.abs(image - expected[i].astype(np.float32)).mean() for image, i in zip(images, at, strict=True))
        if apart / 127.5 > TOLERANCE:
            raise ValueError(f"{name}: an image differs by {apart / 127.5:.3f} on average, allowed is {TOLERANCE}")
        print(f"{name}: the same images and labels, at most {apart / 127.5:.4f} apart", file=sys.stderr)


def first_pass(batches, count, name):
    """Return the first ``count`` images as uint8 [count, 160, 160, 3] and their labels [count]."""
    images, labels = np.empty((count, SIZE, SIZE, 3), np.uint8), np.empty(count, np.int64)
    for batch, start in zip(batches, range(0, count, BATCH), strict=False):
        pixels, numbers = map(np.asarray, batch)
        if (pixels.shape, pixels.dtype, numbers.dtype) != ((BATCH, SIZE, SIZE, 3), np.float32, np.int64):
            raise ValueError(f"{name} gives {pixels.dtype} {pixels.shape} with {numbers.dtype} labels")
        kept = min(BATCH, count - start)
        images[start : start + kept] = np.rint((pixels[:kept] + 1) * 127.5)
        labels[start : start + kept] = numbers[:kept]
    return images, labels


def thumbnails(images):
    """Return 10 x 10 averages of each image: [count, 300]."""
    blocks = images.reshape(len(images), 10, SIZE // 10, 10, SIZE // 10, 3)
    return blocks.mean((2, 4), dtype=np.float64).reshape(len(images), -1)


def partners(some, others):
    """Pair each row of ``some`` with one of ``others``, all pairs together least apart; return the others' indices."""
    apart = (some**2).sum(1)[:, None] + (others**2).sum(1) - 2 * some @ others.T
    return linear_sum_assignment(apart)[1]


def rows(comparison):
    """Yield a row per contender: rate, share of the first limit, and how many times faster the tuned pipeline is."""
    for name, result in comparison.results.items():
        limit = comparison.ratio(name, LIMIT)
        share = replace(limit, median=limit.median / CORES, low=limit.low / CORES, high=limit.high / CORES)
        tuned = "" if name == "tuned" else str(comparison.ratio("tuned", name))
        yield name, f"{result.median:,.0f}", f"{share.median:.2f} ({share.low:.2f} to {share.high:.2f})", tuned


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240, help="for the whole comparison (default: 240)")
    add_arguments(parser)
    arguments = parser.parse_args()
    data = bt.photo_crops()
    contenders = loaders(data)
    check_same(contenders, data)
    comparison = bt.compare(contenders | limits(data), seconds=arguments.seconds)
    about = facts(PACKAGES)
    head = ("", "images/s", f"of the first limit x {CORES}", "the tuned pipeline is faster by")
    shown = [list(row) for row in rows(comparison)]
    settings = ", ".join(f"{name}={value!r}" for name, value in TUNED.items())
    text = f"{in_words(about)} Tuned: `{settings}`; {arguments.seconds:.0f} s for all.\n\n{table(head, shown)}"
    finish(arguments, "pipeline", text, {"facts": about, "head": head, "rows": shown, **comparison.to_dict()})


if __name__ == "__main__":
    main()
