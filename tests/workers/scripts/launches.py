"""Act as a notebook's kernel: ``launches.py HOW [ARGUMENT ...]`` runs two workers of waits.py with the arguments.

It prints their addresses as a line of JSON once they are ready. Then, by HOW, it "waits" for the job, or "forks" a
child that inherits all open files, and sleeps; with "stops" it forks, stops the job after reading a line, and sleeps.
"""

import json
import os
import sys
import time
from pathlib import Path

import bigtrain_nb as bt

how, *arguments = sys.argv[1:]
job = bt.run_workers(Path(__file__).with_name("waits.py"), arguments=arguments)
while not all("ready at" in job.logs(index) for index in range(2)):
    time.sleep(0.01)
if how in ("forks", "stops") and not os.fork():
    time.sleep(600)
print(json.dumps([job.logs(index).split()[-1] for index in range(2)]), flush=True)
if how == "waits":
    job.wait()
if how == "stops":
    sys.stdin.readline()
    job.stop()
time.sleep(600)
