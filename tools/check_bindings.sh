#!/bin/sh
# Check one built wheel against several versions of cuda-bindings, each in a virtual environment of its own.
#
#   tools/check_bindings.sh dist/cuda_pool-*.whl [VERSION ...]
#
# PYTHON is the interpreter that the wheel was built for (default python3). Exits 1 when a version lacks a symbol of
# the driver table, or does not answer a call as it should.
set -eu

wheel=${1:?usage: tools/check_bindings.sh WHEEL [VERSION ...]}
shift
[ $# -gt 0 ] || set -- 12.9.0 12.9.10 13.0.3 13.1.1 13.2.0 13.3.1 '13.*'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/check.py" <<'PYTHON'
import sys

from cuda_pool import _cuda, _driver

info = _cuda.info()
found = len(_driver.CALLS) - len(info["missing"])
answer = info["devices"][0]["name"] if info["devices"] else info["error"]
print(f"{info['bindings']:10} {found:2} of {len(_driver.CALLS)} symbols  runtime {info['runtime_version']}  {answer}")
sys.exit(bool(info["missing"]) or not (info["devices"] or "sim.Device" in info["error"]))
PYTHON

failed=0
for version in "$@"; do
    "${PYTHON:-python3}" -m venv "$work/venv"
    "$work/venv/bin/pip" install -q --disable-pip-version-check "cuda-bindings==$version" numpy
    "$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps "$wheel"
    (cd "$work" && venv/bin/python check.py) || { failed=1; echo "cuda-bindings $version FAILED"; }
    rm -rf "$work/venv"
done
exit $failed
