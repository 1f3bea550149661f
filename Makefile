# make lab     copy the notebooks and short tracks to my/, and open the first in JupyterLab
# make test    lint and the first tier of tests: each feature once, all exercises, all notebooks, a browser session
# make test-all  the second tier too: each feature in all settings, and long tests
# make render  execute the notebooks that changed and store their outputs
# make book    build static pages with a search from the executed notebooks, in build/book
# make bench   compare pipeline and training with their peers, and plans with measurements (long)
# make engines install Ray, and run the tests that need it or a firewall (long)
# make lint    style and spelling
# make gpu     the tests for a machine with NVIDIA GPUs
# Each sets up .venv first if necessary. PYTHON=/path/to/python3.12 chooses the Python of .venv.

# .venv/ready is written when set-up is complete. It holds the path of the Python used, and the folder.
READY := .venv/ready
# A suitable Python prints its path; inside .venv, that of the Python that .venv was created with.
FITS := import os, sys, venv, ensurepip; assert (3, 11) <= sys.version_info[:2] <= (3, 13); \
    print(os.path.realpath(sys.executable))
ifndef PYTHON
PYTHON := $(shell head -n 1 $(READY) 2>/dev/null || \
    for name in python3.13 python3.12 python3.11 python3; do $$name -c "$(FITS)" 2>/dev/null && break; done)
endif
# Includes CUDA's libraries if there is an NVIDIA GPU.
EXTRAS = workbook,book,test,hub$(shell nvidia-smi >/dev/null 2>&1 && echo ,gpu)
PY := .venv/bin/python
TESTS := $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Prefer the kernels of this environment to those installed elsewhere.
export JUPYTER_PREFER_ENV_PATH := 1
# TensorFlow leaves oneDNN off on most CPUs without AVX-512 VNNI; with AVX2 it is faster too. Your own setting is kept.
ifeq "$(shell grep -qw avx2 /proc/cpuinfo 2>/dev/null && ! grep -qw avx512_vnni /proc/cpuinfo && echo avx2)" "avx2"
export TF_ENABLE_ONEDNN_OPTS ?= 1
endif

.PHONY: lab test test-all render book bench engines lint gpu
# With another Python, or in another folder than last time, set up again.
ifneq "$(shell cat $(READY) 2>/dev/null)" "$(PYTHON) $(CURDIR)"
.PHONY: $(READY)
endif

lab: $(READY)
	$(PY) -m bigtrain_nb.unpack notebooks/*.ipynb my
	$(PY) -m jupyterlab --ip=127.0.0.1 --LabApp.default_url=/lab/tree/my/00-measure-first.ipynb $(AS_ROOT)

test: lint
	$(TESTS) -m "not more"

test-all: lint
	$(TESTS)

render: $(READY)
	$(PY) tools/ways.py
	$(PY) tools/render.py $(NOTEBOOKS)
	$(PY) tools/covers.py

book: $(READY)
	rm -rf build/book
	$(PY) -m sphinx -W --keep-going -q -E -c tools/book -d build/doctrees notebooks build/book
	@echo "The book is ready: open build/book/index.html"

bench: $(READY)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[peers]"
	$(PY) benchmarks/pipeline.py
	$(PY) benchmarks/training.py
	$(PY) benchmarks/parallel.py
	$(PY) benchmarks/text.py
	$(PY) benchmarks/budget.py
	$(PY) benchmarks/honesty.py

engines: $(READY)
	$(PY) -m pip install --quiet -c constraints.txt "ray[train]==2.60.0"
	$(PY) -m pytest -rs tests/engines

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m codespell_lib

gpu: $(READY)
	$(PY) -m pytest -m gpu -s tests/gpu

$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c "$(FITS)" >/dev/null 2>&1 || { echo "Python 3.11 to 3.13 with its venv module is needed, and" \
	    "$(or $(PYTHON),none on PATH) is not: install one, or name it with make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Creating .venv with $(PYTHON): this takes minutes if packages must be downloaded"
	rm -rf .venv
	"$(PYTHON)" -m venv .venv
	$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	mkdir -p .venv/share/jupyter/lab/settings
	cp tools/jupyterlab.json .venv/share/jupyter/lab/settings/overrides.json
	@printf "%s\n" "$(PYTHON)" "$(CURDIR)" > $@
