#!/usr/bin/env bash
# Measure which lines of the Cython code the tests run.
#
#   tools/coverage.sh [PYTEST ARGUMENT ...]
#
# Builds with line events and prints a line for each file in pyx/. Line events take the GIL in code that otherwise runs
# without it, so tests with several threads in the pool would hang: those marked threads are left out.
. "$(dirname "$0")/common.sh"

copy_tree
say "build"
make_venv linetrace 'coverage>=7.6'
cd "$tree"
find build/linetrace -path '*/pyx/*.c' -exec cp {} pyx/ \;      # the plugin looks for the C beside the source

say "tests"
export COVERAGE_RCFILE=$tree/tools/coveragerc COVERAGE_CORE=ctrace CI=true         # Hypothesis: no deadlines
failed=0
"$venv/bin/coverage" run "$venv/bin/pytest" -q -p no:cacheprovider -m "not threads and not gpu" \
    --ignore=tests/test_build.py "$@" || failed=$?

say "lines run"
"$venv/bin/coverage" report --include='pyx/*'
exit $failed
