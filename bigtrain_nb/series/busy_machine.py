"""An imitated machine that takes its time for each batch; it waits without using a core, as another machine's would."""

from bigtrain_nb import tf

BATCH = 32


def busy_machine(milliseconds):
    """Return an endless dataset of batches [32, 64, 64, 3], uint8, each of which takes so long to be made."""
    ready = tf.data.Dataset.from_tensors(tf.zeros([BATCH, 64, 64, 3], tf.uint8)).repeat()
    late = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(ready),
        sleep_microseconds=tf.constant(1000 * milliseconds, tf.int64),
        output_types=[tf.uint8],
        output_shapes=[[BATCH, 64, 64, 3]],
    )
    return tf.data.experimental.from_variant(late, ready.element_spec)
