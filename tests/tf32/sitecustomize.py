"""Imported by Python at startup if this folder is in PYTHONPATH, so that kernels and workers round too."""

import rounded_products

rounded_products.install()
