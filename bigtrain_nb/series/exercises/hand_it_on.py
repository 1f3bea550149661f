"""Exercises of notebook 14, "Shrink it, hand it on": a server, its batches and versions, and a cache."""

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

PATIENCE = 3
"""Seconds until a thread of an answer counts as stuck."""
VERSIONS = 30
"""Versions that are rolled in while many ask."""
A_PAUSE = 0.001
"""Seconds that a thread sleeps now and then, so that others go on."""
SOFTMAX_OFF = 1e-5
"""Outputs of `attend` may be off by so much: TensorFlow's softmax of float64 on a CPU was off by 1e-8."""


def batches(arrivals, seconds, largest, wait, patience):
    done = []
    free = 0.0
    first = 0
    while first < len(arrivals):
        if arrivals[first] + patience < free:
            first += 1
            continue
        start = arrivals[first] + wait
        last = first + largest - 1
        if last < len(arrivals):
            start = min(start, arrivals[last])
        start = max(start, free)
        batch = [number for number in range(first, len(arrivals)) if arrivals[number] <= start][:largest]
        done.append((start, batch))
        free = start + seconds(len(batch))
        first += len(batch)
    return done


@exercise(batches, minutes=25, difficulty=4)
def _check_batches(answer):
    """Keep the moment at which the server is free, and the number of the first request that is not settled. If that
    one's client has left by then, go on to the next. Otherwise find the moment when the batch starts: the oldest has
    waited long enough, or enough have come, whichever is first, but not before the server is free. Who is there at
    that moment comes along.
    """
    chance = np.random.default_rng(7)
    cases = [
        ("two that come together", [0.0, 0.5], 4, 2.0, 50.0),
        ("a full batch", [0.0, 1.0, 1.5, 9.0], 3, 5.0, 50.0),
        ("one that comes while the server is busy", [0.0, 3.0, 4.0], 8, 1.0, 50.0),
        ("clients that have left", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 30.0], 2, 0.5, 10.0),
        ("a busy hour", np.cumsum(chance.exponential(1.5, 200)).tolist(), 4, 3.0, 25.0),
        ("an overload", np.cumsum(chance.exponential(0.8, 200)).tolist(), 6, 3.0, 25.0),
    ]

    def seconds(count):
        return 4 + count

    for told, arrivals, largest, wait, patience in cases:
        expected = batches(arrivals, seconds, largest, wait, patience)
        got = answer(list(arrivals), seconds, largest, wait, patience)
        for place, (start, numbers) in enumerate(expected):
            if place >= len(got):
                raise Wrong(f"{told}: expected {len(expected)} batches, got {len(got)}")
            expect(list(got[place][1]), numbers, f"{told}: the requests of batch {place}")
            expect(got[place][0], float(start), f"{told}: the start of batch {place}")
        expect(len(got), len(expected), f"{told}: the number of batches")


@_check_batches.refuses("two that come together: the requests of batch 0: expected [0, 1], got [0]")
def _waits_for_nobody(arrivals, seconds, largest, wait, patience):
    return batches(arrivals, seconds, largest, 0.0, patience)


@_check_batches.refuses("a full batch: the start of batch 0: expected about 1.5, got 5")
def _always_waits(arrivals, seconds, largest, wait, patience):
    done, free, first = [], 0.0, 0
    while first < len(arrivals):
        start = max(free, arrivals[first] + wait)
        batch = [number for number in range(first, len(arrivals)) if arrivals[number] <= start][:largest]
        done.append((start, batch))
        free, first = start + seconds(len(batch)), first + len(batch)
    return done


@_check_batches.refuses("clients that have left: the requests of batch 2: expected [6], got [4, 5]")
def _works_for_those_who_left(arrivals, seconds, largest, wait, patience):
    return batches(arrivals, seconds, largest, wait, float("inf"))


@_check_batches.refuses("one that comes while the server is busy: the start of batch 1: expected about 6")
def _is_always_free(arrivals, seconds, largest, wait, patience):
    return batches(arrivals, lambda count: 0.0, largest, wait, patience)


