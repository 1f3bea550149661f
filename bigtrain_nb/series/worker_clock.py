"""Simulate the staleness of a parameter server's updates, without processes."""

import heapq


def staleness_of_updates(seconds, until):
    """Return a list: the staleness of each update until the time ``until``.

    Worker i takes ``seconds[i]`` per step. At time 0 all read the weights; each worker that finishes a step updates
    them and reads them again. Ties go to the lower index.
    """
    ready = [(each, worker) for worker, each in enumerate(seconds)]
    heapq.heapify(ready)
    read_after = [0] * len(seconds)
    found = []
    while ready[0][0] <= until:
        now, worker = ready[0]
        found.append(len(found) - read_after[worker])
        read_after[worker] = len(found)
        heapq.heapreplace(ready, (now + seconds[worker], worker))
    return found
