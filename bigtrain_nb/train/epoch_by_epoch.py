"""One dataset for all epochs: each iteration yields the batches of the currently selected epoch.

`fit` iterates over the same dataset in every epoch, and cannot be given another one.
"""

import warnings

from bigtrain_nb.common.keras_compat import seed_generator
from bigtrain_nb.common.passes import Traits, global_seed, skipping_numbers, traits_of
from bigtrain_nb.common.quiet import tf

OF_A_PIPELINE = "dataclasses.replace(pipeline, seed=epoch).dataset()"


class EpochByEpoch:
    """The datasets that ``make_epoch(number)`` returns for each epoch, as one ``dataset`` for `fit`.

    ``first``: the dataset of the starting epoch, or of the last one if none is left, and its ``number``. ``length``:
    batches per epoch or None. For a partial epoch, the dataset still reports the full length, because Keras uses that
    of the first epoch for all. An epoch read from its start passes through ``noting``, a function that returns a
    dataset with the same batches. ``seed``: TensorFlow's global seed when an epoch's dataset was last made;
    ``sets_seed``: whether ``make_epoch`` itself has changed it.
    """

    def __init__(self, make_epoch, epoch, length, noting, step=0):
        self._make_epoch = make_epoch
        self._noting = noting
        self._last = None, Traits()
        self._has_warned = False
        self.sets_seed = False
        try:
            self.number, self.first = epoch, self.made(epoch)
        except Exception as problem:  # after the last epoch there may be no other; `select_epoch` raises again
            if not epoch or step:
                raise
            try:
                self.number, self.first = epoch - 1, self.made(epoch - 1)
            except Exception:
                raise problem from None
        first = self.first
        self._spec = first.element_spec
        self.length = length_of(first)
        self._is_known = self.length is not None
        self.length = self.length if self._is_known else length
        self._open = _variable(tf.data.experimental.to_variant(first))
        self._times_opened = _variable(tf.constant(0, tf.int64))
        self._kept = (first,)  # keeps its resources alive
        self.dataset = self._dataset().with_options(first.options())
        self.dataset.first_epoch = first  # the graph of `dataset`, with a variable, does not show the order

    @property
    def times_opened(self):
        return int(self._times_opened)

    def select_epoch(self, epoch, done=0):
        """Select an epoch for the next iteration, without its first ``done`` batches."""
        made = self.made(epoch)
        length = length_of(made)
        if (self._is_known and length != self.length) or not tf.data.DatasetSpec(self._spec).is_compatible_with(made):
            raise ValueError(
                f"make_epoch({epoch}) has {length} batches of {made.element_spec}, but the first epoch had"
                f" {self.length} of {self._spec}: give all the same parts, dtypes and length: dataset.take(batches)"
            )
        if done:  # the first try may have drawn from a generator of Python's
            left = skipping_numbers(made, done, may_try=True) or self.made(epoch).skip(done)
        else:
            left = self._noting(made)
        self._turn_to(left, made)

    def select_nothing(self):
        """Select no batches: at the end of an epoch, Keras opens its dataset once more and closes it."""
        self._turn_to(self._kept[0].take(0))

    def count(self, epoch):
        """Return the number of batches in an epoch of unknown length, by reading and discarding them."""
        return int(self.made(epoch).reduce(tf.constant(0, tf.int64), lambda number, *_: number + 1))

    def _turn_to(self, *datasets):
        self._open.assign(tf.data.experimental.to_variant(datasets[0]))
        self._kept = datasets

    def made(self, epoch):
        """Return the dataset of an epoch; raise as `Resume.data` does for one that cannot be reproduced."""
        before = global_seed()
        generator = seed_generator.global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
        made = self._make_epoch(epoch)
        if generator is not None:  # a traced step keeps it, also after `keras.utils.set_random_seed`
            seed_generator.global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)
        self.seed = global_seed()
        self.sets_seed |= self.seed != before
        if not isinstance(made, tf.data.Dataset):
            raise TypeError(
                f"make_epoch({epoch}) must return a tf.data.Dataset of batches, not {made!r:.99}; for a Pipeline,"
                f" return {OF_A_PIPELINE}"
            )
        self._refuse_random_order(epoch, made)
        return made

    def _refuse_random_order(self, epoch, made):
        """Raise ValueError if another call of ``make_epoch``, for example after a restart, gives another order."""
        traits = traits_of(made)
        if traits.keeps_order is False:
            raise ValueError(
                f"the dataset of make_epoch({epoch}) has deterministic=False and yields elements in nondeterministic"
                " order, which differs after a restart: leave out deterministic"
            )
        if traits.unknown and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"could not check that the dataset of make_epoch({epoch}) has the same order after a restart, because"
                f" its graph cannot be serialized ({traits.unknown}); only its first batches are compared. Give shuffle"
                " a seed, and do not set deterministic=False",
                stacklevel=2,
            )
        before, traits_before = self._last
        self._last = epoch, traits
        found, shuffles_before = traits.shuffles or [], traits_before.shuffles or []
        seeds = [seeds for seeds, _ in found]
        by_chance = (0, 0) in seeds or (before == epoch and seeds != [seeds for seeds, _ in shuffles_before])
        goes_on = {memory for _, memory in found} & {memory for _, memory in shuffles_before} - {None}
        if by_chance or goes_on:
            why = "without a seed of its own" if by_chance else "outside of make_epoch, with a new order in each pass"
            raise ValueError(
                f"the dataset of make_epoch({epoch}) shuffles {why}, so its order would differ after a restart: some"
                " examples would be trained twice and others never. Call dataset.shuffle(buffer, seed=epoch) in"
                " make_epoch, and give sample_from_datasets a seed too"
            )
        has_seeds = traits.seeds and (0, 0) not in traits.seeds
        if has_seeds and before not in (None, epoch) and traits.seeds == traits_before.seeds and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"make_epoch({epoch}) shuffles or augments with the same seeds as make_epoch({before}): unless their"
                " examples differ, both epochs have the same order and the same random changes. Give each epoch its own"
                f" seed: dataset.shuffle(buffer, seed=epoch) or, for a Pipeline, {OF_A_PIPELINE}",
                stacklevel=2,
            )

    def _dataset(self):
        def batches(_):
            self._times_opened.assign_add(1)
            return tf.data.experimental.from_variant(self._open.value(), self._spec)

        dataset = tf.data.Dataset.from_tensors(0).flat_map(batches)
        return dataset if self.length is None else _of_length(dataset, self.length)


def _variable(value):
    """Return a variable of this process, although a strategy's scope makes one per replica."""
    with tf.device("CPU:0"):
        variable = tf.Variable(value, trainable=False)
    return tf.distribute.get_strategy().experimental_local_results(variable)[0]


def length_of(dataset):
    """Return the number of batches, None if unknown; raise ValueError for an infinite number."""
    length = int(dataset.cardinality())
    if length == tf.data.INFINITE_CARDINALITY:
        raise ValueError("the dataset of an epoch is infinite; use dataset.take(steps)")
    return length if length >= 0 else None


def _of_length(dataset, length):
    """Give a dataset a length, even if it has fewer batches once, for which `assert_cardinality` would raise.

    A second, infinite choice, which is never chosen, makes tf.data assume that there are enough batches to take.
    """
    only_first = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).repeat()
    choices = [dataset, dataset.repeat()]
    return tf.data.Dataset.choose_from_datasets(choices, only_first, stop_on_empty_dataset=True).take(length)
