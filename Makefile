# SPDX-License-Identifier: Apache-2.0
# Everything runs in .venv, with rdmatensor installed as users install it. See `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# One pip and one apt at a time.
.NOTPARALLEL:

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
TENSORFLOW ?= tensorflow-cpu==2.21.*
# pip says at length what it does not use; it still says what it fails at.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# For examples/ and TensorFlow's own tests: the one of this TensorFlow, or the last before it where there is none
# yet. It would bring another TensorFlow if it could.
KERAS_2 = --no-deps 'tf_keras<=$(patsubst %.*,%.99,$(lastword $(subst ==, ,$(TENSORFLOW))))'
# Three at a time, on two cores too: the lab's guests mostly wait, and so do the processes that other tests start.
PYTEST := $(BIN)/pytest -q --durations=15 -n 3 --no-loadscope-reorder
# For the programs in tests/, which import its helpers.
TESTS_PYTHON := PYTHONPATH=$(CURDIR)/tests $(BIN)/python

# Of ninja's "[12/214]", each tenth.
progress := awk -F'[][/]' '/^ *\[[0-9]+\/[0-9]+\]/ { if (int(10 * $$2 / $$3) > last) print "  " 10 * (last = int(10 * $$2 / $$3)) "%"; fflush() }'

# What is compiled; Python is used where it lies.
sources := $(shell find csrc -type f) rdmatensor/_build_ffi.py
c_files = $(shell find csrc tests bench examples -name '*.c' -o -name '*.h' -o -name '*.cc')

# Long forms: make test SUITE=NAME.
suites := whole chaos kills schedules conformance keras verbs tcp encrypted aarch64 soak topology failures torch jax
.PHONY: help build demo demo-hosts core gpu test check docs site lint format sanitize fuzz wheel dist clean \
        bench bench-quick
.PHONY: $(suites:%=suite-%) suite-all sanitize-address sanitize-thread

help:
	@echo 'make demo         train a classifier over grpc and over grpc+rdma, and compare'
	@echo 'make demo-hosts   the same between two network namespaces, as hosts are; needs root'
	@echo 'make core         the C core and the Python API, built and tested without TensorFlow'
	@echo 'make gpu          CUDA memory on a GPU, without TensorFlow: WHEELS=folder without a network, STANDIN=1 without a GPU'
	@echo 'make check        linters and the quick tests, in two minutes'
	@echo 'make test         all tests; TEST_FLAGS='
	@echo 'make test SUITE=  a long form of one subject: $(suites); CONTRIBUTING.md'
	@echo 'make lint         formatters, linters, type checker'
	@echo 'make format       rewrite sources as make lint wants them'
	@echo "make bench        all benchmarks and rivals, half an hour; ONLY='tensorflow trees', BENCH_FLAGS=--quick, RIVAL_PYTHON="
	@echo 'make bench-quick  the Python API, and steps of TensorFlow against gRPC; some minutes'
	@echo 'make sanitize     C tests and the transport suite with sanitizers: SANITIZER=address|thread'
	@echo 'make fuzz         what comes from outside, made up: FUZZ_SECONDS=600 for each harness'
	@echo 'make docs         write the generated pages docs/configuration.md, docs/api.md and docs/benchmarks.md'
	@echo 'make site         the documentation as a site, in build/site'
	@echo 'make wheel        a wheel for this TensorFlow and others, in dist/; docs/packages.md'
	@echo 'make dist         the same from a source archive, which is left in dist/ too'
	@echo 'make build        make .venv and install rdmatensor into it'
	@echo 'make clean        remove .venv and everything built'

build: $(VENV)/.installed

# Groups need this pip, and a fresh environment may have an older one.
$(VENV)/.pip: .ci/prepare
	@.ci/prepare build $(VENV)
	@$(PIP) 'pip>=25.1'
	@touch $@

$(VENV)/.tools: pyproject.toml $(VENV)/.pip
	@echo 'installing TensorFlow and what building needs into $(VENV)'
	@$(PIP) '$(TENSORFLOW)' --group build
	@touch $@

