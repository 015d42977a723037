#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install the Debian packages that Zinc is built from (docs/dependencies.md says why each).
# With nothing missing it asks dpkg only, and needs neither a network nor root.
#   tools/install_deps.sh          packages to build and test
#   tools/install_deps.sh --demo   these and the text that the demo trains on
#   tools/install_deps.sh --list   print each package and whether it is there; install nothing
set -euo pipefail
export PATH

packages=(build-essential cmake ninja-build pkg-config python3 libdnnl-dev libopenmpi-dev
          openmpi-bin libjansson-dev libpcre2-dev libutf8proc-dev liburing-dev libyaml-dev
          libcmocka-dev)
list=0
for arg in "$@"; do
    case "$arg" in
    --demo) packages+=(bible-kjv) ;;
    --list) list=1 ;;
    *)
        echo "install_deps.sh: no option $arg; there are --demo and --list" >&2
        exit 2
        ;;
    esac
done

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]
}

if ! command -v dpkg-query >/dev/null; then
    echo "install_deps.sh: this is no Debian; what is needed, by its Debian names: ${packages[*]}" >&2
    exit 0 # cmake says what it does not find
fi

missing=()
for package in "${packages[@]}"; do
    state=installed
    if ! is_installed "$package"; then
        state=missing
        missing+=("$package")
    fi
    [ "$list" = 1 ] && printf '%-20s %s\n' "$package" "$state"
done
if [ "$list" = 1 ] || [ "${#missing[@]}" = 0 ]; then
    exit 0
fi

if [ "$(id -u)" = 0 ]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    echo "install_deps.sh: missing packages; install them with" >&2
    echo "  sudo apt-get install ${missing[*]}" >&2
    exit 1
fi

apt_install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
        -o DPkg::Lock::Timeout=120 --no-install-recommends "${missing[@]}" >&2
}
echo "installing ${missing[*]}" >&2
# Lists that are there may be too old to fetch from: then they are updated, and only then.
if compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null && apt_install; then
    exit 0
fi
"${as_root[@]}" apt-get update -q >&2
apt_install
