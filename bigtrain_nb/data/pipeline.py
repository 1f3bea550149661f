"""Settings -> `tf.data.Dataset`: one frozen dataclass covers the knobs of a real input pipeline."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.quiet import tf

AUTOTUNE = "AUTOTUNE"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """An input pipeline as settings; `dataset()` builds it.

    The stages run in this order: read records, parse each, cache, shuffle, batch, finish, repeat, prefetch.

    data: an `ImageData` (from `photo_crops` or `image_folder`), or a sequence of paths with your own ``parse``.
    split: "train" or "test", which files of an `ImageData` are read.
    source: "shards" reads the TFRecord shards, "files" the same JPEGs from a folder, one file each.
    parse: one record (a scalar string; with "files" the path) -> one example (any nest of tensors). By default a
        uint8 image [image_size, image_size, 3] and an int64 label [].
    finish: cheap work after the cache, on examples or batches alike; by default `scale_pixels` (float32 in -1..1).
    image_size: pixels, for the default ``parse``.
    reads: shards read at once: 1 reads one after the other, more interleaves them, "AUTOTUNE" lets the runtime choose.
    block_length: records taken from a shard before the next one's turn, when shards are interleaved.
    map_calls: examples parsed at once: 1 is a plain `map`, more (at most 1024, or "AUTOTUNE") a parallel one.
    vectorize: run ``finish`` once per batch instead of once per example.
    cache: None, "memory", "file" (a private temporary file, removed at exit) or a path of your own (with a "/" in it),
        whose folder is made if it is not there.
    shuffle: size of the shuffle buffer in examples, at most 100 million, 0 for the order of the files.
    seed: of the shuffle; None draws a new one at each start.
    batch: examples in a batch; the last batch may be shorter.
    repeat: start again after the last batch, for ever, without the pause that a new iterator costs.
    prefetch: batches made ahead, 0 for none, or "AUTOTUNE".
    deterministic: keep the order although work runs in parallel.
    threads: size of a private thread pool, at most 1024, or None for the shared one.
    rewrites: let the runtime rewrite the pipeline by its own rules (False shows what each setting does by itself).
    skip_damaged: leave out records that cannot be parsed instead of raising, and of a shard that is cut off all that
        follows; `ImageData.verify()` names what is damaged.
    """

    data: Any
    split: str = "train"
    source: str = "shards"
    parse: Callable | None = None
    finish: Callable | None = None
    image_size: int = 160
    reads: int | str = 1
    block_length: int = 1
    map_calls: int | str = 1
    vectorize: bool = False
    cache: str | None = None
    shuffle: int = 0
    seed: int | None = 0
    batch: int = 64
    repeat: bool = False
    prefetch: int | str = 0
    deterministic: bool = True
    threads: int | None = None
    rewrites: bool = True
    skip_damaged: bool = False

    def __post_init__(self):
        _check(self)

    @property
    def files(self):
        """Paths of the files that are read, in order."""
        if not hasattr(self.data, "shards"):
            return tuple(map(os.fspath, self.data))
        return getattr(self.data, ("test_" if self.split == "test" else "") + self.source)

    @property
    def examples(self):
        """Number of examples in one pass, or None where the data does not say."""
        if not hasattr(self.data, "shards"):
            return None
        return self.data.test_count if self.split == "test" else self.data.count

    def dataset(self):
        """Build the `tf.data.Dataset`; its elements are what ``finish`` makes of a batch of parsed examples.

        Raises FileNotFoundError for a shard that is not there, OSError for a cache whose folder cannot be made.
        """
        finish = self.finish or scale_pixels
        dataset = self._mapped(self._records(), self.parse or self._decode)
        if self.skip_damaged:
            dataset = dataset.ignore_errors()
        if self.cache:
            dataset = dataset.cache(_cache_path(self.cache))
        if self.shuffle:
            dataset = dataset.shuffle(self.shuffle, seed=self.seed)
        if self.vectorize:
            dataset = self._mapped(dataset.batch(self.batch), finish)
        else:
            dataset = self._mapped(dataset, finish).batch(self.batch)
        if self.repeat:
            dataset = dataset.repeat()
        if self.prefetch:
            dataset = dataset.prefetch(_tf(self.prefetch))
        return dataset.with_options(self._options())

    def _records(self):
        files = tf.data.Dataset.from_tensor_slices(list(self.files))
        if self.source == "files":
            return files
        for shard in self.files:
            if not tf.io.gfile.exists(shard):  # TensorFlow would try it again for ever where errors are skipped
                raise FileNotFoundError(f"{shard}: there is no such TFRecord file")
        if self.reads == 1:
            return files.flat_map(tf.data.TFRecordDataset)
        at_once = self.reads if self.reads == AUTOTUNE else min(self.reads, len(self.files))
        cycle = len(self.files) if self.reads == AUTOTUNE else at_once
        return files.interleave(tf.data.TFRecordDataset, cycle, self.block_length, num_parallel_calls=_tf(at_once))

    def _decode(self, record):
        if self.source == "files":
            return decode_image(tf.io.read_file(record), self.image_size), class_of(record, self.data.classes)
        jpeg, label = unpack(record)
        return decode_image(jpeg, self.image_size), label

    def _mapped(self, dataset, function):
        return dataset.map(function, num_parallel_calls=None if self.map_calls == 1 else _tf(self.map_calls))

    def _options(self):
        options = tf.data.Options()
        options.deterministic = self.deterministic
        if self.threads:
            options.threading.private_threadpool_size = self.threads
        if not self.rewrites:
            options.experimental_optimization.apply_default_optimizations = False
        return options


def unpack(record):
    """Parse one `tf.train.Example` of our shards into (JPEG bytes [], int64 label [])."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return example["image"], example["label"]