$(VENV)/.packages: $(VENV)/.tools
	@echo 'installing what tests, linters and benchmarks need into $(VENV)'
	@# TensorFlow is named for its own requirements: pip does not look at those of what is there.
	@$(PIP) '$(TENSORFLOW)' --group bench --group test --group lint
	@$(PIP) $(KERAS_2)
	@touch $@

# The site needs no TensorFlow.
$(VENV)/.site: pyproject.toml | $(VENV)/.pip
	@$(PIP) --group docs
	@touch $@

$(VENV)/.conformance: $(VENV)/.tools
	@echo "installing what TensorFlow's own tests need into $(VENV)"
	@$(PIP) --group conformance
	@$(PIP) $(KERAS_2)
	@touch $@

$(VENV)/.ray: $(VENV)/.packages
	@$(PIP) --group ray
	@touch $@

# Of the system: the lab's emulator, a browser, Clang.
$(VENV)/.programs: $(VENV)/.tools
	@.ci/prepare tests
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(sources) setup.py CMakeLists.txt pyproject.toml
	@echo 'building rdmatensor (its TensorFlow plugin takes minutes the first time)'
	@mkdir -p build
	@$(PIP:-qq=-v) --no-build-isolation --no-deps --editable . 2>&1 | tee build/build.log | $(progress) || \
	  { tail -n 40 build/build.log; exit 1; }
	@touch $@

demo: build
	@$(BIN)/python examples/demo/compare.py $(DEMO_FLAGS)

# The same between two network namespaces; needs root.
demo-hosts: build $(VENV)/.packages
	@$(TESTS_PYTHON) -m demo.hosts $(DEMO_FLAGS)

# What every target needs that runs tests.
tests := build $(VENV)/.packages $(VENV)/.programs

test: suite-$(or $(SUITE),all)

suite-all: $(tests)
	$(PYTEST) $(TEST_FLAGS)

suite-%:
	@echo '$* is no suite: SUITE is one of $(suites)' >&2 && exit 1

# In an environment of its own, beside that of everything else.
core := build/core
core_pip := $(core)/bin/python -m pip install -qq --disable-pip-version-check
core: export RDMATENSOR_BUILD_TENSORFLOW = OFF
core:
	@.ci/prepare build $(core)
	@$(core_pip) 'pip>=25.1'
	@$(core_pip) --group core
	@$(core_pip) --no-build-isolation --no-deps .
	$(core)/bin/pytest -q -n 2 tests/unit/test_c_programs.py tests/unit/test_readme.py \
	  tests/transport/test_arguments.py tests/transport/test_onesided.py tests/transport/test_notify.py \
	  tests/transport/test_memory.py tests/transport/test_store.py tests/transport/test_event_loop.py $(TEST_FLAGS)

# On a bare machine too: .ci/gpu says what it needs.
gpu:
	@STANDIN='$(STANDIN)' WHEELS='$(WHEELS)' TEST_FLAGS='$(TEST_FLAGS)' .ci/gpu

# Quick, for each edit: two minutes at most.
check: lint build
	$(PYTEST) tests/unit tests/bench/test_instructions.py tests/transport/test_notify.py $(TEST_FLAGS)

# With what `make test` leaves out, because other tests show the same kinds of faults.
suite-whole: $(tests) $(VENV)/.ray
	RDMATENSOR_TEST_WHOLE=1 $(PYTEST) $(TEST_FLAGS)

# Training, transfers and stores under random faults.
suite-chaos: build $(VENV)/.packages
	@$(TESTS_PYTHON) -m faults.chaos \
	  --seconds $(or $(CHAOS_SECONDS),300) $(CHAOS_FLAGS)

# Kills a task at a random moment of a step, KILLS times (1000); and workers of a ClusterCoordinator, which takes ten
# seconds each to find the next one, a tenth as often.
suite-kills: build $(VENV)/.packages
	@$(TESTS_PYTHON) -m plugin.killing --times $(or $(KILLS),1000) $(KILLS_FLAGS)
	@$(TESTS_PYTHON) -m plugin.killing_workers --times $$(($(or $(KILLS),1000) / 10)) $(KILLS_FLAGS)

