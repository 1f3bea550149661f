"""Does a wrong argument end in a sentence of ours? Call the public names with junk, and count whose words come last.

python tools/fuzz_calls.py --seed 3                 1,600 calls, about ten minutes on two cores
python tools/fuzz_calls.py --seed 3 --count 400 --only Pipeline compare

Run by hand. A call is one that works, of `CALLS`, in which one argument, or two, or all are drawn from `JUNK`. The same
seed draws the same calls. They run in a child process: one that takes too long is ended, one that kills the process is
named, and no other process is started. What a call does ends in

    returned       the junk was fine, or nobody has noticed it
    ours           an error that bigtrain_nb raises, of the kinds that it promises
    library        one that Keras or TensorFlow raises, and that names the argument
    system         one of the operating system, with the path
    started        it would have started processes
    Python's own   any other: the code has run into the junk by chance

The last are shown, each kind once, with the call. Aim: at most 8 of 1,600, with a seed that was not looked at before.
"""

import argparse
import dis
import json
import math
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IN_PYTHONS_OWN_WORDS = "Python's own"
SECONDS_OF_A_CALL = 20
SECONDS_OF_SILENCE = 90
"""A child that has said nothing for so long hangs where Python cannot end it, or still loads TensorFlow."""

JUNK = (
    *("None", "True", "0", "-1", "1", "3", "1.5", "-0.5", "nan", "inf", "'4'", "np.float32(2)"),
    *("''", "'typo'", "'no/such/file'", "'no_such.keras'", "Path('no/such/folder')", "'.'"),
    *("[]", "()", "{}", "[1, 'a']", "{'a': 1}", "{'a': None, 'b': None}", "[None]"),
    *("lambda: 1", "lambda x: x", "lambda: batches()", "int", "object()"),
    *("batches()", "unbatched()", "np.zeros([4, 3])", "tf.ones([4])"),
    *(
        "model()",
        "unbuilt()",
        "uncompiled()",
        "keras.layers.Dense(2)",
        "keras.optimizers.SGD()",
        "'adam'",
        "comparison()",
    ),
)

