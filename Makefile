# make demo       race a text with a draft against the target alone, with the pair that ships here
# make room       the tests of a room, in seconds: R=inference/engine, or a file of it
# make check      lint, types and the quick tests, for while you work
# make test       lint, types and tests
# make test-all   the slower tiers; CI runs them after make test; the first run builds llama.cpp
# make shuffled   the tests of make test in a random order; SEED=N repeats one
# make mutants    20 planted faults, other ones each day, each of which its nearest test file finds
# make simulate-night  whole systems under faults on N seeds, others for each commit: SEEDS=N START=first
# make coverage   branch coverage of each package, as a table: R=ROOM with the tests of a room
# make examples   property tests on N times as many examples, drawn anew: EXAMPLES=10
# They make .venv first; PYTHON chooses the interpreter (3.11 to 3.14).
# make package    wheel and sdist in dist/, and what publishing tools say of them; see CONTRIBUTING.md
# make licences   dist/sbom.json and dist/licences.md: what a client installs, and its licences
# make lock       requirements.lock: the client's packages with their hashes; constraints-lowest.txt: what make test-lowest installs
# make docs       the documentation as a site in build/site; a dead link is an error
# make vendor     the chat page's libraries from npm, as outrider/endpoint/page/vendor/README.md lists them
# make test-nxd   Neuron's builder on the real neuronx-distributed of a checkout: NXD=path; see CONTRIBUTING.md
# make test-isa   arithmetic as a CPU with AVX2 only computes it, and one without; see CONTRIBUTING.md
# make test-trn1  the tests of compile and of Neuron's backends with the libraries of a trn1 host beside the torch of .venv
# make test-lowest  tests with the lowest versions that pyproject.toml allows, beside the torch of .venv
# make test-newest  tests of a client with the newest Python, if this machine has it: NEWEST=python3.14
# make test-xla   the graphs and their arithmetic on torch 2.9 and torch_xla 2.9, as on trn1; makes .venv-xla, of 7 GB

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
export PYTHONDONTWRITEBYTECODE :=  # child processes of tests would compile the product each time

.PHONY: demo lint room check test test-all shuffled mutants simulate-night coverage examples test-isa test-trn1 test-lowest test-newest test-xla test-nxd package licences docs lock proto vendor clean

demo: .venv/installed
	@$(BIN)/python -m outrider demo

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

room: .venv/ready
	$(BIN)/python -m pytest -m "not extended" tests/$(R)

check: lint
	$(PYTEST) -m "not slow and not extended" --below 4

test: lint
	$(PYTEST) -m "not extended"

test-all: .venv/ray .venv/gguf .venv/agents
	$(PYTEST) -m extended

SEED = $(shell date +%s)
shuffled: .venv/ready
	$(PYTEST) -m "not extended" --shuffle $(SEED)

mutants: .venv/ready
	$(BIN)/python -m tests.mutants

SEEDS = 10000
START = $(shell printf %d 0x$$(git rev-parse --short=7 HEAD))
simulate-night: .venv/ready
	$(BIN)/python -m tests.simulate --seeds $(SEEDS) --start $(START)

