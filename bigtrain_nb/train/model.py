"""A `keras.Model` that trains the same way on one device, several, or several workers, optionally in micro-batches.

One idea fixes most errors of stock Keras 3 here: a step's gradients are summed over micro-batches and reduced over
replicas **once**, before anything else uses them. So clipping, weight decay and the finite check of loss scaling see
the global batch's mean gradient, the same on every replica.

The file is in this order: making or converting a model, choosing its reduction, a step, support for Keras `fit`, files,
and checks that refuse settings.
"""

import inspect
import math
import os
import warnings
import zlib
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from functools import partial, wraps
from typing import Any, Self, TypeVar, Unpack

from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.keras_compat import (
    Functional,
    after,
    already_reduced,
    as_scalar,
    assigned_together,
    batch_of_zeros,
    build_like_fit,
    callbacks_in,
    count_by_examples,
    has_seen_examples,
    layers_within,
    logs_to_reduce,
    losses_of_one_device,
    losses_watched,
    outputs_of,
    overriding,
    parts_of,
    patched_method,
    synchronized_layers,
)
from bigtrain_nb.common.layers import scale_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import (
    all_gather,
    full_variable,
    full_weights,
    is_shard,
    set_full_weights,
    several_workers,
    sum_over_replicas,
)
from bigtrain_nb.train import in_place
from bigtrain_nb.train.batches import (
    check_equal_lengths,
    checked_datasets,
    count_examples,
    dense,
    loss_reduction,
    means_of_logs,
    sum_over_micro_batches,
)
from bigtrain_nb.train.data_order import SharedDataOrder
from bigtrain_nb.train.loss_reduction import check_losses, refuse_outputs_of_pairs, unmasked_share
from bigtrain_nb.train.multi_step import steps_in_one_program, steps_in_python_loop
from bigtrain_nb.train.own_step import in_own_step
from bigtrain_nb.train.reduction import reduction_class, reduction_for
from bigtrain_nb.train.settings import SETTINGS, Settings, checked, naming_settings

_Method = TypeVar("_Method", bound=Callable)

PIECES = "gradient_pieces"  # in the logs of a replica's step: the measurements of its micro-batches


def _shown_as(method: _Method) -> Callable[[Callable], _Method]:
    """Give our method the signature and docstring of the Keras one, for type checkers too."""
    return wraps(method)


