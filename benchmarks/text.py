"""Packing: `bt.TokenRows` compared with chunks, padding and Grain's packing, in tokens/s and padding."""

import argparse
import os
import re
import sysconfig
from functools import partial
from pathlib import Path

import numpy as np
from report import add_arguments, compare_in, facts, finish, in_words, say, table

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers

import bigtrain_nb as bt

LENGTHS = (512, 2048)
BATCH_TOKENS = 32_768
BINS = 128
"""Open rows of Grain's packing; more rows pack better but need more memory."""
OURS = "bt.TokenRows in tf.data"
PACKAGES = ("tokenizers", "grain")


def kinds_of_documents(megabytes):
    """Return {kind: a list of arrays of tokens}: files of Python's standard library, and its functions and classes."""
    files = texts_of_library(megabytes)
    functions = [
        part for text in files for part in re.split(r"^(?= *(?:def|class) )", text, flags=re.MULTILINE) if part
    ]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = bpe.pre_tokenizer.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4096, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(functions[::4], trainer)

    def encoded(texts):
        return [np.array(bpe.encode(text).ids, np.int32) for text in texts]

    return {"files": encoded(files), "functions": encoded(functions)}


def texts_of_library(megabytes):
    """Return the source of standard-library modules, at most ``megabytes`` in total."""
    texts, left = [], megabytes * 1e6
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text and len(text) <= left:
            texts.append(text)
            left -= len(text)
    return texts


def pieces_of(documents, length):
    """Return the documents, split where longer than a row."""
    return [document[start : start + length] for document in documents for start in range(0, len(document), length)]


def contenders(documents, length):
    """Return {name: (factory of a step that makes a batch and counts tokens, fraction of padding, fraction cut)}."""
    tokens = np.concatenate(documents)
    sizes = np.array([len(document) for document in documents])
    pieces = pieces_of(documents, length)
    rows = bt.TokenRows(tokens, sizes, length)
    of_pieces = np.array([len(piece) for piece in pieces])
    found = {
        OURS: (partial(numbered, rows, in_tf_data=True), rows.padding, 0),
        "bt.TokenRows in NumPy": (partial(numbered, rows, in_tf_data=False), rows.padding, 0),
        "chunks, rebatch": (partial(chunks, documents, length), 0.0, cut_by_chunks(sizes, length)),
        "padded to the longest": (partial(padded, pieces, length), padding_of_batches(of_pieces, length), 0),
        "in buckets": (partial(bucketed, pieces, length), 1 - of_pieces.sum() / bucket_of(of_pieces).sum(), 0),
    }
    return found | of_grain(pieces, length)


