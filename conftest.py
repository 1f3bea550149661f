# At the root, so that the guard also stands when only notebooks/ is tested.
pytest_plugins = ["longest_first", "notebook_guard", "pytester"]