CALLS = {
    "bt.compare": ({"factories": "{'a': batches, 'b': batches}"}, {"seconds": "0.2", "progress": "print"}),
    "bt.throughput": (
        {"source": "batches()"},
        {"seconds": "0.1", "name": "'mine'", "progress": "print"},
    ),
    "bt.race": ({"build": "lambda batch: batches()", "batch": "[4, 8]"}, {"seconds": "0.2", "progress": "print"}),
    "bt.load": ({"path": "saved_comparison()"}, {}),
    "comparison().ratio": ({"a": "'a'", "b": "'b'"}, {}),
    "comparison().save": ({"path": "'saved.json'"}, {}),
    "bt.image_folder": (
        {"folder": "images()"},
        {"shards": "2", "test_fraction": "0.5", "skip_damaged": "True", "cache": "'cache'"},
    ),
    "bt.photo_crops": (
        {"count": "8", "test_count": "4", "size": "16", "shards": "2"},
        {"cache": "'cache'"},
    ),
    "bt.source_text": ({"megabytes": "0.01"}, {"cache": "'cache'"}),
    "bt.text_folder": (
        {"folder": "texts()"},
        {"pattern": "'*.txt'", "test_fraction": "0.5", "skip_damaged": "True", "cache": "'cache'"},
    ),
    "text().array": ({"split": "'test'"}, {}),
    "bt.TokenRows": ({"tokens": "[1, 2, 3]", "lengths": "[2, 1]", "length": "4"}, {"vocabulary": "9"}),
    "read(bt.Pipeline": (
        {"data": "crops()", "image_size": "8", "batch": "4"},
        {
            **{"split": "'test'", "source": "'files'", "parse": "None", "finish": "None", "exact": "True"},
            **{"augment": "True", "cycle_length": "2", "num_parallel_calls": "2", "vectorize": "True"},
            **{"cache": "'memory'", "shuffle": "8", "seed": "1", "repeat": "True", "prefetch": "1"},
            **{"deterministic": "False", "rewrites": "False", "service": "None", "sharding": "'off'"},
            **{"job_name": "'one'", "skip_damaged": "True"},
        },
    ),
    "bt.diagnose": ({"pipeline": "batches()"}, {"seconds": "0.2"}),
    "bt.pipeline_ceiling": ({"diagnosis": "diagnosis()"}, {}),
    "bt.Lab": ({"build": "lambda batch: batches()", "batch": "[4, 8]"}, {"seconds": "0.1"}),
    "lab().run": ({"batch": "8"}, {}),
    "lab().sweep": ({"control": "'batch'"}, {}),
    "run_a_lab_of": ({"returned": "batches()"}, {}),
    "fitted(bt.Model": (
        {"inputs": "one.input", "outputs": "one.output"},
        {
            **{"name": "'mine'", "micro_batches": "2", "shard_optimizer": "False", "reduce_dtype": "'bfloat16'"},
            **{"sync_every": "2", "outer_optimizer": "None"},
        },
    ),
    "fitted(bt.Model.of": (
        {"model": "model()"},
        {
            **{"micro_batches": "2", "shard_optimizer": "False", "reduce_dtype": "'bfloat16'"},
            **{"sync_every": "2", "outer_optimizer": "None"},
        },
    ),
    "bt.load_model": (
        {"path": "saved_model()"},
        {"custom_objects": "{}", "compile": "False", "safe_mode": "True", "micro_batches": "2"},
    ),
    "bt.conv_net": (
        {"classes": "2", "image_size": "16", "width": "8", "blocks": "1"},
        {"norm": "'batch'", "recompute": "True", "micro_batches": "2"},
    ),
    "bt.gpt": (
        {"vocabulary": "8", "length": "4", "width": "8", "layers": "1", "heads": "2"},
        {"dropout": "0.1", "recompute": "True", "chunk_attention": "2", "tensor_parallel": "1", "micro_batches": "2"},
    ),
    "bt.devices": ({"at_least": "2"}, {}),
    "bt.mirrored": ({"count": "2"}, {}),
    "bt.run_workers": (
        {"script_or_code": "'pass'", "workers": "1"},
        {
            **{"servers": "1", "arguments": "['a']", "env": "{'A': '1'}", "timeout": "5", "restarts": "0"},
            **{"patience": "1.0"},
        },
    ),
    "bt.strategy": (
        {},
        {"timeout": "5", "communication_options": "None", "variable_partitioner": "None", "may_differ": "['--log']"},
    ),
    "bt.cluster_devices": ({"at_least": "2"}, {"timeout": "5", "may_differ": "['--log']"}),
    "bt.run_data_service": ({"workers": "1"}, {"silent_after": "60"}),
    "bt.Coordinator": (
        {"strategy": "tf.distribute.get_strategy()", "step": "lambda batch: 0.0", "batches": "batches"},
        {"folder": "'checkpoints'", "silent_after": "60", "model": "model()"},
    ),
    "bt.Resume": ({"folder": "new_folder()", "model": "model()"}, {"every": "2", "keep": "2"}),
    "list(resume().epochs": ({"count": "1"}, {}),
    "resume().data": ({"make_epoch": "lambda epoch: batches()"}, {}),
    "resume().rest": ({"dataset": "batches()"}, {}),
    "resume().step_done": ({"steps": "1"}, {}),
    "bt.scaled_rate": ({"rate": "0.1", "batch": "32", "base_batch": "8"}, {}),
    "bt.warmup_cosine": ({"peak": "0.1", "warmup_steps": "2", "total_steps": "8"}, {}),
    "bt.peak_memory": ({"function": "lambda: 1"}, {"batch": "2"}),
    "bt.plan_step": (
        {"model": "model()", "batch": "8"},
        {
            **{"optimizer": "'adam'", "policy": "'float32'", "loss": "'mse'", "micro_batches": "2", "on": "'H100'"},
            **{"shard_optimizer": "False", "reduce_dtype": "'bfloat16'", "sync_every": "2", "outer_optimizer": "None"},
            **{"devices": "2", "fully_shard": "None"},
        },
    ),
    "bt.plan_cluster": (
        {"model": "bt.SIZES['GPT-2']", "batch": "8"},
        {
            **{"on": "'H100'", "devices": "2", "tensor_parallel": "2", "pipeline_parallel": "1", "zero_stage": "1"},
            **{"micro_batches": "2", "policy": "'float32'", "optimizer": "'adam'", "recompute": "'selective'"},
            **{"network": "1e9"},
        },
    ),
    "bt.Transformer": (
        {"layers": "2", "width": "8", "heads": "2"},
        {
            **{"vocabulary": "100", "length": "16", "tied": "False", "hidden": "12", "gated": "True"},
            **{"key_value_heads": "1"},
        },
    ),
    "bt.SIZES['GPT-2'].flops": ({"batch": "2"}, {"recompute": "'selective'"}),
    "bt.SIZES['GPT-2'].activations_of_a_layer": ({"batch": "2"}, {"recompute": "'selective'", "number": "4"}),
    "bt.plan_cluster(bt.SIZES['GPT-2'], 8).training": ({"tokens": "1e9"}, {"price_an_hour": "2.0"}),
    "bt.all_reduce_seconds": ({"size": "1e6", "devices": "2", "bandwidth": "1e9"}, {"latency": "1e-5"}),
    "bt.recompute": ({"model": "model()"}, {"layers": "'dense.*'"}),
    "bt.chunk_attention": ({"model": "bt.gpt(8, 4, 8, 1, 2)", "chunks": "2"}, {"layers": "'multi_head.*'"}),
    "bt.Pipelined": (
        {"stages": "[model(), model()]", "micro_batches": "2", "devices": "['CPU:0', 'CPU:0']"},
        {"schedule": "'gpipe'"},
    ),
    "bt.pipeline_schedule": (
        {"schedule": "'gpipe'", "stages": "2", "micro_batches": "2"},
        {"forward": "1.0", "backward": "2.0", "interleave": "1"},
    ),
    "bt.profile": ({"step": "model()", "dataset": "batches()", "steps": "2"}, {"folder": "'trace'"}),
    "bt.find_overflow": ({"model": "model()", "batch": "next(iter(batches()))"}, {}),
    "bt.check": ({"name": "'measure_first.rate'", "answer": "lambda *_: 1"}, {}),
    "bt.hint": ({"name": "'measure_first.rate'"}, {}),
    "bt.solution": ({"name": "'measure_first.rate'"}, {}),
    "bt.predict": ({"name": "'mine'", "value": "2.0"}, {"unit": "'x'"}),
    "bt.reveal": ({"name": "predicted()", "measured": "2.0"}, {}),
    "bt.score": ({}, {"series": "True"}),
}
"""The public names and some methods of what they give: {call: (arguments that it needs, others that it takes)}.

What begins another call before it ends, as `read(bt.Pipeline`, is closed with as many brackets.
"""


