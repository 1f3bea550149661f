"""Text for language models: files as one sequence of bytes, and documents packed into rows."""
