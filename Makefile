# The two commands that matter: `make demo` runs the whole job on a CPU, `make test` runs the tests.
# Each builds the environments that it needs, and builds them again when pyproject.toml or a constraint changes.
SHELL := /bin/bash
PYTHON ?= python3
ENGINE := .venv
TRAIN := .venv-train
PEERS := doit snakemake luigi dbos
PIP := -m pip --disable-pip-version-check --quiet
# The user may have switched bytecode off: start-up times are much better with it.
COMPILE := env -u PYTHONDONTWRITEBYTECODE $(ENGINE)/bin/python -m compileall -q harness tools

.PHONY: demo test check e2e bench peers serve clean

demo: $(ENGINE)/.engine $(TRAIN)/.train
	$(ENGINE)/bin/harness run plans/demo.yaml

test: $(ENGINE)/.dev $(TRAIN)/.test
	$(ENGINE)/bin/python -m pytest tests/engine tests/test_architecture.py tests/test_docs.py tests/test_wheel.py
	$(TRAIN)/bin/python -m pytest tests/eagle3

e2e: $(ENGINE)/.dev $(TRAIN)/.test
	$(ENGINE)/bin/python -m pytest tests/e2e --timeout 1800

check: $(ENGINE)/.dev $(TRAIN)/.test
	$(ENGINE)/bin/ruff check .
	$(ENGINE)/bin/ruff format --check .
	$(ENGINE)/bin/mypy harness
	$(ENGINE)/bin/mypy --python-executable $(TRAIN)/bin/python tools/eagle3
	$(ENGINE)/bin/pyright --pythonpath $(ENGINE)/bin/python harness
	$(ENGINE)/bin/pyright --pythonpath $(TRAIN)/bin/python tools/eagle3
	$(ENGINE)/bin/lint-imports

bench: $(ENGINE)/.engine
	$(ENGINE)/bin/python benchmarks/engine.py

peers: $(addprefix .peers/,$(PEERS))

.peers/%: constraints/peers.txt
	$(PYTHON) -m venv $@
	$@/bin/python $(PIP) install "$$(grep '^$*==' constraints/peers.txt)"
	touch $@

serve:
	@echo "There is no serving environment yet: it comes with the SGLang tools (see README, what is missing)."
	@exit 1

clean:
	rm -rf $(ENGINE) $(TRAIN) .peers dist

$(ENGINE)/.engine: pyproject.toml constraints/engine.txt
	$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/python $(PIP) install --constraint constraints/engine.txt --editable .
	$(COMPILE)
	touch $@

$(ENGINE)/.dev: $(ENGINE)/.engine constraints/dev.txt
	$(ENGINE)/bin/python $(PIP) install --constraint constraints/engine.txt --constraint constraints/dev.txt --editable '.[dev]'
	touch $@

# The pack's own environment needs nothing of harness: its worker is reached through links. torch comes first and alone,
# so that no other package's wish for it brings another build.
$(TRAIN)/.train: constraints/train.txt
	$(PYTHON) -m venv $(TRAIN)
	$(TRAIN)/bin/python $(PIP) install "$$(grep '^torch==' constraints/train.txt)"
	$(TRAIN)/bin/python $(PIP) install --requirement constraints/train.txt
	touch $@

$(TRAIN)/.test: $(TRAIN)/.train constraints/dev.txt
	$(TRAIN)/bin/python $(PIP) install --constraint constraints/dev.txt pytest pytest-timeout
	touch $@
