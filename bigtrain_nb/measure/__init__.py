"""How fast is it, and is the difference real? Without TensorFlow."""