class Model(keras.Model):
    r"""A `keras.Model`, functional or subclassed, that trains the same on one device, several, or several workers.

    `Model.of` converts an existing model. Pass the same dataset as for one device. In `fit`, `evaluate`, `predict` and
    `train_on_batch`, without a strategy, under MirroredStrategy and MultiWorkerMirroredStrategy:

    - ``micro_batches=K``: a replica computes its share of the batch in at most K micro-batches of ceil(share / K)
      examples (with sharded layers, exactly K, whose sizes differ by at most one), and applies the sum of their
      gradients once. Peak memory falls with K.
    - ``shard_optimizer=True`` (ZeRO stage 1, `ShardedMean`): each of N replicas keeps 1/N of the optimizer state and
      updates 1/N of each weight. With Keras SGD, RMSprop, Adam, AdamW, Adamax, Nadam, Adagrad, Adadelta, Ftrl, Lion.
    - ``fully_shard=r"transformer_layer_\d+"`` (ZeRO stage 3, `FullyShardedMean`): each of N replicas keeps 1/N of these
      layers' weights, gradients and optimizer state; a layer is gathered whenever it is computed: in the forward pass,
      and again in the backward pass. A regular expression for full names, a function of a layer, or a list of layers;
      with the same optimizers. The layers are changed in place, permanently.
    - ``reduce_dtype="bfloat16"``: gradients are reduced between replicas in half the bytes, with 8 significant bits.

    The applied gradient is the mean over the global batch, however unevenly it splits. So are metrics whose variables
    are sums and counts, as in all Keras metrics: they are summed over replicas. A custom metric that keeps a mean in a
    variable shows a sum of means; keep a sum and a count instead. The result of a custom `compute_loss` is taken, as on
    one device, as the mean over the examples that it was given; `fit` examines it like a custom loss. These differ from
    stock Keras on one device:

    - layers with batch statistics, random numbers or added losses, such as expert load balancing, see a micro-batch of
      a replica's share; moving statistics are averaged over replicas
    - losses of masked outputs, and those with ``ignore_class``, are exact for a single loss; for several losses with
      masks they are means over the valid positions of a micro-batch, not of the batch, and `fit` warns
    - losses that return one value per batch, like `Dice`, or compare examples, like `Circle`, are computed for each
      micro-batch of a replica's share; their mean by examples is that of the batch only if they are means over
      examples. `fit` warns of them by name, and calls custom losses with random inputs to find out. It refuses a loss
      that grows with batch size, such as a sum divided by the global batch size, unless it has
      ``reduction="sum"``; and losses and outputs of pairs of examples, (N, N), and losses that change variables. It
      warns of losses that layers add. Custom metrics that count calls or compute one value per batch see micro-batches
    - several workers each read the full dataset and keep their share of each batch, unless the dataset sets an
      AutoShardPolicy. If their first batches differ, as after an unseeded `shuffle`, `fit` and `evaluate` raise
    - non-trainable state of custom layers stays local to each replica; a file has that of the first
    - the loss of a single output weights a batch by its examples; stock weights a short last batch like a full one
    - a custom `compute_metrics` shows metrics' own results, and the means over the examples of values that it adds.
      With micro-batches or replicas, metrics see the weights before the update, and a compiled step refuses such a
      value if it depends on the loss
    - ``mixed_float16`` may skip other steps, because an overflow in one micro-batch skips the entire step
    - an embedding row that is used several times has one gradient. Stock Adam squares, and stock clipping measures,
      that of each use separately (8e-3 apart after six steps of a small BERT); with SGD there is no difference
    - the end of a dataset of unknown size is not counted as a step, nor as a batch in the means of losses and metrics

    If XLA compiles the steps of one device (``compile(jit_compile=True)``, automatic on a GPU),
    ``steps_per_execution=K`` makes one program of K steps, so that a GPU does not wait between them: K batches of one
    shape are on the device at once, another shape is a separate program, and callbacks come after K steps, as in Keras.

    `save` and `save_weights` write an ordinary file, which replaces the old one once it is complete. All workers may
    save to one path. The settings are not saved: pass them to `bigtrain_nb.load_model`, or, after loading with Keras,
    to `Model.of`. `clone_model` returns a stock model.

    Raises TypeError for an unknown argument, and for a custom `train_step` or `test_step` that bypasses these settings;
    ValueError for invalid values, for settings that cannot be combined (bigtrain_nb/advanced/parallel/__init__.py has
    the table), and, with the remedy, for optimizers, losses, layers and batches that cannot be split: undeclared sums,
    tensors that do not share the first axis, batches in micro-batches that are not dense, stateful RNNs.

    Example::

        inputs = keras.Input((8,))
        model = bt.Model(inputs, keras.layers.Dense(1)(inputs), micro_batches=4)
        model.compile("adam", "mse")
        model.fit(tf.ones([64, 8]), tf.ones([64, 1]), batch_size=32)
    """

    stands_for_keras = True  # for `overriding`

    _reduction = None
    _orders = None  # `SharedDataOrder` of several workers
    _noise = None  # gradient noise, if measured
    _is_running = False  # in `fit`, `evaluate` or `predict`

    # Making or converting a model

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if cls is not Model or not _is_functional(args, kwargs):
            return super().__new__(cls)
        _refuse_unknown("Model(inputs, outputs)", kwargs, ("inputs", "outputs", "name", "trainable", *SETTINGS))
        settings = {name: kwargs.pop(name) for name in SETTINGS if name in kwargs}
        return Model.of(keras.Model(*args, **kwargs), **settings)

    def __init__(self, *args: Any, **kwargs: Any):
        settings = {name: kwargs.pop(name) for name in SETTINGS if name in kwargs}
        if _is_functional(args, kwargs):
            # Only the constructor shows that a subclass is functional. Keras would rewrite the bases of its classes
            self.__class__ = in_place.made_class((type(self), Functional), own=type(self))
        super().__init__(*args, **kwargs)
        for name, value in settings.items():
            setattr(self, name, value)

    @classmethod
    def of(cls, model: Any, **settings: Unpack[Settings]) -> "Model":
        """Convert a Keras model in place and return it: *the same object*, which now trains as a `Model`.

        It keeps its class, methods and preprocessor, its `call`, `compute_loss` and `compute_metrics`, and its file
        format, which loads as the stock model without this package. A compiled model stays compiled, with its optimizer
        state; a built optimizer is copied if ``shard_optimizer`` changes. ``settings`` are those of `Model`; another
        call changes only those that are passed.

        ``model`` may also be a function that builds one, for a model larger than the memory of one device: with
        ``fully_shard``, these layers' weights are sharded before they are created.

        The settings apply to steps of the model whose `fit` is called, not of a larger model that contains it.

        Raises TypeError if ``model`` is not a Keras model, and for a custom `train_step` or `test_step` together with
        any setting or several replicas; ValueError for a model that was made outside this strategy's scope.
        """
        _refuse_unknown("Model.of", settings, tuple(SETTINGS))
        given = model
        if (inspect.isroutine(given) or isinstance(given, partial)) and takes(given):
            layers = settings.get("fully_shard")
            model = given() if layers is None else reduction_class("fully_shard").build(given, layers)
        if not isinstance(model, keras.Model):
            raise TypeError(f"Model.of takes a Keras model, or a function that builds one, not {given!r}")
        _refuse_same_names(model)
        _refuse_other_strategy(model)
        settings = checked(model, settings)
        before = model.state_in_place() if isinstance(model, Model) else {}
        _refuse_hidden_steps(model, {**before, **settings})
        in_place.become(model, cls, **settings)
        model.train_function = model.test_function = model.predict_function = None
        model.choose_reduction()
        return model

    def state_in_place(self):
        return {name: getattr(self, name) for name in SETTINGS}

    __reduce__ = in_place.reduce_with_changes

    def __setattr__(self, name, value):
        """Set an attribute; a new value of a setting takes effect at the next `fit`.

        Raises RuntimeError during `fit`, `evaluate` or `predict`, callbacks included, if it is the value of a setting.
        """
        if name in SETTINGS and self._is_running:
            raise RuntimeError(
                f"{name} cannot change during fit, evaluate or predict, whose steps are made at the start: set"
                f" model.{name} before. To train some epochs with another value, call fit twice, the second time with"
                " initial_epoch"
            )
        if name in SETTINGS:
            value = checked(self, {name: value})[name]
            self.train_function = self.test_function = self.predict_function = None
        super().__setattr__(name, value)

    @property
    def loss_scale(self) -> float | None:
        """The factor on the loss under "mixed_float16", as a float; None without loss scaling."""
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return scale_of(optimizer)
        return None

    # Compiling, and choosing the reduction over replicas

    @_shown_as(keras.Model.compile)
    def compile(self, *args, **kwargs):
        _refuse_other_scope(self)
        super().compile(*args, **kwargs)
        self._reduction = None
        object.__setattr__(self, "_noise", None)
        self.choose_reduction()

    def compile_from_config(self, config):
        """Compile a loaded model, as Keras does if `compile` is not overridden."""
        if overriding(self, "compile"):
            super().compile_from_config(config)  # which only warns
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def choose_reduction(self):
        """Return the reduction over replicas that the current settings need.

        Called wherever that may have changed: in `of`, `compile` and `fit`, and when step functions are made. A new
        kind of reduction adapts the optimizer. Raises ValueError if the settings need two kinds.
        """
        kind = reduction_for(self)
        kind.prepare(self)
        if type(self._reduction) is not kind:
            reduction = kind(self)
            reduction.convert_optimizer()
            self._reduction = reduction  # last, so that an error is raised again next time
        return self._reduction

    def measure_gradients(self, kind):
        """Let steps measure gradient noise, until `compile`, with ``kind(self)``; return it."""
        if self._noise is None:
            object.__setattr__(self, "_noise", kind(self))  # Keras tracks any other attribute
            self.train_function = None
        return self._noise

    @property
    def replica_reduction(self):
        return self._reduction or self.choose_reduction()

    # A step

    def train_step(self, data):
        """Train on one replica's share of the global batch; return the metrics."""
        if overriding(self, "train_step", behind=Model):
            return super().train_step(data)
        share, shown = self._share_of_batch(data, training=True), set()
        with self._at_work(share):
            in_step = share.reduction.replicas > 1 and bool(assigned_together(self))
            step = sum_over_micro_batches(partial(self._forward_and_gradients, shown), share, in_step)
        pieces = step["logs"].pop(PIECES, None)
        step = share.reduction.reduce(step, share)  # gradients of the global batch, scaled, perhaps shards, not clipped
        if self._noise is not None:
            self._noise.add(pieces, step, share)
        self._update({**step, "gradients": share.reduction.finish(step["gradients"])}, share)
        logs = means_of_logs(step["logs"]) if step["logs"] else {}
        if not share.is_partial:  # after the update, as in stock
            are_made = self._compile_metrics is None or self._compile_metrics.built
            with after(share.data) if are_made else nullcontext():
                logs = share.update_metrics(step["outputs"], shown)
        logs.update({name: log for name, log in self.get_metrics_result().items() if name in shown})
        return logs_to_reduce(logs, self.distribute_strategy)

    def _share_of_batch(self, data, training):
        """Return this replica's `ReplicaBatch`, for all functions of a step.

        Variables for sums and tracked losses are made before; with a strategy, Keras has done so already.
        """
        self._ours_was_called = True
        _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        in_pieces = training and self.micro_batches > 1
        can_be_built = all(isinstance(part, tf.Tensor) for part in keras.tree.flatten(data) if part is not None)
        traced_with_several_losses = keras.tree.is_nested(y) and not tf.executing_eagerly() and can_be_built
        if self._distribute_strategy is None and (in_pieces or traced_with_several_losses):
            eagerly = tf.executing_eagerly()  # then metrics may be in plain Python, which needs values
            with patched_method(self, "compute_metrics", lambda *_, **__: {}) if eagerly else nullcontext():
                build_like_fit(self, data, with_optimizer=training)
            if in_pieces:
                _refuse_optimizer(self)  # a MultiOptimizer may know its optimizers only now
        return self.replica_reduction.share(data, training)

    @contextmanager
    def _at_work(self, share):
        """Let a replica compute once its batch is available, with the losses of one device.

        The result of `compute_loss`, including custom terms, is then the mean over the examples that it sees. Sums are
        left to Keras, which sums them over replicas and divides losses added by layers by the number of replicas.
        """
        there = after(share.data) if self.built else nullcontext()  # variables made here must not depend on the data
        losses = nullcontext() if share.loss_factor > 1 else losses_of_one_device()
        with share.reduction.step_context(), there, losses:
            yield

    def _forward_and_gradients(self, shown, share):
        """Return the loss, gradients and logs of a share, times its part of the batch; update the metrics.

        The loss is multiplied by the part before differentiation, so the sum over micro-batches is the share's mean.
        """
        with tf.GradientTape() as tape:
            y_pred, loss, left = self._outputs_and_loss(share, training=True)
            counts = share.part if left is None else left * tf.cast(share.part, left.dtype)
            loss = tf.math.multiply_no_nan(loss, tf.cast(counts * share.loss_factor, loss.dtype))
            scaled_loss = self.optimizer.scale_loss(loss) if self.optimizer else loss
        weights = self.trainable_variables
        gradients = {}
        for index, gradient in enumerate(tape.gradient(scaled_loss, weights)):
            if gradient is not None:
                gradients[index] = dense(gradient, weights[index])
        others = share.update_metrics(y_pred, shown, self._loss_tracker) if share.is_partial else {}
        logs = share.by_examples(others) if others else {}
        if self._noise is not None:
            logs[PIECES] = self._noise.micro_batch_squares(gradients, counts, share.reduction.replicas)
        step = {"loss": loss, "gradients": gradients, "logs": logs}
        if not share.is_partial:
            step["outputs"] = y_pred
        return step if left is None else {**step, "left": counts}

    def _outputs_and_loss(self, share, training):
        """Return the outputs for a share, its loss, and `unmasked_share`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(share.data)
        with in_own_step(self):
            y_pred = outputs_of(self, x, training)
        with count_by_examples(self, share.examples, share.times), losses_watched(self) as watched:
            loss = as_scalar(super()._compute_loss(x, y, y_pred, sample_weight, training))
            has_own = "compute_loss" in vars(self) or overriding(self, "compute_loss")
            own_shape = tf.TensorShape(loss.shape) if has_own else None
        if not share.is_partial:
            return y_pred, loss, None
        check_losses(share, y_pred, sample_weight, watched, training, own_shape)
        return y_pred, loss, unmasked_share(share, y_pred, sample_weight, watched)

    def _update(self, step, share):
        """Apply the global batch's gradients, the same on every replica, and track its loss."""
        weights = self.trainable_variables
        pairs = [(step["gradients"].get(index), weight) for index, weight in enumerate(weights)]
        if weights and not self.optimizer.built:
            self.optimizer.build(weights)  # not after the data: XLA refuses variables initialized from it
        with after(share.data):
            if weights:
                with already_reduced(self.optimizer):
                    self.optimizer.apply_gradients(pairs)
            else:
                warnings.warn("The model does not have any trainable weights.", stacklevel=2)  # as in stock
            self._loss_tracker.update_state(step["loss"], sample_weight=share.examples)

    def test_step(self, data):
        """Evaluate one replica's share of the global batch; return the metrics."""
        if overriding(self, "test_step", behind=Model):
            return super().test_step(data)
        share, shown = self._share_of_batch(data, training=False), set()

        def of_share():
            y_pred, loss, left = self._outputs_and_loss(share, training=False)
            found = {"loss": loss}
            if share.is_partial:
                found["logs"] = share.update_metrics(y_pred, shown, self._loss_tracker)
            else:
                found["outputs"] = y_pred
            return found if left is None else {**found, "left": left}

        with self._at_work(share):  # as in training, the end of the data is not a batch
            found = self._evaluated(of_share, share)
            weight, factor = _weight_in_evaluation(share, found.get("left"))
            loss = found["loss"] * tf.cast(factor, found["loss"].dtype)
            loss = tf.where(weight > 0, loss, tf.zeros_like(loss))  # otherwise not finite
            self._loss_tracker.update_state(loss, sample_weight=weight)
            if share.is_partial:
                logs = _for_mean_over_replicas(found["logs"], share)
            else:
                logs = share.update_metrics(found["outputs"], shown)
        logs.update({name: log for name, log in self.get_metrics_result().items() if name in shown})
        return logs_to_reduce(logs, self.distribute_strategy)

    def _evaluated(self, of_share, share):
        """Return ``of_share()``, or zeros for an empty share, whose means are not finite: its metrics stay."""
        together = not share.is_partial or share.reduction.communicates_in_forward or assigned_together(self)
        if together or (tf.executing_eagerly() and int(share.examples)):
            return of_share()
        traced = tf.function(of_share, autograph=False).get_concrete_function()
        zeros = tf.nest.map_structure(lambda log: tf.zeros(log.shape, log.dtype), traced.structured_outputs)
        return tf.cond(tf.greater(share.examples, 0), traced, lambda: zeros)

    def predict_step(self, data):
        """Return the predictions for one replica's share of the global batch."""
        reduction = self.replica_reduction
        if reduction.replicas > 1:
            data = check_equal_lengths(data, 1, reduction.replicas)
        with reduction.step_context():
            outputs = super().predict_step(reduction.batch(data))
        if reduction.replicas > 1:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            refuse_outputs_of_pairs(self, x, outputs, [each.shape for each in tf.nest.flatten(outputs)], training=False)
        return outputs

    def _compute_loss(self, x=None, *args, **kwargs):
        """Return the loss in a custom step that uses the Keras loss."""
        with count_by_examples(self, count_examples(x)):
            return as_scalar(super()._compute_loss(x, *args, **kwargs))

    # Support for Keras `fit` and `evaluate`: making, building and tracing at the right time

    @_shown_as(keras.Model.fit)
    def fit(self, *args, **kwargs):
        callbacks = _callbacks_of(super().fit, args, kwargs)
        if several_workers(self.distribute_strategy):
            _refuse_backups(self.distribute_strategy, callbacks)
        _refuse_other_strategy(self)
        with self._reading(callbacks):
            return super().fit(*args, **kwargs)

    @_shown_as(keras.Model.evaluate)
    def evaluate(self, *args, **kwargs):
        with self._reading(_callbacks_of(super().evaluate, args, kwargs)):
            return super().evaluate(*args, **kwargs)

    @_shown_as(keras.Model.predict)
    def predict(self, *args, **kwargs):
        with self._reading(_callbacks_of(super().predict, args, kwargs), is_prediction=True):
            return super().predict(*args, **kwargs)

    @contextmanager
    def _reading(self, callbacks, is_prediction=False):
        """Let replicas split batches and several workers read the same batches; settings stay as they are."""
        self.choose_reduction().refuse_callbacks(callbacks)
        strategy = self.distribute_strategy
        if several_workers(strategy) and self._orders is None:
            object.__setattr__(self, "_orders", SharedDataOrder(strategy))  # Keras tracks any other attribute
        in_one_piece = strategy.num_replicas_in_sync == 1 and self._orders is None
        with (
            nullcontext() if self._is_running else patched_method(self, "_is_running", True),
            nullcontext() if in_one_piece else checked_datasets(strategy, self._orders, is_prediction),
        ):
            yield

    @_shown_as(keras.Model.train_on_batch)
    def train_on_batch(self, *args, **kwargs):
        _refuse_sums_of_whole_batches(self, "train_on_batch", "fit")
        return super().train_on_batch(*args, **kwargs)

    @_shown_as(keras.Model.test_on_batch)
    def test_on_batch(self, *args, **kwargs):
        _refuse_sums_of_whole_batches(self, "test_on_batch", "evaluate")
        return super().test_on_batch(*args, **kwargs)

    def make_train_function(self, force=False):
        """Make the function that `fit` calls, ``train_function``.

        The optimizer's variables are made before tracing: TensorFlow traces a function that makes variables twice and
        keeps both traces, which more than doubles the time of the first step of two replicas.
        """
        _refuse_hidden_steps(self, self.state_in_place())
        self.choose_reduction()
        optimizer, weights = self.optimizer, self.trainable_variables
        is_whole = isinstance(self, (Functional, keras.Sequential)) and self.built  # a Sequential may lack its head
        if is_whole and weights and optimizer and not optimizer.built:
            with self.distribute_strategy.scope():
                optimizer.build(weights)
        if self.micro_batches > 1 or self.replica_reduction.replicas > 1:
            _refuse_optimizer(self)
            _refuse_layers(self)
        self._make_steps("train", super().make_train_function, force)

    def make_test_function(self, force=False):
        _refuse_hidden_steps(self, self.state_in_place())
        self.choose_reduction()
        self._make_steps("test", super().make_test_function, force)

    def _make_steps(self, name, stock, force):
        """Make ``train_function`` or ``test_function``; by ``stock``, the Keras method, if its loop is enough."""
        with _watched_step(self, f"{name}_step"):
            if self.jit_compile and not self.run_eagerly and self._distribute_strategy is None:
                several_steps = partial(steps_in_one_program, trains=name == "train")
            elif self.replica_reduction.replicas > 1 and self.steps_per_execution > 1:
                several_steps = steps_in_python_loop
            else:
                return stock(force)
            if getattr(self, f"{name}_function") is None or force:
                setattr(self, f"{name}_function", several_steps(self, getattr(self, f"{name}_step")))

    def make_predict_function(self, force=False):
        self.choose_reduction()
        _refuse_states_of_examples(self)
        super().make_predict_function(force)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Build from a *local* replica's batch. Keras reduces the tuple of a batch over the replicas, which raises
        under MultiWorkerMirroredStrategy (keras issue 20585).
        """
        if self._distribute_strategy is None:
            return
        _refuse_states_of_examples(self)  # before Keras calls it with a replica's share
        if iterator is not None:
            *_, epoch = next(iter(iterator))  # preceded by the step's number, or two numbers in newer Keras
            data_batch = next(epoch, None)
            if self._orders is not None:
                self._orders.refuse_unlike_orders()
            if data_batch is None:  # no data: Keras warns, but a step that makes variables raises
                data_batch = batch_of_zeros(iterator)
                if data_batch is None:
                    return
        strategy = self.distribute_strategy
        local, replicas = strategy.experimental_local_results, strategy.num_replicas_in_sync
        first = keras.tree.map_structure(lambda value: local(value)[0], data_batch)
        with strategy.scope():
            self._symbolic_build(data_batch=first if replicas == 1 else check_equal_lengths(first, 1, replicas))

    def _get_metrics_result_or_logs(self, logs):
        """Return the logs of an epoch: metrics of all replicas, and additions of a custom `compute_metrics`.

        Keras takes all logs from the first replica if there are additions. Without examples there are no logs: empty
        means would be 0, which `EarlyStopping` would use.
        """
        if has_seen_examples(self):
            return {**logs, **{name: log for name, log in self.get_metrics_result().items() if name in logs}}
        counts_elsewhere = any(name in vars(self) or overriding(self, name) for name in ("train_step", "test_step"))
        return super()._get_metrics_result_or_logs(logs) if logs and counts_elsewhere else {}

    # Unsharded weights: count, get, set and save

    def count_params(self):
        if not self.built:
            return super().count_params()  # which raises
        return sum(math.prod(full_variable(weight).shape) for weight in self.weights)

    def get_weights(self):
        """Return the weights as NumPy arrays, with shards joined; all workers must call it."""
        return full_weights(self)

    def set_weights(self, weights):
        """Set all variables of `weights` to unsharded values, of which each replica keeps its shards."""
        if any(is_shard(variable) for variable in self.weights):
            set_full_weights(self, weights)
        else:
            super().set_weights(weights)

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """Save like `keras.Model.save`, replacing the old file only once the new one is complete.

        Each of several workers writes a complete file and renames it: with one path, the last one remains.
        """
        given = kwargs if zipped is None else {"zipped": zipped, **kwargs}
        save = partial(super().save, **given)
        self._save_once(save, filepath, overwrite, makes_folder=zipped is False)

    def save_weights(self, filepath, overwrite=True, max_shard_size=None):
        """Save like `keras.Model.save_weights`, replacing the old file as `save` does."""
        given = {} if max_shard_size is None else {"max_shard_size": max_shard_size}
        save = partial(super().save_weights, **given)
        self._save_once(save, filepath, overwrite, makes_folder=max_shard_size is not None)

    def _save_once(self, save, filepath, overwrite, makes_folder):
        several = several_workers(self.distribute_strategy)
        is_file = str(filepath).endswith((".keras", ".h5", ".hdf5")) and "://" not in str(filepath)
        if several and makes_folder:
            raise ValueError(
                "several workers save a single file: leave out zipped=False and max_shard_size, or save in one process"
            )
        if several and not overwrite:
            raise ValueError("several workers cannot ask before they overwrite a file: leave out overwrite=False")
        if not is_file or makes_folder or (not overwrite and os.path.exists(filepath)):
            save(filepath, overwrite)  # a store that shows only complete objects, or asks the user first
        else:
            self.replica_reduction.save(filepath, save)


for _name, _default in SETTINGS.items():  # for models made by another constructor
    setattr(Model, _name, _default)
# Shown by Shift-Tab
Model.__new__.__signature__ = Model.__init__.__signature__ = naming_settings(Model.__init__)
Model.of.__func__.__signature__ = naming_settings(Model.of.__func__)


def _weight_in_evaluation(share, left):
    """Return the weight of a replica's loss, in examples of the global batch, and a factor for it.

    The mean over replicas with these weights is then the global batch's loss: the sum, or the mean over examples, by
    weights or over the positions that a mask has ``left``.
    """
    examples = tf.cast(share.examples, tf.float32)
    if not share.is_partial or (share.loss_reduction == "mean" and left is None):
        return examples, 1.0
    weight = share.weight if left is None else share.weight * tf.cast(left, share.weight.dtype)
    weight_of_all, examples_of_all = sum_over_replicas([weight, examples])
    if share.loss_reduction == "sum":
        return examples, tf.math.divide_no_nan(examples_of_all, examples)
    weight = tf.math.divide_no_nan(weight, weight_of_all) * tf.cast(examples_of_all, weight.dtype)
    return tf.where(weight_of_all > 0, weight, tf.cast(examples, weight.dtype)), 1.0  # as in stock, the loss is then 0


def _for_mean_over_replicas(logs, share):
    """Return evaluation logs, scaled so that Keras' mean over replicas is the mean over examples."""
    if not logs or share.reduction.replicas == 1:
        return logs
    examples = tf.cast(share.examples, tf.float32)
    (of_all,) = sum_over_replicas([examples])
    counts = tf.math.divide_no_nan(share.reduction.replicas * examples, of_all)
    return {name: tf.math.multiply_no_nan(tf.cast(log, tf.float32), counts) for name, log in logs.items()}


