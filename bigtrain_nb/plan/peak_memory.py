"""How much memory does a piece of work take? Measured in a process of its own, so that nothing else counts."""

import builtins
import dis
import inspect
import json
import os
import signal
import sys
import textwrap
import types
from contextlib import contextmanager

from bigtrain_nb.launch.jobs import run_workers
from bigtrain_nb.launch.record import TIMED_OUT, in_words

TIMEOUT_SECONDS = 600
TRACEBACK_LINES = 12
MIB = 2**20
ANSWER = "bigtrain_nb.peak_memory: "
CODE = """{source}
import json as _json
from bigtrain_nb.plan.peak_memory import watched as _watched

with _watched():
    {name}(**_json.loads({arguments!r}))
"""


def peak_memory(function, /, **arguments):
    """Run ``function(**arguments)`` in a fresh Python and return the peak memory that it took, in MiB.

    The function's source is sent there, so it must stand on its own: every module imported inside it, everything else
    an argument, all arguments of kinds that JSON knows (numbers, strings, lists, dictionaries). What it returns is
    dropped. On the CPU: the peak of resident memory above that of the process with TensorFlow loaded and one operation
    run. Where TensorFlow sees GPUs: the peak of its allocator on the GPU that needed most.

    There the function sees one device, so `bt.mirrored` cannot be measured.

    On the CPU, building and compiling a small model is in it, with 40 to 200 MiB whatever the batch. Repetitions of one
    step or a short `fit` of `conv_net` on two busy cores agreed within 3 MiB, but for one of 30 that was 40 MiB higher.

    Raises ValueError for a function or arguments that cannot be sent, RuntimeError with the end of the traceback if
    the function raises, and with what is known if the process dies; TimeoutError after 10 minutes.
    """
    name = _checked(function, arguments)
    source = CODE.format(source=_source(function), name=name, arguments=json.dumps(arguments))
    paths = os.pathsep.join(filter(None, sys.path))
    job = run_workers(source, 1, env={"PYTHONPATH": paths}, timeout=TIMEOUT_SECONDS)
    (code,) = job.wait(show=False)
    lines = job.logs(0).splitlines()
    for line in lines:
        if line.startswith(ANSWER):
            return float(line.removeprefix(ANSWER))
    if job.exit_code == TIMED_OUT:
        raise TimeoutError(f"{name} has run for {TIMEOUT_SECONDS} s; it was ended")
    hint = " (what the system does when there is no memory left)" if code == -signal.SIGKILL else ""
    end = "\n".join(lines[-TRACEBACK_LINES:])
    raise RuntimeError(f"the process of {name}: {in_words(code)}{hint}\n{end}".rstrip())


def _checked(function, arguments):
    """Return the function's name; raise ValueError for what cannot run elsewhere."""
    if not inspect.isfunction(function):
        raise ValueError(f"function={function!r} must be a function written with def, whose source can be sent")
    name = function.__name__
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise ValueError(f"a call of {name} runs nothing of it, as it has yield or async: call it in a plain function")
    if name == "<lambda>":
        raise ValueError("a lambda cannot be sent to another process: write the function with def")
    if function.__closure__:
        names = ", ".join(function.__code__.co_freevars)
        raise ValueError(f"{name} uses {names} from the function around it: make that an argument of {name}")
    outside = sorted(_globals(function.__code__) - set(vars(builtins)) - {name})
    if outside:
        raise ValueError(
            f"{name} runs in a Python of its own and cannot see {', '.join(outside)}: import modules inside {name},"
            " and make everything else an argument"
        )
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{name} cannot be called like this: {error}") from None
    for argument, value in arguments.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{argument}={value!r} cannot be sent to another process: {error}") from None
    return name


def _globals(code):
    """Return the global names that a function's code looks up, with those of the functions inside it."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_globals(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def _source(function):
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError:
        source = ""
    if f"def {function.__name__}" not in source:  # Python 3.13 takes what `python -c` was given for any code's source
        raise ValueError(f"{function.__name__} has no source that can be sent: define it in a cell or a file")
    return source


@contextmanager
def watched():
    """In the process of its own: tell, at the end, how far memory has risen."""
    os.environ.pop("TF_CONFIG")  # it is no worker
    from bigtrain_nb.common.quiet import tf

    tf.reduce_sum(tf.ones([8])).numpy()
    gpus = tf.config.list_logical_devices("GPU")
    measure = _gpu_peak(tf, gpus) if gpus else _resident_peak()
    yield
    print(f"\n{ANSWER}{measure() / MIB}", flush=True)


def _gpu_peak(tf, gpus):
    names = [gpu.name.removeprefix("/device:") for gpu in gpus]
    for name in names:
        tf.config.experimental.reset_memory_stats(name)
    before = [tf.config.experimental.get_memory_info(name)["current"] for name in names]
    info = tf.config.experimental.get_memory_info
    return lambda: max(info(name)["peak"] - idle for name, idle in zip(names, before, strict=True))


def _resident_peak():
    import psutil

    _forget_peak()
    idle = psutil.Process().memory_info().rss
    return lambda: max(0, _highest_resident() - idle)


def _forget_peak():
    """Let the kernel start the peak anew, where it can; else the peak of the start counts, if it was higher."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def _highest_resident():
    """Return the highest resident memory of this process in bytes."""
    try:
        with open("/proc/self/status") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else 1024 * used
