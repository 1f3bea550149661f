"""The checkpoints of one training in a folder: found, checked against the model, restored, saved.

TensorFlow's `Checkpoint` and `CheckpointManager` do the work; a checkpoint gets its final name when it is whole.
"""

import os

from bigtrain_nb.common.quiet import tf

_VALUE = ".ATTRIBUTES/VARIABLE_VALUE"  # how a variable's key ends in TensorFlow's format
_REMAINS = ["ckpt-*_temp", "checkpoint.tmp*"]  # of a save that was cut short


class CheckpointFiles:
    """Checkpoints in ``folder``, of ``variables``, Keras variables by kind, and of ``more``, trackable objects.

    The newest ``keep`` are kept.
    """

    def __init__(self, folder, keep, variables, **more):
        self._folder = os.fspath(folder)
        self._keep = keep
        self._variables = variables
        values = {kind: [variable.value for variable in some] for kind, some in variables.items()}
        self._checkpoint = tf.train.Checkpoint(**more, **values)
        self._manager = None

    def prepare(self):
        """Make the folder, see that it can be written, and clear it of what a killed process left half-done.

        Raises OSError if it cannot be written.
        """
        try:
            tf.io.gfile.makedirs(self._folder)
            with tf.io.gfile.GFile(os.path.join(self._folder, "checkpoint.tmp"), "w") as probe:
                probe.write("this folder can be written")
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
            try:
                self._require_same_model(path)
                self._checkpoint.restore(path).assert_consumed()
                return int(path.rpartition("-")[2])
            except (tf.errors.OpError, IndexError) as error:  # TensorFlow's reader gives an IndexError for a short file
                print(f"{path} cannot be read, trying the one before: {_line(error)}", flush=True)
        if paths:
            raise OSError(f"none of the checkpoints in {self._folder} can be read: empty it to train from the start")
        return 0

    def save(self):
        """Save; the oldest checkpoint goes when the new one is whole. Raises OSError if it cannot be written."""
        if self._manager is None:
            self._manager = tf.train.CheckpointManager(self._checkpoint, self._folder, self._keep)
        try:
            self._manager.save()
        except (tf.errors.OpError, OSError) as error:
            self._remove_remains()
            raise OSError(f"cannot save in {self._folder}: {_line(error)}") from None

    def _paths(self):
        """Return the checkpoints, oldest first."""
        try:
            listed = tf.train.get_checkpoint_state(self._folder)
        except ValueError:  # an empty file
            listed = None
        if listed:
            return list(listed.all_model_checkpoint_paths)
        if tf.io.gfile.glob(os.path.join(self._folder, "*.index")):
            raise OSError(
                f"{self._folder} holds checkpoints, but not their list, the file 'checkpoint': put that back, or empty"
                " the folder"
            )
        return []

    def _require_same_model(self, path):
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        types = reader.get_variable_to_dtype_map()
        for kind, variables in self._variables.items():
            saved = [key for key in shapes if key.startswith(f"{kind}/")]
            expected = {}
            for index, variable in enumerate(variables):
                expected[f"{kind}/{index}/{_VALUE}"] = variable.shape.as_list(), tf.as_dtype(variable.dtype)
            if {key: (shapes[key], types[key]) for key in saved} != expected:
                raise ValueError(
                    f"{path} is of another model or optimizer: its {len(saved)} arrays of {kind} are not the"
                    f" {len(variables)} here. Use a folder of its own, or build and compile the model as it was"
                )

    def _remove_remains(self):
        for pattern in _REMAINS:
            for path in tf.io.gfile.glob(os.path.join(self._folder, pattern)):
                tf.io.gfile.rmtree(path)


def _line(error):
    return str(error).splitlines()[0][:300]
