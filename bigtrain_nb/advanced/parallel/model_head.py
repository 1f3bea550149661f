"""The head of a language model: it computes logits from hidden states, each row independently."""

from functools import partial

import numpy as np

from bigtrain_nb.advanced.parallel.layers import ValuesFor, without_autocast
from bigtrain_nb.advanced.parallel.recompute import is_recomputed
from bigtrain_nb.advanced.shared.layers import calls_seen
from bigtrain_nb.common.keras_compat import Functional, layers_within, overriding
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import is_shard
from bigtrain_nb.common.words import first_sentence
from bigtrain_nb.train.in_place import own_class

# isort: split
from keras.src.models.functional import operation_fn
from keras.src.ops.function import Function


class Head:
    """The last layer with weights of a model, and what follows it; no class of the user's may override Keras' `call`.

    It maps rows of hidden states, [n, 1, width] where the model has [batch, positions, width], to logits, [n, 1,
    vocabulary]. Raises ValueError, by name, where that is not possible.
    """

    def __init__(self, model):  # private: Keras
        inside = {Functional: model, keras.Sequential: getattr(model, "_functional", None)}
        functional = inside.get(overriding(model, "call"))
        if is_recomputed(model):
            raise ValueError(f"{model.name} is recomputed, so its head cannot be found: recompute only its blocks")
        if functional is None:
            raise ValueError(
                f"{model.name} ({own_class(model).__name__}) has a custom call or is not built, so its head cannot be"
                " found: build it with keras.Model(inputs, outputs), or keras.Sequential with a keras.Input"
            )
        if len(functional.outputs) != 1:
            raise ValueError(f"{model.name} has {len(functional.outputs)} outputs, but chunk_head needs exactly one")
        (output,) = functional.outputs
        layer, tensors = made_by(output)
        while not getattr(layer, "weights", None) and len(tensors) == 1:
            layer, tensors = made_by(tensors[0])
        self.name = f"{layer.name} ({own_class(layer).__name__}) of {model.name}"
        self._takes_places = any(kind.__name__ == "MaskedLMHead" for kind in type(layer).__mro__)  # of KerasHub
        if len(tensors) != 1 + self._takes_places or not tf.as_dtype(tensors[0].dtype).is_floating:
            raise ValueError(
                f"{self.name} cannot be computed in chunks of rows: a head takes only hidden states, but this one takes"
                f" {len(tensors)} tensors of {', '.join(tensor.dtype for tensor in tensors) or 'the batch'}"
            )
        self._until = keras.Model(functional._inputs_struct, tensors, name=functional.name).call
        self._function = Function(tensors, output)
        self._layers = [one for one in self._function.operations if isinstance(one, keras.layers.Layer)]
        inner = [one for layer in self._layers for one in layers_within(layer)]
        stock = keras.layers.ReversibleEmbedding.call
        self._tied = [one for one in inner if getattr(one.call, "__func__", None) is stock and one.tie_weights]
        self.row = (*[1] * (len(tensors[0].shape) - 2), tensors[0].shape[-1])  # the shape of a row of hidden states
        self.dtype = tf.as_dtype(tensors[0].dtype)
        self._refuse_kinds_of_weights()
        weights = {id(weight): weight for layer in self._layers for weight in layer.weights}
        with ValuesFor([(weight, weight.value) for weight in weights.values()]) as scope:
            try:
                self._after(self._rows(tf.zeros([0, *self.row], self.dtype)), False)
            except (ValueError, tf.errors.InvalidArgumentError) as error:  # as with a kernel per position
                raise ValueError(
                    f"{self.name} cannot be computed in chunks of rows: {first_sentence(error)}"
                ) from error
        self.variables = [weights[read] for read in weights if read in scope.read]  # not that of an untied embedding
        self._dtypes = [keras.backend.result_type(*scope.read[id(variable)]) for variable in self.variables]

    def hidden(self, inputs, **kwargs):
        """Return the head's input for a batch, [batch, positions, width]."""
        made = self._until(inputs, **kwargs)
        return tf.gather(*made, axis=1, batch_dims=1) if self._takes_places else made

    def __call__(self, rows, training, values):
        """Return the logits of rows; tensors ``values`` replace those of the variables."""
        with ValuesFor(zip(self.variables, values, strict=True)), calls_seen(self._tied, _tied_logits):
            return self._after(self._rows(rows), training)

    def values(self):
        """Return the variables' values in the dtypes of the head's layers, so that not every chunk casts them."""
        with without_autocast():  # the model may cast to another dtype
            values = [tf.convert_to_tensor(variable.value) for variable in self.variables]
        return [tf.cast(value, dtype) for value, dtype in zip(values, self._dtypes, strict=True)]

    def _after(self, values, training):
        return self._function._run_through_graph(values, partial(operation_fn, training=training))  # private: Keras

    def _rows(self, rows):
        return [rows, tf.zeros(tf.shape(rows)[:2], "int32")] if self._takes_places else [rows]

    def refuse_rows_together(self):
        """Raise ValueError if random hidden states give other logits together than position by position."""
        rows = tf.cast(tf.random.stateless_normal([6, *self.row], seed=(0, 1)), self.dtype)
        together = [6] if len(self.row) == 1 else [2, 3, *self.row[1:-1]]
        places = [tf.tile(tf.range(3)[None], [2, 1])] if self._takes_places else []
        with keras.StatelessScope():
            whole = self._after([tf.reshape(rows, [*together, self.row[-1]]), *places], True)
        values = self.values()
        alone = tf.concat([self(rows[one : one + 1], True, values) for one in range(6)], 0)
        whole, alone = (tf.cast(one, tf.float32).numpy() for one in (tf.reshape(whole, tf.shape(alone)), alone))
        if not np.allclose(whole, alone, rtol=0, atol=0.02 * np.abs(alone).max()):  # 16-bit rounding: 0.004
            raise ValueError(f"{self.name} mixes positions in its logits, so it cannot be computed in chunks of rows")

    def _refuse_kinds_of_weights(self):
        for layer in self._layers:
            kinds = {
                "is quantized": getattr(layer, "quantization_mode", None) is not None,
                "is fully sharded": any(map(is_shard, layer.weights)),
                "adds a loss on its outputs, its activity_regularizer": layer.activity_regularizer is not None,
            }
            if what := " and ".join(kind for kind, is_so in kinds.items() if is_so):
                raise ValueError(f"{layer.name} {what}, so {self.name} cannot be computed in chunks of rows")


def made_by(tensor):  # private: Keras
    """Return the layer or operation that produced a symbolic tensor, and its symbolic inputs."""
    operation, index, _ = tensor._keras_history
    return operation, operation._inbound_nodes[index].input_tensors


def _tied_logits(layer, call, inputs, reverse):
    """Replace ReversibleEmbedding.call, whose transpose of the embeddings copies each chunk's gradient of them."""
    dtype, cap = layer.reverse_dtype or inputs.dtype, layer.logit_soft_cap
    rows = tf.reshape(tf.cast(inputs, dtype), [-1, inputs.shape[-1]])
    logits = tf.matmul(rows, keras.ops.cast(layer.embeddings, dtype), transpose_b=True)
    logits = tf.reshape(logits, [-1, *inputs.shape[1:-1], layer.input_dim])
    return logits if cap is None else tf.tanh(logits / cap) * cap
