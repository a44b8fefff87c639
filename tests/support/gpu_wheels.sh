#!/usr/bin/env bash
# Fills a folder with the wheels that tests/support/gpu_check.sh installs on a machine which reaches no package index.
#
#   bash tests/support/gpu_wheels.sh [DIR]
#
# DIR is ./wheels where nothing is said. Run it where pip works, whatever Python and system are here: the wheels are for
# Python 3.12 on x86-64 Linux. What a machine for CUDA work has of its own is in `there`, and is not fetched.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
[ $# -le 1 ] || { echo "error: gpu_wheels.sh takes one folder, not $#" >&2; exit 2; }
folder=${1:-$root/wheels}
most=60 # MB

# hierfl's dependencies as pyproject.toml has them, and what these need
carried=(
    "pyro-ppl>=1.9,<1.10" pyro-api opt-einsum
    "arviz>=0.20,<2" arviz-base arviz-stats arviz-plots lazy_loader xarray-einstats platformdirs "h5netcdf>=1.3"
    "formulae>=0.5" "tomli-w>=1.0"
)
there=(
    torch torchvision numpy scipy pandas xarray h5py matplotlib scikit-learn pillow safetensors filelock jinja2 typer
    rich tqdm packaging setuptools typing-extensions pytest pytest-xdist hypothesis
)

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
platforms=()
# (pip takes each tag as it is said: a tag of an older glibc is not meant by that of a newer one)
for tag in manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
    platforms+=(--platform "${tag}_x86_64")
done
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp "${platforms[@]}" --dest "$fresh" "${carried[@]}"

# what the wheels need is there, or carried, too
"$python" - "$fresh" "${there[@]}" <<'NEEDS'
import re, sys, zipfile
from pathlib import Path


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


wheels = sorted(Path(sys.argv[1]).glob("*.whl"))
known = {plain(name) for name in sys.argv[2:]} | {plain(wheel.name.partition("-")[0]) for wheel in wheels}
missing = []
for wheel in wheels:
    with zipfile.ZipFile(wheel) as inside:
        (about,) = [name for name in inside.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        text = inside.read(about).decode()
    for need, marker in re.findall(r"^Requires-Dist: ([A-Za-z0-9._-]+)[^;\n]*(;.*)?$", text, re.MULTILINE):
        if "extra" not in marker and plain(need) not in known:
            missing.append(f"{wheel.name} needs {need}")
if missing:
    sys.exit(f"error: {'; '.join(missing)}: add it to carried or to there in gpu_wheels.sh")
NEEDS

size=$(du --summarize --bytes "$fresh" | cut -f 1)
if [ "$size" -gt $((most * 1000000)) ]; then
    echo "error: the wheels take $((size / 1000000)) MB, and at most $most MB travel" >&2
    exit 1
fi
mkdir -p "$folder"
for wheel in "$fresh"/*.whl; do
    name=${wheel##*/}
    rm -f "$folder/${name%%-*}"-*.whl # (two versions of one package stop an installation)
    mv "$wheel" "$folder"
done
echo "${#carried[@]} wheels, $((size / 1000)) kB, are in $folder"