def drawn(seed, count, only=()):
    """Return so many calls as source code, each with the names of the arguments that are junk."""
    random.seed(seed)
    names = [name for name in CALLS if not only or any(word in name for word in only)]
    return [_drawn(random.choice(names)) for _ in range(count)]


def _drawn(name):
    needed, others = CALLS[name]
    arguments = dict(needed)
    known = [*needed, *others]
    size = random.choices([1, 2, len(needed) or 1], [6, 3, 1])[0]
    junk = random.sample(known, min(size, len(known)))
    for argument in junk:
        arguments[argument] = random.choice(JUNK)
    # The first arguments by their places, as one writes them: some names take them only so
    by_place = [argument for argument in PLACES.get(name, ()) if argument in arguments]
    written = [arguments[argument] for argument in by_place]
    written += [f"{argument}={value}" for argument, value in arguments.items() if argument not in by_place]
    closing = ")" * (1 + name.count("(") - name.count(")"))
    return {"call": f"{name}({', '.join(written)}{closing}", "junk": junk}


PLACES = {"bt.peak_memory": ["function"], "lab().sweep": ["control"]}


# In the child


def run(calls, first):
    """Make the calls from ``first`` on; print for each a line of JSON: how it ended, and the words if Python's own."""
    world = _world()
    talking = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGALRM, _end)
    for number, each in enumerate(calls[first:], start=first):
        signal.alarm(SECONDS_OF_A_CALL)
        try:
            try:
                eval(each["call"], world)
            finally:
                signal.alarm(0)
            end, place, words = "returned", "", ""
        except TooLong as error:
            end, place, words = "too long", _last_place(error), f"over {SECONDS_OF_A_CALL} s"
        except Started:
            end, place, words = "started", "", ""
        except BaseException as error:
            end, place, words = _whose(error, each["junk"]), _last_place(error), _in_words(error)
        print(json.dumps({"number": number, "end": end, "place": place, "words": words}), file=talking, flush=True)


class TooLong(BaseException):
    pass


class Started(BaseException):
    pass


def _end(*_):
    raise TooLong


def _whose(error, junk):
    traceback = error.__traceback__
    while traceback.tb_next:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    is_raised = code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    is_ours = "/bigtrain_nb/" in code.co_filename
    if is_raised and is_ours and isinstance(error, ValueError | TypeError | OSError | RuntimeError):
        return "ours"
    if isinstance(error, OSError) and error.filename is not None:
        return "system"
    if is_raised and not is_ours and any(re.search(rf"{name}\b", str(error)) for name in junk):
        return "library"
    return IN_PYTHONS_OWN_WORDS


def _last_place(error):
    """Return the last place in our code that an error has come from."""
    place = "not in our code"
    traceback = error.__traceback__
    while traceback:
        file = traceback.tb_frame.f_code.co_filename
        if "/bigtrain_nb/" in file:
            place = f"{file.rpartition('/bigtrain_nb/')[2]}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _in_words(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]:.150}"