# Refusing, or warning of, what would silently be wrong


def _callbacks_of(method, args, kwargs):
    given = inspect.signature(method).bind_partial(*args, **kwargs).arguments
    return callbacks_in(given.get("callbacks", kwargs.get("callbacks")))


def _is_functional(args, kwargs):
    return len(args) == 2 or "outputs" in kwargs


def _refuse_unknown(what, given, names):
    """Raise TypeError for unknown arguments, which Keras would silently ignore."""
    for name in given:
        if name not in names:
            nearest = get_close_matches(name, names, 1, cutoff=0)[0]
            raise TypeError(f"{what} has no argument {name!r}: did you mean {nearest!r}?")


def _refuse_same_names(model):
    """Raise TypeError for a model with an attribute or method that ours would hide."""
    if isinstance(model, Model):
        return
    ours = "loss_scale", "replica_reduction", "choose_reduction", "state_in_place", "measure_gradients"
    for name in (*SETTINGS, *ours):
        if hasattr(model, name):
            raise TypeError(
                f"{type(model).__name__} already defines {name!r}, a name that bt.Model needs: rename yours"
            )


def _refuse_other_scope(model):
    """Raise ValueError for a model that is compiled in another scope than it was made in."""
    _refuse_other_strategy(model)
    if model.distribute_strategy is not tf.distribute.get_strategy():
        replicas = model.distribute_strategy.num_replicas_in_sync
        raise ValueError(
            f"{model.name} was built in the scope of a strategy with {replicas} replicas, but compiled outside of it,"
            " where the optimizer's variables would be on one device only: create the optimizer and call compile in"
            " the same scope, with strategy.scope():"
        )


