"""Epoch, step and each replica's seeds: what a checkpoint holds beside the variables."""

import json

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.train.preemption import from_all


class Position(tf.train.experimental.PythonState):
    """Where a training stands: what its checkpoint holds beside the variables that are the same on all replicas."""

    def __init__(self, model):
        weights = {id(weight) for weight in model.weights}
        self._generators = [v for v in model.variables if id(v) not in weights]  # Keras' seed generators' states
        self._strategy = model.distribute_strategy
        self._states = from_all(self._strategy, lambda: tf.stack([v.value for v in self._generators]))
        self.epoch, self.step, self.seeds = 0, 0, []

    def serialize(self):
        return json.dumps({"epoch": self.epoch, "step": self.step, "seeds": self.seeds})

    def deserialize(self, text):
        vars(self).update(json.loads(text))

    def gather_seeds(self):
        """Note the state of each replica's generators: one with fewer slices of a batch has drawn less often."""
        if self._generators:
            self.seeds = self._states().tolist()

    def assign_seeds(self):
        """Give each replica's generators their state back; raise ValueError if the model has not as many."""
        count, replicas = len(self._generators), len(self.seeds) or 1
        states = tf.reshape(tf.constant(self.seeds, tf.int64), [replicas, -1, 2])
        if states.shape[1] != count:
            raise ValueError(
                f"the checkpoint is of a model with {states.shape[1]} seed generators, as in Dropout, and this one has"
                f" {count}: build the model as it was"
            )

        @tf.function
        def assign():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for index, variable in enumerate(self._generators):
                variable.assign(states[replica % replicas, index])

        self._strategy.run(assign)
