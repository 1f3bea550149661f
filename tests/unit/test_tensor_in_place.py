"""`tensor_parallel=`: which layers of stock models are sharded, that they train as on one device, what is refused."""

import inspect

import hub_models
import numpy as np
import pytest
from equal_models import apart_of_weights as apart  # absolutely: the bias of a key moves by rounding only
from equal_models import batches, examples, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.parallel.shards import is_shard

layers = keras.layers
X, Y = examples(44)
DATA = batches([16, 12, 16], X, Y)


def adamw():
    return keras.optimizers.AdamW(0.01, epsilon=1e-2, weight_decay=0.1, global_clipnorm=0.5)


def in_blocks(width=6, **changes):
    """Return a model of a block for each change, with its name, of what it makes of [batch, width]."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = layers.Dense(width)(inputs)
    for name, change in changes.items():
        block = keras.Input((width,))
        x = keras.Model(block, layers.Add()([block, change(block)]), name=name)(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def in_a_block(change, width=6):
    return in_blocks(width, block=change)


def wide(units=8, **settings):
    """A layer with random biases."""
    return layers.Dense(units, bias_initializer="normal", **settings)


def pair(x):
    back = wide(x.shape[-1], activation="tanh")
    return back(layers.Dropout(0.0)(layers.ReLU()(wide()(x))))


def gated_pair(x):
    return wide(x.shape[-1])(layers.Multiply()([wide(activation="silu")(x), wide()(x)]))


def in_a_row(x):
    steps = [wide(activation="gelu"), layers.Activation("tanh"), wide(x.shape[-1])]
    return keras.Sequential(steps, name="in_a_row")(x)


def attending(attend):
    def change(x):
        x = layers.Reshape((3, 4))(x)
        return layers.Flatten()(attend(x))

    return change


def attention(x):
    attend = layers.MultiHeadAttention(4, 3, value_dim=2, bias_initializer="normal")
    return attending(lambda x: attend(x, x, use_causal_mask=True))(x)


HAS_GATE = "use_gate" in inspect.signature(layers.MultiHeadAttention).parameters
"""Keras 3.13.0 has no gate."""


def cross_attention(x):
    gate = {"use_gate": True} if HAS_GATE else {}
    attend = layers.MultiHeadAttention(2, 3, use_bias=False, name="to_others", **gate)
    return attending(lambda x: attend(x, layers.Dense(5)(x)))(x)


def grouped_attention(x):
    attend = layers.GroupQueryAttention(3, 8, 4, bias_initializer="normal")
    return attending(lambda x: attend(x, x))(x)


def a_pair():
    return in_a_block(pair)


def heads():
    return in_a_block(attention, width=12)


def of_all_kinds():
    return in_blocks(
        width=12,
        pair=pair,
        gated_pair=gated_pair,
        of_a_row=in_a_row,
        heads=attention,
        across=cross_attention,
        grouped_heads=grouped_attention,
    )


def trained(replicas, build, optimizer=adamw, **settings):
    with on(replicas):
        model = bt.Model.of(build(), **settings)
        model.compile(optimizer(), "mse")
        model.fit(DATA, verbose=0, shuffle=False, epochs=2)
    return model


def test_layers_of_all_kinds_train_evaluate_and_predict_as_on_one_device():
    chosen = "pair|gated_pair|in_a_row|heads|to_others|grouped_heads"
    alone = trained(1, of_all_kinds)
    sharded = trained(2, of_all_kinds, tensor_parallel=chosen, micro_batches=2)
    for name, shards in {
        "pair": 3,
        "gated_pair": 5,
        "of_a_row": 3,
        "heads": 7,
        "across": 5 if HAS_GATE else 4,
        "grouped_heads": 7,
    }.items():
        mine, theirs, start = (model.get_layer(name) for model in (sharded, alone, of_all_kinds()))
        assert sum(is_shard(weight) for weight in mine.weights) == shards, name
        assert apart(mine, theirs) < 1e-6 < 1e-3 < apart(theirs, start), name
    assert apart(sharded, alone) < 1e-6
    assert sharded.history.history["loss"] == pytest.approx(alone.history.history["loss"], rel=1e-5)
    np.testing.assert_allclose(sharded.predict(X, verbose=0), alone.predict(X, verbose=0), atol=1e-5)
    assert sharded.evaluate(DATA, verbose=0) == pytest.approx(alone.evaluate(DATA, verbose=0), rel=1e-5)


@pytest.mark.more("the files of test_tensor.py once more: those of a model of KerasHub are stock below")
def test_files_are_whole_and_stock_and_go_on_with_any_number_of_replicas(tmp_path):
    sharded = trained(2, heads, tensor_parallel="block")
    sharded.save(tmp_path / "model.keras")
    stock = keras.models.load_model(tmp_path / "model.keras")
    assert type(stock) is type(heads()) and apart(stock, sharded) == 0
    gone_on = []
    for replicas in (1, 4):
        with on(replicas):
            model = bt.load_model(tmp_path / "model.keras", tensor_parallel="block")
            model.fit(DATA, verbose=0, shuffle=False)
        gone_on.append(model)
    assert apart(*gone_on) < 1e-6 < 1e-4 < apart(gone_on[0], stock)


def test_a_model_that_a_function_builds_is_never_whole(monkeypatch):
    with on(2):
        first = bt.Model.of(heads(), tensor_parallel="block")
        made = []
        make = keras.Variable._initialize
        monkeypatch.setattr(keras.Variable, "_initialize", lambda self, value: (make(self, value), made.append(self)))
        later = bt.Model.of(heads, tensor_parallel="block")
    assert apart(later, first) == 0
    kernels = [tuple(one.shape) for one in made if one.path.endswith("attention_output/kernel")]
    assert kernels == [(2, 2, 4)]  # two of the four heads


FULLY = pytest.param("fully_shard", marks=pytest.mark.more("the other setting that shards a model"))


@pytest.mark.parametrize("setting", ["tensor_parallel", FULLY])
def test_what_was_traced_before_a_model_is_sharded_is_traced_anew(setting):
    losses = []
    for replicas in (1, 2):
        with on(replicas):
            model = bt.Model.of(a_pair())
            model.compile(adamw(), "mse")
            model.evaluate(DATA, verbose=0)
            setattr(model, setting, "block")
            model.fit(DATA, verbose=0, shuffle=False)
            losses.append(model.evaluate(DATA, verbose=0))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


GPT_2 = pytest.param(hub_models.gpt2, 20, marks=pytest.mark.more("all that it has is among the layers of all kinds"))
GPT_2_AND_LLAMA = [GPT_2, (hub_models.llama, 7)]


@pytest.mark.parametrize(("build", "shards"), GPT_2_AND_LLAMA, ids=["GPT-2", "Llama"])
def test_transformer_layers_of_keras_hub(build, shards, tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    x, y, weight = hub_models.next_tokens()

    def trained(replicas, epochs=2, **settings):
        keras.utils.set_random_seed(1)
        with on(replicas):
            model = bt.Model.of(build(), **settings)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer=adamw(), loss=loss)
            model.fit(x, y, sample_weight=weight, batch_size=7, epochs=epochs, shuffle=False, verbose=0)
        return model

    alone, sharded = trained(1), trained(2, tensor_parallel=r"transformer_layer_\d")
    assert sum(is_shard(weight) for weight in sharded.weights) == shards
    assert apart(sharded, alone) < 1e-6 < 1e-3 < apart(alone, trained(1, epochs=0))
    np.testing.assert_allclose(sharded.predict(x, verbose=0), alone.predict(x, verbose=0), atol=1e-5)
    sharded.save(tmp_path / "model.keras")
    stock = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(stock, keras_hub.models.CausalLM) and not isinstance(stock, bt.Model)
    assert apart(stock, sharded) == 0


def with_lora():
    model = a_pair()
    for layer in model.get_layer("block").layers:
        if isinstance(layer, layers.Dense):
            layer.enable_lora(2)
    return model


CANNOT_BE = {
    "no layer": (a_pair, "nothing", "tensor_parallel='nothing' chooses none of"),
    "no matrix": (
        a_pair,
        r"re_lu\w*",
        r"re_lu\w* \(ReLU\), in which there is nothing to shard. What can be sharded: Dense",
    ),
    "one Dense layer": (
        lambda: in_a_block(wide(6)),
        "block",
        r"chooses block \(Functional\), in which there is no way to shard dense_\d+/kernel\.",
    ),
    "normalized between": (
        lambda: in_a_block(lambda x: wide(6)(layers.LayerNormalization()(wide()(x)))),
        "block",
        r"no way to shard dense_\d+/kernel\.",
    ),
    "read by another": (
        lambda: in_a_block(lambda x: layers.Add()([wide(6)(y := wide(6)(x)), y])),
        "block",
        r"no way to shard dense_\d+/kernel\.",
    ),
    "called twice": (
        lambda: in_a_block(lambda x: (shared := wide(6))(shared(x))),
        "block",
        r"no way to shard dense_\d+/kernel\.",
    ),
    "convolution": (
        lambda: in_a_block(lambda x: layers.Flatten()(layers.Conv1D(1, 1)(layers.Reshape((6, 1))(x)))),
        "block",
        r"no way to shard conv1d\w*/kernel\.",
    ),
    "odd columns": (
        lambda: in_a_block(lambda x: wide(6)(wide(7)(x))),
        "block",
        "has 7 columns, which do not divide by the 2",
    ),
    "one key": (
        lambda: in_a_block(attending(lambda x: layers.GroupQueryAttention(4, 2, 1)(x, x)), width=12),
        "block",
        "/key/kernel has 1 heads",
    ),
    "softmax": (
        lambda: in_a_block(lambda x: wide(6)(wide(activation="softmax")(x))),
        "block",
        "has the activation softmax, which needs all features at once",
    ),
    "regularizer": (
        lambda: in_a_block(lambda x: wide(6)(wide(kernel_regularizer="l2")(x))),
        "block",
        "has a regularizer or a constraint",
    ),
    "activity": (
        lambda: in_a_block(lambda x: wide(6)(wide(activity_regularizer="l2")(x))),
        "block",
        "has an activity_regularizer",
    ),
    "LoRA": (with_lora, "block", "has LoRA or is quantized"),
}


@pytest.mark.parametrize("name", CANNOT_BE)
def test_what_cannot_be_sharded_is_named(name):
    build, chosen, sentence = CANNOT_BE[name]
    with on(2), pytest.raises(ValueError, match=sentence):
        bt.Model.of(build(), tensor_parallel=chosen)


def test_layers_of_others_are_named():
    models = pytest.importorskip("keras_hub").models
    with on(2), pytest.raises(ValueError, match=r"\(GPTNeoXDecoder\).* shard .*self_attention/\w+/kernel\."):
        bt.Model.of(models.GPTNeoXBackbone(20, 1, 2, 8, 16), tensor_parallel=r"transformer_layer_\d")


def test_with_other_settings():
    with on(2):
        with pytest.raises(ValueError, match="fully_shard='block' and tensor_parallel='block' do not go together"):
            bt.Model.of(a_pair(), fully_shard="block", tensor_parallel="block")
        model = bt.Model.of(a_pair(), tensor_parallel="block")
        assert [each.shape for each in model.get_layer("block").get_weights()] == [
            each.shape for each in a_pair().get_layer("block").get_weights()
        ]
        with pytest.raises(ValueError, match="tensor_parallel=None: the layers of this model are sharded already"):
            model.tensor_parallel = None
    assert apart(trained(1, a_pair, tensor_parallel="block"), trained(1, a_pair)) == 0  # one replica shards nothing


def test_scores_of_some_heads_are_not_returned_as_if_of_all():
    attend = layers.MultiHeadAttention(2, 4)
    with on(2):
        inputs = keras.Input((3, 4))
        outputs, scores = attend(inputs, inputs, return_attention_scores=True)
        model = bt.Model(inputs, [outputs, scores], tensor_parallel=r"multi_head_attention\w*")
        model.compile("sgd", ["mse", None])
        with pytest.raises(ValueError, match="a replica has the attention scores of its own heads only"):
            model.predict(np.zeros((4, 3, 4), "float32"), verbose=0)


def test_a_stock_step_on_sharded_layers_is_refused():
    with on(2):
        block = keras.Sequential([keras.Input((6,)), wide(), wide(6)], name="block")
        bt.Model.of(keras.Sequential([keras.Input((6,)), block]), tensor_parallel="block")
        stock = keras.Sequential([keras.Input((6,)), block])
        stock.compile("sgd", "mse")
        with pytest.raises(
            ValueError, match=r"a keras.Model gives each of them others: use fit.* bt.Model.of\(model\)"
        ):
            stock.fit(X, X, verbose=0)
    np.testing.assert_allclose(tf.function(block)(X), block(X), rtol=1e-6)
