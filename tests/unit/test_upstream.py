"""Bugs of stock Keras that `bt.Model` works around: each test fails when its bug is fixed.

Its name or docstring then says what can be deleted. Two more, with real workers, are in tests/workers.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from equal_models import (
    OneHot,
    aligned,
    distance,
    examples,
    net,
    precision,
    reducing,
    traces_of_first_step,
    trained,
    values_on_replicas,
    views,
)

from bigtrain_nb.common.keras_compat import STATE_OF_CALLBACKS, mask_of
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
SGD = partial(keras.optimizers.SGD, 0.1)
X, Y = examples(24)
DATA = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
WORDS = tf.data.Dataset.from_tensor_slices((np.arange(24)[:, None] // 8 % 2 + np.zeros((24, 4), int), Y)).batch(12)
stock = partial(net, keras.Model)
pytestmark = pytest.mark.more("what TensorFlow and Keras do: it changes with their versions, not with the helpers")


def wide_net():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((12,))
    return keras.Model(inputs, layers.Dense(16)(inputs))


def test_tensorflow_does_not_look_for_cusolver_where_pip_puts_it():
    """Once fixed in all supported versions, delete `quiet.load_cusolver`; 2.20 is correct, 2.21 is not."""
    framework = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    if not framework.exists() or not tf.__version__.startswith("2.21."):
        pytest.skip("this TensorFlow is one of macOS, or another version")
    names = framework.read_bytes()
    assert b"nvidia/cublas/lib" in names and b"nvidia/cusolver/lib" not in names


def test_the_stage_of_a_data_service_goes_to_a_gpu_where_there_is_one():
    """Its functions then run there and crash the process: notebook 01 keeps it on the CPU, as a `map` after it does."""
    from tensorflow.python.framework.kernels import get_registered_kernels_for_op

    def devices(stage):
        return {kernel.device_type for kernel in get_registered_kernels_for_op(stage).kernel}

    assert devices("DataServiceDatasetV4") == {"CPU", "GPU"}
    assert devices("ParallelMapDatasetV2") == devices("MapDataset") == {"CPU"}


def test_functional_takes_any_argument():
    """Once fixed, delete `_refuse_unknown` in model.py."""
    net(keras.Model, micro_batchs=4)


def test_functional_is_not_exported():
    """Once it is, use it in keras_compat.py."""
    assert not any(hasattr(place, "Functional") for place in (keras, keras.models))


def test_loss_scaling_looks_at_the_first_replica_only():
    """Once fixed, the step is skipped and the scale halved. `Model` still reduces once, for clipping."""
    x = X[:12].copy()
    x[11] = np.inf  # the second replica's last example
    with precision("mixed_float16"):
        model = trained(stock, tf.data.Dataset.from_tensors((x, Y[:12])), SGD, 2)
    assert model.optimizer.dynamic_scale.numpy() == 2**15
    assert not all(np.isfinite(weight).all() for weight in model.get_weights())


def test_clipping_comes_before_the_reduction():
    """Once fixed, replicas do not change the result; if scaling is fixed too, delete `keras_compat.already_reduced`."""
    clipped = partial(SGD, global_clipnorm=0.05)
    assert distance(trained(stock, DATA, clipped, 2), trained(stock, DATA, clipped)) > 1e-4


def test_statistics_of_batch_normalisation_differ_between_replicas():
    """Once fixed, delete `keras_compat.moving_statistics` and its use in `Mean.reduce`."""

    def build():
        inputs = keras.Input((6,))
        return keras.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(inputs)))

    first, second = values_on_replicas(trained(build, DATA, SGD, 2).layers[1].moving_mean)
    assert not np.allclose(first, second, rtol=1e-3)


def scores_of_words(kind):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,), dtype="int32")
    embedding = kind(9, 4, embeddings_initializer="ones")
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(embedding(inputs))))


@pytest.mark.parametrize(
    "optimizer", [partial(SGD, global_clipnorm=0.05), partial(keras.optimizers.Adam, 0.01, epsilon=1e-3)]
)
def test_repeated_rows_of_an_embedding_are_squared_apart(optimizer):
    """Once fixed for both, delete `batches.dense`."""
    rows = trained(lambda: scores_of_words(layers.Embedding), WORDS, optimizer)
    dense = trained(lambda: scores_of_words(OneHot), WORDS, optimizer)
    assert distance(rows, dense) > 1e-3


def test_the_end_of_a_dataset_of_unknown_size_counts_a_step_and_decays_the_weights():
    """Once fixed, delete `keras_compat.after`."""
    unknown = DATA.filter(lambda *_: True)
    decaying = partial(keras.optimizers.AdamW, 0.01, weight_decay=1.0, epsilon=1e-4)
    models = [trained(stock, data, decaying, epochs=3) for data in (DATA, unknown)]
    assert [model.optimizer.iterations.numpy() for model in models] == [6, 9]
    assert distance(*models) > 0.01


def test_on_two_replicas_keras_divides_its_own_losses_but_not_what_a_compute_loss_adds():
    """Once fixed, delete `keras_compat.losses_of_one_device`."""

    class Thousand(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1, kernel_initializer="zeros")

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, *args, **kwargs):
            return 1000 + super().compute_loss(*args, **kwargs)

    model = trained(Thousand, DATA, partial(keras.optimizers.SGD, 0.0), 2)
    assert model.history.history["loss"][0] > 2000


def test_two_replicas_write_into_the_array_that_a_generator_yields():
    """TensorFlow treats a slice of NumPy's memory as its own: `SubBuffer` in tensor.cc does not check the owner.

    Once fixed, delete `replicas.own_copy`.
    """
    labels = aligned(np.repeat(Y, 16, axis=1))
    model = trained(wide_net, views(8, np.repeat(X, 2, axis=1), labels), SGD, 2)
    assert isinstance(model, keras.Model) and np.abs(labels - Y).max() > 0.01


def test_steps_in_a_loop_cannot_talk_by_collectives():
    """Similar to keras issue 19246. Once fixed, delete `steps_in_python_loop`."""
    with reducing("by collectives"), pytest.raises(tf.errors.InvalidArgumentError, match="value for placeholder"):
        trained(stock, DATA, SGD, 2, steps_per_execution=2)


def test_losses_of_single_outputs_count_a_short_batch_like_a_full_one():
    """Once fixed, delete `keras_compat.count_by_examples` and `Model._compute_loss`."""
    inputs = keras.Input((6,))
    model = keras.Model(inputs, [layers.Dense(1, name=name)(inputs) for name in ("a", "b")])
    model.compile(keras.optimizers.SGD(0.0), ["mse", "mse"], metrics=["mse", "mse"])
    logs = model.fit(X, [Y, Y], batch_size=20, verbose=0, shuffle=False).history
    assert logs["a_loss"] != pytest.approx(logs["a_mse"], rel=1e-3)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_first_step_is_traced_twice(replicas):
    """Once optimizer variables are created before it, most of `Model.make_train_function` can be deleted."""
    assert traces_of_first_step(keras.Model, DATA, replicas) == 2 * replicas


def test_a_copy_of_a_tensor_loses_its_mask():
    """Once fixed, delete `with_mask`."""
    embedded = layers.Embedding(5, 4, mask_zero=True)(np.array([[1, 0]]))
    assert embedded._keras_mask is not None and not hasattr(tf.identity(embedded), "_keras_mask")


def test_a_functional_model_cannot_add_losses():
    """Once fixed, `recompute` can call `layer.add_loss`."""
    with pytest.raises(NotImplementedError):
        stock().add_loss(tf.constant(1.0))


def test_a_plain_recomputation_loses_masks():
    """Once fixed, `recompute` need not pass them on."""
    embed = layers.Embedding(5, 4, mask_zero=True)
    assert mask_of(embed(np.array([[1, 0]]))) is not None
    assert mask_of(tf.recompute_grad(embed)(tf.constant([[1, 0]]))) is None


def test_keras_has_no_fused_kernel_for_attention_on_tensorflow():
    """Once it has one, the docstring of `ChunkedAttention` is outdated."""
    x = tf.ones((1, 4, 1, 8))
    with pytest.raises(ValueError, match="(?i)flash attention is not supported in tensorflow"):
        keras.ops.dot_product_attention(x, x, x, flash_attention=True)


def test_callbacks_keep_what_they_know_in_attributes_and_have_no_way_to_hand_it_over(tmp_path):
    made = {
        keras.callbacks.ModelCheckpoint: ("best.keras",),
        keras.callbacks.TensorBoard: (str(tmp_path),),
    }
    for kind, attributes in STATE_OF_CALLBACKS.items():
        callback = kind(*made.get(kind, ()))
        callback.set_model(keras.Sequential())
        if kind is not keras.callbacks.TensorBoard:  # it would write files
            callback.on_train_begin()
        assert all(hasattr(callback, attribute) for attribute in attributes), kind
        assert not hasattr(callback, "get_state"), kind


def test_fit_takes_the_length_of_the_epoch_that_came_first_for_all():
    """Once fixed, `Resume.data` need not report the length of a full epoch, nor end one by StopIteration."""
    lengths = iter([2, 5])
    data = tf.data.Dataset.from_generator(
        lambda: ((np.ones((1, 1)), np.ones((1, 1))) for _ in range(next(lengths))),
        output_signature=(tf.TensorSpec((1, 1)), tf.TensorSpec((1, 1))),
    )
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(data, epochs=2, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) < 2 + 5


def test_a_custom_call_has_no_public_name():
    """Once `tf.raw_ops` has it, `keras_compat.custom_call` can take it from there."""
    assert not hasattr(tf.raw_ops, "XlaCustomCallV2")
