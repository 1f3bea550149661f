"""Real data on disk, settings turned into a `tf.data.Dataset`, and the stage of it that binds."""