# torch's own tests for backends, on gloo and on rdmatensor, and compares: those of its wheel with SIZES processes, or
# those of its repository, in SOURCE. TORCH names another version, which is installed beside .venv: it takes 5.5 GB.
# Without SOURCE, torchft's own tests come first, whose members change CHANGES times (1000).
suite-torch: $(tests) $(TORCH:%=$(CURDIR)/build/torch-%/torch)
	@$(if $(SOURCE)$(TORCH),,$(TESTS_PYTHON) -m pytorch.torchft_suite --changes $(or $(CHANGES),1000))
	@PYTHONPATH=$(TORCH:%=$(CURDIR)/build/torch-%:)$(CURDIR)/tests $(BIN)/python -m pytorch.suite --out build/torch \
	  $(if $(SOURCE),--source $(SOURCE),--sizes $(or $(SIZES),2 3 4)) $(TORCH_FLAGS)

# JAX's own tests of SIZES processes, of its repository in SOURCE, on gloo and on rdmatensor, and compared.
ifeq ($(SUITE),jax)
  $(if $(SOURCE),,$(error SOURCE=/path/to/jax is missing: a clone of its repository, at the tag of the jax in .venv))
endif
suite-jax: $(tests)
	@$(TESTS_PYTHON) -m on_jax.suite --out build/jax --source '$(abspath $(SOURCE))' --sizes $(or $(SIZES),2 4) $(JAX_FLAGS)

$(CURDIR)/build/torch-%/torch: | $(VENV)/.tools
	@$(PIP) --no-compile --target $(@D) 'torch==$*'

# Packs trees into every connected part of a DGX-1, and for 64 members.
suite-topology: build $(VENV)/.packages
	RDMATENSOR_TEST_EVERY_PART=1 $(PYTEST) -s tests/topology -k 'every_connected_part or many_members'

# SCHEDULES closures (10000) at once on a ClusterCoordinator, three times.
suite-schedules: build $(VENV)/.packages
	@$(TESTS_PYTHON) -m plugin.scheduling --count $(or $(SCHEDULES),10000)

# FILES='path.py shards=4 ...', KERAS=, VARIANTS='default bounce ...', CONFORMANCE_FLAGS=: docs/conformance.md
ifeq ($(SUITE),conformance)
  $(if $(SOURCE),,$(error SOURCE=/path/to/tensorflow is missing: a git directory or folder of its sources))
endif
suite-conformance: build $(VENV)/.conformance
	@$(TESTS_PYTHON) -m conformance.run \
	  --source '$(abspath $(SOURCE))' --out $(CURDIR)/build/conformance \
	  $(if $(FILES),--files '$(FILES)') $(if $(KERAS),--keras '$(abspath $(KERAS))') \
	  $(if $(VARIANTS),--variants $(VARIANTS)) $(CONFORMANCE_FLAGS)

# All of the transport suite in a guest, and all that TensorFlow and two guests do.
suite-verbs: $(tests)
	RDMATENSOR_TEST_WHOLE=1 $(PYTEST) -n 0 tests/softroce

# All tests of the plugin; `make test` runs some of them over tcp.
suite-tcp: $(tests)
	RDMATENSOR_TEST_WHOLE=1 $(PYTEST) -n 0 tests/tcp/test_tensorflow.py::test_plugin_over_tcp

# The transport suite, C programs and tests of TensorFlow over encrypted tcp.
suite-encrypted: $(tests)
	RDMATENSOR_TEST_WHOLE=1 $(PYTEST) tests/tcp tests/security tests/plugin/test_encrypt.py -k encrypt

SANITIZER ?= address thread
sanitize: $(SANITIZER:%=sanitize-%)

# The C programs on this machine, over tcp too, and on verbs in the lab.
sanitized := tests/unit/test_c_programs.py tests/load tests/tcp/test_suite.py \
             tests/softroce/test_transport_suite.py -k 'c_program or load'

