"""These tests are for the second environment, `.venv-colab`; elsewhere they would only repeat what nbval does."""

import importlib.metadata

if not importlib.metadata.version("ipywidgets").startswith("7."):
    collect_ignore_glob = ["test_*.py"]
