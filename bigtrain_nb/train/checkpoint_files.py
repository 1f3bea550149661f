"""The checkpoints of one training in a folder: found, checked against the model, restored, saved.

TensorFlow's `Checkpoint` does the work; a checkpoint gets its final name when it is whole.
"""

import os

from bigtrain_nb.advanced.parallel.shards import Unsharded, unsharded
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.train.folder_owner import FolderOwner

_REMAINS = ["ckpt-*_temp", "checkpoint.tmp*"]  # of a save that was cut short
KEPT = 2
"""So many, for the last one may be damaged."""


class CheckpointFiles:
    """Checkpoints in ``folder``, of ``variables``, Keras variables by kind, and of ``more``, trackable objects.

    The newest `KEPT` are kept.
    """

    def __init__(self, folder, variables, **more):
        self._folder = os.fspath(folder)
        self._owner = FolderOwner(folder)
        self._rooms = []  # pairs: what is sharded, and where the whole of it is put while it is saved
        values = {kind: [self._value(variable) for variable in some] for kind, some in variables.items()}
        self._watched = [
            (variable.path, value)
            for kind, some in variables.items()
            for variable, value in zip(some, values[kind], strict=True)
            if value.dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64)
        ]
        self._content = {**more, **values}
        self._checkpoint = tf.train.Checkpoint(**self._content)

    def _value(self, variable):
        variable = unsharded(variable)
        if not isinstance(variable, Unsharded):
            return variable.value
        with tf.device("CPU:0"):
            room = tf.Variable(tf.zeros([0], variable.dtype), shape=tf.TensorShape(None), trainable=False)
        self._rooms.append((variable, room))
        return room

    @property
    def token(self):
        """The number in the note that the chief has written in the folder, 0 for none."""
        return self._owner.token

    @property
    def runs(self):
        """The script and the arguments of this process."""
        return self._owner.runs

    def prepare(self):
        """Make the folder this training's, and clear it of what a killed process left half-done. In the chief.

        Returns the note of the training that used it before, None if there was none. Raises OSError if the folder
        cannot be written, RuntimeError if another training uses it.
        """
        try:
            tf.io.gfile.makedirs(self._folder)
            before = self._owner.take()
            self._remove(*_REMAINS)
            return before
        except tf.errors.OpError as error:
            raise OSError(f"folder={self._folder!r} cannot be written: {_line(error)}") from None

    def restore(self):
        """Restore the newest checkpoint that can be read; return its number, 0 if the folder has none.

        Raises ValueError for a checkpoint of another model or program, OSError if there are checkpoints but none can be
        read.
        """
        numbers = self._numbers()
        for number in reversed(numbers):
            path = os.path.join(self._folder, f"ckpt-{number}")
            try:
                self._restore_what_is_in(path)
                for variable, room in self._rooms:
                    variable.assign(room)
                self.empty_rooms()
                return number
            except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
                raise ValueError(
                    f"{path} is of another model or optimizer: use a folder of its own, or build and compile the model"
                    f" as it was. TensorFlow says: {_line(error)}"
                ) from None
            except (tf.errors.OpError, IndexError) as error:  # TensorFlow's reader gives an IndexError for a short file
                print(f"{path} cannot be read, trying the one before: {_line(error)}", flush=True)
        if numbers:
            raise OSError(f"none of the checkpoints in {self._folder} can be read: empty it to train from the start")
        return 0

    def _restore_what_is_in(self, path):
        """Restore; what an earlier version of this package did not save, ``unlisted``, begins anew."""
        names = [name for name, _ in tf.train.list_variables(path)] if "unlisted" in self._content else ["unlisted/"]
        if any(name.startswith("unlisted/") for name in names):
            self._checkpoint.restore(path).assert_consumed()
            return
        known = {kind: one for kind, one in self._content.items() if kind != "unlisted"}
        earlier = tf.train.Checkpoint(**known)
        earlier.restore(path).assert_consumed()
        self._checkpoint.save_counter.assign(earlier.save_counter)
        print(f"{path} has no state outside Keras' lists, as of stateful RNNs: that restarts", flush=True)

    def gather(self, keep):
        """Gather what is sharded, to be saved; all workers must call it. Those that do not ``keep`` it do not save."""
        for variable, room in self._rooms:
            value = variable.numpy()
            if keep:
                room.assign(value)

    def note_what_is_finite(self):
        """Watch from now on what is finite now: a mask of minus infinity may be a weight too."""
        self._watched = [(path, value) for path, value in self._watched if _is_finite(value)]

    def spoilt(self):
        """Return the path of a variable that was finite and is not, None if there is none; call `gather` before."""
        return next((path for path, value in self._watched if not _is_finite(value)), None)

    def in_use(self):
        """Return a context in which the folder says that it is in use, and refuses other trainings. In the chief."""
        return self._owner.training()

    def save(self):
        """Save; the oldest checkpoint goes when the new one is whole.

        Raises OSError if it cannot be written, RuntimeError if another training has taken the folder.
        """
        self._owner.check()
        try:
            self._checkpoint.save(os.path.join(self._folder, "ckpt"))
            for number in self._numbers()[:-KEPT]:
                self._remove(f"ckpt-{number}.*")
        except (tf.errors.OpError, OSError) as error:
            self._remove(*_REMAINS)
            raise OSError(f"cannot save in {self._folder}: {_line(error)}") from None
        finally:
            self.empty_rooms()

    def empty_rooms(self):
        """Give up what was gathered."""
        for _, room in self._rooms:
            room.assign(tf.zeros([0], room.dtype))

    def _numbers(self):
        """Return the numbers of the checkpoints, the oldest first; a copy by another name, ckpt-best, is let alone."""
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
    """Return the first line of an error; of a long one both ends, for TensorFlow says the reason last."""
    line = str(error).splitlines()[0]
    return line if len(line) <= 300 else f"{line[:100]} ... {line[-200:]}"
