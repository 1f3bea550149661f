"""What one NVIDIA GPU can settle in minutes: dropout in fused attention, custom kernels, rows of gpu.py, notebooks.

Parts run in order of importance, each with a time limit; a failure ends no other part. While tests run, rows of gpu.py
compile; then each is timed alone. Results are written as they come: results.jsonl has a line per test and part,
rows-N.jsonl a line per row, log.txt everything printed. SMALL=1 tries it without a GPU: rows are tiny, and instead of
tests that need a GPU, others check the program that XLA would get.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from bigtrain_nb.common.hardware import nvidia_gpus

HERE = Path(__file__).parent
SMALL = bool(os.environ.get("SMALL"))
RESULTS = "GPU_SESSION_RESULTS"
"""The variable with the file that tests append their results to."""


@dataclass
class Tests:
    """Arguments of pytest, their limit in seconds, and other arguments where there is no GPU."""

    name: str
    arguments: list
    seconds: int
    without_gpu: list


PHASES = [
    [
        Tests(
            "dropout",
            ["tests/gpu/test_fused_dropout.py"],
            170,
            ["tests/unit/test_fused_attention.py", "-k", "dropout"],
        ),
        Tests(
            "custom kernels",
            ["tests/gpu/test_cuda_kernel_launch.py"],
            170,
            ["tests/unit/test_cuda_kernel.py", "-k", "one_call_for_each_pass or as_they_were_written or nvrtc_makes"],
        ),
    ],
    [
        Tests(f"notebook {name[:2]}", [f"notebooks/{name}.ipynb"], 120, [f"notebooks/{name}.ipynb", "--collect-only"])
        for name in ("12-ask-a-server", "08-share-it-out", "09-cut-the-model")
    ],
    [],
]

NO_TRITON = "XLA_FLAGS=--xla_gpu_enable_triton_gemm=false"
ROWS = [
    [
        f"no-logits:gpt2-padded:1024:64:{NO_TRITON}",
        "torch-tuned:gpt2-padded:1024:64",
        f"steps:gpt2-padded:1024:8:{NO_TRITON}",
        f"no-logits:gpt2-padded:1024:8:{NO_TRITON}",
        "torch-tuned:gpt2-padded:1024:8",
        f"steps:gpt2-padded:8192:1:{NO_TRITON}",
        "torch-tuned:gpt2-padded:8192:1",
        f"steps:gpt2-padded:1024:32:{NO_TRITON}",
    ],
    [
        f"no-logits:gpt2-padded:1024:64:{NO_TRITON}:XLA_FLAGS=--xla_gpu_enable_cudnn_layer_norm=true",
        f"no-logits:gpt2-padded:1024:8:{NO_TRITON}:XLA_FLAGS=--xla_gpu_enable_command_buffer=+WHILE",
        f"steps:gpt2-padded:1024:64:{NO_TRITON}",
        f"steps:llama:1024:4:{NO_TRITON}",
        f"float8:llama:1024:4:{NO_TRITON}",
    ],
    [f"no-logits:gpt2-padded:1024:32:{NO_TRITON}", "torch-tuned:gpt2-padded:1024:32"],
]
"""The rows of each phase fit together into 141 GB, because each keeps its memory until it has been timed."""

COMPILING = 170  # seconds for the rows of a phase
TIMING = 90


def pytest_runtest_logreport(report):
    """Record each test: pytest loads this file as a plugin."""
    if report.when == "call" or report.outcome != "passed":
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 1)}
        line |= {"printed": report.capstdout[-1500:], "error": report.longreprtext[-1500:]}
        record(os.environ[RESULTS], line)


def record(file, line):
    with open(file, "a", encoding="utf-8") as out:
        print(json.dumps(line), file=out)


class Session:
    def __init__(self, out, seconds, others):
        self.out, self.end, self.others = out, time.time() + seconds, others
        self.results, self.log = out / "results.jsonl", open(out / "log.txt", "w", encoding="utf-8")

    def run(self, name, command, seconds, **about):
        """Run a command within its limit and the session's; record how it ended."""
        limit = min(seconds * (10 if SMALL else 1), self.end - time.time())
        if limit < 20:
            record(self.results, {"part": name, "ended": "left out: no time"})
            return
        began = time.time()
        environment = os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}:{os.environ.get('PYTHONPATH', '')}"}
        environment |= {RESULTS: str(self.results), "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, *command], cwd=HERE.parent, env=environment, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        ended = threading.Event()
        timer = threading.Timer(limit, lambda: (ended.set(), os.killpg(process.pid, signal.SIGKILL)))
        timer.start()
        for line in process.stdout:
            print(f"[{name}] {line[:1000].rstrip()}", file=self.log, flush=True)
        code = process.wait()
        timer.cancel()
        took = round(time.time() - began, 1)
        line = {"part": name, "ended": "out of time" if ended.is_set() else code, "seconds": took, **about}
        record(self.results, line)
        print(json.dumps(line), flush=True)

    def test(self, tests, has_gpu):
        arguments = tests.arguments if has_gpu else tests.without_gpu
        about = {} if has_gpu else {"no GPU": f"instead: {' '.join(arguments)}"}
        command = ["-m", "pytest", "-p", "gpu_session", "-v", "--nbval-cell-timeout=100", *arguments]
        self.run(tests.name, command, tests.seconds, **about)

    def phase(self, number, tests, rows, has_gpu):
        go = Path(mkdtemp()) / "go"
        if SMALL:
            rows = [":".join([*row.split(":")[:2], "64:2", *row.split(":")[4:]]) for row in rows]
        command = ["benchmarks/gpu.py", *rows, "--out", str(self.out / f"rows-{number}.jsonl"), "--after", str(go)]
        command += ["--seconds", str(COMPILING * (5 if SMALL else 1))]
        if self.others:
            command += ["--others", self.others]
        with ThreadPoolExecutor() as pool:
            rows_timed = pool.submit(self.run, f"rows {number}", command, COMPILING + TIMING)
            tested = [pool.submit(self.test, one, has_gpu) for one in tests]
            wait(tested)
            go.touch()
        for part in (rows_timed, *tested):
            if error := part.exception():
                record(self.results, {"phase": number, "error": repr(error)})
                print(f"phase {number}: {error!r}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600 if SMALL else 540, help="for all")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-session"), metavar="FOLDER")
    parser.add_argument("--others", help="the Python of PyTorch, where it is another")
    arguments = parser.parse_args()
    has_gpu = bool(nvidia_gpus())
    if not has_gpu and not SMALL:
        parser.error("there is no NVIDIA GPU: SMALL=1 tries the script without one")
    arguments.out.mkdir(parents=True, exist_ok=True)
    session = Session(arguments.out.resolve(), arguments.seconds, arguments.others)
    for number, (tests, rows) in enumerate(zip(PHASES, ROWS, strict=True), start=1):
        session.phase(number, tests, rows, has_gpu)


if __name__ == "__main__":
    main()
