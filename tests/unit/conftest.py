"""Shared fixtures: a Lab with fast choices, a simulated clock, a handful of crops."""

import gc
from types import SimpleNamespace

import equal_models
import logical_cpus  # splits the CPU, before TensorFlow runs anything
import pytest
from clocks import Clock
from fused_emulated import as_on_a_gpu, emulated  # noqa: F401
from labs import SECONDS, Gate, build, quick_compare, quick_standings, quick_throughput
from small_crops import COUNT, TESTS, examples, pipeline

from bigtrain_nb import photo_crops
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.time_scale import VARIABLE
from bigtrain_nb.lab.lab import Lab
from bigtrain_nb.measure import progress, rounds, source
from bigtrain_nb.workbook import record, workbook

# Tracing a step creates many thousands of objects, hardly any of them garbage. Collecting after every 700, Python's
# default, takes about a tenth of the time.
gc.set_threshold(20_000)


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    """Hide GPUs from processes that a test starts."""
    for name, value in logical_cpus.NO_GPUS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def usual_patience(monkeypatch):
    """Measurements last as long as their tests request."""
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def lab():
    made = Lab(build, seconds=SECONDS, batch=[4, 32, 320], prefetch=[0, 2, None], cache=False, workers=range(1, 5))
    yield made
    made.stop()


@pytest.fixture
def fresh_notes(monkeypatch):
    """A kernel without predictions or checks, which writes no record."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(record, "_own", record.Notes())
    monkeypatch.setattr(workbook, "_named", set())


@pytest.fixture
def quick(monkeypatch):
    """The Lab's measurements are instant and deterministic."""
    monkeypatch.setattr("bigtrain_nb.lab.lab.throughput", quick_throughput)
    monkeypatch.setattr("bigtrain_nb.lab.lab.compare", quick_compare)
    monkeypatch.setattr("bigtrain_nb.lab.lab.standings_at_checks", quick_standings)
    monkeypatch.setattr("bigtrain_nb.lab.lab.notes_on", lambda share: ())


ON_ONE_DEVICE = pytest.param(
    "on one device", marks=pytest.mark.more("the other way to reduce, which all tests without `each_reduction` take")
)


@pytest.fixture(params=[ON_ONE_DEVICE, "by collectives"])
def each_reduction(request):
    """Run a test twice: reducing as `bt.mirrored` does on CPUs, and as GPUs and workers do."""
    with equal_models.reducing(request.param):
        yield


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def clock(monkeypatch):
    def idle(tick, longest):
        clock.spend(0.003)
        return False

    clock = Clock()
    monkeypatch.setattr(source, "now", clock)
    monkeypatch.setattr(progress, "now", clock)
    monkeypatch.setattr(source, "wait_until_idle", idle)
    monkeypatch.setattr(rounds, "seconds_of_others", lambda: 0.0)
    monkeypatch.setattr(rounds, "gc", SimpleNamespace(collect=lambda: None))  # slow, and sources here are no garbage
    return clock


@pytest.fixture
def cpu_memory():
    """TensorFlow's CPU memory info; without oneDNN, its default allocator does not count, and the test is skipped."""

    def info():
        return tf.config.experimental.get_memory_info("CPU:0")

    try:
        info()
    except ValueError:
        pytest.skip("TensorFlow's allocator does not count the memory of this CPU: set TF_CPU_ALLOCATOR_USE_BFC=1")
    return info


@pytest.fixture(scope="session")
def crops(tmp_path_factory):
    pytest.importorskip("skimage")
    return photo_crops(COUNT, TESTS, size=48, shards=3, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def plain(crops):
    return examples(pipeline(crops).dataset())