def rolling(load, unload, first):
    lock = threading.Lock()
    newest = load(first)
    inside = {newest: 0}

    def answer(request):
        with lock:
            model = newest
            inside[model] += 1
        try:
            return model(request)
        finally:
            with lock:
                inside[model] -= 1
                is_last = model is not newest and inside[model] == 0
            if is_last:
                unload(model)

    def roll_in(version):
        nonlocal newest
        model = load(version)
        with lock:
            old, newest = newest, model
            inside[model] = 0
            is_idle = inside[old] == 0
        if is_idle:
            unload(old)

    return answer, roll_in


class _Shop:
    """Loads versions that wait where the check wants them to, and notes what is unloaded."""

    def __init__(self):
        self.unloaded = []
        self.may_load = threading.Event()
        self.may_answer = threading.Event()
        self.entered = threading.Event()
        self.loading = threading.Event()
        self.may_load.set()

    def load(self, version):
        self.loading.set()
        self.may_load.wait(4 * PATIENCE)
        if version == "broken":
            raise OSError("the file is cut off")

        def model(request):
            if request == "slow":
                self.entered.set()
                self.may_answer.wait(4 * PATIENCE)
            if request == "bad":
                raise KeyError(request)
            if version in self.unloaded:
                return f"{version} was used after it was unloaded"
            return version

        model.version = version
        return model

    def unload(self, model):
        self.unloaded.append(model.version)


@exercise(rolling, minutes=25, difficulty=4)
def _check_rolling(answer):
    """Count for each version how many requests are inside it. A lock guards the counts and the switch, but never a load
    and never an answer, for they take long. A version is unloaded by whoever leaves it last after the switch, or by the
    switch itself if nobody is inside. A request that raises has left, too.
    """
    shop = _Shop()
    made = answer(shop.load, shop.unload, "1")
    ask, roll_in = made
    threads = ThreadPoolExecutor(4)
    try:
        _drive(shop, ask, roll_in, threads)
    finally:
        shop.may_load.set()
        shop.may_answer.set()
        threads.shutdown(wait=False, cancel_futures=True)
    for _ in range(3):
        _crowd(answer)


def _drive(shop, ask, roll_in, threads):
    expect(ask("quick"), "1", "the first version's answer")
    with suppress(KeyError):
        ask("bad")
    slow = threads.submit(ask, "slow")
    _soon(shop.entered, "a request never came to version 1")

    shop.may_load.clear()
    shop.loading.clear()
    rolled = threads.submit(roll_in, "2")
    _soon(shop.loading, "version 2 is not loaded while a slow request is inside version 1")
    expect(_in_time(threads.submit(ask, "quick"), "an answer while version 2 is being loaded"), "1", "an answer then")
    shop.may_load.set()
    _in_time(rolled, "rolling in version 2 while a request is still inside version 1")
    expect(_in_time(threads.submit(ask, "quick"), "an answer after the switch"), "2", "an answer after the switch")
    expect(list(shop.unloaded), [], "what is unloaded while a request is inside version 1")
    shop.may_answer.set()
    expect(_in_time(slow, "the slow request"), "1", "the answer to a request that began with version 1")
    expect(list(shop.unloaded), ["1"], "what is unloaded after the last request has left version 1")

    _rolls_in_a_broken_version(roll_in)
    expect(ask("quick"), "2", "an answer after a version that could not be loaded")
    roll_in("3")
    expect(ask("quick"), "3", "an answer after the third version has come")
    expect(list(shop.unloaded), ["1", "2"], "what is unloaded after version 3 has come")


