"""Real images on disk: crops of photographs, or a reader's own folder, as JPEG files and TFRecord shards."""

import io
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from bigtrain_nb.common.checks import fraction, whole_number
from bigtrain_nb.data import cache as storage
from bigtrain_nb.data.folders import cache_name, own_folder, sort_out, visible_files
from bigtrain_nb.data.packing import pack

FORMAT = 1
"""Part of every folder's name: data made by an earlier version of this file is not taken for this one's."""

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
    classes: tuple
    shards: tuple = field(repr=False)
    test_shards: tuple = field(repr=False)
    files: tuple = field(repr=False)
    test_files: tuple = field(repr=False)
    count: int
    test_count: int
    skipped: tuple = ()

    def labels(self):
        """Return the labels of ``files``: int64 [count]."""
        index = {name: label for label, name in enumerate(self.classes)}
        return np.array([index[Path(file).parent.name] for file in self.files], np.int64)

    def verify(self):
        """Hold every byte of every file against its checksum; return the number of records.

        Raises ValueError that names each damaged file and says how to make the data again.
        """
        if damaged := storage.damaged_files(self.root):
            problems = "\n".join(f"{path} is missing or changed" for path in damaged)
            remedy = f"To make it again, delete {self.root} and call the function that made it."
            raise ValueError(f"the data is damaged:\n{problems}\n{remedy}")
        return self.count + self.test_count

    def as_numpy(self, image_size):
        """Return a folder with the train split decoded and resized, for ``np.load(..., mmap_mode="r")``.

        ``images.npy`` is uint8 [count, image_size, image_size, 3], ``labels.npy`` int64 [count], both in the order
        of ``files``. Made once, beside the shards.
        """
        from bigtrain_nb.data.arrays import numpy_folder

        return numpy_folder(self, whole_number("image_size", image_size, 8))

    def as_hdf5(self, image_size):
        """Return an HDF5 file with the train split decoded and resized.

        ``images`` is uint8 [count, image_size, image_size, 3] in chunks of whole examples, at most 1 MiB if that is
        one example or more, ``labels`` int64 [count], both in the order of ``files``. Made once, beside the shards.
        """
        from bigtrain_nb.data.arrays import hdf5_file

        return hdf5_file(self, whole_number("image_size", image_size, 8))


def photo_crops(count=2048, test_count=256, *, size=320, quality=90, shards=8, seed=0, cache=None):
    """Return `ImageData`: crops of eight photographs, to tell from which photograph each comes.

    Square crops of random place and scale become JPEG images of ``size`` x ``size`` pixels. Train and test crops
    share no pixel. The same arguments give the same bytes. Made on the first call, in ``cache`` or else the folder in
    BIGTRAIN_NB_CACHE or else the user's cache folder, and again if a file is missing or damaged.

    Raises ValueError for settings that make no sense, OSError when the disk is full.
    """
    whole_number("count", count, 1)
    whole_number("test_count", test_count, 1)
    whole_number("size", size, 8)
    whole_number("quality", quality, 1, 95)
    whole_number("shards", shards, 1, count, "the count of images")
    whole_number("seed", seed, 0)

    def fill(folder):
        photos = {name: _photo(file) for name, file in PHOTOS.items()}
        facts = {"classes": list(photos), "skipped": []}
        for split, number in (("train", count), ("test", test_count)):
            rng = np.random.default_rng([seed, split == "test"])
            labels = rng.permutation(np.arange(number) % len(photos)).tolist()
            crops = (_crop(list(photos.values())[label], split, size, quality, rng) for label in labels)
            facts[split] = pack(folder, split, facts["classes"], labels, crops, min(shards, number))
        return facts

    name = f"photo-crops-v{FORMAT}-{count}-{test_count}-{size}px-q{quality}-{shards}-shards-seed{seed}"
    needs = (count + test_count) * size * size // 2
    return _image_data(storage.cache_folder(cache) / name, fill, needs)


