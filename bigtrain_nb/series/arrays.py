"""The train split decoded and resized, as NumPy, HDF5 and TFRecord files, for comparing storage formats."""

import h5py
import numpy as np

from bigtrain_nb import tf
from bigtrain_nb.data import cache as storage
from bigtrain_nb.data.records import decode_image

BATCH = 64
CHUNK_BYTES = 2**20


def numpy_file(data, image_size):
    """Make images.npy in the cache, next to the shards of ``data``; return its path, for ``np.load(mmap_mode="r")``.

    It holds the train images in the order of ``data.files``: uint8 [count, image_size, image_size, 3].
    """

    def fill(folder):
        images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, _shape(data, image_size))
        _decode(data, image_size, images)
        images.flush()
        return {}

    return _made(data, image_size, "numpy", fill) / "images.npy"


def hdf5_file(data, image_size):
    """Make train.h5 in the cache, next to the shards of ``data``; return its path.

    Its dataset "images" holds the train images in the order of ``data.files``: uint8 [count, image_size,
    image_size, 3]. A chunk holds whole examples: at most 1 MiB, or one example if that is larger.
    """

    def fill(folder):
        shape = _shape(data, image_size)
        chunk = max(1, CHUNK_BYTES // (image_size * image_size * 3))
        with h5py.File(folder / "train.h5", "w") as file:
            images = file.create_dataset("images", shape, np.uint8, chunks=(min(chunk, data.count), *shape[1:]))
            _decode(data, image_size, images)
        return {}

    return _made(data, image_size, "hdf5", fill) / "train.h5"


def decoded_shard(data, image_size):
    """Make decoded.tfrecord in the cache, next to the shards of ``data``; return its path.

    Each record is one train image in the order of ``data.files``: its uint8 pixels, image_size * image_size * 3 bytes.
    """

    def fill(folder):
        images = np.load(numpy_file(data, image_size), mmap_mode="r")
        with tf.io.TFRecordWriter(str(folder / "decoded.tfrecord")) as file:
            for pixels in images:
                file.write(pixels.tobytes())
        return {}

    return _made(data, image_size, "tfrecord", fill) / "decoded.tfrecord"


def _shape(data, image_size):
    return data.count, image_size, image_size, 3


def _made(data, image_size, kind, fill):
    name = f"{data.root.name}-{kind}-{image_size}px"
    folder, _ = storage.made(name, fill, data.root.parent)
    return folder


def _decode(data, image_size, out):
    """Write the train images into ``out``, batch by batch."""
    files = tf.data.Dataset.from_tensor_slices(list(data.files))
    images = files.map(lambda file: decode_image(tf.io.read_file(file), image_size), tf.data.AUTOTUNE)
    batches = images.batch(BATCH).prefetch(2)
    done = 0
    for batch in storage.progress(batches.as_numpy_iterator(), "decoding images", len(batches)):
        out[done : done + len(batch)] = batch
        done += len(batch)
