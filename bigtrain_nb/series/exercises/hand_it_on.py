"""Exercises of notebook 14, "Shrink it, hand it on": attention that continues from a KV cache."""

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

SOFTMAX_OFF = 1e-5
"""Tolerance for outputs of `attend`: TensorFlow's float64 softmax on a CPU was off by 1e-8."""


def attend(query, key, value, cache):
    if cache is not None:
        keys_before, values_before = cache
        key = np.concatenate([keys_before, key], axis=1)
        value = np.concatenate([values_before, value], axis=1)
    shared_by = query.shape[2] // key.shape[2]
    keys = np.repeat(key, shared_by, axis=2)
    values = np.repeat(value, shared_by, axis=2)
    scores = np.einsum("bqhd,bkhd->bhqk", query, keys) / query.shape[3] ** 0.5
    new, held = scores.shape[2:]
    is_seen = np.tri(new, held, held - new, dtype=bool)
    scores = np.where(is_seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, values), (key, value)


def _attention_token_by_token(query, key, value):
    """Return the expected outputs of `attend` for all tokens, computed one token and one head at a time."""
    found = np.zeros_like(query)
    readers, tokens, heads, width = query.shape
    shared_by = heads // key.shape[2]
    for reader in range(readers):
        for token in range(tokens):
            for head in range(heads):
                keys = key[reader, : token + 1, head // shared_by]
                values = value[reader, : token + 1, head // shared_by]
                scores = keys @ query[reader, token, head] / width**0.5
                weights = np.exp(scores - scores.max())
                found[reader, token, head] = weights @ values / weights.sum()
    return found


@exercise(
    attend,
    takes=(
        "new queries [readers, tokens, heads, width]; their keys [readers, tokens, heads of keys, width];"
        " their values; what the call before returned as the cache, or None"
    ),
    returns="a tuple (outputs like the queries, the cache: keys and values of all tokens so far)",
    minutes=30,
    difficulty=4,
)
def _check_attend(answer):
    """Append the new keys and values to those in the cache. If `before` tokens are cached, new query i has position
    `before + i`, and attends to all tokens up to there. The third argument of `np.tri` shifts its diagonal. Repeat each
    KV head for the adjacent query heads that share it, but cache it once. Subtract the maximum score before `np.exp`.
    """
    chance = np.random.default_rng(12)
    cases = [
        ("6 tokens at once", 2, 3, 3, [6], 1),
        ("5 tokens, then one at a time", 2, 3, 3, [5, 1, 1, 1], 1),
        ("tokens in chunks of 3, 4 and 2", 1, 2, 2, [3, 4, 2], 1),
        ("6 query heads that share 2 KV heads", 2, 6, 2, [4, 1, 2], 1),
        ("scores of several thousand", 1, 2, 1, [3, 1], 200),
    ]
    for told, readers, heads, key_heads, pieces, size in cases:
        tokens = sum(pieces)
        query = size * chance.normal(size=(readers, tokens, heads, 5))
        key = size * chance.normal(size=(readers, tokens, key_heads, 5))
        value = chance.normal(size=(readers, tokens, key_heads, 5))
        _check_pieces(answer, told, query, key, value, pieces)


def _check_pieces(answer, told, query, key, value, pieces):
    expected = _attention_token_by_token(query, key, value)
    cache = None
    ends = np.cumsum(pieces)
    for begin, end in zip(ends - pieces, ends, strict=True):
        given = cache and tuple(np.array(part) for part in cache)
        now = slice(begin, end)
        answered = answer(query[:, now].copy(), key[:, now].copy(), value[:, now].copy(), cache)
        if not isinstance(answered, tuple) or len(answered) != 2:
            raise Wrong(f"{told}: expected a tuple (the new tokens' outputs, the cache), got {answered!r}")
        where = f"{told}, tokens {begin} to {end - 1}"
        outputs = np.asarray(answered[0])
        is_near = outputs.shape == expected[:, now].shape and np.abs(outputs - expected[:, now]).max() < SOFTMAX_OFF
        if not is_near:
            expect(outputs, expected[:, now], f"{where}: the outputs")
        if given:
            expect(cache, given, f"{where}: the cache passed in, which must not change")
        cache = answered[1]
        if not isinstance(cache, tuple) or len(cache) != 2:
            raise Wrong(f"{where}: expected a cache (keys, values), got {cache!r}")
        expect(np.asarray(cache[0]), key[:, :end], f"{where}: the cached keys")
        expect(np.asarray(cache[1]), value[:, :end], f"{where}: the cached values")


@_check_attend.refuses("6 tokens at once, tokens 0 to 5: the outputs")
def _sees_what_is_to_come(query, key, value, cache):
    keys, values = attend(query, key, value, cache)[1]
    shared_by = query.shape[2] // keys.shape[2]
    scores = np.einsum("bqhd,bkhd->bhqk", query, np.repeat(keys, shared_by, 2)) / query.shape[3] ** 0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, np.repeat(values, shared_by, 2)), (keys, values)


@_check_attend.refuses("5 tokens, then one at a time, tokens 5 to 5: the outputs")
def _takes_new_tokens_for_the_first(query, key, value, cache):
    """A mask without a shift: the new token sees only the first one."""
    kept = attend(query, key, value, cache)[1]
    first = [part[:, : query.shape[1]] for part in kept]
    return attend(query, *first, None)[0], kept


@_check_attend.refuses("5 tokens, then one at a time, tokens 5 to 5: the outputs")
def _forgets_the_cache(query, key, value, cache):
    return attend(query, key, value, None)


@_check_attend.refuses("6 tokens at once, tokens 0 to 5: the outputs")
def _forgets_the_width(query, key, value, cache):
    return attend(query * query.shape[3] ** 0.5, key, value, cache)


@_check_attend.refuses("6 query heads that share 2 KV heads, tokens 0 to 3: the outputs")
def _deals_heads_out(query, key, value, cache):
    """Query head h uses KV head h % key_heads, as with `np.tile`, not the one it shares with its neighbors."""
    heads, key_heads = query.shape[2], key.shape[2]
    dealt = np.argsort(np.arange(heads) % key_heads, kind="stable")
    found, kept = attend(query[:, :, dealt], key, value, cache)
    return found[:, :, np.argsort(dealt)], kept


@_check_attend.refuses("6 query heads that share 2 KV heads, tokens 0 to 3: the cached keys")
def _keeps_each_head_many_times(query, key, value, cache):
    if cache is not None:
        shared_by = cache[0].shape[2] // key.shape[2]
        cache = tuple(part[:, :, ::shared_by] for part in cache)
    found, kept = attend(query, key, value, cache)
    return found, tuple(np.repeat(part, query.shape[2] // key.shape[2], axis=2) for part in kept)


@_check_attend.refuses("scores of several thousand, tokens 0 to 2: the outputs")
def _overflows(query, key, value, cache):
    kept = attend(query, key, value, cache)[1]
    keys, values = (np.repeat(part, query.shape[2] // part.shape[2], axis=2) for part in kept)
    scores = np.einsum("bqhd,bkhd->bhqk", query, keys) / query.shape[3] ** 0.5
    new, held = scores.shape[2:]
    with np.errstate(all="ignore"):
        weights = np.exp(scores) * np.tri(new, held, held - new)
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, values), kept
