"""What Python imports when it starts, if this folder is in PYTHONPATH: kernels and workers round too."""

import rounded_products

rounded_products.install()
