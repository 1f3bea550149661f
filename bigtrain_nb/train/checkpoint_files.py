"""The checkpoints of one training in a folder: found, checked against the model, restored, saved.

TensorFlow's `Checkpoint` and `CheckpointManager` do the work; a checkpoint gets its final name when it is whole.
"""

import os
import re

from bigtrain_nb.common.quiet import tf

_VALUE = ".ATTRIBUTES/VARIABLE_VALUE"  # how a variable's key ends in TensorFlow's format
_REMAINS = re.compile(r"ckpt-\d+_temp|checkpoint\.tmp.*")  # of a save that was cut short


class Files:
    """Checkpoints in ``folder``, of ``state``, lists of Keras variables by kind, and of ``more``, trackable objects.

    The newest ``keep`` are kept.
    """

    def __init__(self, folder, keep, state, **more):
        self._folder, self._keep, self._state = os.fspath(folder), keep, state
        values = {kind: [variable.value for variable in variables] for kind, variables in state.items()}
        self._checkpoint = tf.train.Checkpoint(**more, **values)
        self._manager = None

    def prepare(self):
        """Make the folder, see that it can be written, and clear it of what a killed process left half-done.

        Raises OSError if it cannot be written.
        """
        probe = os.path.join(self._folder, "checkpoint.tmp")
        try:
            tf.io.gfile.makedirs(self._folder)
            with tf.io.gfile.GFile(probe, "w") as file:
                file.write("this folder can be written")
            self._remove_remains()
        except tf.errors.OpError as error:
            raise OSError(f"folder={self._folder!r} cannot be written: {_line(error)}") from None

    def restore(self):
        """Restore the newest checkpoint that can be read; return its number, 0 if the folder has none.

        Raises ValueError for a checkpoint of another model or program, OSError if there are checkpoints but none can be
        read.
        """
        paths = self._paths()
        for path in reversed(paths):
            number = _number(path)
            try:
                self._require_same_model(path)
                self._checkpoint.restore(path).assert_consumed()
            except (tf.errors.OpError, IndexError) as error:  # TensorFlow's reader gives an IndexError for a short file
                print(f"{path} cannot be read, trying the one before: {_line(error)}", flush=True)
            else:
                return number
        if paths:
            raise OSError(f"none of the checkpoints in {self._folder} can be read: empty it to train from the start")
        return 0

    def save(self):
        """Save; the oldest checkpoint goes when the new one is whole. Raises OSError if it cannot be written."""
        self._manager = self._manager or tf.train.CheckpointManager(self._checkpoint, self._folder, self._keep)
        try:
            self._manager.save()
        except (tf.errors.OpError, OSError) as error:
            self._remove_remains()
            raise OSError(f"cannot save in {self._folder}: {_line(error)}") from None

    def _paths(self):
        """Return the checkpoints, oldest first."""
        if not tf.io.gfile.isdir(self._folder):
            return []
        try:
            listed = tf.train.get_checkpoint_state(self._folder)
        except ValueError:  # an empty file
            listed = None
        if listed is None and any(name.endswith(".index") for name in tf.io.gfile.listdir(self._folder)):
            raise OSError(
                f"{self._folder} holds checkpoints, but not their list, the file 'checkpoint': put that back, or empty"
                " the folder"
            )
        return list(listed.all_model_checkpoint_paths) if listed else []

    def _require_same_model(self, path):
        reader = tf.train.load_checkpoint(path)
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for kind, variables in self._state.items():
            count = sum(key.startswith(f"{kind}/") for key in shapes)
            keys = [f"{kind}/{index}/{_VALUE}" for index in range(count)]
            here = [(v.shape.as_list(), tf.as_dtype(v.dtype)) for v in variables]
            if [(shapes.get(key), types.get(key)) for key in keys] != here:
                raise ValueError(
                    f"{path} is of another model or optimizer: its {count} arrays of {kind} are not the {len(here)}"
                    " here. Use a folder of its own, or build and compile the model as it was"
                )

    def _remove_remains(self):
        for name in tf.io.gfile.listdir(self._folder):
            if _REMAINS.fullmatch(name.rstrip("/")):
                path = os.path.join(self._folder, name)
                (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


def _number(path):
    named = re.fullmatch(r"ckpt-(\d+)", os.path.basename(path))
    if not named:
        raise ValueError(f"{path} is not one of Resume's checkpoints, ckpt-1 and so on: use a folder of its own")
    return int(named[1])


def _line(error):
    return str(error).splitlines()[0][:300]
