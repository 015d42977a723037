#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is handed to others, in build/dist: tools/dist.sh [source] [binary] [deb], default all three.
#   zinc-V.tar.gz               the tree at HEAD
#   zinc-V-linux-ARCH.tar.gz    program, library, headers, manual; runs from any folder
#   zinc_V_ARCH.deb             the same under /usr
# Third-party libraries stay packages of Debian 12: the .deb depends on them, the tarball lists them
# in DEPENDS. The last two are stripped copies of the release build.
set -euo pipefail
export PATH LC_ALL=C
cd "$(dirname "$0")/.."
version=$(sed -n 's/^project(zinc VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
dist=$PWD/build/dist
mkdir -p "$dist"
umask 022

source_tarball() {
    git rev-parse -q --verify HEAD >/dev/null || {
        echo "dist.sh: the source tarball is made from a git commit, and this is no git checkout" >&2
        exit 1
    }
    git diff --quiet HEAD -- || echo "dist.sh: changes that are not committed are not in the tarball" >&2
    git archive --format=tar.gz --prefix="zinc-$version/" -o "$dist/zinc-$version.tar.gz" HEAD
    echo "$dist/zinc-$version.tar.gz"
}

# staged FOLDER PREFIX PC_PREFIX: install a stripped release below FOLDER; zinc.pc says PC_PREFIX.
staged() {
    rm -rf "$1"
    DESTDIR=$1 cmake --install build/release --prefix "$2" --strip >/dev/null
    find "$1" -name zinc.pc -exec sed -i "s|^prefix=.*|prefix=$3|" {} +
    install -D -m 644 -t "$1$2/share/doc/zinc" README.md CHANGELOG.md docs/*.md
    install -D -m 644 LICENSE "$1$2/share/doc/zinc/copyright"
    find "$1$2/share/man" -name '*.1' -exec gzip -9nf {} +
}

# Packages with the shared libraries that the staged files below $1 need, as a Depends line.
depends_of() {
    local root=$1 files work
    mapfile -t files < <(find "$root" -type f \( -path '*/bin/zinc' -o -name 'libzinc.so.*' \))
    work=$(mktemp -d)
    if command -v dpkg-shlibdeps >/dev/null; then
        mkdir "$work/debian"
        printf 'Source: zinc\n\nPackage: zinc\nArchitecture: any\n' >"$work/debian/control"
        (cd "$work" && dpkg-shlibdeps -O --ignore-missing-info "${files[@]}" 2>"$work/log") |
            sed -n 's/^shlibs:Depends=//p'
    else # no versions, which is enough on the release that built it
        objdump -p "${files[@]}" | sed -n 's/^ *NEEDED *//p' | sort -u | while read -r library; do
            dpkg-query -S "*/$library" 2>/dev/null | sed -n '1s/:.*//p'
        done | sort -u | paste -sd, | sed 's/,/, /g'
    fi
    rm -r "$work"
}

binary_tarball() {
    local name stage
    name=zinc-$version-linux-$(uname -m)
    stage=$dist/stage
    # shellcheck disable=SC2016 # pkg-config expands it
    staged "$stage" "/$name" '${pcfiledir}/../..'
    depends_of "$stage" >"$stage/$name/DEPENDS"
    tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$dist/$name.tar.gz" "$name"
    rm -r "$stage"
    echo "$dist/$name.tar.gz"
}

debian_package() {
    local arch stage=$dist/deb file needed
    arch=$(dpkg --print-architecture)
    staged "$stage" /usr /usr
    needed=$(depends_of "$stage")
    [ -n "$needed" ] || {
        echo "dist.sh: found no package that the program depends on; is this Debian?" >&2
        exit 1
    }
    mkdir -p "$stage/DEBIAN"
    cat >"$stage/DEBIAN/control" <<END
Package: zinc
Version: $version
Architecture: $arch
Maintainer: The Zinc authors <zinc@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f1)
Depends: $needed
Recommends: openmpi-bin
Section: science
Priority: optional
Description: train large language models, sharded as ZeRO does
 DeepSpeed's ZeRO stages 0 to 3, made again in C: reads a Hugging Face model
 folder, a ds_config.json and text, and writes a Hugging Face model folder.
END
    echo "activate-noawait ldconfig" >"$stage/DEBIAN/triggers"
    file=$dist/zinc_${version}_$arch.deb
    dpkg-deb --root-owner-group --build "$stage" "$file" >/dev/null
    rm -r "$stage"
    echo "$file"
}

what=("$@")
[ $# != 0 ] || what=(source binary deb)
for one in "${what[@]}"; do
    case "$one" in
    source) source_tarball ;;
    binary | deb)
        tools/build.sh release -j "$(nproc)" >&2
        if [ "$one" = deb ]; then debian_package; else binary_tarball; fi
        ;;
    *)
        echo "dist.sh: no $one; there are source, binary and deb" >&2
        exit 2
        ;;
    esac
done
