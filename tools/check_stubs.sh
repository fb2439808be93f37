#!/usr/bin/env bash
# Compare the type stubs with the built modules.
#
#   tools/check_stubs.sh [PYTHON]
#
# PYTHON is an interpreter that has the package installed; without it, the tree is built into a temporary folder. mypy
# goes into a folder of its own and is not installed into that environment.
. "$(dirname "$0")/common.sh"

if [ $# -gt 0 ]; then
    python=$1
else
    copy_tree
    make_venv release
    python=$venv/bin/python
fi
"$python" -m pip install -q --target "$work/mypy" 'mypy>=1.18'
cd "$work"      # not the source tree: its cuda_pool is not built
PYTHONPATH=$work/mypy "$python" -m mypy.stubtest cuda_pool --ignore-disjoint-bases \
    --allowlist "$root/tools/stubtest_allowlist.txt" --mypy-config-file "$root/tools/mypy.ini" --ignore-unused-allowlist
