# make quickstart   install and run the whole pipeline on the docstrings of this machine
# make test         install and run what CI runs: lint, types, tests
# make optimized    the tests of numbers again, with XLA's optimizations on
# make wheel        install the wheel with each extra into an empty environment, and use it
# make oldest       the tests of the core with the oldest versions that setup.py allows
# make newest       all tests with the newest JAX, on Python 3.12 or later
# make cluster      the tests of corpus and encode on many machines, with Ray too, and of near-duplicates
# make databases    the tests of the examples that search in a database, and of LangChain and LlamaIndex
# make trackers     the tests of metrics in Weights & Biases and Trackio
# make mteb         the tests of the example that evaluates by mteb, and of ir_datasets
# make docs         build the documentation as a site in build/site, open it in Chromium, run the notebooks
# make bench        measure and update the tables of benchmarks/README.md (an idle machine, 35 minutes)
# make bench-gpu    measure everything on a GPU, in about ten minutes, without a network (make gpu-wheels before)
# make plan-gpu     compile the training steps for GPUs that are not here, that of bench-gpu too (20 minutes)
# make bench-tpu    measure everything on a TPU VM (tpu_scripts/bench.sh runs it there)
# make gpu-wheels   fill .wheels with what a machine with JAX and PyTorch may lack
# make published   three real models as PyPI has them, beside sentence-transformers (make published DATA=FOLDER searches SciFact)
# make soak         kill commands 50 times each on the quickstart's files (make soak KILLS=200 for more)
# make reproduce    run the commands of every row of papers/ and experiments/, and of docs/repeat_the_papers.md, on tiny data (20 minutes)
# make fuzz         break every kind of file in thousands of ways (make fuzz EXAMPLES=20000 for more)
# make mutants      put faults into the package: do its tests notice? (make mutants PER_MODULE=80 for more)
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test lint types unit optimized wheel oldest newest cluster databases trackers mteb docs published bench bench-gpu bench-tpu plan-gpu gpu-site gpu-wheels soak reproduce fuzz mutants clean

quickstart: .venv/installed
	$(BIN)/cocondenser quickstart --workdir=runs/quickstart

