"""A worker that prints its environment as JSON."""

import json
import os
import sys

names = ("TF_CONFIG", "BIGTRAIN_RESTART", "ADDED", "CUDA_VISIBLE_DEVICES")
found = {"arguments": sys.argv[1:], "folder": os.getcwd(), "beside": sys.path[0]}
print(json.dumps(found | {name: os.environ.get(name) for name in names}))