ROOMS = $(patsubst %/__init__.py,%,$(sort $(shell find inference grpc_comm compile deploy outrider -name __init__.py)))
coverage: .venv/ready
	$(BIN)/coverage erase
	$(BIN)/coverage run $(wordlist 2,99,$(PYTEST)) -m "not extended" tests/$(R)
	$(BIN)/coverage combine --quiet
	@for room in $(ROOMS); do printf '%5s %%  %s\n' "$$($(BIN)/coverage report --include="$$room/*.py" --format=total)" $$room; done

EXAMPLES = 10
examples: .venv/ready
	EXAMPLES=$(EXAMPLES) $(PYTEST) -m hypothesis

ISA := tests/inference/model tests/test_lossless.py
test-isa: .venv/ready
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -m "not extended" $(ISA)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(PYTEST) -m "not extended" $(ISA)

LOWEST := grpc_comm/test_wire.py grpc_comm/test_security.py grpc_comm/observability inference/test_text.py inference/test_grammar.py inference/model/test_checkpoint.py outrider/options outrider/text outrider/terminal outrider/endpoint/test_requests.py outrider/endpoint/test_openai_interface.py
test-lowest: .venv-lowest/ready
	.venv-lowest/bin/python -m pytest -n 2 --dist worksteal -m "not extended" -W default $(addprefix tests/,$(LOWEST))

NEWEST ?= python3.14
CLIENT := grpc_comm/test_wire.py grpc_comm/test_keys.py grpc_comm/test_security.py grpc_comm/observability grpc_comm/server/test_tenants.py grpc_comm/client/test_replicas.py inference/test_tree.py inference/test_candidates.py
test-newest: $(if $(shell command -v $(NEWEST)),.venv-newest/ready)
	$(if $<,.venv-newest/bin/python -m pytest -n 2 --dist worksteal -m "not extended" $(addprefix tests/,$(CLIENT)),@echo "make test-newest: this machine has no $(NEWEST)")

test-trn1: .venv-trn1/ready
	.venv-trn1/bin/python -m pytest -n 2 --dist worksteal -m "not extended" tests/compile tests/inference/backends tests/test_lossless.py

test-xla: .venv-xla/ready
	PJRT_DEVICE=CPU .venv-xla/bin/python -m pytest -W default tests/xla tests/inference/test_tree.py tests/inference/model/test_noise.py tests/inference/model/test_choice.py tests/inference/model/test_decoder.py tests/test_lossless.py

test-nxd: .venv/ready
	NXD=$(abspath $(NXD)) $(BIN)/python -m pytest -W default -rs tests/nxd

PUBLISH := .venv-publish/bin
package: .venv-publish/ready
	rm -rf dist
	$(PUBLISH)/python -m build
	$(PUBLISH)/twine check --strict dist/*
	$(PUBLISH)/check-wheel-contents dist/*.whl
	$(PUBLISH)/validate-pyproject pyproject.toml
	$(PUBLISH)/pyroma --min=8 .  # no address and no home page yet
	$(PUBLISH)/deptry .
	$(PUBLISH)/vulture

licences: .venv-publish/ready .venv-client/ready
	mkdir -p dist
	$(PUBLISH)/cyclonedx-py environment --output-file dist/sbom.json .venv-client/bin/python
	$(PUBLISH)/pip-licenses --python .venv-client/bin/python --format markdown --output-file dist/licences.md

docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet 'uv>=0.9,<1'
	.venv-lock/bin/uv pip compile pyproject.toml --quiet --constraint constraints.txt --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --output-file requirements.lock
	.venv-lock/bin/uv pip compile pyproject.toml --quiet --extra torch --resolution lowest-direct --python-version 3.11 --no-annotate --no-header | grep -vE '^(torch|triton|nvidia.*)==' > constraints-lowest.txt

proto: .venv/ready
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. grpc_comm/proto/verifier.proto

VENDOR := outrider/endpoint/page/vendor
vendor:
	npm install --ignore-scripts --prefix build/vendor marked@18.2.1 dompurify@3.4.18 @highlightjs/cdn-assets@11.12.0 katex@0.19.1
	cd build/vendor/node_modules && cp marked/lib/marked.esm.js $(CURDIR)/$(VENDOR)/marked.js && cp marked/LICENSE $(CURDIR)/$(VENDOR)/marked.LICENSE
	cd build/vendor/node_modules && cp dompurify/dist/purify.es.mjs $(CURDIR)/$(VENDOR)/dompurify.js && cp dompurify/LICENSE $(CURDIR)/$(VENDOR)/dompurify.LICENSE
	cd build/vendor/node_modules/@highlightjs/cdn-assets && cp es/highlight.min.js $(CURDIR)/$(VENDOR)/highlight.js && cp LICENSE $(CURDIR)/$(VENDOR)/highlight.LICENSE
	cd build/vendor/node_modules && cp katex/dist/katex.mjs $(CURDIR)/$(VENDOR)/katex.js && cp katex/LICENSE $(CURDIR)/$(VENDOR)/katex.LICENSE

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch]'
	@touch $@

.venv/ready: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv/ray: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[ray]'
	@touch $@

.venv/gguf: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[gguf]'
	@touch $@

.venv/agents: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[agents]'
	@touch $@

.venv-publish/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-publish
	$(PUBLISH)/pip install --quiet --constraint constraints.txt --editable '.[publish]'
	@touch $@

.venv-client/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-client
	.venv-client/bin/pip install --quiet --constraint constraints.txt .
	@touch $@

.venv-docs/ready:
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet 'mkdocs-material>=9.7,<10'
	@touch $@

# The packages of .venv, behind those of another environment.
beside = echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth

# The host's own torch (2.9) comes with 7 GB of CUDA; make test-xla has it.
.venv-trn1/ready: .venv/ready constraints-trn1.txt
	$(PYTHON) -m venv .venv-trn1
	.venv-trn1/bin/pip install --quiet --no-deps --requirement constraints-trn1.txt
	$(call beside,.venv-trn1)
	@touch $@

.venv-lowest/ready: .venv/ready constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --no-deps --requirement constraints-lowest.txt
	$(call beside,.venv-lowest)
	@touch $@

.venv-newest/ready: pyproject.toml constraints.txt
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --constraint constraints.txt --editable . pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

.venv-xla/ready: pyproject.toml constraints-xla.txt
	$(PYTHON) -m venv .venv-xla
	.venv-xla/bin/pip install --quiet --constraint constraints-xla.txt --editable '.[torch]' torch_xla pytest pytest-timeout hypothesis
	@touch $@

clean:
	rm -rf .venv .venv-*
