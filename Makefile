# The front door. Two commands are enough:
#   make train    watch a GPT train under ZeRO-3 on two ranks of this machine
#   make test     build and run the tests; make test-more those that take longer
#   make python   the Python package in .venv, and the two programs of every DeepSpeed tutorial
#   make finetune SmolLM2-135M fine-tuned on Python sources, beside transformers
#   make compare  the same training under ZeRO 0 to 3: a table and a picture
#   make install  PREFIX=~/.local: the command line and the C++ library; make uninstall removes them
#   make package  a .deb (and a container file) with all that is needed to run
#   make gpu-bundle   what scripts/gpu_check.sh needs on a machine with a GPU and no network
#   make bench    and bench-checkpoint, -collectives, -kernels, -overhead, -routing: docs/benchmarks.md
#   make wheel    the Python package as a wheel in dist; make shim: one that is named deepspeed
#   make peers    what others train with (DDP, FSDP2, DeepSpeed), for benchmarks/peers.py and python_peers.py
#   make docs     the reference of include/zero with the guides
#   make test-avx2, -full, -libraries, -asan, -tsan, -fuzz, -fuzz-training, -mutants: docs/testing.md
#   make check    ROOM=comm: builds and runs the tests of one room of src, each file compiled alone (build/dev)
#   make format   lays out the code; make tidy: clang-tidy; make build: all of it; make clean
# Each installs what is missing, configures, builds, and repeats nothing the second time.
#
# Variables:
#   TORCH_DIR=/path   an installed libtorch 2.11-2.15 or torch package folder, instead of a wheel in .venv
#   PIP_ARGS="..."    options for pip, for example --index-url with the CPU wheels of PyTorch
#   JOBS=N            build jobs and tests at a time (default: the number of cores, at most one per 2 GiB of memory)
#   ARGS="..."        options of `zero train` (compare), for example ARGS="--data ~/books --steps 200"
#   PYTHON=...        the Python of bench-collectives; gloo takes part where it has torch
#   PRESET=release    a preset of CMakePresets.json: release, dev, debug, asan, tsan

PRESET ?= release
PYTHON ?= python3
BUILD := build/$(PRESET)
# nproc takes OMP_NUM_THREADS for a number of cores.
JOBS ?= $(shell awk -v c=$$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) '/MemTotal/ {m=int($$2/2097152); print (m<1)?1:((m<c)?m:c)}' /proc/meminfo)
# On a terminal one line that is rewritten, and what fails.
CTEST := ctest --test-dir $(BUILD) --output-on-failure --progress
export TORCH_DIR PIP_ARGS

.PHONY: help setup test-packages configure build train finetune python wheel package gpu-bundle compare shim docs peers test test-avx2 test-more test-full test-libraries test-asan test-tsan test-fuzz test-fuzz-training test-mutants check bench bench-checkpoint bench-collectives bench-kernels bench-overhead bench-routing format tidy install uninstall clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,/PRESET=/p'

setup:
	@scripts/bootstrap.sh

test-packages: setup
	@scripts/bootstrap.sh tests

configure: setup
	@scripts/configure.sh $(PRESET)

build: configure
	@echo "zerotorch: building in $(BUILD) with $(JOBS) jobs"
	@cmake --build $(BUILD) -j $(JOBS)

train: configure
	@echo "zerotorch: building the command line in $(BUILD) with $(JOBS) jobs"
	@cmake --build $(BUILD) -j $(JOBS) --target zero
	@$(BUILD)/apps/zero/zero train $(ARGS)
	@command -v zero >/dev/null || echo "zerotorch: the command is $(BUILD)/apps/zero/zero; make install PREFIX=~/.local puts it into PATH as zero"

# The package becomes importable in .venv; programs written for DeepSpeed run with `import zerotorch as deepspeed`.
python: configure
	@echo "zerotorch: building the Python package in $(BUILD) with $(JOBS) jobs"
	@cmake --build $(BUILD) -j $(JOBS) --target zerotorch_python
	@scripts/python_package.sh $(BUILD)
	@.venv/bin/python -m zerotorch.run -n 2 examples/python/training_loop.py $(ARGS)
	@.venv/bin/python -m zerotorch.run -n 2 examples/python/with_optimizer.py $(ARGS)

