"""Our tuned input pipeline, PyTorch's DataLoader and Grain: same JPEG images, same output, one interleaved run."""

import argparse
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from report import add_arguments, compare_in, facts, finish, in_words, say, table
from scipy.optimize import linear_sum_assignment

import bigtrain_nb as bt

SIZE, BATCH = 160, 64
CORES = bt.cores()
TUNED = {"cycle_length": 1, "num_parallel_calls": CORES, "vectorize": True, "prefetch": 2}
AUTO = {"cycle_length": "AUTOTUNE", "num_parallel_calls": "AUTOTUNE", "vectorize": True, "prefetch": "AUTOTUNE"}
LIMIT = "limit: one TensorFlow thread"
PACKAGES = ("torch", "grain", "simplejpeg", "opencv-python-headless", "pillow")
TOLERANCE = 6
"""Mean pixel difference (0 to 255) up to which two images count as equal; Pillow's resizing smooths more."""


def loaders(data):
    """Return {name: factory of infinite batches (float32 [64, 160, 160, 3] in -1..1, int64 [64])}."""
    found = {
        "tuned": ours(data, **TUNED),
        "tuned, from single files": ours(data, source="files", **TUNED),
        "tuned, every pixel decoded": ours(data, exact=True, **TUNED),
        "everything AUTOTUNE": ours(data, **AUTO),
        "plain, with the runtime's rewrites": ours(data),
        "naive, one step after the other": ours(data, exact=True, rewrites=False),
    }
    if peers := find_peers():
        shape = data, SIZE, BATCH, CORES
        found |= {
            f"PyTorch, {CORES} workers, Pillow": partial(peers.pytorch, *shape, peers.pillow_example),
            f"PyTorch, {CORES} workers, simplejpeg": partial(peers.pytorch, *shape, peers.fast_example),
            f"Grain, {CORES} threads, simplejpeg": partial(peers.grain_threads, *shape, peers.fast_example),
            f"Grain, {CORES} processes, simplejpeg": partial(peers.grain_processes, *shape, peers.fast_example),
            "tuned, simplejpeg": with_simplejpeg(data, peers.fast_image),
        }
    return found


def with_simplejpeg(data, decode_image):
    """The tuned pipeline with a ``finish`` that decodes all images of a batch with the peers' decoder."""
    from bigtrain_nb.data.records import scale_pixels, unpack

    tf = bt.tf

    def decode_batch(jpegs):
        return np.stack([decode_image(jpeg, SIZE) for jpeg in jpegs])

    def finish(jpegs, labels):
        images = tf.numpy_function(decode_batch, [jpegs], tf.uint8, stateful=False)
        return scale_pixels(tf.ensure_shape(images, [None, SIZE, SIZE, 3]), labels)

    return ours(data, parse=unpack, finish=finish, **TUNED)


def augmented(data):
    """Return the same for batches of random crops, half of them mirrored."""
    found = {"tuned, augmented": ours(data, augment=True, **TUNED)}
    if peers := find_peers():
        shape = data, SIZE, BATCH, CORES
        slow, fast = peers.pillow_augmented, peers.fast_augmented
        found |= {
            f"PyTorch, {CORES} workers, Pillow, augmented": partial(peers.pytorch, *shape, slow),
            f"PyTorch, {CORES} workers, simplejpeg, augmented": partial(peers.pytorch, *shape, fast),
            f"Grain, {CORES} threads, simplejpeg, augmented": partial(peers.grain_threads, *shape, fast),
        }
    return found


def ours(data, **settings):
    def build():
        return bt.Pipeline(data=data, image_size=SIZE, batch=BATCH, repeat=True, **settings).dataset()

    return build


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
        say(f'No peers ({error.name} is missing): pip install -e ".[peers]" adds them.')
        return None
    return peers


def decoding(jpegs, threads):
    """A dataset that decodes and resizes ``jpegs`` with TensorFlow's kernels and yields one value per image."""
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


def differences(factories, data):
    """Return {name: mean difference of all pixels, 0 to 255, to images decoded pixel by pixel}.

    Raises ValueError unless the first pass of every loader yields the same images with the same labels.
    """
    expected, expected_labels = first_pass(ours(data, exact=True)(), data.count, "exact")
    places = thumbnails(expected)
    found = {}
    for name, factory in factories.items():
        images, labels = first_pass(factory(), data.count, name)
        at = partners(thumbnails(images), places)
        if (labels != expected_labels[at]).any():
            raise ValueError(f"{name} does not give the same labels for the same images as the others")
        apart = [np.abs(image - expected[i].astype(np.float32)).mean() for image, i in zip(images, at, strict=True)]
        if max(apart) > TOLERANCE:
            raise ValueError(f"{name}: an image differs by {max(apart):.2f} of 255 on average, allowed is {TOLERANCE}")
        found[name] = float(np.mean(apart))
        say(f"{name}: the same images and labels, {found[name]:.2f} of 255 apart, one of them {max(apart):.2f}")
    return found


def check_labels(factories, data):
    """Raise ValueError unless the first pass of every loader yields each label as often as the data."""
    for name, factory in factories.items():
        _, labels = first_pass(factory(), data.count, name)
        expected = np.searchsorted(data.classes, [Path(file).parent.name for file in data.files])
        if (np.sort(labels) != np.sort(expected)).any():
            raise ValueError(f"{name} does not give each example once")


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
    """Match the rows of ``some`` and ``others`` with minimum total distance; return the others' indices."""
    apart = (some**2).sum(1)[:, None] + (others**2).sum(1) - 2 * some @ others.T
    return linear_sum_assignment(apart)[1]


def rows(comparison, best, apart):
    """Yield a row per contender: rate, fraction of the first limit, pixel difference, speedup of ``best``."""
    for name, result in comparison.results.items():
        limit = comparison.ratio(name, LIMIT)
        share = replace(limit, median=limit.median / CORES, low=limit.low / CORES, high=limit.high / CORES)
        gain = "" if name == best else str(comparison.ratio(best, name))
        pixels = f"{apart[name]:.2f}" if name in apart else ""
        yield [name, f"{result.median:,.0f}", f"{share.median:.2f} ({share.low:.2f} to {share.high:.2f})", pixels, gain]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for both comparisons (default: 600)")
    add_arguments(parser)
    arguments = parser.parse_args()
    data = bt.photo_crops()
    whole, parts = loaders(data), augmented(data)
    apart = differences(whole, data)
    check_labels(parts, data)
    alone = limits(data)
    images = compare_in(0.75 * arguments.seconds, whole | alone)
    augmentations = compare_in(0.25 * arguments.seconds, parts | {LIMIT: alone[LIMIT]})
    about = facts(PACKAGES)
    share = f"of the first limit x {CORES}"
    head = ("", "images/s", share, "pixels differ by, of 255", "the tuned pipeline is faster by")
    shown = {
        "Whole images": [*rows(images, "tuned", apart)],
        "Random parts, every second one mirrored": [*rows(augmentations, "tuned, augmented", {})],
    }
    settings = ", ".join(f"{name}={value!r}" for name, value in TUNED.items())
    text = f"{in_words(about)} Tuned: `{settings}`; {arguments.seconds:.0f} s for all."
    for title, found in shown.items():
        text += f"\n\n**{title}**\n\n{table(head, found)}"
    compared = [images.to_dict(), augmentations.to_dict()]
    finish(arguments, "pipeline", text, {"facts": about, "head": head, "rows": shown, "compared": compared})


if __name__ == "__main__":
    main()