def _refuse_backups(strategy, callbacks):
    """Raise ValueError if workers back up into one folder, which each deletes, or would restore different steps."""
    backups = [one for one in callbacks if isinstance(one, keras.callbacks.BackupAndRestore)]
    folder = "".join(os.path.abspath(one.backup_dir) for one in backups if one.delete_checkpoint)
    paths = [os.path.join(one.backup_dir, "training_metadata.json") for one in backups]
    restored = "".join(tf.io.gfile.GFile(path).read() for path in paths if tf.io.gfile.exists(path))
    own = [zlib.crc32(text.encode()) for text in (folder, restored)]
    folders, steps = all_gather(strategy, tf.identity)(tf.constant(own, tf.int64)).T.tolist()
    if len(set(steps)) > 1 or any(folders.count(one) > len(strategy.extended.worker_devices) for one in folders if one):
        raise ValueError(
            "BackupAndRestore in several workers: they share one backup_dir, which each deletes at the end, or they"
            " would restore different steps: use bt.Resume, whose folder all share, or a new backup_dir for each worker"
        )


def _refuse_other_strategy(model):
    """Raise ValueError for a model whose weights were not made in the current strategy's scope."""
    values = [weight.value for weight in model.weights[:1]]
    if not tf.distribute.has_strategy() or not all(isinstance(value, tf.Variable) for value in values):
        return  # or a function that builds it makes the weights later
    if values and not tf.distribute.get_strategy().extended.variable_created_in_scope(values[0]):
        raise ValueError(
            f"{model.name} was built outside of this strategy's scope, so its weights are on one device only: build or"
            " load it in the scope"
        )


