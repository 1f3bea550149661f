"""Real data on disk, settings turned into a `tf.data.Dataset`, and its bottleneck."""
