"""Typical models of KerasHub, small and with random weights: a builder and a batch of data for each.

GPT-2 has two blocks; one is enough for the others, which differ in the kind of block.
"""

import numpy as np
import pytest

LENGTH, VOCABULARY = 12, 64


def keras_hub():
    return pytest.importorskip("keras_hub").models


def gpt2(dropout=0.0):
    models = keras_hub()
    backbone = models.GPT2Backbone(VOCABULARY, 2, 2, 16, 32, dropout=dropout, max_sequence_length=LENGTH)
    return models.GPT2CausalLM(backbone, preprocessor=None)


def llama():
    models = keras_hub()
    return models.LlamaCausalLM(models.LlamaBackbone(VOCABULARY, 1, 4, 16, 32, 2), preprocessor=None)


def gemma():
    models = keras_hub()
    backbone = models.GemmaBackbone(VOCABULARY, 1, 2, 1, 16, 32, 8)
    return models.GemmaCausalLM(backbone, preprocessor=None)


def qwen_lora():
    models = keras_hub()
    backbone = models.QwenBackbone(VOCABULARY, 1, 4, 2, 16, 32)
    backbone.enable_lora(2)
    return models.QwenCausalLM(backbone, preprocessor=None)


def _bert():
    return keras_hub().BertBackbone(VOCABULARY, 1, 2, 16, 32, dropout=0.0, max_sequence_length=LENGTH, num_segments=2)


def bert_classifier():
    return keras_hub().BertTextClassifier(_bert(), 3, preprocessor=None, dropout=0.0)


def bert_masked_lm():
    return keras_hub().BertMaskedLM(_bert(), preprocessor=None)


def bart():
    models = keras_hub()
    backbone = models.BartBackbone(VOCABULARY, 1, 2, 16, 32, dropout=0.0, max_sequence_length=LENGTH)
    return models.BartSeq2SeqLM(backbone, preprocessor=None)


def vit():
    models = keras_hub()
    backbone = models.ViTBackbone((16, 16, 3), 4, 1, 2, 16, 32, dropout_rate=0.0, attention_dropout=0.0)
    return models.ViTImageClassifier(backbone, 3, preprocessor=None, dropout=0.0)


def _rows(count=14, width=LENGTH):
    """Return tokens [count, width], and a mask of the positions that are not padding."""
    random = np.random.default_rng(0)
    tokens = random.integers(4, VOCABULARY, (count, width)).astype("int32")
    padding = np.arange(width) < random.integers(4, width + 1, (count, 1))
    return tokens * padding, padding.astype("int32")


def next_tokens():
    tokens, padding = _rows(width=LENGTH + 1)
    x = {"token_ids": tokens[:, :-1], "padding_mask": padding[:, :-1]}
    return x, tokens[:, 1:], padding[:, 1:].astype("float32")


def classes_of_texts():
    tokens, padding = _rows()
    x = {"token_ids": tokens, "segment_ids": np.zeros_like(tokens), "padding_mask": padding}
    return x, np.arange(len(tokens)) % 3, None


def masked_words():
    x, _, _ = classes_of_texts()
    places = np.tile(np.array([[1, 2]], "int32"), (len(x["token_ids"]), 1))
    return {**x, "mask_positions": places}, x["token_ids"][:, 1:3], np.ones(places.shape, "float32")


def translations():
    x, following, weight = next_tokens()
    tokens, padding = x["token_ids"], x["padding_mask"]
    return (
        {
            "encoder_token_ids": tokens,
            "encoder_padding_mask": padding,
            "decoder_token_ids": tokens,
            "decoder_padding_mask": padding,
        },
        following,
        weight,
    )


def pictures():
    images = np.random.default_rng(0).normal(size=(14, 16, 16, 3)).astype("float32")
    return images, np.arange(14) % 3, None


def gpt2_of_texts():
    """Return GPT-2 with a tokenizer of letters."""
    models = keras_hub()
    letters = "abcdefghijklmnopqrstuvwxyzĠ"  # Ġ stands for a space
    vocabulary = {token: index for index, token in enumerate(["<|endoftext|>", *letters, "th", "the"])}
    tokenizer = models.GPT2Tokenizer(vocabulary=vocabulary, merges=["t h", "th e"])
    preprocessor = models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=LENGTH)
    backbone = models.GPT2Backbone(len(vocabulary), 1, 2, 16, 32, dropout=0.0, max_sequence_length=LENGTH)
    return models.GPT2CausalLM(backbone, preprocessor=preprocessor)


TASKS = {
    "GPT-2": (gpt2, next_tokens),
    "Llama": (llama, next_tokens),
    "Gemma": (gemma, next_tokens),
    "Qwen with LoRA": (qwen_lora, next_tokens),
    "BERT, classes": (bert_classifier, classes_of_texts),
    "BERT, masked words": (bert_masked_lm, masked_words),
    "BART": (bart, translations),
    "ViT": (vit, pictures),
}
