"""Input pipelines built from settings: one frozen dataclass -> `tf.data.Dataset`."""

import hashlib
import inspect
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bigtrain_nb.common.checks import function, integer, of_kind, one_of, switch
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.data.images import ImageData
from bigtrain_nb.data.records import class_of, decode_image, scale_pixels, unpack

AUTOTUNE = "AUTOTUNE"
MOST_AT_ONCE = 16
"""Files interleaved under AUTOTUNE; the system may limit a process to 1,024 open files."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """An input pipeline as settings; `dataset()` builds it.

    The stages run in this order: read records, parse each, cache, shuffle, finish, batch, repeat, prefetch. Without a
    cache, the shuffle comes before the parse, so that its buffer holds small records.

    - ``data``: an `ImageData` (from `photo_crops`), or a list of paths with a custom ``parse``.
    - ``split``: "train" or "test", which files of an `ImageData` are read.
    - ``source``: "shards" reads the TFRecord shards, "files" the same JPEGs from a folder, one file each.
    - ``parse``: one record (a scalar string; with "files" the path) -> one example (any nest of tensors). By default a
      uint8 image [image_size, image_size, 3] and an int64 label [].
    - ``finish``: cheap work after the cache, on an example or a batch. By default, uint8 images, as (images, labels),
      become float32 in -1..1, and any other output of a custom ``parse`` is unchanged.
    - ``image_size``: pixels, for the default ``parse`` only.
    - ``exact``: decode every pixel before resizing. Otherwise the default ``parse`` lets the JPEG decoder shrink the
      image by 2, 4 or 8 first, if that leaves at least ``image_size`` pixels: less work, but a pixel of our photographs
      differs by 0.7 of 255 on average at half the size, by up to 11 at a tenth. Use ``exact`` for images that must
      equal another program's, for example to evaluate a published model.
    - ``augment``: in each epoch, a random resized crop of each image (8 to 100 % of the area, aspect ratio 3:4 to 4:3),
      and a flip of half of them. The same ``seed`` gives the same crops in the same epoch of a dataset. Because the
      images change, a ``cache`` then keeps the JPEG bytes. Only for the default ``parse``.
    - ``cycle_length``: number of shards to interleave: 1 reads them sequentially, "AUTOTUNE" interleaves up to 16, as
      many in parallel as the runtime chooses, and opens up to twice as many in advance. No effect on files.
    - ``num_parallel_calls``: examples, or batches with ``vectorize``, to process in parallel: 1 is a plain `map`, more,
      or "AUTOTUNE", a parallel one.
    - ``vectorize``: process a batch per call, in ``finish`` and in the default ``parse``. (Before a cache, images are
      decoded one at a time.)
    - ``cache``: None, "memory", "file" (a private temporary file for each `dataset()`, removed with it, so keep it
      while anything reads it) or a path (with a "/" in it), whose folder is created if missing. If each epoch has a
      dataset, give a path: datasets and programs share it if they read the same files, of the same size and
      modification time, with the same settings before the shuffle: a digest of these is added. A custom ``parse`` is
      identified by its name and code, not by its defaults or what it calls or closes over, and a `functools.partial`
      also by its arguments: when that changes, choose another path. Only one program at a time can fill it.
    - ``shuffle``: size of the shuffle buffer in examples, 0 for the order of the files.
    - ``seed``: of the shuffle and of ``augment``; None draws a new one at each start.
    - ``batch``: batch size in examples; the last batch may be smaller.
    - ``repeat``: start again after the last batch, indefinitely, without the delay of a new iterator.
    - ``prefetch``: batches to prefetch, 0 for none, or "AUTOTUNE".
    - ``rewrites``: let the runtime optimize the pipeline's graph (False shows the effect of each setting alone).

    The order is preserved despite parallelism. A damaged record raises an error.

    Raises ValueError for settings that are out of range or cannot be combined, TypeError for a setting of wrong type.
    `dataset` raises FileNotFoundError for a missing TFRecord file and, with a path as ``cache``, for any missing file.

    Example::

        data = bt.photo_crops(count=16, test_count=8, size=48)
        pipeline = bt.Pipeline(data=data, image_size=32, shuffle=16, batch=4, prefetch=2)
        for images, labels in pipeline.dataset():
            print(images.shape, labels.numpy())
    """

    data: Any
    split: str = "train"
    source: str = "shards"
    parse: Callable | None = None
    finish: Callable | None = None
    image_size: int = 160
    exact: bool = False
    augment: bool = False
    cycle_length: int | str = 1
    num_parallel_calls: int | str = 1
    vectorize: bool = False
    cache: str | None = None
    shuffle: int = 0
    seed: int | None = 0
    batch: int = 64
    repeat: bool = False
    prefetch: int | str = 0
    rewrites: bool = True

    def __post_init__(self):
        _check(self)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files to read, in order."""
        if not isinstance(self.data, ImageData):
            return tuple(os.fspath(path) for path in self.data)
        prefix = "test_" if self.split == "test" else ""
        return getattr(self.data, prefix + self.source)

    @property
    def caches_files(self) -> bool:
        """Whether a stage before the cache reads the files, because the records are only paths."""
        return bool(self.source == "files" and self.augment and self.cache)

    def dataset(self) -> tf.data.Dataset:
        """Build the `tf.data.Dataset`, whose elements are batches of parsed and finished examples.

        Raises FileNotFoundError for a missing shard.
        """
        before_cache = self.cache and not self.augment  # parse each example only once
        in_batches = self.vectorize and not (before_cache or self.parse)
        dataset = self._records()
        if self.caches_files:
            dataset = self._map(dataset, self._read)
        if before_cache:
            dataset = self._parse_each(dataset)
        if self.cache:
            dataset = self._cached(dataset)
        if self.shuffle:
            dataset = dataset.shuffle(self.shuffle, seed=self.seed)
        if self.augment:
            numbers = tf.data.Dataset.random(self.seed, rerandomize_each_iteration=True).batch(3)
            dataset = tf.data.Dataset.zip({"record": dataset, "numbers": numbers})
        if not (before_cache or in_batches):
            dataset = self._parse_each(dataset)
        if self.vectorize:
            dataset = dataset.batch(self.batch)
        if in_batches:
            dataset = self._map(dataset, self._decode_batch)
        dataset = self._map(dataset, self.finish or _scale_images)
        if not self.vectorize:
            dataset = dataset.batch(self.batch)
        if self.repeat:
            dataset = dataset.repeat()
        if self.prefetch:
            dataset = dataset.prefetch(_tf(self.prefetch))
        options = tf.data.Options()
        options.deterministic = True
        if not self.rewrites:
            options.experimental_optimization.apply_default_optimizations = False
        return dataset.with_options(options)

    def _records(self):
        files = tf.data.Dataset.from_tensor_slices(list(self.files))
        if self.source == "files":
            return files
        for shard in self.files:
            if not tf.io.gfile.exists(shard):
                raise FileNotFoundError(f"{shard}: there is no such TFRecord file")
        if self.cycle_length == 1:
            return files.flat_map(tf.data.TFRecordDataset)
        cycle = at_once = self.cycle_length
        if self.cycle_length in (AUTOTUNE, tf.data.AUTOTUNE):
            cycle, at_once = min(len(self.files), MOST_AT_ONCE), tf.data.AUTOTUNE
        return files.interleave(tf.data.TFRecordDataset, cycle, num_parallel_calls=at_once)

    def _cached(self, dataset):
        if self.cache == "memory":
            return dataset.cache()
        if self.cache == "file":
            folder = tempfile.mkdtemp(prefix="bigtrain_nb-cache-")
            cached = dataset.cache(os.path.join(folder, "cache"))
            owner = cached if tf.executing_eagerly() else tf  # a graph outlives its dataset: then at exit
            weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
            return cached
        return dataset.cache(self._cache_path())

    def _cache_path(self):
        """Return the path that stands for these files and settings, in an existing folder."""
        path = os.path.expanduser(self.cache)
        tf.io.gfile.makedirs(os.path.dirname(path))
        of_data = self.data.classes if isinstance(self.data, ImageData) else None
        files = [(file, *_size_and_time(file)) for file in self.files]
        settings = [self.source, self.cycle_length, self.image_size, self.exact, self.augment]
        cached = [files, _known_as(self.parse), of_data, settings]
        digest = hashlib.sha256(repr(cached).encode()).hexdigest()[:8]
        return f"{path}-{digest}"

    def _parse_each(self, dataset):
        return self._map(dataset, self.parse or self._decode)

    def _decode(self, element):
        """Decode one record or, with ``augment``, a dictionary of a record and three random numbers."""
        record, numbers = element, None
        if self.augment:
            record, numbers = element["record"], element["numbers"]
        jpeg, label = record if self.caches_files else self._read(record)
        return decode_image(jpeg, self.image_size, exact=self.exact, numbers=numbers), label

    def _read(self, record):
        """Return the JPEG bytes and the label of a record or of a file path."""
        if self.source == "files":
            return tf.io.read_file(record), class_of(record, self.data.classes)
        return unpack(record)

    def _decode_batch(self, elements):
        return tf.map_fn(self._decode, elements, fn_output_signature=(tf.uint8, tf.int64))

    def _map(self, dataset, function):
        at_once = None if self.num_parallel_calls == 1 else _tf(self.num_parallel_calls)
        return dataset.map(function, num_parallel_calls=at_once)


