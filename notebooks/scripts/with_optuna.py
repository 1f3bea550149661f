"""Search with optuna, in several processes that share one file: `python with_optuna.py JOURNAL TRIALS`.

Each process runs TRIALS trials, and stops those that fall behind.
"""

import json
import os
import sys

import optuna
from next_byte import SPACE, objective, tell
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def suggest(trial):
    """Return the hyperparameters of a trial."""
    settings = {}
    for name, entry in SPACE.items():
        if "choices" in entry:
            settings[name] = trial.suggest_categorical(name, entry["choices"])
        else:
            settings[name] = trial.suggest_float(name, entry["low"], entry["high"], log=entry["scale"] == "log")
    return settings


def run(trial):
    stopped = False

    def report(epoch, loss):
        nonlocal stopped
        trial.report(loss, epoch)
        stopped = trial.should_prune()
        return stopped

    loss = objective(suggest(trial), report)
    tell(trial=trial.number)
    if stopped:  # a second call may give another answer, because other processes continue
        raise optuna.TrialPruned
    return loss


def main(journal, trials):
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="next byte",
        storage=JournalStorage(JournalFileBackend(journal)),
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=worker),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    study.optimize(run, n_trials=trials)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