# Alone, the check of types would leave a core idle.
test: lint
	$(MAKE) --jobs=2 types unit

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/shellcheck .ci/run tpu_scripts/*.sh tpu_scripts/on_vm/*.sh

types: .venv/tools
	$(BIN)/mypy

# After a crash of one, pytest-xdist (3.8) would wait forever for the tests of its file.
WORKERS := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
unit: .venv/tools
	$(BIN)/python -m pytest $(WORKERS) tests

optimized: .venv/tools
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest --numprocesses 2 tests/model/test_parity.py \
	  tests/pretrain/test_grad_cache.py tests/pretrain/test_step.py tests/pretrain/test_loop.py \
	  tests/pretrain/test_survival.py

wheel: .venv/tools
	WHEEL=fresh $(BIN)/python -m pytest -p no:randomly tests/test_wheel.py tests/benchmarks/test_accelerator.py

oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m pytest -p no:randomly tests/model tests/corpus tests/retriever/search \
	  tests/pretrain/test_loop.py tests/retriever/train/test_bi_encoder.py tests/checks/test_verify.py

newest: .venv-newest/installed
	.venv-newest/bin/python -m pytest $(WORKERS) tests

cluster: .venv/cluster
	$(BIN)/python -m pytest tests/files/test_workers.py tests/corpus/test_tasks.py tests/cli/test_tasks.py tests/test_near_duplicates.py

databases: .venv/databases
	$(BIN)/python -m pytest -p no:randomly tests/test_databases.py tests/test_frameworks.py

trackers: .venv-trackers/installed
	.venv-trackers/bin/python -m pytest -p no:randomly tests/files/test_trackers.py

mteb: .venv/mteb
	$(BIN)/python -m pytest -p no:randomly tests/test_mteb.py tests/retriever/data/test_named.py

docs: .venv/docs
	$(BIN)/python docs/build_site.py build/site
	SITE=build/site $(BIN)/python -m pytest tests/test_site.py tests/test_notebooks.py

published: .venv/published
	$(BIN)/python -m checks.published --folder=build/published \
	  --json_out=build/published/results.json $(if $(DATA),--data=$(DATA))

bench: .venv/tools
	for name in step memory input corpus cluster; do \
	  $(BIN)/python -m benchmarks.$$name --json_out=benchmarks/results/$$name.json || exit 1; \
	done
	$(BIN)/python -m benchmarks.results

# With the Python of the machine, which has JAX and PyTorch for its GPU. ARGUMENTS: such as
# --parts=peak,step. SITE gets the wheels, which take precedence over the packages of the machine.
SITE ?= .gpu-site
WHEELS ?= .wheels
TAKEN = $(wildcard $(WHEELS)/*.whl)
bench-gpu: gpu-site
	PYTHONSAFEPATH=1 PYTHONPATH=$(abspath $(SITE)):$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH} \
	  $(PYTHON) -m benchmarks.accelerator gpu --json_out=benchmarks/results/gpu.json $(ARGUMENTS)

gpu-site:
	rm -rf $(SITE)
	mkdir -p $(SITE)
	$(if $(TAKEN),$(PYTHON) -m pip install --quiet --no-index --no-deps --target=$(SITE) $(TAKEN))

# No GPU, no driver and no CUDA toolkit are needed.
plan-gpu: .venv/plan-gpu
	PLAN_GPU=all $(BIN)/python -m pytest -p no:randomly tests/plan/test_machines.py \
	  tests/plan/test_plan.py tests/benchmarks/test_launches.py tests/benchmarks/test_gpu_step.py

# With a Python that has this package, sentence-transformers with PyTorch for the CPU, JAX for the TPU.
bench-tpu:
	$(PYTHON) -m benchmarks.accelerator tpu --json_out=benchmarks/results/tpu.json $(ARGUMENTS)

# At most 60 MiB: without faiss-cpu, which encoding does not need beside pyarrow.
gpu-wheels:
	$(PYTHON) -m pip download --quiet --constraint constraints.txt --no-deps --dest $(WHEELS) \
	  --only-binary=:all: --python-version $(or $(GPU_PYTHON),3.12) --implementation cp \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
	  --platform manylinux2014_x86_64 $(GPU_WHEELS)
GPU_WHEELS := array_record backports.zstd grain importlib_resources ir_measures jaxtyping \
  ml_collections portpicker psutil pyarrow pytrec_eval-terrier wadler_lindig

soak: .venv/tools
	$(BIN)/python -m benchmarks.soak --quickstart=runs/quickstart --kills=$(or $(KILLS),50) \
	  --json_out=benchmarks/results/soak.json
	$(BIN)/python -m benchmarks.soak --quickstart=runs/quickstart --kills=$(or $(KILLS),50) \
	  --json_out=benchmarks/results/soak_commands.json finetune encode corpus
	$(BIN)/python -m benchmarks.results

reproduce: .venv/tools
	REPRODUCE=all $(BIN)/python -m pytest -p no:randomly tests/papers/test_reproduce.py \
	  tests/papers/test_repeat.py tests/experiments/test_reproduce.py \
	  tests/experiments/test_design.py tests/experiments/test_parts.py

fuzz: .venv/tools
	FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest --numprocesses 2 --timeout=0 \
	  $$(find tests -name "test_fuzz*.py")

mutants: .venv/mutants
	$(BIN)/python -m benchmarks.mutants --per_module=$(or $(PER_MODULE),25) \
	  --json_out=benchmarks/results/mutants.json
	$(BIN)/python -m benchmarks.results

# The stamps are renewed whenever the requirements change.
# Not compiled: Python does that to the files that it imports, in a fifth of the time.
.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; choose one with make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/installed: setup.py constraints.txt | .venv/bin/pip
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all]'
	touch $@

.venv/tools: setup.py constraints.txt | .venv/bin/pip
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,test]'
	touch .venv/installed $@

.venv/docs: .venv/tools
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,test,docs]'
	touch $@

.venv/plan-gpu: .venv/tools
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,test,plan-gpu]'
	touch $@

.venv/published: .venv/tools
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,test,published]'
	touch $@

.venv/mutants: .venv/tools
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,test,mutants]'
	touch $@

.venv/cluster: .venv/tools
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,ray,test]'
	touch $@

.venv/databases: .venv/tools
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,test,databases]'
	touch $@

.venv/mteb: .venv/tools
	$(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable '.[all,test,mteb,ir]'
	touch $@

# Trackio refuses the tested version of pillow.
.venv-trackers/installed: setup.py constraints.txt
	$(PYTHON) -m venv .venv-trackers
	grep -v '^pillow==' constraints.txt > .venv-trackers/constraints.txt
	.venv-trackers/bin/pip install --quiet --constraint .venv-trackers/constraints.txt --editable '.[all,test,wandb,trackio]'
	touch $@

# uv finds the oldest version of each requirement; pip finds the newest alone.
.venv-oldest/installed: setup.py
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet uv
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python \
	  --resolution lowest-direct --editable '.[all,tensorboard]' 'beartype>=0.20' 'pytest>=9' 'pytest-timeout>=2.4' 'hypothesis>=6.150'
	touch $@

# constraints.txt, with the versions of constraints-newest.txt for the packages that it names.
NEWEST_PYTHON ?= python3.12
.venv-newest/installed: setup.py constraints.txt constraints-newest.txt
	$(NEWEST_PYTHON) -m venv .venv-newest
	awk -F== 'NR == FNR { newest[$$1]; print; next } !($$1 in newest)' \
	  constraints-newest.txt constraints.txt > .venv-newest/constraints.txt
	.venv-newest/bin/pip install --quiet --constraint .venv-newest/constraints.txt --editable '.[all,test]'
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-newest .venv-trackers build *.egg-info .mypy_cache .pytest_cache .ruff_cache
