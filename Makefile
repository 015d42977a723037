# SPDX-License-Identifier: Apache-2.0
# Thin: every target is a cmake preset or a script in tools/.
.PHONY: release dev
release:
	@cmake --preset release >/dev/null && cmake --build --preset release
dev:
	@cmake --preset dev >/dev/null && cmake --build --preset dev
