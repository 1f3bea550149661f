"""What Keras' own `fit` and `evaluate` need to work with several workers: made, built and traced at the right time."""

from functools import wraps

from bigtrain_nb.common.batches import count_examples
from bigtrain_nb.common.keras_gaps import Functional, count_by_examples, logs_to_reduce
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.common.replicas import several_workers
from bigtrain_nb.parallel.local_steps import steps_without_logs
from bigtrain_nb.parallel.slices import (
    is_cut,
    own_share,
    save_slots_whole,
    whole,
    whole_batch,
)
from bigtrain_nb.train import refuse
from bigtrain_nb.train.settings import Settings


class Trainer(Settings):
    """A `keras.Model` that builds itself from one replica's batch, and averages metrics and losses by examples."""

    @wraps(keras.Model.fit)
    def fit(self, *arguments, callbacks=None, **settings):
        if self.local_steps:
            callbacks = [self.local_steps, *keras.tree.flatten(callbacks or [])]
        return super().fit(*arguments, callbacks=callbacks, **settings)

    @wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *arguments, **settings):
        refuse.train_on_batch_with_local_steps(self)
        return super().train_on_batch(*arguments, **settings)

    def _get_metrics_result_or_logs(self, logs):
        if self.local_steps:
            return self.get_metrics_result()  # with several workers steps have no logs
        return super()._get_metrics_result_or_logs(logs)

    def make_train_function(self, force=False):
        """Make the function that `fit` calls, ``train_function``.

        The optimizer's variables are made before it is traced: TensorFlow traces a function that makes variables again
        and keeps both, which makes the first step of two replicas take more than twice as long.
        """
        optimizer, variables = self.optimizer, self.trainable_variables
        if isinstance(self, Functional) and variables and optimizer is not None and not optimizer.built:
            with self.distribute_strategy.scope():
                optimizer.build(variables)
        if self.local_steps and several_workers(self.distribute_strategy):
            self.train_function = self.train_function or steps_without_logs(self)
            return
        super().make_train_function(force)

    def test_step(self, data):
        """Evaluate one replica's share of the global batch; return the metrics."""
        self._build_before_tracing(data, always=False)
        if is_cut(self):
            data = whole_batch(data)
        return logs_to_reduce(super().test_step(data), self.distribute_strategy)

    def predict_step(self, data):
        """Return the predictions for one replica's share of the global batch."""
        if not is_cut(self):
            return super().predict_step(data)
        return own_share(super().predict_step(whole_batch(data)), data)

    def get_weights(self):
        """Return the weights as NumPy arrays; one that is cut over replicas is whole, and all workers must ask."""
        return [whole(variable).numpy() for variable in self.weights]

    def set_weights(self, weights):
        """Give all variables of `weights` whole values; each replica takes its slice of those that are cut."""
        for variable, value in zip(self.weights, weights, strict=True):
            whole(variable).assign(value)

    def save_own_variables(self, store):
        save_slots_whole(self)
        super().save_own_variables(store)

    def load_own_variables(self, store):
        save_slots_whole(self)
        if self.local_steps and self.compiled:
            self.local_steps.build(self)  # Keras reads its state next
        super().load_own_variables(store)

    def _build_before_tracing(self, data, always):
        """Make the variables that sums start from and the losses to track; with a strategy, Keras did so already."""
        _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        if self._distribute_strategy is None and (always or keras.tree.is_nested(y)):
            self._symbolic_build(data_batch=data)

    def _compute_loss(self, x=None, *others, **settings):
        with count_by_examples(self, count_examples(x)):
            return super()._compute_loss(x, *others, **settings)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Build from a *local* replica's batch; Keras' own turns the batches of all into one tensor, which raises
        under MultiWorkerMirroredStrategy (keras issue 20585).
        """
        if self._distribute_strategy is None:
            return
        if iterator is not None:
            _, _, epoch = next(iter(iterator))
            data_batch = next(epoch, None)
            if data_batch is None:
                return  # nothing to train on, as at the end of an epoch that is resumed: Keras warns
        local = self.distribute_strategy.experimental_local_results
        super()._maybe_symbolic_build(data_batch=keras.tree.map_structure(lambda value: local(value)[0], data_batch))
