#!/usr/bin/env bash
# All that a GPU is asked, in one command: CUDA against the CPU, the CUDA tests, benchmarks, streams, graphs, precision.
#
#   bash tests/support/gpu_check.sh [--wheels DIR] [--device cuda] [--minutes 5] [--out gpu.json] [--small]
#
# The machine has Python 3.11 or later and torch (python3, or $PYTHON) and reaches no package index. What it lacks lies
# as wheels in ./wheels, which tests/support/gpu_wheels.sh fills elsewhere. Nothing is installed but in a temporary
# folder. The dry run without a GPU: --device cpu --small.
set -euo pipefail
begun=$(date +%s)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}

stop() {
    echo "error: $1" >&2
    exit 2
}

wheels=""
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
        --wheels) [ $# -ge 2 ] || stop "--wheels needs a folder"; wheels=$2; shift ;;
        --wheels=*) wheels=${1#*=} ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
[ -z "$wheels" ] || [ -d "$wheels" ] || stop "$wheels is no folder"
command -v "$python" >/dev/null || stop "there is no $python; name another by PYTHON"

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

install=()
for wheel in "${wheels:-$root/wheels}"/*.whl; do
    name=${wheel##*/}
    case $name in
        '*.whl') ;; # (there is none)
        torch-* | torchvision-* | numpy-* | triton-* | nvidia_*) echo "left out: $name is the machine's own to have" ;;
        *) install+=("$wheel") ;;
    esac
done
if [ ${#install[@]} -gt 0 ]; then
    PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
        --no-compile --no-cache-dir --target "$site" "${install[@]}" ||
        stop "the wheels in ${wheels:-$root/wheels} could not be installed"
else
    echo "no wheels in ${wheels:-$root/wheels}: what is installed here is used"
fi

# hierfl from this checkout, by links: that needs no setuptools, and writes nothing into the checkout
mkdir "$site/hierfl"
ln -s "$root"/hierfl/* "$root"/{inference,models,experiments} "$site/hierfl"
"$python" - "$root" "$site" <<'METADATA' || stop "hierfl could not be linked; $python must be Python 3.11 or later"
import re, sys, tomllib
from pathlib import Path

root, site = map(Path, sys.argv[1:])
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
version = re.search(r'__version__ = "(.+)"', (root / "hierfl" / "__init__.py").read_text())[1]
about = site / f"hierfl-{version}.dist-info"
about.mkdir()
lines = ["Metadata-Version: 2.1", "Name: hierfl", f"Version: {version}"]
lines += [f"Requires-Dist: {one}" for one in project["dependencies"]]
(about / "METADATA").write_text("\n".join(lines) + "\n")
METADATA

export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
# nothing of a user's is read or changed; and the first call of CUDA in a process takes more than tests may on a CPU
export HIERFL_STATE="$site/state" HIERFL_TEST_BUDGET=off
"$python" "$root/tests/support/gpu_check.py" --begun "$begun" ${arguments[@]+"${arguments[@]}"} &
child=$!
trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT HUP
code=0
wait "$child" || code=$?
while kill -0 "$child" 2>/dev/null; do # (it was told to stop, and writes what it has)
    code=0
    wait "$child" || code=$?
done
exit "$code"
