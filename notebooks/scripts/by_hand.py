"""A custom training loop for any strategy: what `fit` does."""

from bigtrain_nb.common.quiet import tf


def losses_by_hand(strategy, model, batches):
    """Train on all batches once; return the loss of each step."""

    def one_replica(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(x, y):
        losses = strategy.run(one_replica, args=(x, y))
        return strategy.reduce("SUM", losses, axis=None)

    told = []
    for x, y in strategy.experimental_distribute_dataset(batches):
        told.append(float(step(x, y)))
    return told
