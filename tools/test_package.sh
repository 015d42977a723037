#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install the .deb into a bare Debian root and train there; unpack the binary tarball in a folder
# that no build knows and run it. Minutes, root and a Debian mirror: `make package-test` and
# `ctest -C slow`, never part of `make test`. Skips with 77 and the reason.
#   ROOTFS=DIR  keep the bare root there and use it again
set -euo pipefail
export PATH LC_ALL=C
cd "$(dirname "$0")/.."
skip() {
    echo "skipped: $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "a bare root is made by root only"
command -v debootstrap >/dev/null || skip "no debootstrap (apt-get install debootstrap)"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    sed -n 's/^URIs: *\(http[^ ]*debian\/*\)$/\1/p; s/^deb \(http[^ ]*debian\/*\) .*/\1/p' | head -n 1) || true
[ -n "$mirror" ] || skip "apt here names no Debian mirror"
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)

work=$(mktemp -d)
root=${ROOTFS:-$work/root}
trap 'rm -rf "$work"' EXIT
tools/dist.sh binary deb >"$work/files"
deb=$(grep '\.deb$' "$work/files")
tarball=$(grep '\.tar\.gz$' "$work/files")

# A training of a few steps with nothing but the program: $@ runs it in the folder $work/$1.
cat >"$work/tiny.sh" <<'END'
set -eu
zinc=$1
cd "$2"
mkdir -p model
for i in $(seq 200); do echo "line $i: the quick brown fox jumps over the lazy dog"; done >text.txt
"$zinc" --version
"$zinc" tokenize --train text.txt --vocab_size 270 --output model/tokenizer.json
cat >model/config.json <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 270,
 "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
JSON
echo '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}' >ds_config.json
"$zinc" train --model model --from_scratch --train_file text.txt --output_dir out --ranks 2 \
    --deepspeed ds_config.json --block_size 32 --max_steps 3 --per_device_train_batch_size 2
test -s out/model.safetensors
"$zinc" generate --model out --prompt "the quick" --max_new_tokens 3 >/dev/null
END

echo "the tarball, unpacked elsewhere"
mkdir "$work/elsewhere" "$work/run"
tar -C "$work/elsewhere" -xzf "$tarball"
folder=$(echo "$work"/elsewhere/zinc-*)
bash "$work/tiny.sh" "$folder/bin/zinc" "$work/run" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for part in lib/libzinc.so include/zinc/engine.h share/man/man1/zinc.1.gz DEPENDS \
    share/bash-completion/completions/zinc share/doc/zinc/README.md; do
    [ -s "$folder/$part" ] || { echo "the tarball lacks $part"; exit 1; }
done
found=$(PKG_CONFIG_PATH=$folder/lib/pkgconfig pkg-config --define-variable=pcfiledir="$folder/lib/pkgconfig" \
    --cflags zinc)
found=${found%% *}
[ -d "${found#-I}" ] || { echo "zinc.pc of the tarball says $found"; exit 1; }

echo "the .deb in a bare $release"
if [ ! -x "$root/usr/bin/apt-get" ]; then
    debootstrap --variant=minbase "$release" "$root" "$mirror" >"$work/bootstrap.log" 2>&1 || {
        tail -n 3 "$work/bootstrap.log"
        skip "debootstrap could not make a bare root from $mirror"
    }
fi
mkdir -p "$root/tmp/zinc"
rm -rf "$root"/tmp/zinc/*
cp "$deb" "$work/tiny.sh" "$root/tmp/zinc/"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get update -q >"$work/log" 2>&1 ||
    skip "no network in the bare root"
chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    "/tmp/zinc/$(basename "$deb")" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mkdir -p "$root/tmp/zinc/run"
chroot "$root" env -i PATH=/usr/bin:/bin bash /tmp/zinc/tiny.sh zinc /tmp/zinc/run >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
head -n 1 "$work/log"
chroot "$root" apt-get remove -y -q zinc >/dev/null 2>&1
[ ! -e "$root/usr/bin/zinc" ] || { echo "removing the package leaves /usr/bin/zinc"; exit 1; }
echo "the packages work"
