"""Which targets and outputs each loss of `compile` gets: Keras' own pairing."""

from concurrent.futures import ThreadPoolExecutor

from bigtrain_nb.common.quiet import keras


class _Leaf:
    """A stand-in for a tensor, which Keras may pair with a loss without computing with it."""

    shape = (1,)

    def __init__(self, value):
        self.value = value


class _Noting(keras.losses.Loss):
    """Stands for a loss, and notes what Keras calls it with."""

    def __init__(self, loss, notes):
        super().__init__()
        self.loss = loss
        self.notes = notes

    def __call__(self, y_true, y_pred, sample_weight=None):
        given = [keras.tree.map_structure(lambda leaf: leaf and leaf.value, one) for one in (y_true, y_pred)]
        self.notes.append((self.loss, *given, sample_weight and sample_weight.value))
        return 0.0


def loss_pairs(model, loss, y, outputs, sample_weight=None):
    """Return (loss, its targets, its outputs, their weights) for each loss that `compile` takes, as Keras pairs them.

    Raises ValueError or KeyError, as `fit` does, where losses, targets and outputs do not belong together.
    """
    notes = []

    def marked(structure):
        return keras.tree.map_structure(lambda value: None if value is None else _Leaf(value), structure)

    losses = keras.tree.map_structure(lambda one: None if one is None else _Noting(keras.losses.get(one), notes), loss)
    given = [None if one is None else marked(one) for one in (y, outputs, sample_weight)]

    def compute():
        stand_in = keras.Model()
        if hasattr(model, "output_names"):
            stand_in.output_names = model.output_names  # by which `compile` knows outputs
        stand_in.compile(None, losses)
        stand_in.compute_loss(None, *given)

    with ThreadPoolExecutor(1) as apart:  # outside of a step that is traced: Keras makes metrics, which are variables
        apart.submit(compute).result()
    return notes
