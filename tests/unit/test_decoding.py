"""Decoding images at reduced size, random crops of them, and agreement of the crop region across methods."""

import numpy as np
import pytest
from small_crops import pipeline

from bigtrain_nb import tf
from bigtrain_nb.data.records import decode_image

HEIGHT, WIDTH = 331, 247  # not divisible by 2, 4 or 8


@pytest.fixture(scope="module")
def gradient():
    """A JPEG with red increasing from left to right and green from top to bottom."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[..., 0] = np.linspace(0, 250, WIDTH)
    image[..., 1] = np.linspace(0, 250, HEIGHT)[:, None]
    return tf.io.encode_jpeg(image, quality=98, chroma_downsampling=False)


def pixels(jpeg, size, **settings):
    return decode_image(jpeg, size, **settings).numpy().astype(float)


@pytest.mark.parametrize("size", [24, 40, 61, 77, 123, 200, 300])
def test_the_same_region_is_seen_however_far_the_decoder_shrinks(gradient, size):
    apart = np.abs(pixels(gradient, size) - pixels(gradient, size, exact=True))
    one_pixel = 250 / size
    assert apart[..., :2].max() < one_pixel + 4  # 4: JPEG's own error


def test_random_parts_lie_inside_and_are_mirrored_half_of_the_time(gradient):
    numbers = np.random.default_rng(0).integers(0, 2**32, (200, 3))
    mirrored, areas = 0, []
    for three in numbers:
        part = pixels(gradient, 16, numbers=tf.constant(three))
        red, green = part[..., 0].mean(0), part[..., 1].mean(1)
        mirrored += red[0] > red[-1]
        assert green[0] < green[-1]
        areas.append(abs(red[0] - red[-1]) * (green[-1] - green[0]) / 250**2)
    assert 70 < mirrored < 130
    assert 0.05 < min(areas) < 0.2 and 0.7 < max(areas) < 1


SAME = [
    {},
    {"vectorize": True},
    {"vectorize": True, "num_parallel_calls": 2, "cache": "memory", "prefetch": 2},
    {"source": "files"},
]


@pytest.mark.parametrize("shuffle", [0, 100])
def test_augmented_epochs_differ_and_runs_repeat_in_every_way_to_run_them(crops, shuffle):
    def two_epochs(**settings):
        dataset = pipeline(crops, augment=True, shuffle=shuffle, **settings).dataset()
        return [[batch.numpy() for batch, _ in dataset] for _ in range(2)]

    first, second = two_epochs()
    assert all((one != other).any(axis=(1, 2, 3)).all() for one, other in zip(first, second, strict=True))
    for settings in SAME:
        for epoch, again in zip((first, second), two_epochs(**settings), strict=True):
            np.testing.assert_array_equal(np.concatenate(epoch), np.concatenate(again))
    without_end = pipeline(crops, augment=True, shuffle=shuffle, repeat=True).dataset()
    for batch, again in zip(first + second, without_end.take(6), strict=True):
        np.testing.assert_array_equal(batch, again[0])
    assert (two_epochs(seed=1)[0][0] != first[0]).any()
