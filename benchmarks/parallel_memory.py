"""Memory breakdown of a process of two replicas: ``parallel_memory.py WAY NETWORK`` in its own process, as JSON.

All in bytes. ``imported`` is the process with TensorFlow loaded and one operation run, ``built`` its peak while the
model is built, ``peak`` that of three epochs. ``tensors`` is the peak of TensorFlow's allocator. For a network of few
parameters, the memory above ``imported`` is the graph.
"""

import json
import re
import sys
from pathlib import Path

import parallel_steps as steps

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import tf


def peak_since_reset():
    """Return the peak resident memory since the last call, and reset it. Linux only."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def main(way, network):
    bt.devices(2)
    tf.reduce_sum(tf.ones([8])).numpy()
    peak_since_reset()
    found = {"imported": peak_since_reset()}
    _, epoch = steps.start(network, way, bt.mirrored(2), steps.FEW_EXAMPLES)
    found["built"] = peak_since_reset()
    for _ in range(3):
        epoch()
    found["peak"] = peak_since_reset()
    found["tensors"] = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
