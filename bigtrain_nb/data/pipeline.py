"""Settings -> `tf.data.Dataset`: one frozen dataclass covers the knobs of a real input pipeline."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.common.checks import one_of, whole_number
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.data.images import ImageData
from bigtrain_nb.data.records import class_of, decode_image, scale_pixels, unpack

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
    cycle_length: shards read in turns: 1 reads one after the other, more interleaves them, "AUTOTUNE" lets the runtime
        choose how many of them it reads at once.
    num_parallel_calls: examples parsed at once: 1 is a plain `map`, more, or "AUTOTUNE", a parallel one.
    vectorize: run ``finish`` once per batch instead of once per example.
    cache: None, "memory", "file" (a private temporary file, removed at exit) or a path of your own (with a "/" in it),
        whose folder is made if it is not there.
    shuffle: size of the shuffle buffer in examples, 0 for the order of the files.
    seed: of the shuffle; None draws a new one at each start.
    batch: examples in a batch; the last batch may be shorter.
    repeat: start again after the last batch, for ever, without the pause that a new iterator costs.
    prefetch: batches made ahead, 0 for none, or "AUTOTUNE".
    deterministic: keep the order although work runs in parallel.
    rewrites: let the runtime rewrite the pipeline by its own rules (False shows what each setting does by itself).
    skip_damaged: leave out records that cannot be parsed instead of raising, and of a shard that is cut off all that
        follows.
    """

    data: Any
    split: str = "train"
    source: str = "shards"
    parse: Callable | None = None
    finish: Callable | None = None
    image_size: int = 160
    cycle_length: int | str = 1
    num_parallel_calls: int | str = 1
    vectorize: bool = False
    cache: str | None = None
    shuffle: int = 0
    seed: int | None = 0
    batch: int = 64
    repeat: bool = False
    prefetch: int | str = 0
    deterministic: bool = True
    rewrites: bool = True
    skip_damaged: bool = False

    def __post_init__(self):
        _check(self)

    @property
    def files(self):
        """Paths of the files that are read, in order."""
        if not isinstance(self.data, ImageData):
            return tuple(os.fspath(path) for path in self.data)
        prefix = "test_" if self.split == "test" else ""
        return getattr(self.data, prefix + self.source)

    def dataset(self):
        """Build the `tf.data.Dataset`; its elements are what ``finish`` makes of a batch of parsed examples.

        Raises FileNotFoundError for a shard that is not there.
        """
        parse = self.parse or self._decode
        finish = self.finish or scale_pixels
        dataset = self._map(self._records(), parse)
        if self.skip_damaged:
            dataset = dataset.ignore_errors()
        if self.cache:
            dataset = dataset.cache(_cache_file(self.cache))
        if self.shuffle:
            dataset = dataset.shuffle(self.shuffle, seed=self.seed)
        if self.vectorize:
            dataset = self._map(dataset.batch(self.batch), finish)
        else:
            dataset = self._map(dataset, finish).batch(self.batch)
        if self.repeat:
            dataset = dataset.repeat()
        if self.prefetch:
            dataset = dataset.prefetch(_tf(self.prefetch))
        options = tf.data.Options()
        options.deterministic = self.deterministic
        if not self.rewrites:
            options.experimental_optimization.apply_default_optimizations = False
        return dataset.with_options(options)

    def _records(self):
        files = tf.data.Dataset.from_tensor_slices(list(self.files))
        if self.source == "files":
            return files
        for shard in self.files:
            if not tf.io.gfile.exists(shard):  # TensorFlow would try it again for ever where errors are skipped
                raise FileNotFoundError(f"{shard}: there is no such TFRecord file")
        if self.cycle_length == 1:
            return files.flat_map(tf.data.TFRecordDataset)
        cycle = at_once = self.cycle_length
        if self.cycle_length == AUTOTUNE:
            cycle, at_once = len(self.files), tf.data.AUTOTUNE
        return files.interleave(tf.data.TFRecordDataset, cycle, num_parallel_calls=at_once)

    def _decode(self, record):
        if self.source == "files":
            return decode_image(tf.io.read_file(record), self.image_size), class_of(record, self.data.classes)
        jpeg, label = unpack(record)
        return decode_image(jpeg, self.image_size), label

    def _map(self, dataset, function):
        if self.num_parallel_calls == 1:
            return dataset.map(function)
        return dataset.map(function, num_parallel_calls=_tf(self.num_parallel_calls))


def _tf(value):
    return tf.data.AUTOTUNE if value == AUTOTUNE else value


def _cache_file(cache):
    """Return what `tf.data.Dataset.cache` takes: "" for memory, else a path in a folder that is there."""
    if cache == "memory":
        return ""
    if cache == "file":
        folder = tempfile.mkdtemp(prefix="bigtrain_nb-cache-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return os.path.join(folder, "cache")
    tf.io.gfile.makedirs(os.path.dirname(cache))
    return os.fspath(cache)


_LEAST = {"image_size": 1, "cycle_length": 1, "num_parallel_calls": 1, "batch": 1, "shuffle": 0, "prefetch": 0}
_MAY_BE_AUTOTUNE = ("cycle_length", "num_parallel_calls", "prefetch")


def _check(settings):
    one_of("split", settings.split, ("train", "test"))
    one_of("source", settings.source, ("shards", "files"))
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if name in _MAY_BE_AUTOTUNE and isinstance(value, str):
            one_of(name, value, (AUTOTUNE,))
        else:
            whole_number(name, value, least)
    cache = settings.cache
    if cache not in (None, "memory", "file") and not os.path.dirname(cache):
        raise ValueError(f'cache={cache!r} must be None, "memory", "file" or a path with a folder in it')
    if not isinstance(settings.data, ImageData):
        if not isinstance(settings.data, list | tuple):
            raise ValueError(f"data={settings.data!r} must be an ImageData or a list of paths")
        if settings.parse is None:
            raise ValueError("data of your own needs parse=, a function from one record to one example")
    if not settings.files:
        raise ValueError(f"data holds no {settings.split} {settings.source}: there is nothing to read")