def _scale_images(*example):
    if len(example) == 2 and getattr(example[0], "dtype", None) == tf.uint8:
        return scale_pixels(*example)
    return example if len(example) > 1 else example[0]


def _known_as(function):
    if isinstance(function, partial):
        return _known_as(function.func), function.args, sorted(function.keywords.items())
    name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
    return *name, _code_of(getattr(function, "__code__", None))  # another lambda may be in the same place


def _code_of(part):  # or of a constant in it; the same in all processes
    if isinstance(part, tuple | frozenset):
        return sorted(map(repr, map(_code_of, part))) if isinstance(part, frozenset) else [*map(_code_of, part)]
    return [part.co_code, part.co_names, _code_of(part.co_consts)] if inspect.iscode(part) else part


def _size_and_time(file):
    try:
        found = tf.io.gfile.stat(file)
    except tf.errors.NotFoundError:
        raise FileNotFoundError(f"{file}: there is no such file") from None
    return found.length, found.mtime_nsec


def _tf(value):
    return tf.data.AUTOTUNE if value == AUTOTUNE else value


_LEAST = {"image_size": 1, "cycle_length": 1, "num_parallel_calls": 1, "batch": 1, "shuffle": 0, "prefetch": 0}
_SWITCHES = ("exact", "augment", "vectorize", "repeat", "rewrites")
_MAY_BE_AUTOTUNE = ("cycle_length", "num_parallel_calls", "prefetch")