def _crowd(answer):
    """Raise `Wrong` unless each version is unloaded once, after its last request, while many ask and versions change.

    A thread may pause between any two instructions of the answer, so a lock that is missing shows.
    """
    unloaded, problems = [], []
    all_rolled_in = threading.Event()

    def load(version):
        def model(request):
            time.sleep(A_PAUSE)
            if version in unloaded:
                problems.append(f"version {version} was unloaded while a request was on its way to it, or inside")
            return version

        model.version = version
        return model

    def unload(model):
        unloaded.append(model.version)

    ask, roll_in = answer(load, unload, 0)

    def work(job):
        sys.settrace(_take_turns)
        try:
            job()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
        finally:
            sys.settrace(None)

    def ask_on():
        while not all_rolled_in.is_set():
            ask("request")

    def roll_all():
        try:
            for version in range(1, VERSIONS + 1):
                roll_in(version)
        finally:
            all_rolled_in.set()

    threads = [threading.Thread(target=work, args=[job], daemon=True) for job in (ask_on, ask_on, ask_on, roll_all)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE)
    told = f"3 threads that ask while {VERSIONS} versions are rolled in"
    if any(thread.is_alive() for thread in threads):
        raise Wrong(f"{told} are not done after {4 * PATIENCE} s: is a lock held?")
    if problems:
        raise Wrong(f"{told}: {problems[0]}; what one thread reads and changes, another may change in between")
    wanted = list(range(VERSIONS))
    if sorted(unloaded) != wanted:
        raise Wrong(f"{told}: expected each of {wanted} to be unloaded once, got {sorted(unloaded)}: guard the counts")


def _take_turns(frame, event, argument):
    """A trace function that now and then lets the other threads go on, before any instruction of an answer."""
    if frame.f_code.co_filename in (__file__, threading.__file__):
        return None
    frame.f_trace_opcodes = True
    if random.random() < 0.1:
        time.sleep(A_PAUSE)
    return _take_turns


def _rolls_in_a_broken_version(roll_in):
    try:
        roll_in("broken")
    except OSError:
        return
    raise Wrong("rolling in a version that cannot be loaded: expected the error of load, but nothing was raised")


def _soon(event, problem):
    if not event.wait(PATIENCE):
        raise Wrong(f"{problem}, within {PATIENCE} s")


def _in_time(future, what):
    try:
        return future.result(PATIENCE)
    except TimeoutError:
        raise Wrong(f"{what} did not come within {PATIENCE} s: is a lock held, or is somebody waited for?") from None


@_check_rolling.refuses("what is unloaded while a request is inside version 1: expected [], got ['1']")
def _unloads_at_once(load, unload, first):
    newest = load(first)

    def roll_in(version):
        nonlocal newest
        old, newest = newest, load(version)
        unload(old)

    return lambda request: newest(request), roll_in


@_check_rolling.refuses("an answer while version 2 is being loaded did not come within")
def _loads_under_the_lock(load, unload, first):
    lock = threading.Lock()
    answer, roll_in = rolling(load, unload, first)

    def asked(request):
        if request == "quick":
            with lock:
                pass
        return answer(request)

    def rolled(version):
        with lock:
            roll_in(version)

    return asked, rolled


@_check_rolling.refuses("what is unloaded after the last request has left version 1: expected ['1'], got []")
def _never_unloads(load, unload, first):
    return rolling(load, lambda model: None, first)


@_check_rolling.refuses("what is unloaded after the last request has left version 1: expected ['1'], got []")
def _forgets_requests_that_raise(load, unload, first):
    lock = threading.Lock()
    newest = load(first)
    inside = {newest: 0}

    def answer(request):
        with lock:
            model = newest
            inside[model] += 1
        found = model(request)
        with lock:
            inside[model] -= 1
            if model is not newest and not inside[model]:
                unload(model)
        return found

    def roll_in(version):
        nonlocal newest
        model = load(version)
        with lock:
            old, newest = newest, model
            inside[model] = 0
            if not inside[old]:
                unload(old)

    return answer, roll_in


@_check_rolling.refuses("rolling in a version that cannot be loaded: expected the error of load")
def _swallows_the_error(load, unload, first):
    answer, roll_in = rolling(load, unload, first)

    def rolled(version):
        with suppress(OSError):
            roll_in(version)

    return answer, rolled