# A wheel for this Python and this torch in dist/, with the libraries it needs beside torch's.
wheel: setup
	@scripts/wheel.sh

# dist/zerotorch_*.deb with the command line, the library and libtorch, and packaging/Containerfile for a container of it.
package: build
	@scripts/package.sh $(BUILD)

# What a build on a machine with a GPU and no network needs besides; scripts/gpu_check.sh runs there.
gpu-bundle:
	@scripts/gpu_bundle.sh

# The reference of include/zero with the guides, in build/docs/html.
docs:
	@scripts/bootstrap.sh docs
	@doxygen docs/Doxyfile
	@echo "zerotorch: build/docs/html/index.html"

# dist/deepspeed-*.whl: a distribution named deepspeed that is zerotorch (docs/python.md).
shim: setup
	@.venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist python/deepspeed_shim
	@ls dist/deepspeed-*.whl

# SmolLM2-135M-Instruct, all its weights, on the Python sources of torch or DATA: about eight minutes on two cores. What
# comes out is compared with transformers.
FINETUNE := build/finetune
DATA ?= $(shell .venv/bin/python -c 'import importlib.util as u; print(*u.find_spec("torch").submodule_search_locations)' 2>/dev/null)
finetune: configure
	@scripts/bootstrap.sh libraries
	@cmake --build $(BUILD) -j $(JOBS) --target zero
	@build/libraries/bin/python scripts/finetune.py model $(FINETUNE)/base
	@rm -rf $(FINETUNE)/run $(FINETUNE)/tuned
	@$(BUILD)/apps/zero/zero train --init-from $(FINETUNE)/base --data "$(DATA)" --cache-dir $(FINETUNE)/cache --seq 256 --micro-batch 2 --batch-size 8 \
	  --steps 40 --eval-batches 4 --run-dir $(FINETUNE)/run --export $(FINETUNE)/tuned $(ARGS)
	@build/libraries/bin/python scripts/finetune.py check $(FINETUNE)/run $(FINETUNE)/base $(FINETUNE)/tuned $(BUILD)/apps/zero/zero

# matplotlib for the picture.
compare: configure
	@scripts/bootstrap.sh plot
	@cmake --build $(BUILD) -j $(JOBS) --target zero
	@$(BUILD)/apps/zero/zero compare $(ARGS)

peers:
	@scripts/bootstrap.sh peers

test: build test-packages
	@echo "zerotorch: running the tests (those that take longer: make test-more)"
	@$(CTEST) -j $(JOBS) -LE "long|slow"

# Training in 16 bits as on a CPU with AVX2 and nothing newer, on one that has more.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ZERO_ISA=avx2
test-avx2: build test-packages
	@echo "zerotorch: running tests as on a CPU with AVX2 and nothing newer"
	@$(AVX2) $(CTEST) -j $(JOBS) -R "^(cpu_products_test|kernels_test|gpt_golden_test|fp16_test|known_failures_test|parity_quick_test|loss_test|python_cpu_products|python_odd_modules|python_examples)$$"

# After a change in a room: its unit tests, in a build in which each file is compiled alone.
check: setup test-packages
	@scripts/configure.sh dev
	@scripts/check_room.py "$(ROOM)" build/dev $(JOBS)

# The rest of what every change has to pass.
test-more: build test-packages
	@cmake --build $(BUILD) -j $(JOBS) --target zero_sanitized_tests zero_public_headers benchmarks
	@echo "zerotorch: running the tests that take longer (exhaustive ones: make test-full)"
	@$(CTEST) -j $(JOBS) -L "long" -LE "slow"

# Every combination of the parity matrix, and whatever else is labelled slow.
test-full: build
	@ZERO_PARITY=full $(CTEST) -L "slow"
	@ZERO_PARITY=full $(CTEST) -R plan_agrees
	@ZERO_TEST_SLOW=1 ZERO_TEST_INDUCTOR=1 $(CTEST) -R "python_(leaks|engine)|offload_test"

# The Python tests that train through transformers, accelerate, peft, trl and Lightning, which `make test` skips until
# they are installed.
test-libraries: build
	@scripts/bootstrap.sh libraries
	@ZERO_TEST_PYTHON=$(CURDIR)/build/libraries/bin/python $(CTEST) -R "^python_(hf|lightning)"

