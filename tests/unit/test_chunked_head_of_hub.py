"""The KerasHub language models that a chunked head supports: one step of each equals that of full logits."""

import hub_models
import numpy as np
import pytest
from hub_models import LENGTH, VOCABULARY

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

pytestmark = pytest.mark.more("KerasHub's language models, one by one")

NAMES = {"vocabulary_size": VOCABULARY, "num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}
OLD = {**NAMES, "num_heads": 2}
NEW = {**NAMES, "num_query_heads": 4, "num_key_value_heads": 2}
KINDS = {  # task name: backbone name, its arguments
    "GPT2CausalLM": ("GPT2Backbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "OPTCausalLM": ("OPTBackbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "BloomCausalLM": ("BloomBackbone", OLD),
    "FalconCausalLM": ("FalconBackbone", {**NAMES, "num_attention_heads": 2}),
    "GPTNeoXCausalLM": ("GPTNeoXBackbone", {**OLD, "max_sequence_length": LENGTH}),
    "LlamaCausalLM": ("LlamaBackbone", NEW),
    "Llama3CausalLM": ("Llama3Backbone", NEW),
    "MistralCausalLM": ("MistralBackbone", NEW),
    "MixtralCausalLM": ("MixtralBackbone", {**NEW, "num_experts": 2}),
    "GemmaCausalLM": ("GemmaBackbone", {**NEW, "head_dim": 8, "final_logit_soft_cap": 3.0}),
    "Gemma3CausalLM": ("Gemma3Backbone", {**NEW, "head_dim": 8, "image_size": None}),
    "Phi3CausalLM": ("Phi3Backbone", NEW),
    "QwenCausalLM": ("QwenBackbone", NEW),
    "Qwen3CausalLM": ("Qwen3Backbone", {**NEW, "head_dim": 8}),
    "Qwen3MoeCausalLM": (
        "Qwen3MoeBackbone",
        {**NEW, "moe_intermediate_dim": 16, "num_experts": 2, "head_dim": 8, "top_k": 1},
    ),
    "QwenMoeCausalLM": (
        "QwenMoeBackbone",
        {**NEW, "moe_intermediate_dim": 16, "shared_expert_intermediate_dim": 16, "num_experts": 2, "top_k": 1},
    ),
    "GptOssCausalLM": ("GptOssBackbone", {**NEW, "num_experts": 2, "top_k": 1, "head_dim": 8}),
    "BertMaskedLM": ("BertBackbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "RobertaMaskedLM": ("RobertaBackbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "XLMRobertaMaskedLM": ("XLMRobertaBackbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "DistilBertMaskedLM": ("DistilBertBackbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "DebertaV3MaskedLM": ("DebertaV3Backbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "AlbertMaskedLM": ("AlbertBackbone", {**OLD, "embedding_dim": 16, "max_sequence_length": LENGTH}),
    "FNetMaskedLM": ("FNetBackbone", {**NAMES, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "BartSeq2SeqLM": ("BartBackbone", {**OLD, "dropout": 0.0, "max_sequence_length": LENGTH}),
    "T5Seq2SeqLM": ("T5Backbone", {**OLD, "dropout": 0.0}),
}


def data_for(model):
    if "decoder_token_ids" in model.input:
        return hub_models.translations()
    x, y, weight = hub_models.masked_words() if "mask_positions" in model.input else hub_models.next_tokens()
    return {name: value for name, value in x.items() if name in model.input}, y, weight


def one_step(task, chunked):
    models = hub_models.keras_hub()
    keras.utils.set_random_seed(1)
    name, settings = KINDS[task]
    model = getattr(models, task)(backbone=getattr(models, name)(**settings), preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, weighted_metrics=["accuracy"])
    if chunked:
        bt.chunk_head(model, rows=25)
    x, y, weight = data_for(model)
    return model.train_on_batch(x, y, sample_weight=weight, return_dict=True), model.get_weights()


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of backbone parts that a task does not use
@pytest.mark.parametrize("task", KINDS)
def test_a_step_is_that_of_whole_logits(task):
    if not hasattr(hub_models.keras_hub(), task):
        pytest.skip(f"this KerasHub has no {task}")
    (logs, weights), (stock_logs, stock_weights) = one_step(task, True), one_step(task, False)
    assert logs == pytest.approx(stock_logs, rel=1e-5)
    for one, other in zip(weights, stock_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
