"""Notebook 13's two search scripts in real processes: one is killed, none waits for it, and the search continues."""

import json
import time
from pathlib import Path

import pytest
from leftovers import eventually

import bigtrain_nb as bt

pytest.importorskip("keras_tuner")
pytest.importorskip("optuna")
long_jobs = pytest.mark.more("long jobs: notebook 13 runs the first search in three processes")
SCRIPTS = Path(__file__).parents[2] / "notebooks" / "scripts"
SECONDS = 400


def done(job):
    """Return the completed trials that the tuners reported."""
    lines = [line for name in job.names for line in job.logs(name).splitlines()]
    return [json.loads(line)["trial"] for line in lines if line.startswith('{"trial"')]


@long_jobs
def test_a_killed_tuner_leaves_nobody_waiting_and_after_a_restart_each_trial_is_run(tmp_path, watch):
    script = SCRIPTS / "with_keras_tuner.py"
    job = bt.run_workers(script, 3, arguments=[tmp_path, 8], restarts=1, timeout=SECONDS)
    eventually(lambda: len(done(job)) >= 1 or job.exit_code is not None, SECONDS)
    job.kill("worker 2")
    killed = time.monotonic()
    eventually(lambda: job.restarted == 1 or job.exit_code is not None, SECONDS)
    assert time.monotonic() - killed < 30
    eventually(lambda: job.codes[1:] == [0, 0] or job.exit_code is not None, SECONDS)
    assert job.stop()[1:] == [0, 0], job.logs(1)
    assert set(done(job)) == set("01234567")
    watch.nothing_left(job.addresses)


@long_jobs
def test_of_a_killed_optuna_process_one_trial_stays_open_and_the_other_goes_on(tmp_path, watch):
    import optuna

    journal = tmp_path / "journal"
    script = SCRIPTS / "with_optuna.py"
    jobs = [bt.run_workers(script, 1, arguments=[journal, trials], timeout=SECONDS) for trials in (100, 4)]
    eventually(lambda: min(len(done(job)) for job in jobs) >= 1, SECONDS)
    jobs[0].kill(0)
    assert [job.wait(show=False) for job in jobs] == [[-9], [0]]
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    states = [trial.state.name for trial in optuna.load_study(study_name="next byte", storage=storage).trials]
    assert states.count("RUNNING") <= 1 and len(states) - states.count("RUNNING") >= 5
    for job in jobs:
        watch.nothing_left(job.addresses)


@pytest.mark.parametrize("stops", [True, False])
def test_a_trial_ends_as_the_rule_answered_though_another_process_ends_one_meanwhile(monkeypatch, stops):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import optuna
    import with_optuna

    class Trial(optuna.trial.FixedTrial):
        answers = [stops, not stops]

        def should_prune(self):
            return self.answers.pop(0)

    monkeypatch.setattr(with_optuna, "objective", lambda settings, report: (report(0, 1.0), 1.0)[1])
    trial = Trial({"rate": 0.01, "width": 64, "dropout": 0.0, "decay": 0.01})
    if stops:
        with pytest.raises(optuna.TrialPruned):
            with_optuna.run(trial)
    else:
        assert with_optuna.run(trial) == 1.0
