"""Parameter servers in real processes: what is counted, and what is lost and goes on when a task is killed."""

import json
import os
import signal

import psutil
import pytest
import servers_train
from leftovers import eventually

import bigtrain_nb as bt

pytestmark = pytest.mark.more("long jobs: notebook 12 trains with servers, and kills a worker")
EVERY = servers_train.EVERY


def started(folder, steps, tasks, **settings):
    """Start a job of so many workers and as many servers."""
    script = servers_train.__file__
    return bt.run_workers(script, tasks, servers=tasks, arguments=[folder, steps], timeout=400, **settings)


def told(job):
    """What the chief has printed so far, as dictionaries."""
    return [json.loads(line) for line in job.logs("chief").splitlines() if line.startswith("{")]


def rounds(job):
    return [line for line in told(job) if "loss" in line]


def more_rounds(job, count):
    before = len(rounds(job))
    eventually(lambda: job.exit_code is not None or len(rounds(job)) >= before + count, 200)
    assert job.exit_code is None, job.logs("chief")


def test_what_is_lost_with_a_worker_a_server_and_sigterm(tmp_path, watch):
    job = started(tmp_path, 10**6, 2, restarts=2)
    assert job.names == ["chief", "worker 0", "worker 1", "server 0", "server 1"]
    more_rounds(job, 2)
    pids = list(job.pids)
    job.kill("worker 0")
    more_rounds(job, 3)  # nobody waits for it
    eventually(lambda: job.restarted == 1)
    assert [now != before for now, before in zip(job.pids, pids, strict=True)] == [False, True, False, False, False]
    eventually(lambda: job.logs("worker 0").count("serves the chief") == 2)
    eventually(lambda: rounds(job)[-1]["staleness"] > 0)  # it trains again

    job.kill("server 1")
    eventually(lambda: job.restarted == 2)
    more_rounds(job, 1)
    os.kill(job.pids[0], signal.SIGTERM)
    assert job.wait(show=False) == [75] * 5, job.logs("chief")
    first, second = [line for line in told(job) if "begins" in line]
    assert sorted(first["table"]) == [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(2)]
    assert first["weights"].startswith("/job:ps") and first["begins"] == first["applied"] == 0
    last = told(job)[told(job).index(second) - 1]
    assert 0 <= second["begins"] - last["steps"] <= 2 * EVERY  # a round may have been saved and not been told
    assert second["applied"] == second["begins"]
    for line in rounds(job):
        assert line["applied"] == line["steps"] and line["repeated"] <= 2 and line["staleness"] < EVERY

    done = rounds(job)[-1]["steps"]
    again = started(tmp_path, done + EVERY, 1)
    assert again.wait(show=False) == [0] * 3
    assert told(again)[0]["begins"] == told(again)[0]["applied"] == done and told(again)[-1]["ends"] == done + EVERY
    watch.nothing_left(job.addresses + again.addresses)


ENDLESS = """
import bigtrain_nb as bt
from bigtrain_nb.common.quiet import tf

strategy = bt.strategy(timeout=100)
with strategy.scope():
    weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

def step(x):
    weight.assign_add(x)
    return x

batches = lambda: tf.data.Dataset.from_tensors(1.0)
for done in bt.Coordinator(strategy, step, batches, silent_after=8).rounds(10**9, every=10):
    print(done.steps, flush=True)
"""


def test_a_worker_that_stands_still_is_named_and_our_own_port_is_for_this_machine_only(watch):
    job = bt.run_workers(ENDLESS, 1, servers=1, timeout=400)
    eventually(lambda: "\n10\n" in job.logs("chief") or job.exit_code is not None, 200)
    where = {}
    for found in psutil.Process(job.pids[0]).net_connections("inet"):
        if found.status == psutil.CONN_LISTEN:
            where[str(found.laddr.port)] = found.laddr.ip
    assert where.pop(job.addresses[0].rpartition(":")[2]) == "127.0.0.1"
    assert set(where.values()) <= {"::", "0.0.0.0"}  # TensorFlow's own: say so as long as it is so

    ports = [address.rpartition(":")[2] for address in job.addresses]
    assert f"the ports of TensorFlow (one that the chief draws, {ports[1]}, {ports[2]})" in repr(job)

    os.kill(job.pids[1], signal.SIGSTOP)
    assert job.wait(show=False) == [1, -9, 1] and job.failed == 0
    assert f"worker 0 ({job.addresses[1]}) has not answered for 8 s: was it stopped" in job.logs("chief")
    watch.nothing_left(job.addresses)


FAILS = """
import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
strategy = bt.strategy(timeout=100)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=4, verbose=0)
except Exception:
    raise ValueError("fit raises")
"""
ABSENT = """
import json, os, time
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
    time.sleep(600)
import bigtrain_nb as bt
bt.strategy(timeout=1)
"""


def test_keras_fit_raises_and_an_error_in_the_chief_or_a_missing_chief_ends_all(watch):
    """If `fit` works, say so in `Coordinator` and notebook 12, and let the chief fail otherwise."""
    failed = bt.run_workers(FAILS, 1, servers=1, timeout=200, patience=30)
    missing = bt.run_workers(ABSENT, 1, servers=1, timeout=200, patience=10)
    for job in (failed, missing):
        job.wait(show=False)
    assert failed.codes == [1, 1, 1] and failed.failed == 0 and "ValueError: fit raises" in failed.logs("chief")
    assert "the chief" in failed.logs("server 0")
    assert missing.codes[1:] == [1, 1] and "did not answer within 1 s" in missing.logs("worker 0")
    watch.nothing_left()
