"""Search with keras-tuner, in several processes: the chief hands out trials, the tuners run them.

`python with_keras_tuner.py FOLDER TRIALS`, under `bt.run_workers`: worker 0 is the chief. FOLDER stores the search.
"""

import json
import os
import sys
import time

import keras_tuner
from next_byte import SPACE, objective, tell


def suggest(hp):
    """Return the hyperparameters of a trial."""
    settings = {}
    for name, entry in SPACE.items():
        if "choices" in entry:
            settings[name] = hp.Choice(name, entry["choices"])
        else:
            settings[name] = hp.Float(name, entry["low"], entry["high"], sampling=entry["scale"])
    return settings


class Tuner(keras_tuner.RandomSearch):
    def run_trial(self, trial):
        settings = suggest(trial.hyperparameters)
        looks = []

        def report(epoch, loss):
            looks.append([time.time(), loss])
            return False

        began = time.time()
        loss = objective(settings, report)
        tell(trial=trial.trial_id, settings=settings, began=began, looks=looks)
        return loss


def main(folder, trials):
    config = json.loads(os.environ["TF_CONFIG"])
    host, port = config["cluster"]["worker"][0].split(":")
    index = config["task"]["index"]
    os.environ["KERASTUNER_TUNER_ID"] = f"tuner{index}" if index else "chief"
    os.environ["KERASTUNER_ORACLE_IP"] = host
    os.environ["KERASTUNER_ORACLE_PORT"] = port

    space = keras_tuner.HyperParameters()
    suggest(space)
    smallest = keras_tuner.Objective("loss", "min")
    tuner = Tuner(objective=smallest, hyperparameters=space, max_trials=trials, seed=3, directory=folder)
    tuner.search()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
