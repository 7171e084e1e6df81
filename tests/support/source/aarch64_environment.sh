#!/bin/bash
# Writes an environment of AArch64 for `make aarch64-test`, which qemu-aarch64 runs: no root is needed, and nothing of the
# system changes.
#
#     aarch64_environment.sh FOLDER PIP
#
#     FOLDER/root      Python of this system's Debian release, and the libraries that it needs, out of its packages
#     FOLDER/site      what the tests import, out of wheels
#     FOLDER/python    starts that Python, with FOLDER/links, or the folder INTAGLIO_INSTALLED, before the wheels
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1") pip=$2
for program in qemu-aarch64 apt-get dpkg; do
    command -v $program >/dev/null || { echo "aarch64-test: no $program. It needs Debian or Ubuntu, and apt-get install qemu-user." >&2; exit 1; }
done

mkdir -p "$folder"/apt/{state,lists/partial,cache/archives/partial}
: >"$folder/apt/status" # as if nothing were installed
cat >"$folder/apt/conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$folder/apt/state";
Dir::State::Lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
END
export APT_CONFIG=$folder/apt/conf
apt-get --quiet=2 update
apt-get --quiet=2 --yes --no-install-recommends --download-only install python3-minimal libpython3-stdlib libstdc++6
for package in "$folder"/apt/cache/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
rm -r "$folder/apt"

# ONNX Runtime looks for its processor there, and crashes when it finds another kind. qemu-aarch64 reads files below its
# root before those of the system.
mkdir -p "$folder/root/proc"
printf 'processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd03\n' >"$folder/root/proc/cpuinfo"

version=$(basename "$(readlink "$folder/root/usr/bin/python3")")
platforms=$(for glibc in 17 27 28 34; do printf -- '--platform manylinux_2_%s_aarch64 ' $glibc; done)
# shellcheck disable=SC2086
$pip install --quiet --no-compile --constraint constraints.txt --target "$folder/site" --only-binary=:all: \
    --implementation cp --python-version "${version#python}" $platforms --platform manylinux2014_aarch64 \
    click jinja2 msgspec numpy onnx onnx-ir onnxruntime packaging polygraphy pyyaml rich threadpoolctl tokenizers \
    hypothesis pytest

# Python takes the name by which it is called for its own, so processes that it starts as sys.executable are emulated, too.
cat >"$folder/python" <<END
#!/bin/bash
export QEMU_LD_PREFIX=$folder/root PYTHONHOME=$folder/root/usr PYTHONPATH=\${INTAGLIO_INSTALLED:-$folder/links}:$folder/site
exec qemu-aarch64 -0 "\$0" "\$PYTHONHOME/bin/python3" "\$@"
END
chmod +x "$folder/python"