# And the transport suite, whose peers take the sanitized library instead of the installed one.
sanitize-address: $(tests)
	RDMATENSOR_TEST_SANITIZE=address $(PYTEST) $(sanitized)
	$(BIN)/cmake --build build/unit-address --parallel 2 --target rdmatensor_core
	for transport in shm tcp; do \
	  RDMATENSOR_TEST_TRANSPORT=$$transport PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $(CURDIR)/build/unit-address/librdmatensor.so.0" \
	  $(PYTEST) tests/transport || exit 1; \
	done

sanitize-thread: $(tests)
	RDMATENSOR_TEST_SANITIZE=thread $(PYTEST) $(sanitized)

# C programs, and the Python API from a wheel. Some C programs need OpenSSL for ARM64; to the last one the emulator does
# not tell which pages are resident. It lacks process_vm_readv, which test_memory is about, and aborts in a forked child
# with threads.
no_aarch64 := ^test_(admission|channel|mac|tcp_io_threads|verbs_registration)$$
suite-aarch64: $(VENV)/.tools
	@.ci/prepare aarch64
	$(BIN)/cmake -S . -B build/aarch64 -G Ninja --toolchain csrc/cmake/aarch64.cmake \
	  -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DRDT_BUILD_TENSORFLOW=OFF -DRDT_BUILD_TESTS=ON
	$(BIN)/cmake --build build/aarch64 --parallel 2 --target unit_programs
	$(BIN)/ctest --test-dir build/aarch64 -j 2 --output-on-failure --exclude-regex '$(no_aarch64)'
	rm -f dist/rdmatensor-*_aarch64.whl
	@$(MAKE) -s wheel ARCH=aarch64
	.ci/aarch64 $(BIN)/python $(CURDIR)/build/aarch64-python $(CURDIR)/dist/rdmatensor-*_aarch64.whl -q -n 2 \
	  $(CURDIR)/tests/unit/test_readme.py \
	  $(patsubst %,$(CURDIR)/tests/transport/test_%.py,arguments onesided notify store event_loop group atomics) -k 'not forked' $(TEST_FLAGS)

FUZZ_SECONDS ?= 600
fuzz: $(VENV)/.programs
	@$(TESTS_PYTHON) -m fuzz.run --seconds $(FUZZ_SECONDS)

# At full speed for SOAK_SECONDS, with a report.
SOAK_SECONDS ?= 3600
suite-soak: $(tests)
	SOAK_SECONDS=$(SOAK_SECONDS) $(PYTEST) -s tests/load

# Writes the table of docs/failure.md, of what the tests see.
failure_notes := $(CURDIR)/build/failures
suite-failures: $(tests)
	@mkdir -p build && rm -f $(failure_notes)
	RDMATENSOR_TEST_WHOLE=1 RDMATENSOR_TEST_FAILURES=$(failure_notes) $(PYTEST) tests/transport \
	  tests/tcp/test_suite.py::test_transport_suite tests/tcp/test_networks.py tests/softroce/test_two_hosts.py \
	  tests/softroce/test_two_hosts_failures.py tests/softroce/test_transport_suite.py::test_transport_suite \
	  tests/plugin/test_failures.py tests/plugin/test_stopped_peer.py \
	  tests/plugin/test_arena.py
	$(BIN)/python tests/support/failure_table.py $(failure_notes) docs/failure.md

lint: $(VENV)/.packages $(VENV)/.site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file=tests/mypy.ini bench examples tests
	@$(BIN)/python .ci/rooms.py
	@$(BIN)/python .ci/api.py
	@PYTHONPATH=$(CURDIR) $(BIN)/python bench/page.py --check
	@$(BIN)/clang-format --dry-run -Werror $(c_files)
	@$(MAKE) -s site

format: $(VENV)/.packages
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(c_files)

