"""Exercises of notebook 03, "Many workers"."""

from bigtrain_nb.workbook.exercises import exercise, expect


def tf_config(hosts, port, index):
    addresses = [f"{host}:{port}" for host in hosts]
    return {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}


@exercise(tf_config, minutes=4, difficulty=1)
def _check_tf_config(answer):
    """The cluster is the same text in every worker: {"worker": ["host:port", ...]}. Only the task's index differs."""
    two = ["ann", "ben"]
    three = ["n1", "n2", "n3"]
    expect(answer(two, 2222, 1), tf_config(two, 2222, 1), "worker 1 of ann, ben")
    expect(answer(two, 2222, 0), tf_config(two, 2222, 0), "worker 0 of ann, ben")
    expect(answer(three, 9000, 2), tf_config(three, 9000, 2), "worker 2 of n1, n2, n3")


@_check_tf_config.refuses("worker 1 of ann, ben: expected {'cluster': {'worker': ['ann:2222', 'ben:2222']}")
def _only_itself(hosts, port, index):
    own_address = f"{hosts[index]}:{port}"
    return {"cluster": {"worker": [own_address]}, "task": {"type": "worker", "index": index}}


@_check_tf_config.refuses("'index': 1}}, got {'cluster'")
def _everyone_is_the_chief(hosts, port, index):
    return tf_config(hosts, port, 0)


@_check_tf_config.refuses("got {'cluster': {'worker': ['ann', 'ben']}")
def _no_ports(hosts, port, index):
    return {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}


def reads(policy, files, batch, worker, workers):
    if policy == "FILE":
        files = files[worker::workers]
    examples = []
    for file in files:
        examples += file
    if policy != "DATA":
        return examples

    share = batch // workers
    own = []
    for start in range(worker * share, len(examples), workers * share):
        own += examples[start : start + share]
    return own


@exercise(reads, minutes=7, difficulty=3)
def _check_reads(answer):
    """FILE: `files[worker::workers]`. DATA: cut everything into pieces of batch // workers, take every workers-th."""
    files = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    told = "files of 4 examples, batches of 4"
    expect(answer("OFF", files, 4, 1, 2), list(range(16)), f"OFF, worker 1 of 2, 4 {told}")
    expect(answer("FILE", files, 4, 1, 2), [4, 5, 6, 7, 12, 13, 14, 15], f"FILE, worker 1 of 2, 4 {told}")
    expect(answer("FILE", files[:3], 4, 0, 3), [0, 1, 2, 3], f"FILE, worker 0 of 3, 3 {told}")
    expect(answer("DATA", files, 4, 1, 2), [2, 3, 6, 7, 10, 11, 14, 15], f"DATA, worker 1 of 2, 4 {told}")
    expect(answer("DATA", files[:3], 6, 0, 3), [0, 1, 6, 7], "DATA, worker 0 of 3, 3 files of 4 examples, batches of 6")


@_check_reads.refuses("FILE, worker 1 of 2, 4 files of 4 examples, batches of 4: expected [4, 5, 6, 7, 12")
def _everyone_reads_all(policy, files, batch, worker, workers):
    return reads("OFF", files, batch, worker, workers)


@_check_reads.refuses("got [8, 9, 10, 11, 12, 13, 14, 15]")
def _files_in_a_row(policy, files, batch, worker, workers):
    if policy != "FILE":
        return reads(policy, files, batch, worker, workers)
    each = len(files) // workers
    own = files[worker * each : (worker + 1) * each]
    return reads("OFF", own, batch, worker, workers)


@_check_reads.refuses("expected [2, 3, 6, 7, 10, 11, 14, 15], got [1, 3, 5, 7, 9, 11, 13, 15]")
def _deals_single_examples(policy, files, batch, worker, workers):
    if policy != "DATA":
        return reads(policy, files, batch, worker, workers)
    return reads("OFF", files, batch, worker, workers)[worker::workers]


def ring_seconds(size, workers, bandwidth, latency):
    messages = 2 * (workers - 1)
    message_seconds = size / workers / bandwidth + latency
    return messages * message_seconds


@exercise(ring_seconds, minutes=5, difficulty=2)
def _check_ring_seconds(answer):
    """Each worker sends 2(n-1) messages of size / n bytes, and each message costs its bytes / bandwidth + latency."""
    expect(answer(1e9, 2, 1e9, 0.0), 1.0, "1 GB over 2 workers at 1 GB/s without latency, in seconds")
    expect(answer(1e9, 4, 1e9, 0.0), 1.5, "1 GB over 4 workers at 1 GB/s without latency, in seconds")
    expect(answer(0, 4, 1e9, 0.001), 0.006, "0 bytes over 4 workers with a latency of 1 ms, in seconds")
    expect(answer(8e6, 8, 1e8, 0.001), 0.154, "8 MB over 8 workers at 100 MB/s with 1 ms, in seconds")
    expect(answer(1e9, 1, 1e9, 0.001), 0.0, "1 GB in one worker, in seconds")


@_check_ring_seconds.refuses("1 GB over 2 workers at 1 GB/s without latency, in seconds: expected about 1, got 0.5")
def _only_adds_up(size, workers, bandwidth, latency):
    return (workers - 1) * (size / workers / bandwidth + latency)


@_check_ring_seconds.refuses("expected about 1, got 2")
def _sends_all_at_each_step(size, workers, bandwidth, latency):
    return 2 * (workers - 1) * (size / bandwidth + latency)


@_check_ring_seconds.refuses("4 workers with a latency of 1 ms, in seconds: expected about 0.006, got 0.001")
def _one_latency(size, workers, bandwidth, latency):
    if workers == 1:
        return 0.0
    return ring_seconds(size, workers, bandwidth, 0.0) + latency


def resume_at(step, examples, batch):
    steps_an_epoch = -(-examples // batch)  # rounded up
    return divmod(step, steps_an_epoch)


@exercise(resume_at, minutes=3, difficulty=2)
def _check_resume_at(answer):
    """An epoch has ceil(examples / batch) steps, the short last batch included. `divmod` gives both numbers."""
    expect(answer(20, 512, 32), (1, 4), "(epoch, batches to skip) after step 20, 512 examples in batches of 32")
    expect(answer(16, 512, 32), (1, 0), "(epoch, batches to skip) after step 16, 512 examples in batches of 32")
    expect(answer(9, 512, 32), (0, 9), "(epoch, batches to skip) after step 9, 512 examples in batches of 32")
    expect(answer(35, 500, 32), (2, 3), "(epoch, batches to skip) after step 35, 500 examples in batches of 32")


@_check_resume_at.refuses("after step 20, 512 examples in batches of 32: expected (1, 4), got (1, 0)")
def _begins_the_epoch_again(step, examples, batch):
    epoch, skip = resume_at(step, examples, batch)
    return epoch, 0


@_check_resume_at.refuses("expected (1, 4), got (2, 4)")
def _counts_epochs_from_one(step, examples, batch):
    epoch, skip = resume_at(step, examples, batch)
    return epoch + 1, skip


@_check_resume_at.refuses("after step 35, 500 examples in batches of 32: expected (2, 3), got (2, 5)")
def _forgets_the_short_batch(step, examples, batch):
    return divmod(step, examples // batch)