def _asked_for(model, settings):
    """Return in words what a step needs beyond stock Keras: a setting or several replicas; None for nothing."""
    for name, value in settings.items():
        if value != SETTINGS[name]:
            return f"{name}={value!r}"
    replicas = model.distribute_strategy.num_replicas_in_sync
    return f"{replicas} replicas" if replicas > 1 else None


_STEP_ALTERNATIVE = (
    "override compute_loss(x, y, y_pred, sample_weight, training) for a custom loss, or compute_metrics(x, y, y_pred,"
    " sample_weight) for other logs, instead; or train the model as it is, on one device and without settings. (A step"
    " with several optimizers, as in a GAN, cannot be written as one loss.)"
)


def _refuse_hidden_steps(model, settings):
    """Raise TypeError for a converted model with a custom step, which would ignore the settings."""
    asked = _asked_for(model, settings)
    for name in ("train_step", "test_step"):
        kind = overriding(model, name, behind=Model if isinstance(model, Model) else None)
        if asked and kind:
            raise TypeError(f"{kind.__name__} has a custom {name}, which ignores {asked}: {_STEP_ALTERNATIVE}")


@contextmanager
def _watched_step(model, name):
    """Give Keras, which reads a step once, one that raises TypeError unless it calls ours.

    So a subclass of `Model` may override a step and call ``super()``; a step that bypasses ours is refused when it is
    traced, before any update.
    """
    step = getattr(model, name)

    def watched(data):
        model._ours_was_called = False
        logs = step(data)
        asked = _asked_for(model, model.state_in_place())
        if asked and not model._ours_was_called:
            raise TypeError(
                f"{type(model).__name__}.{name} does not call super().{name}(data), so it ignores {asked}:"
                f" {_STEP_ALTERNATIVE}"
            )
        return logs

    own = vars(model).get(name)  # a custom step set on the model itself
    vars(model)[name] = watched
    try:
        yield
    finally:
        vars(model).pop(name)
        if own is not None:
            vars(model)[name] = own


