"""Files of models: read, with the layers of ours that they may hold."""

import json
import os
import zipfile
from contextlib import nullcontext
from functools import partial
from typing import Unpack

import bigtrain_nb.train.small_models  # noqa: F401  (Keras finds the layers of ours when they have been imported)
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
    """Load what `save` has written, as a `Model` with ``settings``, which are those of `Model.of`.

    The other arguments are those of `keras.saving.load_model`. A file holds a model and how it was compiled, with the
    state of the optimizer; ``micro_batches`` and the others are given again. Who needs none of them, and no layer of
    this package (the positions of `gpt`), loads the file with Keras alone.

    Raises FileNotFoundError for a file that is not there, TypeError and ValueError as Keras and `Model.of` do.

    Example::

        model = bt.conv_net(image_size=16)
        model.save("model.keras")
        again = bt.load_model("model.keras", micro_batches=4)
        print(again.micro_batches)
    """
    if not tf.io.gfile.exists(as_path("path", path)):
        raise FileNotFoundError(f"{path}: there is no such file")
    switch("compile", compile)
    switch("safe_mode", safe_mode)
    of_kind("custom_objects", custom_objects, dict | None, "a dictionary {name: class} or None")
    config = _config(path)
    if config is None:  # the legacy HDF5 format
        return Model.of(keras.saving.load_model(path, custom_objects, compile, safe_mode), **settings)
    model = Model.of(partial(keras.saving.load_model, path, custom_objects, False, safe_mode), **settings)
    compiled = json.loads(config).get("compile_config")
    if compile and compiled:
        # Only now the optimizer can take the state that the file has of it: in shards, if that was asked for
        unsafe = nullcontext() if safe_mode else SafeModeScope(False)
        with keras.saving.custom_object_scope(custom_objects), unsafe:
            model.compile_from_config(compiled)
        model.load_weights(path)
    return model


load_model.__signature__ = naming_settings(load_model)  # which Shift-Tab shows


def _config(path):
    """Return the text of config.json in a .keras file; None for a file of another format."""
    if not zipfile.is_zipfile(os.fspath(path)):
        return None
    with zipfile.ZipFile(os.fspath(path)) as file:
        return file.read("config.json").decode()