def _world():
    """Return the names that the calls use, and let no process be started."""
    os.environ["BIGTRAIN_NB_CACHE"] = str(Path.cwd() / "cache")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]
    import numpy as np
    from PIL import Image

    import bigtrain_nb as bt
    from bigtrain_nb.common.quiet import keras, tf

    bt.devices(2)  # before TensorFlow runs anything
    tf.debugging.disable_traceback_filtering()
    keras.config.disable_traceback_filtering()
    bt.machine()
    subprocess.Popen.__init__ = _refuse_to_start

    def batches():
        numbers = np.ones([8, 3], np.float32)
        return tf.data.Dataset.from_tensor_slices((numbers, numbers)).batch(4)

    def unbatched():
        return tf.data.Dataset.range(4)

    def uncompiled():
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dense(3)(inputs))

    def model():
        made = uncompiled()
        made.compile("adam", "mse")
        return made

    def unbuilt():
        return keras.Sequential([keras.layers.Dense(3)])

    def fitted(made):
        made.compile("sgd", "mse")
        made.fit(batches(), verbose=0)

    def read(pipeline):
        return next(iter(pipeline.dataset()))

    def comparison():
        rounds = tuple(range(1, 9))
        results = [bt.Result(name, rounds, "examples/s", 0.1, 36, 1.0) for name in "ab"]
        return bt.Comparison({one.name: one for one in results})

    def saved_comparison():
        comparison().save("comparison.json")
        return "comparison.json"

    def saved_model():
        model().save("model.keras")
        return "model.keras"

    def images():
        for name in ("cat", "dog"):
            Path("images", name).mkdir(parents=True, exist_ok=True)
            for number in range(2):
                Image.new("RGB", (16, 16)).save(f"images/{name}/{number}.png")
        return "images"

    def crops():
        return bt.image_folder(images(), test_fraction=0.5)

    def texts():
        Path("texts").mkdir(exist_ok=True)
        for number in range(4):
            Path(f"texts/{number}.txt").write_text("a text")
        return "texts"

    def text():
        return bt.text_folder(texts(), test_fraction=0.5)

    def diagnosis():
        return bt.diagnose(batches(), seconds=0.1)

    def lab():
        return bt.Lab(lambda batch: batches(), batch=[4, 8], seconds=0.1)

    def run_a_lab_of(returned):
        return bt.Lab(lambda batch: returned, batch=[4], seconds=0.1).run()

    def new_folder():
        return tempfile.mkdtemp(dir=".")

    def resume():
        return bt.Resume(new_folder(), model())

    def predicted():
        bt.predict("mine", 2.0)
        return "mine"

    one = model()
    return {**locals(), "Path": Path, "inf": math.inf, "nan": math.nan}


def _refuse_to_start(*_, **__):
    raise Started


# In the parent


def ends_of(seed, count, only):
    """Yield (call, what a child has said of its end) for each call; start a new child where one hangs or dies."""
    calls = drawn(seed, count, only)
    command = [sys.executable, __file__, "--seed", str(seed), "--count", str(count), "--only", *only]
    done = 0
    while done < count:
        with (
            tempfile.TemporaryDirectory(prefix="fuzz-calls-") as folder,
            subprocess.Popen([*command, "--first", str(done)], stdout=subprocess.PIPE, cwd=folder) as child,
        ):
            for line in _lines(child):
                said = json.loads(line)
                yield calls[said["number"]]["call"], said
                done = said["number"] + 1
            child.kill()
        if done < count:
            said = {"end": IN_PYTHONS_OWN_WORDS, "place": "", "words": f"hangs or has died ({child.returncode})"}
            yield calls[done]["call"], said
            done += 1


def _lines(child):
    """Yield what a child says, until it ends or falls silent."""
    buffered = b""
    while select.select([child.stdout], [], [], SECONDS_OF_SILENCE)[0]:
        got = os.read(child.stdout.fileno(), 2**16)
        if not got:
            return
        *lines, buffered = (buffered + got).split(b"\n")
        yield from lines


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, default=1600)
    options.add_argument("--only", nargs="*", default=[], help="words in the names of the calls")
    options.add_argument("--first", type=int, help=argparse.SUPPRESS)  # in the child
    options.add_argument("--returned", action="store_true", help="show also the calls that return")
    given = options.parse_args()
    if given.first is not None:
        run(drawn(given.seed, given.count, given.only), given.first)
        return
    began = time.monotonic()
    counts = Counter()
    kinds = Counter()
    example = {}
    for call, said in ends_of(given.seed, given.count, given.only):
        end = said["end"]
        counts[end] += 1
        if end == "returned" and given.returned:
            print(f"returned: {call}")
        if end in (IN_PYTHONS_OWN_WORDS, "too long"):
            kind = end, said["place"]
            kinds[kind] += 1
            example.setdefault(kind, f"{call}\n      {said['words']}")
    for (end, place), times in kinds.most_common():
        print(f"{times} x {end}, {place}\n      {example[end, place]}")
    print(f"\nseed {given.seed}, {sum(counts.values())} calls, {time.monotonic() - began:.0f} s: {dict(counts)}")


if __name__ == "__main__":
    main()
