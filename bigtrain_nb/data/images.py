"""Real images on disk: crops of photographs, as JPEG files and TFRecord shards."""

import io
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from bigtrain_nb.common.checks import integer
from bigtrain_nb.common.optional import needed_by
from bigtrain_nb.data import cache as storage

PHOTOS = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
}
"""Class -> color photograph that the scikit-image package contains."""

TRAIN_COLUMNS = 0.6
"""Train crops come from the left 60 % of a photograph's columns, test crops from the others."""


@dataclass(frozen=True)
class ImageData:
    """Labeled JPEG images, stored twice: in TFRecord shards, and as files ``<split>/<class>/<index>.jpg``.

    ``files`` and the records of ``shards``, read sequentially, are the same examples in the same order. A record is a
    tf.train.Example with the features "image" (JPEG bytes) and "label" (int64, index into ``classes``).
    """

    root: Path = field(repr=False)
    classes: tuple[str, ...]
    shards: tuple[str, ...] = field(repr=False)
    test_shards: tuple[str, ...] = field(repr=False)
    files: tuple[str, ...] = field(repr=False)
    test_files: tuple[str, ...] = field(repr=False)

    @property
    def count(self) -> int:
        """Number of train images."""
        return len(self.files)

    @property
    def test_count(self) -> int:
        """Number of test images."""
        return len(self.test_files)


def photo_crops(
    count: int = 2048,
    test_count: int = 256,
    *,
    size: int = 320,
    shards: int = 8,
    cache: str | os.PathLike | None = None,
) -> ImageData:
    """Return `ImageData`: crops of eight photographs, each labeled with its photograph.

    Square crops at random positions and scales become JPEG images of ``size`` x ``size`` pixels. Train and test crops
    share no pixel. The same arguments give the same bytes. They are created on the first call, in ``cache``, else the
    folder in BIGTRAIN_NB_CACHE, else the user's cache folder; and again if a file is missing or its size differs.

    Raises ValueError for invalid settings, ModuleNotFoundError if scikit-image, which has the photographs, is not
    installed, and OSError when the disk is full.

    Example::

        data = bt.photo_crops(count=16, test_count=8, size=48)
        print(data.classes, data.files[0])
    """
    for setting, value in (("count", count), ("test_count", test_count), ("size", size), ("shards", shards)):
        integer(setting, value, 1)

    def fill(making):
        from bigtrain_nb.data.records import pack  # imports TensorFlow

        classes = sorted(PHOTOS)
        photos = [_photo(PHOTOS[name]) for name in classes]
        for split, number in (("train", count), ("test", test_count)):
            rng = np.random.default_rng([0, split == "test"])
            labels = rng.permutation(np.arange(number) % len(photos)).tolist()
            crops = (_crop(photos[label], split, size, rng) for label in labels)
            pack(making, split, classes, labels, crops, shards)
        return {"classes": classes}

    name = f"photo-crops-{count}-{test_count}-{size}px-{shards}-shards"
    root, facts = storage.made(name, fill, cache)
    return ImageData(
        root=root,
        classes=tuple(facts["classes"]),
        shards=_paths(root, "shards/train-*"),
        test_shards=_paths(root, "shards/test-*"),
        files=_paths(root, "train/*/*.jpg"),
        test_files=_paths(root, "test/*/*.jpg"),
    )


def _photo(file):
    with needed_by("bt.photo_crops"):
        import skimage
    path = Path(skimage.__file__).parent / "data" / file
    with Image.open(path) as image:
        return image.convert("RGB")


def _crop(photo, split, size, rng):
    """Return a random square within the split's part of a photograph, as the bytes of a JPEG image."""
    cut = int(photo.width * TRAIN_COLUMNS)
    first, end = (0, cut) if split == "train" else (cut, photo.width)
    side = int(min(end - first, photo.height) * rng.uniform(0.4, 1.0))
    left = int(rng.integers(first, end - side + 1))
    top = int(rng.integers(0, photo.height - side + 1))
    crop = photo.crop((left, top, left + side, top + side))
    jpeg = io.BytesIO()
    crop.resize((size, size), Image.Resampling.BICUBIC).save(jpeg, "JPEG", quality=90)
    return jpeg.getvalue()


def _paths(root, pattern):
    """Return the matching files, in numerical order."""
    paths = sorted(root.glob(pattern), key=lambda path: (len(path.name), path.name))
    return tuple(map(str, paths))