def class_of(path, classes):
    """Return the int64 label of a file in a folder named after its class."""
    folder = tf.strings.split(path, os.sep)[-2]
    return tf.argmax(tf.equal(folder, tf.constant(classes)))


def decode_image(jpeg, size):
    """Decode one JPEG and resize it (bilinear) to uint8 [size, size, 3]."""
    image = tf.image.resize(tf.io.decode_jpeg(jpeg, channels=3), [size, size])
    return tf.cast(tf.round(image), tf.uint8)


def scale_pixels(images, labels):
    """Scale uint8 pixels to float32 in -1..1; takes one image or a batch of them."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0, labels


def _tf(value):
    return tf.data.AUTOTUNE if value == AUTOTUNE else value


def _cache_path(cache):
    if cache == "memory":
        return ""
    if cache != "file":
        path = os.fspath(cache)
        try:
            tf.io.gfile.makedirs(os.path.dirname(path))
        except tf.errors.OpError as error:
            raise OSError(f"cache={path!r}: its folder cannot be made: {error.message}") from None
        return path
    folder = tempfile.mkdtemp(prefix="bigtrain_nb-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, "cache")


_LEAST = {"image_size": 1, "reads": 1, "block_length": 1, "map_calls": 1, "threads": 1, "batch": 1}
_LEAST |= {"shuffle": 0, "prefetch": 0}
_MOST = {"map_calls": 1024, "threads": 1024, "shuffle": 100_000_000}
"""TensorFlow makes room for all of them, or all threads, at once: with far more the process ends or stands still."""
_MAY_BE_AUTOTUNE = {"reads", "map_calls", "prefetch"}
_FLAGS = ("vectorize", "repeat", "deterministic", "rewrites", "skip_damaged")
_CHOICES = {"split": ("train", "test"), "source": ("shards", "files")}


def _check(settings):
    for name, allowed in _CHOICES.items():
        value = getattr(settings, name)
        if value not in allowed:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if name in _MAY_BE_AUTOTUNE and isinstance(value, str):
            if value != AUTOTUNE:
                raise ValueError(f'{name}={value!r} must be a whole number of at least {least} or "AUTOTUNE"')
        elif value is not None or name != "threads":
            whole_number(name, value, least, _MOST.get(name))
    if settings.seed is not None:
        whole_number("seed", settings.seed, 0)
    for name in _FLAGS:
        if not isinstance(getattr(settings, name), bool):
            raise ValueError(f"{name}={getattr(settings, name)!r} must be True or False")
    for name in ("parse", "finish"):
        if getattr(settings, name) is not None and not callable(getattr(settings, name)):
            raise ValueError(f"{name}={getattr(settings, name)!r} must be None or a function")
    is_path = isinstance(settings.cache, (str, os.PathLike)) and os.path.dirname(settings.cache)
    if settings.cache not in (None, "memory", "file") and not is_path:
        raise ValueError(f'cache={settings.cache!r} must be None, "memory", "file" or a path with a folder in it')
    if not hasattr(settings.data, "shards"):
        _check_own_data(settings.data, settings.parse)
    if not settings.files:
        raise ValueError(f"data holds no {settings.split} {settings.source}: there is nothing to read")
    if settings.examples is not None and settings.batch > settings.examples:
        raise ValueError(f"batch={settings.batch} is larger than the data: at most {settings.examples} examples")


def _check_own_data(data, parse):
    if not isinstance(data, Sequence) or isinstance(data, (str, bytes)):
        raise ValueError(f"data={data!r} must be an ImageData or a list of paths")
    for index, path in enumerate(data):
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise ValueError(f"data[{index}]={path!r} must be a path")
    if parse is None:
        raise ValueError("data of your own needs parse=, a function from one record to one example")
