"""A value from each replica, on all workers."""

from bigtrain_nb.common.quiet import tf


def all_gather(strategy, value):
    """Return a function of tensors that gives what ``value`` of them is on each replica: NumPy, [replicas, ...].

    All workers must call it; it costs an all-reduce.
    """
    replicas = strategy.num_replicas_in_sync

    def share(*tensors):
        own = tf.convert_to_tensor(value(*tensors))
        if replicas == 1:
            return own[None]
        context = tf.distribute.get_replica_context()
        table = tf.scatter_nd([[context.replica_id_in_sync_group]], own[None], [replicas, *own.shape])
        return context.all_reduce(tf.distribute.ReduceOp.SUM, table)

    @tf.function
    def on_each(*tensors):
        return strategy.run(share, tensors)

    def gather(*tensors):
        return strategy.experimental_local_results(on_each(*tensors))[0].numpy()

    return gather


def several_workers(strategy):
    """Return whether other processes take part in this strategy."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