# Tables, and build/bench/results.json; rivals that are missing are named, with how to get them.
RIVAL_PYTHON ?= $(BIN)/python
bench: $(tests)
	@$(BIN)/python bench/run.py $(ONLY) --rival-python $(RIVAL_PYTHON) $(BENCH_FLAGS)

bench-quick: build $(VENV)/.packages
	@$(BIN)/python bench/run.py api tensorflow --quick $(BENCH_FLAGS)

KERAS_VERSIONS ?= 3.12 3.13 3.14
suite-keras: $(KERAS_VERSIONS:%=$(CURDIR)/build/keras-%/keras) $(tests)
	@for version in $(KERAS_VERSIONS); do echo "Keras $$version" && PYTHONPATH=$(CURDIR)/build/keras-$$version \
	  $(BIN)/pytest -q tests/train/test_fit.py tests/train/test_sharded.py \
	    tests/train/test_split.py tests/train/test_tables.py || exit 1; done

$(CURDIR)/build/keras-%/keras: | $(VENV)/.tools
	@$(PIP) --no-deps --no-compile --target $(@D) 'keras~=$*.0'

# Wheels have a plugin for the TensorFlow of .venv, and one for each of these minor versions.
OTHER_TENSORFLOWS ?= 2.20 2.22
others = $(OTHER_TENSORFLOWS:%=$(CURDIR)/build/tensorflow-%/tensorflow)
# Two builds of a commit are the same bytes; 1980 is where a zip archive's time begins.
export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),315532800)
WITH_ALL = RDMATENSOR_TENSORFLOW=$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/tensorflow \
             $(others) | tr ' ' :)
# The tag that the symbols allow; TensorFlow's libraries are TensorFlow's.
AUDIT = PATH=$(BIN):$$PATH $(BIN)/python -m auditwheel repair --wheel-dir dist \
        --exclude 'libtensorflow_*.so.2' build/wheel/*.whl

$(CURDIR)/build/tensorflow-%/tensorflow: | $(VENV)/.tools
	@echo 'unpacking TensorFlow $*'
	@# A release candidate as long as there is no release.
	@$(PIP) --no-deps --no-compile --target $(@D) 'tensorflow-cpu~=$*.0rc0'

$(VENV)/.dist: $(VENV)/.tools
	@$(PIP) --group dist
	@touch $@

# ARCH=aarch64: by a cross compiler, of what needs no TensorFlow.
CROSS = CMAKE_TOOLCHAIN_FILE=$(CURDIR)/csrc/cmake/$(ARCH).cmake CC=$(ARCH)-linux-gnu-gcc \
        _PYTHON_HOST_PLATFORM=linux-$(ARCH) RDMATENSOR_BUILD_TENSORFLOW=OFF
wheel: $(VENV)/.dist $(if $(ARCH),,$(others))
	rm -rf build/wheel
	@$(if $(ARCH),.ci/prepare $(ARCH))
	$(if $(ARCH),$(CROSS),$(WITH_ALL)) $(PIP:install%=wheel%) --no-build-isolation --no-deps --wheel-dir build/wheel .
	@$(AUDIT)
	$(BIN)/python .ci/check_wheel.py dist/rdmatensor-*.whl

# The wheel is built of the archive, in a folder of its own: what the archive lacks is missed here.
dist: $(VENV)/.dist $(others)
	rm -rf build/wheel dist
	$(WITH_ALL) $(BIN)/python -m build --no-isolation --outdir build/wheel .
	@$(AUDIT)
	mv build/wheel/*.tar.gz dist/
	$(BIN)/python .ci/check_wheel.py dist/rdmatensor-*.whl

docs: build $(VENV)/.site
	$(BIN)/python -c 'from rdmatensor import config; print(config.page(), end="")' \
	  > $(CURDIR)/docs/configuration.md
	$(BIN)/python .ci/api.py --write
	$(BIN)/python bench/page.py

# What does not resolve is an error. The theme would recommend its successor each time.
site: $(VENV)/.site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -f rdmatensor/*.so rdmatensor/*.so.* rdmatensor/*.layout rdmatensor/_build_info.json
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
