"""Load model files, which may contain layers of this package."""

import json
import os
import zipfile
from contextlib import nullcontext
from functools import partial
from typing import Unpack

import bigtrain_nb.train.small_models  # noqa: F401  (Keras finds our layers once they are imported)
from bigtrain_nb.common.checks import as_path, of_kind, switch
from bigtrain_nb.common.keras_compat import SafeModeScope
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.model import Model
from bigtrain_nb.train.settings import Settings, naming_settings


def load_model(
    path: str | os.PathLike,
    custom_objects: dict | None = None,
    compile: bool = True,
    safe_mode: bool = True,
    **settings: Unpack[Settings],
) -> Model:
    """Load a file written by `save`, as a `Model` with the ``settings`` of `Model.of`.

    The other arguments are those of `keras.saving.load_model`. A file has the model, its compile settings and the
    optimizer state, but not ``micro_batches`` and the other settings: pass them again. Without these, and without
    layers of this package (the positions of `gpt`), Keras alone can load the file.

    Raises FileNotFoundError for a missing file, TypeError and ValueError as Keras and `Model.of` do.

    Example::

        model = bt.conv_net(image_size=16)
        model.save("model.keras")
        again = bt.load_model("model.keras", micro_batches=4)
        print(again.micro_batches)
    """
    path = as_path("path", path)
    if not path.startswith("hf://") and not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"{path}: there is no such file")
    switch("compile", compile)
    switch("safe_mode", safe_mode)
    of_kind("custom_objects", custom_objects, dict | None, "a dictionary {name: class} or None")
    config = _config(path)
    if config is None:  # the legacy HDF5 format, or not a local file
        return Model.of(keras.saving.load_model(path, custom_objects, compile, safe_mode), **settings)
    model = Model.of(partial(keras.saving.load_model, path, custom_objects, False, safe_mode), **settings)
    compiled = json.loads(config).get("compile_config")
    if compile and compiled:
        # Only now can the optimizer load its state from the file, sharded if requested
        unsafe = nullcontext() if safe_mode else SafeModeScope(False)
        with keras.saving.custom_object_scope(custom_objects), unsafe:
            model.compile_from_config(compiled)
        if model.built:
            model.load_weights(path)
    return model


load_model.__signature__ = naming_settings(load_model)  # shown by Shift-Tab


def _config(path):
    """Return config.json of a .keras file as a string; None for another format."""
    if not zipfile.is_zipfile(os.fspath(path)):
        return None
    with zipfile.ZipFile(os.fspath(path)) as file:
        return file.read("config.json").decode()
