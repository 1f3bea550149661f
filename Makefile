# make lab     open the workbook in JupyterLab
# make test    run everything: helpers, exercises, notebooks, a browser session
# make render  execute the notebooks that changed and store their outputs
# make book    the executed notebooks as static pages with a search, in build/book
# make bench   compare pipeline, training and workers with their peers, plans with what was measured (long)
# make lint    style
# Each sets up .venv first when that is needed. PYTHON=/path/to/python chooses what .venv is made from, afresh if that is
# another version than it has.

CHOSEN := $(filter-out undefined,$(origin PYTHON))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c "" 2>/dev/null && echo $$p && break; done)
PY := .venv/bin/python
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# The kernels of this environment come before any that the user has installed elsewhere.
export JUPYTER_PREFER_ENV_PATH := 1

.PHONY: lab test render book bench lint setup

lab: setup
	$(PY) -m jupyterlab --ip=127.0.0.1 --LabApp.default_url=/lab/tree/notebooks/00-measure-first.ipynb $(AS_ROOT)

test: setup
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

render: setup
	$(PY) tools/render.py $(NOTEBOOKS)
	$(PY) tools/covers.py

book: setup
	$(PY) tools/book.py

bench: setup
	$(PY) -m pip install --quiet -c constraints.txt -e ".[peers]"
	$(PY) benchmarks/pipeline.py
	$(PY) benchmarks/training.py
	$(PY) benchmarks/workers.py
	$(PY) benchmarks/budget.py
	$(PY) benchmarks/honesty.py

lint: setup
	$(PY) -m ruff check .

setup:
	@$(if $(PYTHON),,echo "Python 3.11 to 3.13 is needed and no python3 was found on PATH."; exit 1;) "$(PYTHON)" tools/setup.py $(if $(CHOSEN),"$(PYTHON)")
