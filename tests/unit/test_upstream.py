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

from bigtrain_nb.advanced.parallel.sharded import is_undecayed
from bigtrain_nb.advanced.parallel.shards import leave_undecayed
from bigtrain_nb.advanced.shared.untouched import restoring_random_state
from bigtrain_nb.advanced.watch.meter import examples_counted, tracings_of
from bigtrain_nb.common.keras_compat import STATE_OF_CALLBACKS, captured_variables_kept, mask_of, operations_within
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.in_place import register_class_as

layers = keras.layers
SGD = partial(keras.optimizers.SGD, 0.1)
X, Y = examples(24)
DATA = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
WORDS = tf.data.Dataset.from_tensor_slices((np.arange(24)[:, None] // 8 % 2 + np.zeros((24, 4), int), Y)).batch(12)
stock = partial(net, keras.Model)
pytestmark = pytest.mark.more("what TensorFlow and Keras do: it changes with their versions, not with the helpers")


def scores_of_words(make, embedding):
    """Return a model of four words with an embedding like `OneHot`."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,), dtype="int32")
    return make(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(embedding(inputs))))


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


def test_the_optimizer_reduces_gradients_itself_in_a_method_that_can_be_switched_off(monkeypatch):
    """If another method does, `keras_compat.already_reduced` must disable that one; if none does, delete it."""
    calls = []
    reduce = keras.optimizers.SGD._all_reduce_sum_gradients
    monkeypatch.setattr(
        keras.optimizers.SGD, "_all_reduce_sum_gradients", lambda *args: calls.append(args) or reduce(*args)
    )
    trained(stock, DATA, SGD, 2)
    assert calls
    calls.clear()
    trained(partial(net, micro_batches=2), DATA, SGD, 2)
    assert not calls


def test_an_optimizer_decides_on_weight_decay_in_private_and_its_config_does_not_hold_it():
    """If other methods decide, `is_undecayed` must call those; if the config has it, `optimizer_like` needs no loop."""
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    bias, kernel, other = (keras.Variable([1.0], name=name) for name in ("bias", "kernel", "other"))
    leave_undecayed(optimizer, [other])
    assert [is_undecayed(optimizer, weight) for weight in (bias, kernel, other)] == [True, False, True]
    assert not is_undecayed(keras.optimizers.AdamW.from_config(optimizer.get_config()), bias)


def test_loss_scaling_looks_at_the_first_replica_only():
    """Once fixed, the step is skipped and the scale halved. `Model` still reduces once, for clipping."""
    x = X[:12].copy()
    x[11] = np.inf  # the second replica's last example
    with precision("mixed_float16"):
        model = trained(stock, tf.data.Dataset.from_tensors((x, Y[:12])), SGD, 2)
    assert model.optimizer.dynamic_scale.numpy() == 2**15
    assert not all(np.isfinite(weight).all() for weight in model.get_weights())


def test_kerashubs_byte_pairs_split_words_in_tf_data_only():
    """Outside tf.data it passes its regular expression to `tokenizers` as a str, which is taken literally: nothing is
    split, and merges cross words. Once fixed, notebook 10 must show another reason to tokenize once, from
    "hub-question" to "hub-takeaway".
    """
    hub = pytest.importorskip("keras_hub").models
    vocabulary = {token: index for index, token in enumerate(["<|endoftext|>", "a", "b", "Ġ", "aĠ", "Ġb"])}
    tokenizer = hub.GPT2Tokenizer(vocabulary=vocabulary, merges=["a Ġ", "Ġ b"])
    in_tf_data = next(tf.data.Dataset.from_tensors(["a b"]).map(tokenizer).as_numpy_iterator())
    called = [[int(token) for token in row] for row in tokenizer(["a b"])]
    assert [row.tolist() for row in in_tf_data] == [[1, 5]]  # "a", " b"
    assert called == [[4, 2]]  # "a ", "b"


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


@pytest.mark.parametrize(
    "optimizer", [partial(SGD, global_clipnorm=0.05), partial(keras.optimizers.Adam, 0.01, epsilon=1e-3)]
)
def test_repeated_rows_of_an_embedding_are_squared_apart(optimizer):
    """Once fixed for both, delete `batches.dense`."""
    embedding = partial(layers.Embedding, 9, 4, embeddings_initializer="ones")
    rows = trained(lambda: scores_of_words(keras.Model, embedding()), WORDS, optimizer)
    dense = trained(lambda: scores_of_words(keras.Model, OneHot(9, 4, embeddings_initializer="ones")), WORDS, optimizer)
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


def test_fit_hands_on_an_epoch_as_numbers_of_steps_and_last_the_iterator_of_its_batches():
    """If the iterator moves, `Model._maybe_symbolic_build` must take it from there."""
    seen = []

    class Seen(keras.Model):
        def _maybe_symbolic_build(self, iterator=None, data_batch=None):
            *steps, epoch = next(iter(iterator))
            seen.append((steps, [tuple(value.shape) for value in next(epoch)]))

    trained(partial(net, Seen), DATA, SGD)
    ((steps, shapes),) = seen
    assert steps == [0, 0] and shapes == [(12, 6), (12, 1)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_first_step_is_traced_twice(replicas):
    """Once optimizer variables are created before it, most of `Model.make_train_function` can be deleted."""
    assert traces_of_first_step(keras.Model, DATA, replicas) == 2 * replicas


def test_a_copy_of_a_tensor_loses_its_mask():
    """Once fixed, delete `with_mask`."""
    embedded = layers.Embedding(5, 4, mask_zero=True)(np.array([[1, 0]]))
    assert embedded._keras_mask is not None and not hasattr(tf.identity(embedded), "_keras_mask")


def test_a_symbolic_output_has_its_mask_in_a_private_attribute():
    """If it moves, `keras_compat.mask_of` must follow; if a public function returns it, use that."""
    tokens = keras.Input((2,))
    assert mask_of(layers.Embedding(5, 4, mask_zero=True)(tokens)) is not None
    assert mask_of(layers.Embedding(5, 4)(tokens)) is None
    assert not hasattr(keras.utils, "get_keras_mask")


def test_a_quantized_attention_cannot_be_loaded(tmp_path):
    """Once fixed, notebook 14 need not rebuild the model: delete its cells "load-fault" to "load-cured"."""

    def attend():
        x = keras.Input((4, 8))
        return keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x))

    saved = attend()
    saved.quantize("int8", filters=lambda layer: isinstance(layer, layers.EinsumDense))
    saved.save(tmp_path / "int8.keras")
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.models.load_model(tmp_path / "int8.keras")
    saved.save_weights(tmp_path / "int8.weights.h5")
    again = attend()
    again.quantize("int8", filters=lambda layer: isinstance(layer, layers.EinsumDense))
    again.load_weights(tmp_path / "int8.weights.h5")
    assert distance(saved, again) == 0


def test_distillation_by_default_compares_logits_as_if_they_were_probabilities():
    """Once fixed, notebook 14 can use the default of `LogitsDistillation`."""
    teacher, student = np.array([[3.0, 0.0]], "float32"), np.array([[0.0, 1.0]], "float32")
    default = keras.distillation.LogitsDistillation(temperature=1.0)
    as_object = keras.distillation.LogitsDistillation(temperature=1.0, loss=keras.losses.KLDivergence())
    of_teacher, of_student = tf.nn.log_softmax(teacher), tf.nn.log_softmax(student)
    divergence = tf.reduce_sum(tf.exp(of_teacher) * (of_teacher - of_student))
    assert float(as_object.compute_loss(teacher, student)) == pytest.approx(float(divergence), rel=1e-4)
    assert float(default.compute_loss(teacher, student)) != pytest.approx(float(divergence), rel=0.1)


# Objects that are changed in place


def test_a_class_that_is_made_at_run_time_is_named_by_itself_in_files_and_can_be_named_as_another_in_private_only():
    """If `get_registered_name` reads another place, `register_class_as` must write there."""
    made = type("Dense", (layers.Dense,), {"__module__": layers.Dense.__module__})
    stock = keras.saving.serialize_keras_object(layers.Dense(2, name="a"))
    assert keras.saving.serialize_keras_object(made(2, name="a")) != stock
    register_class_as(made, layers.Dense)
    assert keras.saving.serialize_keras_object(made(2, name="a")) == stock


def test_a_functional_model_cannot_add_losses():
    """Once fixed, `recompute` can call `layer.add_loss`."""
    with pytest.raises(NotImplementedError):
        stock().add_loss(tf.constant(1.0))


def test_a_plain_recomputation_loses_masks():
    """Once fixed, `recompute` need not pass them on."""
    embed = layers.Embedding(5, 4, mask_zero=True)
    assert mask_of(embed(np.array([[1, 0]]))) is not None
    assert mask_of(tf.recompute_grad(embed)(tf.constant([[1, 0]]))) is None


def test_keras_computes_attention_in_a_method_that_can_be_overridden_and_has_no_kernel_for_it_on_tensorflow():
    """If the method changes, `ChunkedAttention` must override that; with a fused kernel, its docstring is outdated."""
    calls = []

    class Seen(layers.MultiHeadAttention):
        def _compute_attention_mask(self, *args, **kwargs):
            calls.append("mask")
            return super()._compute_attention_mask(*args, **kwargs)

        def _compute_attention(self, *args, **kwargs):
            calls.append("attention")
            return super()._compute_attention(*args, **kwargs)

    x = tf.ones((1, 4, 8))
    Seen(2, 4)(x, x, use_causal_mask=True)
    assert calls[-2:] == ["mask", "attention"]
    with pytest.raises(ValueError, match="(?i)flash attention is not supported in tensorflow"):
        keras.ops.dot_product_attention(x[:, :, None], x[:, :, None], x[:, :, None], flash_attention=True)


def test_the_tracker_of_the_loss_counts_examples_and_no_public_name_is_sure_to_find_it():
    """Once there is one, use it in `examples_counted`."""
    model = stock()
    model.compile("sgd", "mse")
    model.fit(DATA, verbose=0)
    assert examples_counted(model) == [24.0]
    assert not hasattr(keras.Model, "loss_tracker")


def test_what_fit_calls_does_not_say_how_often_it_was_traced():
    """Once it does, delete `tracings_of`."""
    model = stock()
    model.compile("sgd", "mse")
    model.make_train_function()
    tracings = tracings_of(model.train_function)
    assert tracings() == 0 and not hasattr(model.train_function, "experimental_get_tracing_count")
    model.fit(DATA, verbose=0)
    assert tracings() > 0


def test_no_public_way_tells_where_random_numbers_have_come_to():
    """Once there is one, `restoring_random_state` can use it."""
    keras.utils.set_random_seed(1)
    assert not {"get_state", "getstate", "get_rng_state"} & set(dir(tf.random))

    def drawn():
        return float(tf.random.uniform([])), float(keras.random.uniform([]))

    first = drawn()
    with restoring_random_state():
        second = drawn()
    assert drawn() == second and second != first


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


def test_a_program_for_each_shape_is_warned_of():
    """Once fixed, `keras_compat.traced_for_each_shape` need not set a private name."""
    assert tf.function(lambda x: x)._omit_frequent_tracing_warning is False


def test_no_public_way_leads_to_the_functions_that_a_graph_calls():
    """Once one does, `operations_within` can use it."""
    counted = tf.Variable(0.0)

    @tf.function
    def branching(x):
        return tf.cond(x > 0, lambda: counted.assign_add(1.0), lambda: x)

    graph = branching.get_concrete_function(tf.TensorSpec(())).graph
    kinds = {each.type for each in operations_within(graph.get_operations())}
    assert "AssignAddVariableOp" in kinds - {each.type for each in graph.get_operations()}
    assert not hasattr(graph, "get_function") and not hasattr(graph, "functions")


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
def test_no_public_way_leads_from_a_captured_handle_to_its_variable(kind):
    """Once one does, `captured_variables_kept` need not read and assign by handles."""
    counted, numbers = kind(np.ones(3, "float32")), tf.random.Generator.from_seed(1)
    state = numbers.state.numpy()

    def changing(x):
        counted.assign(counted + x)
        return counted + numbers.normal([3])

    with captured_variables_kept(changing, (tf.ones(3),)):
        changing(tf.ones(3))
        assert counted.numpy().tolist() == [2.0] * 3
    assert counted.numpy().tolist() == [1.0] * 3 and numbers.state.numpy().tolist() == state.tolist()
    handle = tf.function(changing).get_concrete_function(tf.ones(3)).graph.captures[0][0]
    assert not {"variable", "dtype_of_variable", "handle_data"} & set(dir(handle))
