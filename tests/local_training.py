"""Local steps by hand, in NumPy around stock Keras models: what `sync_every` is compared with."""

import numpy as np


def by_hand(models, shares, sync_every, epochs, rate=1.0, momentum=0.0):
    """Train a compiled stock model for each replica, on its batches; return the weights, and each epoch's loss.

    The outer step is Nesterov's; with the defaults it goes to the mean of the weights.
    """
    starts = models[0].get_weights()
    speeds = [np.zeros_like(start) for start in starts]
    losses = []
    for _ in range(epochs):
        epoch = []
        for step in range(len(shares[0])):
            for model, share in zip(models, shares, strict=True):
                model.reset_metrics()  # as Keras does by itself since 3.14
                logs = model.train_on_batch(*share[step], return_dict=True)
                epoch.append(logs["loss"])
            if (step + 1) % sync_every and step + 1 < len(shares[0]):
                continue
            for index, start in enumerate(starts):
                way = np.mean([start - model.get_weights()[index] for model in models], axis=0)
                speeds[index] = momentum * speeds[index] + way
                starts[index] = start - rate * (way + momentum * speeds[index])
            for model in models:
                model.set_weights(starts)
        losses.append(np.mean(epoch))
    return starts, losses
