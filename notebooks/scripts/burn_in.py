"""A burn-in and a link test of four nodes. `python burn_in.py FAULTS`, under `bt.run_workers`.

FAULTS is JSON that injects faults: {"wrong_bit": NODE, "slow_nic": NODE, "slow_cable": [NODE, NODE]}. Each node prints
JSON: GFLOP/s of its slowest device, GB/s of its memory, wrong products, MB/s to each node with a larger number.
"""

import json
import os
import socket
import sys
import time

import numpy as np

from bigtrain_nb.common.quiet import tf

REPETITIONS, TRIES = 40, 3
MESSAGE, CHUNK = bytes(2**20), 2**16
DELAY = 0.02  # seconds per chunk, on a link that is made slow
WAIT = 120  # seconds for the other nodes


def seconds_of(call):
    began = time.perf_counter()
    result = call()
    tf.test.experimental.sync_devices()  # a GPU may still be computing
    return time.perf_counter() - began, result


def burn_in(device, wrong_bit):
    """Return GFLOP/s, GB/s, and the number of wrong products. Products of small integers are exact on any device."""
    size = 4096 if "GPU" in device else 512
    factors = np.random.default_rng(0).integers(-4, 5, (2, size, size)).astype("float32")
    known = factors[0].astype("float64") @ factors[1]
    with tf.device(device):
        left, right, large = tf.constant(factors[0]), tf.constant(factors[1]), tf.ones([2**24])
        seconds_of(lambda: (left @ right, tf.reduce_sum(large)))  # the first call takes longer
        multiplying, wrong = [], 0
        for repetition in range(REPETITIONS):
            seconds, product = seconds_of(lambda: left @ right)
            product = product.numpy()
            if wrong_bit and repetition % 10 == 9:
                product.view("uint32")[0, 0] ^= 1  # the injected fault
            multiplying.append(seconds)
            wrong += not np.array_equal(product, known)
        reading = [seconds_of(lambda: tf.reduce_sum(large))[0] for _ in range(10)]
    return 2e-9 * size**3 / np.median(multiplying), 4e-9 * 2**24 / np.median(reading), wrong


def call(address):
    """Connect to another node as soon as it is listening."""
    host, port = address.split(":")
    for _ in range(20 * WAIT):
        try:
            return socket.create_connection((host, int(port))).makefile("rwb")
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise TimeoutError(f"{address} does not listen")


def connect(node, addresses):
    """Return {other node: stream}: each node calls those with smaller numbers, and the others call it."""
    host, port = addresses[node].split(":")
    with socket.create_server((host, int(port))) as server:
        streams = {other: call(addresses[other]) for other in range(node)}
        for stream in streams.values():
            send(stream, bytes([node]))
        while len(streams) < len(addresses) - 1:
            stream = server.accept()[0].makefile("rwb")
            streams[stream.read(1)[0]] = stream
    return streams


def send(stream, message, delay=0):
    for start in range(0, len(message), CHUNK):
        stream.write(message[start : start + CHUNK])
        stream.flush()
        time.sleep(delay)


def round_trip(stream, is_first, delay):
    """Send MESSAGE to the other node and back; return MB/s, measured by the first node."""
    if is_first:
        stream.read(1)  # the other node is ready
        began = time.perf_counter()
        send(stream, MESSAGE, delay)
        assert stream.read(len(MESSAGE)) == MESSAGE
        return 2e-6 * len(MESSAGE) / (time.perf_counter() - began)
    send(stream, b"!")
    send(stream, stream.read(len(MESSAGE)), delay)


def main(faults):
    socket.setdefaulttimeout(WAIT)
    config = json.loads(os.environ["TF_CONFIG"])
    node, addresses = config["task"]["index"], config["cluster"]["worker"]
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")[:1]
    tested = [burn_in(device.name, node == faults.get("wrong_bit")) for device in devices]
    speeds, memories, wrong = zip(*tested, strict=True)
    streams, links = connect(node, addresses), {}
    for number in range(1, 1 << (len(addresses) - 1).bit_length()):
        other = node ^ number  # XOR: in each round every node has at most one partner
        if other >= len(addresses):
            continue
        slow = node == faults.get("slow_nic") or sorted([node, other]) == faults.get("slow_cable")
        rates = [round_trip(streams[other], node < other, DELAY * slow) for _ in range(TRIES)]
        if node < other:
            links[other] = max(rates)
    report = {"node": node, "gflops": min(speeds), "memory": min(memories), "wrong": sum(wrong), "links": links}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
