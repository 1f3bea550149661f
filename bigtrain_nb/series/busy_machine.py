"""A simulated remote machine with a fixed time per batch; it waits without using a local core."""

from bigtrain_nb import tf

BATCH = 32


def busy_machine(milliseconds):
    """Return an infinite dataset of uint8 batches [32, 64, 64, 3] that takes this long to produce each batch."""
    ready = tf.data.Dataset.from_tensors(tf.zeros([BATCH, 64, 64, 3], tf.uint8)).repeat()
    late = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(ready),
        sleep_microseconds=tf.constant(1000 * milliseconds, tf.int64),
        output_types=[tf.uint8],
        output_shapes=[[BATCH, 64, 64, 3]],
    )
    return tf.data.experimental.from_variant(late, ready.element_spec)