def _refuse_optimizer(model):
    """Raise ValueError for an optimizer that does not work with several micro-batches or replicas.

    It accumulates gradients itself, overwrites weights in a step, or gets float8 scales, which Keras passes as
    gradients but which must not be summed.
    """
    in_one_process = model.replica_reduction.replicas > 1 and not several_workers(model.distribute_strategy)
    for one in parts_of(model.optimizer):
        if getattr(one, "gradient_accumulation_steps", None):
            raise ValueError(
                "gradient_accumulation_steps works only on one device and without micro_batches: leave it out of the"
                " optimizer and set micro_batches of the model"
            )
        frequency = getattr(one, "ema_overwrite_frequency", None)
        if frequency and in_one_process:
            raise ValueError(
                f"ema_overwrite_frequency={frequency} does not work with several replicas in one process, whose weights"
                " TensorFlow cannot overwrite within a step: leave it out, and the averages replace the weights"
                " at the end of fit"
            )
    if any(variable.overwrite_with_gradient for variable in model.trainable_variables):
        raise ValueError("float8 works only on one device and without micro_batches")


def _refuse_sums_of_whole_batches(model, name, instead):
    replicas = model.replica_reduction.replicas
    if replicas > 1 and loss_reduction(model.loss) == "sum":
        raise ValueError(
            f'{name} gives every replica the full batch, so a loss with reduction "sum" would count each example'
            f' {replicas} times: use {instead}, or "sum_over_batch_size"'
        )


