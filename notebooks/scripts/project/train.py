"""Train as settings.yaml describes: python3 train.py [SETTINGS.yaml]. A restart continues from the last checkpoint."""

import sys
from pathlib import Path

import yaml
from engine import train

import bigtrain_nb as bt
from bigtrain_nb import tf

if __name__ == "__main__":
    path = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("settings.yaml")
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    tf.config.experimental.enable_op_determinism()  # bitwise identical, also on GPUs; without it they are faster
    train(bt.strategy(), **settings)
