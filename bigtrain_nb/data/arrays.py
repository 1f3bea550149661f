"""The train split decoded and resized, as NumPy and HDF5 files, for comparing storage formats."""

import h5py
import numpy as np

from bigtrain_nb.common.progress import shown
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.data import cache as storage
from bigtrain_nb.data.pipeline import decode_image

BATCH = 64
CHUNK_BYTES = 2**20


def numpy_folder(data, image_size):
    """Make images.npy and labels.npy beside ``data.root``; return their folder."""

    def fill(folder):
        shape = (data.count, image_size, image_size, 3)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        with open(folder / "images.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for batch in _decoded(data, image_size):
                file.write(batch.tobytes())
        np.save(folder / "labels.npy", data.labels())

    return _made(data, "numpy", fill, image_size)


def hdf5_file(data, image_size):
    """Make train.h5 beside ``data.root``; return its path."""

    def fill(folder):
        shape = (data.count, image_size, image_size, 3)
        block = min(data.count, max(1, CHUNK_BYTES // (image_size * image_size * 3)))
        with h5py.File(folder / "train.h5", "w") as file:
            file["labels"] = data.labels()
            images = file.create_dataset("images", shape, np.uint8, chunks=(block, *shape[1:]))
            done = 0
            for batch in _decoded(data, image_size):
                images[done : done + len(batch)] = batch
                done += len(batch)

    return _made(data, "hdf5", fill, image_size) / "train.h5"


def _made(data, kind, fill, image_size):
    folder = data.root.with_name(f"{data.root.name}-{kind}-{image_size}px")
    storage.made(folder, fill, needs=data.count * (image_size * image_size * 3 + 8))
    return folder


def _decoded(data, image_size):
    """Yield the train images batch by batch: uint8 [up to BATCH, image_size, image_size, 3]."""
    files = tf.data.Dataset.from_tensor_slices(list(data.files))
    images = files.map(lambda file: decode_image(tf.io.read_file(file), image_size), tf.data.AUTOTUNE)
    batches = images.batch(BATCH).prefetch(2)
    return shown(batches.as_numpy_iterator(), "decoding images", len(batches))
