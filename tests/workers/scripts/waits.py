"""A worker that listens on its own port, reports it and waits: ``waits.py [stubborn] [grandchild]``."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "grandchild" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("its child is", child.pid)

config = json.loads(os.environ["TF_CONFIG"])
address = config["cluster"]["worker"][config["task"]["index"]]
server = socket.create_server((address.rpartition(":")[0], int(address.rpartition(":")[2])))
print("ready at", address)
time.sleep(600)