# Lays out every C++ file; the tests check it.
format: test-packages
	@python3 tests/policy/format.py . --fix

# clang-tidy over src and apps; takes a quarter of an hour or more. `make tidy PATHS=src/comm` for a part.
tidy: build
	@if [ -x .venv/bin/pip ]; then .venv/bin/pip install -q --disable-pip-version-check clang-tidy==18.1.8; fi
	@scripts/tidy.py --build $(BUILD) --jobs $(JOBS) $(PATHS)

# Address and undefined-behaviour sanitizers on the unit and dist tests.
test-asan:
	@$(MAKE) --no-print-directory configure PRESET=asan
	@cmake --build build/asan -j $(JOBS)
	@ctest --test-dir build/asan --output-on-failure -L "unit|dist" -LE "slow|mpi"

# Thread sanitizer on the unit and dist tests (libtorch is not instrumented: what it does alone is not looked at).
test-tsan:
	@$(MAKE) --no-print-directory configure PRESET=tsan
	@cmake --build build/tsan -j $(JOBS)
	@ctest --test-dir build/tsan --output-on-failure -L "unit|dist" -LE "slow|mpi"

# libFuzzer on the readers of files, 60 s each: FUZZ_SECONDS=600 make test-fuzz.
test-fuzz:
	@JOBS=$(JOBS) scripts/fuzz.sh

# 2,000 random training programs, compared with plain libtorch; FUZZ_FIRST=1 is the first one's seed.
FUZZ_FIRST ?= 1
test-fuzz-training: configure
	@cmake --build $(BUILD) -j $(JOBS) --target training_fuzz
	@OMP_NUM_THREADS=1 ZERO_LOG_LEVEL=error $(BUILD)/tests/training_fuzz --first $(FUZZ_FIRST) --count 2000 --shrink

# Seventy deliberate breakages, each of which a test has to notice; after make build. MUTANTS="--only NAME".
test-mutants:
	@$(PYTHON) scripts/mutants.py --build $(BUILD) $(MUTANTS)

bench: configure
	@cmake --build $(BUILD) -j $(JOBS) --target bench_step
	@$(BUILD)/benchmarks/step $(ARGS)

bench-checkpoint: configure
	@cmake --build $(BUILD) -j $(JOBS) --target bench_checkpoint
	@$(BUILD)/benchmarks/checkpoint $(ARGS)

# Our collectives, MPI's where it is found, and gloo's where PYTHON has torch: PYTHON=build/peers/bin/python.
bench-collectives: configure
	@cmake --build $(BUILD) -j $(JOBS) --target bench_collectives
	@$(PYTHON) benchmarks/collectives_peers.py --ours $(BUILD)/benchmarks/collectives $(ARGS)

bench-kernels: configure
	@cmake --build $(BUILD) -j $(JOBS) --target bench_kernels
	@$(BUILD)/benchmarks/kernels $(ARGS)

bench-routing: configure
	@cmake --build $(BUILD) -j $(JOBS) --target bench_routing
	@$(BUILD)/benchmarks/routing $(ARGS)

bench-overhead: configure
	@cmake --build $(BUILD) -j $(JOBS) --target bench_overhead
	@$(BUILD)/benchmarks/overhead $(ARGS)

install: configure
	@echo "zerotorch: building what is installed in $(BUILD) with $(JOBS) jobs"
	@cmake --build $(BUILD) -j $(JOBS) --target zero_installed
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX)) >$(BUILD)/install.log || { cat $(BUILD)/install.log; exit 1; }
	@sed -n 's/^-- Installing: \(.*\/bin\/zero\)$$/zerotorch: installed \1/p' $(BUILD)/install.log

# Removes what the last `make install` of this folder has installed.
uninstall:
	@test -f $(BUILD)/install_manifest.txt || { echo "zerotorch: error: $(BUILD) has installed nothing"; exit 1; }
	@xargs -d '\n' rm -f < $(BUILD)/install_manifest.txt
	@xargs -d '\n' dirname < $(BUILD)/install_manifest.txt | sort -ur | xargs -d '\n' rmdir -p --ignore-fail-on-non-empty 2>/dev/null || true
	@rm $(BUILD)/install_manifest.txt

clean:
	rm -rf build
