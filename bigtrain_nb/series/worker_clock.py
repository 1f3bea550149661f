"""A cluster of workers on a clock, without processes: how stale each update of a parameter server is."""

import heapq


def staleness_of_updates(seconds, until):
    """Return the staleness of each update that is done by the time ``until``, a list.

    Worker i takes ``seconds[i]`` for a step. At time 0 all read the weights; whoever is ready updates them and reads
    them again. If several are ready at the same moment, the one with the smaller number is first.
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
