"""Real images on disk: crops of photographs, or a reader's own folder, as JPEG files and TFRecord shards."""

import io
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from bigtrain_nb.common.checks import as_path, fraction, whole_number
from bigtrain_nb.common.optional import needed_by
from bigtrain_nb.data import cache as storage
from bigtrain_nb.data.folders import copied

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
"""Class -> colour photograph that scikit-image ships inside its package."""

TRAIN_COLUMNS = 0.6
"""Train crops come from the left 60 % of a photograph's columns, test crops from the others."""


@dataclass(frozen=True)
class ImageData:
    """Labelled JPEG images, twice: in TFRecord shards, and as files ``<split>/<class>/<index>.jpg``.

    ``files`` and the records of ``shards``, read one shard after another, are the same examples in the same
    order. A record is a tf.train.Example with the features "image" (JPEG bytes) and "label" (int64), which is an index
    into ``classes``. Paths are strings. ``skipped`` names the damaged files of a reader that were left out.
    """

    root: Path = field(repr=False)
    classes: tuple[str, ...]
    shards: tuple[str, ...] = field(repr=False)
    test_shards: tuple[str, ...] = field(repr=False)
    files: tuple[str, ...] = field(repr=False)
    test_files: tuple[str, ...] = field(repr=False)
    skipped: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many train images there are."""
        return len(self.files)

    @property
    def test_count(self) -> int:
        """How many test images there are."""
        return len(self.test_files)

    def labels(self) -> np.ndarray:
        """Return the labels of ``files``: int64 [count]."""
        names = [Path(file).parent.name for file in self.files]
        return np.searchsorted(self.classes, names)


def photo_crops(
    count: int = 2048,
    test_count: int = 256,
    *,
    size: int = 320,
    shards: int = 8,
    cache: str | os.PathLike | None = None,
) -> ImageData:
    """Return `ImageData`: crops of eight photographs, to tell from which photograph each comes.

    Square crops of random place and scale become JPEG images of ``size`` x ``size`` pixels. Train and test crops
    share no pixel. The same arguments give the same bytes. Made on the first call, in ``cache`` or else the folder in
    BIGTRAIN_NB_CACHE or else the user's cache folder, and again if a file is missing or has another size.

    Raises ValueError for settings that make no sense, ModuleNotFoundError if the photographs are not there, for want of
    scikit-image, and OSError when the disk is full.

    Example::

        data = bt.photo_crops(count=16, test_count=8, size=48)
        print(data.classes, data.files[0])
    """
    for setting, value in (("count", count), ("test_count", test_count), ("size", size), ("shards", shards)):
        whole_number(setting, value, 1)

    def fill(making):
        from bigtrain_nb.data.records import pack  # loads TensorFlow

        classes = sorted(PHOTOS)
        photos = [_photo(PHOTOS[name]) for name in classes]
        for split, number in (("train", count), ("test", test_count)):
            rng = np.random.default_rng([0, split == "test"])
            labels = rng.permutation(np.arange(number) % len(photos)).tolist()
            crops = (_crop(photos[label], split, size, rng) for label in labels)
            pack(making, split, classes, labels, crops, shards)
        return {"classes": classes}

    name = f"photo-crops-{count}-{test_count}-{size}px-{shards}-shards"
    return _image_data(*storage.made(name, fill, cache))


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
    return _jpeg_bytes(crop.resize((size, size), Image.Resampling.BICUBIC), quality=90)


def _jpeg_bytes(image, quality):
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=quality)
    return jpeg.getvalue()


def image_folder(
    folder: str | os.PathLike,
    *,
    shards: int = 8,
    test_fraction: float = 0.1,
    skip_damaged: bool = False,
    cache: str | os.PathLike | None = None,
) -> ImageData:
    """Return `ImageData` of a reader's own images: each subfolder of ``folder`` is a class, its name the label.

    JPEG files are packed byte for byte; other formats that Pillow reads are encoded as JPEG of quality 95. Gray images
    of 16 or 32 bits cannot be decoded: which of their values is white is not known. Hidden files are ignored. A random
    ``test_fraction`` becomes the test split. Everything is copied into the cache, once as files and once as shards (at
    most one for each image), and again whenever the folder's files change.

    Raises ValueError that names the files that cannot be decoded, unless ``skip_damaged``, which leaves them out and
    lists them in ``.skipped``; ValueError for a folder without images in subfolders and for settings that make no
    sense; FileNotFoundError for a folder that is not there; OSError when the disk is full.

    Example::

        crops = bt.photo_crops(count=16, test_count=8, size=48)
        data = bt.image_folder(crops.root / "train")  # a folder with a folder for each class
        print(data.classes, data.count)
    """
    whole_number("shards", shards, 1)
    fraction("test_fraction", test_fraction)

    def write(making, paths):
        from bigtrain_nb.data.records import pack  # loads TensorFlow

        tests = min(max(1, round(len(paths) * test_fraction)), len(paths) - 1)
        names = [path.relative_to(top).parts[0] for path in paths]
        classes = sorted(set(names))
        labels = [classes.index(name) for name in names]
        pack(making, "test", classes, labels[:tests], map(_jpeg, paths[:tests]), shards)
        pack(making, "train", classes, labels[tests:], map(_jpeg, paths[tests:]), shards)
        return {"classes": classes}

    top = Path(as_path("folder", folder)).expanduser().absolute()
    kind = "8-bit images in a folder for each class"
    settings = "images", shards, test_fraction
    return _image_data(*copied(top, "*/**/*", _decodes, kind, write, settings, skip_damaged, cache))


def _decodes(path):
    """Tell whether a pipeline can decode what `_jpeg` makes of a file."""
    from bigtrain_nb.common.quiet import tf

    try:
        tf.io.decode_jpeg(_jpeg(path), channels=3)
    except Exception:  # decoders raise whatever they like on damaged bytes
        return False
    return True


def _jpeg(path):
    """Return the bytes of a JPEG file as they are, and of any other image as JPEG."""
    content = path.read_bytes()
    if content.startswith(b"\xff\xd8\xff"):
        return content
    with Image.open(io.BytesIO(content)) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"mode {image.mode} is not 8-bit")
        return _jpeg_bytes(image.convert("RGB"), quality=95)


def _image_data(root, facts):
    return ImageData(
        root=root,
        classes=tuple(facts["classes"]),
        shards=_paths(root, "shards/train-*"),
        test_shards=_paths(root, "shards/test-*"),
        files=_paths(root, "train/*/*.jpg"),
        test_files=_paths(root, "test/*/*.jpg"),
        skipped=tuple(facts.get("skipped", ())),
    )


def _paths(root, pattern):
    """Return the files that match, in the order of their numbers."""
    paths = sorted(root.glob(pattern), key=lambda path: (len(path.name), path.name))
    return tuple(map(str, paths))