@_check_rolling.refuses("rolling in version 2 while a request is still inside version 1 did not come within")
def _waits_for_the_last(load, unload, first):
    left = threading.Event()
    answer, roll_in = rolling(load, lambda model: (unload(model), left.set()), first)

    def rolled(version):
        roll_in(version)
        left.wait()

    return answer, rolled


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
    """What `attend` must give for all tokens together, one token and one head at a time."""
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


@exercise(attend, minutes=30, difficulty=4)
def _check_attend(answer):
    """Put the new keys and values behind those of the cache. Query i of the new ones stands at place `before + i` of
    all: it sees the tokens up to there. `np.tri` takes a third number that shifts its edge. Repeat each head of keys
    for the neighbours that share it, but keep it once. Take the largest score away before `np.exp`.
    """
    chance = np.random.default_rng(12)
    cases = [
        ("6 tokens at once", 2, 3, 3, [6], 1),
        ("5 tokens, then one at a time", 2, 3, 3, [5, 1, 1, 1], 1),
        ("tokens in pieces of 3, 4 and 2", 1, 2, 2, [3, 4, 2], 1),
        ("6 heads of queries that share 2 of keys", 2, 6, 2, [4, 1, 2], 1),
        ("scores of some thousands", 1, 2, 1, [3, 1], 200),
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
            expect(cache, given, f"{where}: the cache that was given, which must not change")
        cache = answered[1]
        if not isinstance(cache, tuple) or len(cache) != 2:
            raise Wrong(f"{where}: expected a cache (keys, values), got {cache!r}")
        expect(np.asarray(cache[0]), key[:, :end], f"{where}: the keys that are kept")
        expect(np.asarray(cache[1]), value[:, :end], f"{where}: the values that are kept")


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
    """A mask without a shift: the new token sees the first one only."""
    kept = attend(query, key, value, cache)[1]
    first = [part[:, : query.shape[1]] for part in kept]
    return attend(query, *first, None)[0], kept


@_check_attend.refuses("5 tokens, then one at a time, tokens 5 to 5: the outputs")
def _forgets_the_cache(query, key, value, cache):
    return attend(query, key, value, None)


@_check_attend.refuses("6 tokens at once, tokens 0 to 5: the outputs")
def _forgets_the_width(query, key, value, cache):
    return attend(query * query.shape[3] ** 0.5, key, value, cache)


@_check_attend.refuses("6 heads of queries that share 2 of keys, tokens 0 to 3: the outputs")
def _deals_heads_out(query, key, value, cache):
    """Query head h takes key head h % key_heads, as `np.tile` lays them, not its neighbours'."""
    heads, key_heads = query.shape[2], key.shape[2]
    dealt = np.argsort(np.arange(heads) % key_heads, kind="stable")
    found, kept = attend(query[:, :, dealt], key, value, cache)
    return found[:, :, np.argsort(dealt)], kept


@_check_attend.refuses("6 heads of queries that share 2 of keys, tokens 0 to 3: the keys that are kept")
def _keeps_each_head_many_times(query, key, value, cache):
    if cache is not None:
        shared_by = cache[0].shape[2] // key.shape[2]
        cache = tuple(part[:, :, ::shared_by] for part in cache)
    found, kept = attend(query, key, value, cache)
    return found, tuple(np.repeat(part, query.shape[2] // key.shape[2], axis=2) for part in kept)


@_check_attend.refuses("scores of some thousands, tokens 0 to 2: the outputs")
def _overflows(query, key, value, cache):
    kept = attend(query, key, value, cache)[1]
    keys, values = (np.repeat(part, query.shape[2] // part.shape[2], axis=2) for part in kept)
    scores = np.einsum("bqhd,bkhd->bhqk", query, keys) / query.shape[3] ** 0.5
    new, held = scores.shape[2:]
    with np.errstate(all="ignore"):
        weights = np.exp(scores) * np.tri(new, held, held - new)
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, values), kept
