"""The targets and outputs of each loss of `compile`: Keras' own pairing."""

from concurrent.futures import ThreadPoolExecutor

from bigtrain_nb.common.quiet import keras


class _Leaf:
    """A placeholder for a tensor, which Keras can pair with a loss without computing."""

    shape = (1,)

    def __init__(self, value):
        self.value = value


class _Noting(keras.losses.Loss):
    """A placeholder for a loss that records the arguments of Keras' call."""

    def __init__(self, loss, notes):
        super().__init__()
        self.loss = loss
        self.notes = notes

    def __call__(self, y_true, y_pred, sample_weight=None):
        given = [keras.tree.map_structure(lambda leaf: leaf and leaf.value, one) for one in (y_true, y_pred)]
        self.notes.append((self.loss, *given, sample_weight and sample_weight.value))
        return 0.0


def loss_pairs(model, loss, y, outputs, sample_weight=None):
    """Return (loss, its targets, its outputs, their weights) for each loss of `compile`, as Keras pairs them.

    Raises ValueError or KeyError, as `fit` does, if losses, targets and outputs do not match.
    """
    notes = []

    def marked(structure):
        return keras.tree.map_structure(lambda value: None if value is None else _Leaf(value), structure)

    losses = keras.tree.map_structure(lambda one: None if one is None else _Noting(keras.losses.get(one), notes), loss)
    given = [None if one is None else marked(one) for one in (y, outputs, sample_weight)]

    def compute():
        stand_in = keras.Model()
        if hasattr(model, "output_names"):
            stand_in.output_names = model.output_names  # by which `compile` identifies outputs
        stand_in.compile(None, losses)
        stand_in.compute_loss(None, *given)

    with ThreadPoolExecutor(1) as apart:  # outside of a traced step: Keras makes metrics, which have variables
        apart.submit(compute).result()
    return notes
