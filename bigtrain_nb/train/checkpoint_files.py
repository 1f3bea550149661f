"""The checkpoints of one training in a folder: found, checked against the model, restored, saved.

TensorFlow's `Checkpoint` and `CheckpointManager` do the work; a checkpoint gets its final name when it is whole.
"""

import os

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.parallel.slices import Whole

_REMAINS = ["ckpt-*_temp", "checkpoint.tmp*"]  # of a save that was cut short


class CheckpointFiles:
    """Checkpoints in ``folder``, of ``variables``, Keras variables by kind, and of ``more``, trackable objects.

    The newest ``keep`` are kept.
    """

    def __init__(self, folder, keep, variables, **more):
        self._folder = os.fspath(folder)
        self._keep = keep
        self._rooms = []  # pairs: all parts of a slot of a sharded optimizer, and where they are put while it is saved
        values = {kind: [self._value(variable) for variable in some] for kind, some in variables.items()}
        self._checkpoint = tf.train.Checkpoint(**more, **values)
        self._manager = None

    def _value(self, variable):
        if not isinstance(variable, Whole):
            return variable.value
        with tf.device("CPU:0"):
            room = tf.Variable(tf.zeros([0], variable.dtype), shape=tf.TensorShape(None), trainable=False)
        self._rooms.append((variable, room))
        return room

    def prepare(self):
        """Make the folder, and clear it of what a killed process left half-done.

        Raises OSError if it cannot be written.
        """
        try:
            tf.io.gfile.makedirs(self._folder)
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
                self._checkpoint.restore(path).assert_consumed()
                self._cut()
                return int(path.rpartition("-")[2])
            except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
                raise ValueError(
                    f"{path} is of another model or optimizer: use a folder of its own, or build and compile the model"
                    f" as it was. TensorFlow says: {_line(error)}"
                ) from None
            except (tf.errors.OpError, IndexError) as error:  # TensorFlow's reader gives an IndexError for a short file
                print(f"{path} cannot be read, trying the one before: {_line(error)}", flush=True)
        if paths:
            raise OSError(f"none of the checkpoints in {self._folder} can be read: empty it to train from the start")
        return 0

    def gather(self, keep):
        """Gather what is sharded, to be saved; all workers must call it. Those that do not ``keep`` it do not save."""
        for slot, room in self._rooms:
            whole = slot.numpy()
            if keep:
                room.assign(whole)

    def save(self):
        """Save; the oldest checkpoint goes when the new one is whole. Raises OSError if it cannot be written."""
        if self._manager is None:
            self._manager = tf.train.CheckpointManager(self._checkpoint, self._folder, self._keep)
        try:
            self._manager.save()
        except (tf.errors.OpError, OSError) as error:
            self._remove_remains()
            raise OSError(f"cannot save in {self._folder}: {_line(error)}") from None
        finally:
            self._empty_rooms()

    def _cut(self):
        for slot, room in self._rooms:
            slot.assign(room)
        self._empty_rooms()

    def _empty_rooms(self):
        for _, room in self._rooms:
            room.assign(tf.zeros([0], room.dtype))

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

    def _remove_remains(self):
        for pattern in _REMAINS:
            for path in tf.io.gfile.glob(os.path.join(self._folder, pattern)):
                tf.io.gfile.rmtree(path)


def _line(error):
    return str(error).splitlines()[0][:300]
