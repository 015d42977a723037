# SPDX-License-Identifier: Apache-2.0
# Thin: every target is a cmake preset (CMakePresets.json) or a script in tools/. All that is built
# is under build/; `rm -r build` is the way back.
.PHONY: release help deps dev test asan tsan fuzz check fmt tidy demo variants dist package-test python-test install
MAKEFLAGS += --no-print-directory
export PATH ?= /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 1)

release: ## build/release/zinc (the default)
	@tools/install_deps.sh
	@tools/build.sh release -j $(JOBS)

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' Makefile | expand -t 16

deps: ## install the Debian packages that are missing
	@tools/install_deps.sh

dev: ## the optimised build with its tests, in build/dev
	@tools/install_deps.sh
	@tools/build.sh dev -j $(JOBS)

test: ## all checks and tests, under the sanitizers too; the last line counts them
	@tools/test.sh

asan: ## the tests under address and undefined-behaviour sanitizers
	@tools/build.sh asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS)

tsan: ## the tests of threads under the thread sanitizer
	@tools/build.sh tsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS) -R '^(device|comm|zero|engine|train|api)\.'

fuzz: ## each fuzz target for SECONDS_EACH (60) seconds; needs clang
	@tools/fuzz.sh

check: ## format, layers, house rules, headers
	@bad=0; tools/check_format.sh || bad=1; python3 tools/check_layers.py || bad=1; \
	python3 tools/check_source.py || bad=1; tools/check_headers.sh || bad=1; exit $$bad

fmt: ## format the C files
	@tools/check_format.sh --fix

tidy: ## clang-tidy over src/ (slow; needs clang-tidy)
	@tools/build.sh dev -j $(JOBS)
	@find src -name '*.c' | xargs -n 4 -P $(JOBS) clang-tidy -p build/dev --quiet

demo: ## train a small model from scratch, in under five minutes
	@tools/demo.sh

variants: ## builds with SIMD, OpenMP, oneDNN and MPI left out compile and train (minutes)
	@tools/check_variants.sh

dist: ## source and binary tarballs and a .deb, in build/dist
	@tools/install_deps.sh
	@tools/dist.sh

package-test: ## install the .deb into a bare Debian and train there (minutes; root, debootstrap)
	@tools/test_package.sh

python-test: ## tests of python/ in a virtual environment of its own, or with PYTHON=… in that one
	@tools/python_test.sh

install: release ## install program, library, headers, manual; DESTDIR and PREFIX are honoured
	@cmake --install build/release $(if $(PREFIX),--prefix $(PREFIX))