def _refuse_states_of_examples(model, micro_batches=1):
    """Raise ValueError for layers with a state per example of the previous batch, which pieces would mix up."""
    if micro_batches == 1 and model.distribute_strategy.num_replicas_in_sync == 1:
        return
    for layer in layers_within(model):
        if getattr(layer, "stateful", False):
            raise ValueError(
                f"{layer.name}: stateful=True carries a state from batch to batch for each example, so it"
                " works only on one device and without micro_batches"
            )


def _refuse_layers(model):
    """Raise ValueError for layers that do not work with several micro-batches or replicas, or not with both."""
    _refuse_states_of_examples(model, model.micro_batches)
    for layer in layers_within(model):
        if isinstance(layer, keras.layers.SpectralNormalization):
            raise ValueError(
                f"{layer.name}: SpectralNormalization changes its weights in each forward pass, and micro-batches and"
                " replicas change the number of passes: it works only on one device and without micro_batches"
            )
    if model.micro_batches > 1 and model.replica_reduction.replicas > 1:
        for layer in synchronized_layers(model):
            raise ValueError(
                f"{layer.name}: synchronized=True on several replicas needs micro_batches=1. Its forward pass waits for"
                " every replica, but one with a smaller share of the batch has fewer micro-batches. Leave it out"
                " (moving statistics are averaged anyway) or use GroupNormalization"
            )