def _photo(file):
    path = Path(find_spec("skimage").submodule_search_locations[0], "data", file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: scikit-image lacks its photographs; install it again with pip")
    with Image.open(path) as image:
        return image.convert("RGB")


def _crop(photo, split, size, quality, rng):
    crop = photo.crop(crop_box(photo.width, photo.height, split, rng))
    jpeg = io.BytesIO()
    crop.resize((size, size), Image.Resampling.BICUBIC).save(jpeg, "JPEG", quality=quality)
    return jpeg.getvalue()


def crop_box(width, height, split, rng):
    """Return (left, top, right, bottom) in pixels of a random square within the split's part of a photograph."""
    cut = int(width * TRAIN_COLUMNS)
    first, last = (0, cut) if split == "train" else (cut, width)
    side = int(min(last - first, height) * rng.uniform(0.4, 1.0))
    left, top = int(rng.integers(first, last - side + 1)), int(rng.integers(0, height - side + 1))
    return left, top, left + side, top + side


def image_folder(folder, *, shards=8, test_fraction=0.1, seed=0, skip_damaged=False, cache=None):
    """Return `ImageData` of a reader's own images: each subfolder of ``folder`` is a class, its name the label.

    JPEG files are packed byte for byte; other formats that Pillow reads are encoded as JPEG of quality 95. Gray images
    of 16 or 32 bits cannot be decoded: which of their values is white is not known. Hidden files are ignored. A random
    ``test_fraction`` becomes the test split. Everything is copied into the cache, once as files and once as shards, and
    again whenever the folder's files change.

    Raises ValueError that names the files that cannot be decoded, unless ``skip_damaged``, which leaves them out and
    lists them in ``.skipped``; ValueError for a folder without subfolders or images and for settings that make no
    sense; FileNotFoundError for a folder that is not there; OSError when the disk is full.
    """
    whole_number("shards", shards, 1)
    test_fraction = fraction("test_fraction", test_fraction)
    whole_number("seed", seed, 0)
    folder = own_folder(folder, cache)
    paths = _class_files(folder)

    def fill(making):
        good, skipped = sort_out(folder, paths, _decodes, "8-bit images", skip_damaged)
        if len(good) < 2:
            raise ValueError(f"{folder} holds only one image; a train and a test split need at least two")
        tests = min(max(1, round(len(good) * test_fraction)), len(good) - 1)
        whole_number("shards", shards, 1, len(good) - tests, "the count of train images")
        good = np.random.default_rng(seed).permutation(good).tolist()
        classes = sorted({_class(folder, path) for path in good})
        facts = {"classes": classes, "skipped": skipped}
        for split, part in (("train", good[tests:]), ("test", good[:tests])):
            labels = [classes.index(_class(folder, path)) for path in part]
            facts[split] = pack(making, split, classes, labels, map(_jpeg, part), min(shards, len(part)))
        return facts

    arguments = (shards, test_fraction, seed, bool(skip_damaged))
    name = cache_name(f"image-folder-v{FORMAT}", folder, paths, arguments)
    needs = sum(path.stat().st_size for path in paths) * 2
    return _image_data(storage.cache_folder(cache) / name, fill, needs)


def _class(folder, path):
    return path.relative_to(folder).parts[0]


def _class_files(folder):
    """Return all visible files below the subfolders of ``folder``, sorted."""
    paths = visible_files(folder, "*/**/*")
    if not paths:
        raise ValueError(f"{folder} has no files in subfolders; expected is one per class, as in <class>/<name>.jpg")
    return paths


def _decodes(path):
    """Tell whether a pipeline can decode what `_jpeg` makes of a file."""
    content = path.read_bytes()
    try:
        if _is_jpeg(content):
            from bigtrain_nb.common.quiet import tf

            tf.io.decode_jpeg(content, channels=3)
        else:
            _encode(content)
        return True
    except Exception:  # decoders raise whatever they like on damaged bytes
        return False


def _is_jpeg(content):
    return content.startswith(b"\xff\xd8\xff")


def _jpeg(path):
    """Return the bytes of a JPEG file as they are, and of any other image as JPEG."""
    content = path.read_bytes()
    return content if _is_jpeg(content) else _encode(content)


def _encode(content):
    jpeg = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"mode {image.mode} is not 8-bit")
        image.convert("RGB").save(jpeg, "JPEG", quality=95)
    return jpeg.getvalue()


def _image_data(root, fill, needs):
    facts = storage.made(root, fill, needs)

    def absolute(names):
        return tuple(str(root / name) for name in names)

    train, test = facts["train"], facts["test"]
    return ImageData(
        root=root,
        classes=tuple(facts["classes"]),
        shards=absolute(train["shards"]),
        test_shards=absolute(test["shards"]),
        files=absolute(train["files"]),
        test_files=absolute(test["files"]),
        count=len(train["files"]),
        test_count=len(test["files"]),
        skipped=tuple(facts["skipped"]),
    )