def _check(settings):
    one_of("split", settings.split, ("train", "test"))
    one_of("source", settings.source, ("shards", "files"))
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if name not in _MAY_BE_AUTOTUNE or value not in (AUTOTUNE, tf.data.AUTOTUNE):
            integer(name, value, least, instead='"AUTOTUNE" or ' if name in _MAY_BE_AUTOTUNE else "")
    for name in _SWITCHES:
        switch(name, getattr(settings, name))
    for name in ("parse", "finish"):
        if getattr(settings, name) is not None:
            function(name, getattr(settings, name))
    if settings.seed is not None:
        integer("seed", settings.seed, 0)
    cache = of_kind("cache", settings.cache, str | os.PathLike | None, 'None, "memory", "file" or a path')
    if cache not in (None, "memory", "file") and not os.path.dirname(cache):
        raise ValueError(f'cache={cache!r} must be None, "memory", "file" or a path that includes a folder')
    if not isinstance(settings.data, ImageData):
        of_kind("data", settings.data, list | tuple, "an ImageData, or a list of paths with a custom parse")
        if settings.parse is None:
            raise ValueError("custom data needs parse=, a function from one record to one example")
        if settings.split == "test":
            raise ValueError('split="test" needs an ImageData: otherwise, give the list of your test files')
    if settings.exact and settings.parse:
        raise ValueError("exact=True needs the default parse: a custom parse does its own decoding")
    if settings.image_size != Pipeline.image_size and settings.parse:
        raise ValueError(
            f"image_size={settings.image_size} needs the default parse: leave it out, and resize in the custom parse"
        )
    if settings.augment and settings.parse:
        raise ValueError("augment=True needs the default parse: take random crops in a custom parse or finish")
    if not settings.files:
        raise ValueError(f"data holds no {settings.split} {settings.source}: there is nothing to read")