def numbered(rows, in_tf_data):
    """Rows by index, in a new random order for each pass."""
    batch = min(BATCH_TOKENS // rows.length, len(rows))
    per_pass = len(rows) // batch

    def numbers(step):
        order = np.random.default_rng(step // per_pass).permutation(len(rows))
        return order[step % per_pass * batch :][:batch]

    if not in_tf_data:
        return counting(rows[numbers(step)] for step in range(10**9))

    def read(step):
        def arrays(step):
            found = rows[numbers(step)]
            return found["tokens"], found["segments"], found["positions"]

        found = bt.tf.numpy_function(arrays, [step], [bt.tf.int32] * 3, stateful=False)
        return dict(zip(("tokens", "segments", "positions"), found, strict=True))

    return counting(bt.tf.data.Dataset.range(10**9).map(read).as_numpy_iterator())


def counting(batches):
    """Return a step that takes the next batch and returns the number of non-padding tokens."""

    def step():
        batch = next(batches)
        return int(np.count_nonzero(batch["segments"]))

    return step


def chunks(documents, length):
    rows = BATCH_TOKENS // length
    stream = ragged(documents).map(dense).rebatch(length).batch(rows)
    batches = stream.as_numpy_iterator()

    def step():
        return next(batches).size

    return step


def ragged(pieces):
    ragged_tokens = bt.tf.RaggedTensor.from_row_lengths(np.concatenate(pieces), [len(piece) for piece in pieces])
    return bt.tf.data.Dataset.from_tensor_slices(ragged_tokens).repeat()


def padded(pieces, length):
    dataset = ragged(pieces).map(with_segments).padded_batch(BATCH_TOKENS // length)
    return counting(dataset.as_numpy_iterator())


def with_segments(tokens):
    tokens = dense(tokens)
    return {"tokens": tokens, "segments": bt.tf.ones_like(tokens)}


def dense(tokens):
    return bt.tf.ensure_shape(tokens, [None])


def bucketed(pieces, length):
    """Batches from one bucket each, with the same number of tokens for every bucket."""
    bounds = [bucket + 1 for bucket in buckets_up_to(length)[:-1]]
    sizes = [BATCH_TOKENS // bucket for bucket in buckets_up_to(length)]
    dataset = ragged(pieces).map(with_segments)
    dataset = dataset.bucket_by_sequence_length(lambda batch: bt.tf.size(batch["tokens"]), bounds, sizes)
    return counting(dataset.as_numpy_iterator())


def buckets_up_to(length):
    return [2**power for power in range(4, length.bit_length())]


def bucket_of(sizes):
    return np.maximum(16, 2 ** np.ceil(np.log2(sizes)).astype(int))


def padding_of_batches(sizes, length):
    """Fraction of padding for batches of consecutive pieces, padded to the longest."""
    batch = BATCH_TOKENS // length
    places = sum(
        sizes[start : start + batch].max() * len(sizes[start : start + batch]) for start in range(0, len(sizes), batch)
    )
    return 1 - sizes.sum() / places


def cut_by_chunks(sizes, length):
    """Fraction of documents that fit into a row but are cut."""
    ends = np.cumsum(sizes)
    fits = sizes <= length
    return float(np.mean(((ends - sizes) // length < (ends - 1) // length)[fits])) if fits.any() else 0.0


def of_grain(pieces, length):
    try:
        import grain
    except ImportError:
        say('Grain is missing: pip install -e ".[peers]" adds its rows.')
        return {}
    packing = grain.experimental
    documents = [{"tokens": piece} for piece in pieces]

    def rows_of(kind, repeat=True):
        source = grain.MapDataset.source(documents)
        source = source.repeat() if repeat else source
        return kind(source.to_iter_dataset(), length_struct={"tokens": length}, num_packing_bins=BINS)

    def packed(kind):
        return counting(map(with_grains_segments, rows_of(kind).batch(BATCH_TOKENS // length)))

    def padding(kind):
        used = [np.count_nonzero(row["tokens_segment_ids"]) for row in rows_of(kind, repeat=False)]
        return 1 - sum(used) / (length * len(used))

    kinds = {
        f"Grain, first fit, {BINS} rows": packing.FirstFitPackIterDataset,
        f"Grain, best fit, {BINS} rows": packing.BestFitPackIterDataset,
    }
    return {name: (partial(packed, kind), padding(kind), 0) for name, kind in kinds.items()}


def with_grains_segments(batch):
    return {"tokens": batch["tokens"], "segments": batch["tokens_segment_ids"]}


def check(found):
    """Raise ValueError for a contender whose steps return no tokens."""
    for name, (factory, padding, _) in found.items():
        step = factory()
        counts = [step() for _ in range(3)]
        if not (min(counts) > 0 and max(counts) <= 2 * BATCH_TOKENS and 0 <= padding < 1):
            raise ValueError(f"{name}: {counts} tokens in three batches, padding {padding:.2f}")


def rows_of_table(comparison, found):
    """Yield a row per contender: rate, padding, documents cut, and the speedup of ours."""
    for name, result in comparison.results.items():
        _, padding, cut = found[name]
        gain = "" if name == OURS else str(comparison.ratio(OURS, name))
        million = f"{result.median / 1e6:.1f} ({result.low / 1e6:.1f} to {result.high / 1e6:.1f})"
        yield [name, million, f"{100 * padding:.2f} %", f"{100 * cut:.0f} %" if cut else "", gain]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=280, help="for the four comparisons (default: 280)")
    parser.add_argument("--megabytes", type=float, default=4, help="of source text (default: 4)")
    add_arguments(parser)
    arguments = parser.parse_args()

    about = facts(PACKAGES)
    head = ("", "million tokens/s", "padding", "documents cut", "`bt.TokenRows` in tf.data is faster by")
    text = f"{in_words(about)} {arguments.seconds:.0f} s for all."
    shown, compared = {}, {}
    for kind, documents in kinds_of_documents(arguments.megabytes).items():
        middle = int(np.mean([len(document) for document in documents]))
        for length in LENGTHS:
            title = f"{kind.capitalize()}, {middle:,} tokens on average, rows of {length:,}"
            say(title)
            found = contenders(documents, length)
            check(found)
            factories = {name: factory for name, (factory, _, _) in found.items()}
            comparison = compare_in(arguments.seconds / (2 * len(LENGTHS)), factories)
            shown[title] = [*rows_of_table(comparison, found)]
            compared[title] = comparison.to_dict()
            text += f"\n\n**{title}**\n\n{table(head, shown[title])}"
    finish(arguments, "text", text, {"facts": about, "head": head, "rows": shown, "compared": compared})


if __name__ == "__main__":
    main()
