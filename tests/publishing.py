"""Model folders for a server: SavedModels of one input, published as a version."""

import os

from bigtrain_nb import tf


def publish(folder, number, function, shape=(None, 4), dtype="float32", output="y"):
    """Put a version into a model's folder, all at once: a function of x of this shape."""

    @tf.function(input_signature=[tf.TensorSpec(shape, dtype, name="x")])
    def signature(x):
        return {output: function(x)}

    arriving = folder.parent.parent / f"arriving-{folder.name}-{number}"
    tf.saved_model.save(tf.Module(), os.fspath(arriving), signatures={"serving_default": signature})
    folder.mkdir(parents=True, exist_ok=True)
    arriving.rename(folder / str(number))
