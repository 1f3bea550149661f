"""A checkpoint's state apart from variables: epoch, step, callbacks' state, each replica's seeds."""

import json

from bigtrain_nb.common.keras_compat import seed_generator
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import all_gather

_SAVED = ("epoch", "step", "length", "callbacks", "history", "seeds", "first_batches", "global_seed", "keras_seed")


class TrainState(tf.train.experimental.PythonState):
    """Training progress, saved in a checkpoint in addition to the variables that are equal on all replicas."""

    def __init__(self, model):
        self.epoch = 0
        self.step = 0
        self.length = None  # batches per epoch, if the dataset does not have a known length
        self.callbacks = {}  # the state of Keras callbacks
        self.history = []  # pairs of an epoch and its logs
        self.seeds = []  # per replica: one with fewer micro-batches has drawn less often
        self.first_batches = []  # of this epoch, from `FirstBatches`
        self.global_seed = None  # TensorFlow's, on which shuffles depend
        self.keras_seed = None  # the state of the generator of keras.random without a seed
        self._strategy = model.distribute_strategy
        weights = {id(weight) for weight in model.weights}
        self._generators = [one for one in model.variables if id(one) not in weights]  # random number generators
        self._states = all_gather(self._strategy, lambda: tf.stack([one.value for one in self._generators]))

    def serialize(self):
        return json.dumps({name: getattr(self, name) for name in _SAVED})

    def deserialize(self, text):
        vars(self).update(json.loads(text))

    def gather_seeds(self):
        """Note the state of each replica's seed generators."""
        drawn = seed_generator.global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
        self.keras_seed = drawn and drawn.state.numpy().tolist()
        if self._generators:
            self.seeds = self._states().tolist()

    def assign_seeds(self):
        """Restore the state of each replica's generators; raise ValueError if the model's number of them differs."""
        if self.keras_seed:
            seed_generator.global_seed_generator().state.assign(self.keras_seed)
        saved = len(self.seeds[0]) if self.seeds else 0
        if saved != len(self._generators):
            raise ValueError(
                f"the checkpoint is of a model with {saved} seed generators, as in Dropout, but this one has"
                f" {len(self._generators)}: build the model as before"
            )
        if self._generators:
            self._strategy.run(tf.function(self._assign))

    def _assign(self):
        states = tf.constant(self.seeds, tf.int64)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group % len(self.seeds)
        for index, variable in enumerate(self._generators):
            variable.assign(states[replica, index])
