"""Find, check, restore and save the checkpoints of one training run in a folder.

TensorFlow's `Checkpoint` does the work; a checkpoint gets its final name when it is complete.
"""

import os

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import full_variable
from bigtrain_nb.train.folder_owner import FolderOwner

_TEMPORARY_FILES = ["ckpt-*_temp", "checkpoint.tmp*"]  # of an interrupted save
KEPT = 2
"""Number of checkpoints to keep, because the last one may be damaged."""


class CheckpointFiles:
    """Checkpoints in ``folder`` of ``variables`` (Keras variables by kind) and ``more`` (trackable objects).

    The newest `KEPT` are kept.
    """

    def __init__(self, folder, variables, **more):
        self._folder = os.fspath(folder)
        self.owner = FolderOwner(folder)
        self._gather_buffers = []  # pairs: a sharded variable, and a variable for its unsharded value while saving
        values = {kind: [self._value(variable) for variable in some] for kind, some in variables.items()}
        self._watched = [
            (variable.path, value)
            for kind, some in variables.items()
            for variable, value in zip(some, values[kind], strict=True)
            if value.dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64)
        ]
        self._checkpoint = tf.train.Checkpoint(**more, **values)

    def _value(self, variable):
        variable = full_variable(variable)
        if isinstance(variable, keras.Variable):
            return variable.value
        with tf.device("CPU:0"):
            room = tf.Variable(tf.zeros([0], variable.dtype), shape=tf.TensorShape(None), trainable=False)
        self._gather_buffers.append((variable, room))
        return room

    def prepare(self):
        """As the chief, take the folder for this run, and remove incomplete files of a killed process.

        Returns the note of the run that used it before, None if there was none. Raises OSError if the folder cannot be
        written, RuntimeError if another run uses it.
        """
        try:
            tf.io.gfile.makedirs(self._folder)
            before = self.owner.take()
            self._remove(*_TEMPORARY_FILES)
            return before
        except tf.errors.OpError as error:
            raise OSError(f"folder={self._folder!r} cannot be written: {_line(error)}") from None

    def restore(self):
        """Restore the newest readable checkpoint; return its number, 0 if the folder has none.

        Raises ValueError for a checkpoint of another model or optimizer, OSError if there are some, none readable.
        """
        numbers = self._numbers()
        for number in reversed(numbers):
            path = os.path.join(self._folder, f"ckpt-{number}")
            try:
                self._checkpoint.restore(path).assert_consumed()
                for variable, room in self._gather_buffers:
                    variable.assign(room)
                self._free_gathered()
                return number
            except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
                raise ValueError(
                    f"{path} belongs to another model or optimizer: use a separate folder, or build and compile the"
                    f" model as before. TensorFlow says: {_line(error)}"
                ) from None
            except (tf.errors.OpError, IndexError) as error:  # TensorFlow's reader raises IndexError for short files
                print(f"{path} cannot be read, trying the previous one: {_line(error)}", flush=True)
        if numbers:
            raise OSError(f"none of the checkpoints in {self._folder} can be read: empty it to train from the start")
        return 0

    def watch_only_finite(self):
        """Watch only variables that are finite now, because a weight may be a mask of minus infinity."""
        self._watched = [(path, value) for path, value in self._watched if _is_finite(value)]

    def save(self, is_chief):
        """Gather sharded variables; as the chief, save, then delete all but the newest `KEPT` checkpoints.

        All workers must call it. Returns the path of a variable that is no longer finite, if any: then nothing is
        saved. Raises OSError if it cannot be written, RuntimeError if another run has taken the folder.
        """
        for variable, room in self._gather_buffers:
            value = variable.numpy()
            if is_chief:
                room.assign(value)
        if not is_chief:
            return None
        self.owner.check()
        try:
            for path, value in self._watched:
                if not _is_finite(value):
                    return path
            self._checkpoint.save(os.path.join(self._folder, "ckpt"))
            for number in self._numbers()[:-KEPT]:
                self._remove(f"ckpt-{number}.*")
        except (tf.errors.OpError, OSError) as error:
            self._remove(*_TEMPORARY_FILES)
            raise OSError(f"cannot save in {self._folder}: {_line(error)}") from None
        finally:
            self._free_gathered()

    def _free_gathered(self):
        for _, room in self._gather_buffers:
            room.assign(tf.zeros([0], room.dtype))

    def _numbers(self):
        """Return the numbers of the checkpoints, oldest first, ignoring other names such as ckpt-best."""
        found = tf.io.gfile.glob(os.path.join(self._folder, "ckpt-*.index"))
        names = [os.path.basename(path).removeprefix("ckpt-").removesuffix(".index") for path in found]
        return sorted(int(name) for name in names if name.isdecimal())

    def _remove(self, *patterns):
        for pattern in patterns:
            for path in tf.io.gfile.glob(os.path.join(self._folder, pattern)):
                tf.io.gfile.rmtree(path)


def _is_finite(value):
    return bool(tf.reduce_all(tf.math.is_finite(value)))


def _line(error):
    """Return the first line of an error; both ends of a long one, because TensorFlow puts the reason last."""
    line = str(error).splitlines()[0]
    return line if len(line) <= 300 else f"{line[:100]} ... {line[-200:]}"
