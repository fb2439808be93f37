#!/bin/sh
# Everything that a run on a real GPU needs: build, test, time. Takes under 4 minutes and no network.
#
#   tests/gpu.sh
#
# Builds against the cython, numpy and cuda-bindings of PYTHON (default python3) into a temporary folder, runs the
# tests marked gpu, and prints a table of the pool beside cudaMalloc and cudaMallocAsync. Leaves the repository as it
# was. Exit code: 0 all well; 1 a test or the timing failed; 2 something needed is missing; 3 there is no usable GPU.
set -eu

python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }

say "needed here"
"$python" - <<'PYTHON' || exit 2
import sys
from importlib import metadata

needed = ("cython", "setuptools", "wheel", "numpy", "cuda-bindings", "pytest", "hypothesis")
lacking = []
print("python", sys.version.split()[0])
for name in needed:
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        lacking.append(name)
if lacking:
    sys.exit(f"not installed for {sys.executable}: {', '.join(lacking)}")
PYTHON

say "build"
mkdir "$work/src"
tar -C "$root" --exclude=./.git --exclude=./build --exclude=./dist --exclude='./.venv*' --exclude='*.so' \
    --exclude=./asv_bench/.asv -cf - . |
    tar -C "$work/src" -xf -
"$python" -m pip install -q --disable-pip-version-check --no-index --no-build-isolation --no-deps \
    --target "$work/site" "$work/src" || exit 2
export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
cd "$work"      # not the source tree: its cuda_pool is not built

say "device"
"$python" - <<'PYTHON' || exit 3
import json
import sys

from cuda_pool import _cuda

info = _cuda.info()
print(json.dumps(info, indent=1))
if not info["devices"]:
    sys.exit(f"NO USABLE GPU HERE, nothing was tested: {info['error']}")
PYTHON

say "tests on the device"
failed=0
timeout 130 "$python" -m pytest -c src/pyproject.toml --rootdir src -p no:cacheprovider -q -m gpu src/tests || failed=1

say "pool, cudaMalloc and cudaMallocAsync"
timeout 60 "$python" src/tests/gpu_table.py || failed=1
exit $failed
