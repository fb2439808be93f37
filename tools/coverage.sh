#!/usr/bin/env bash
# Measure which lines of the Cython code the tests run.
#
#   tools/coverage.sh [PYTEST ARGUMENT ...]
#
# Builds with line events and prints a line for each file in pyx/. Line events take the GIL in code that otherwise runs
# without it and make it many times slower. Left out are tests with several threads in one pool (marked threads),
# which would hang, the millions of operations of test_cases.py and of bench, the tests that compile, and those
# marked untraced, which read millions of lines, or make allocations of the host fail, then those of line events too.
# Garbage is collected between tests only, see coverage_plugin.py. It takes a quarter of an hour.
. "$(dirname "$0")/common.sh"

copy_tree
say "build"
make_venv linetrace 'coverage>=7.6'
cd "$tree"
find build/linetrace -path '*/pyx/*.c' -exec cp {} pyx/ \;      # Cython.Coverage looks for the C beside the source

say "tests"
export COVERAGE_RCFILE=$tree/tools/coveragerc COVERAGE_CORE=ctrace CI=true         # Hypothesis: no deadlines
export PYTHONPATH=$tree/tools
failed=0
"$venv/bin/coverage" run "$venv/bin/pytest" -q -p no:cacheprovider -p coverage_plugin \
    -m "not threads and not untraced and not gpu" --ignore=tests/test_build.py --ignore=tests/test_cases.py \
    --ignore=tests/test_bench.py --ignore=tests/test_bench_table.py --ignore=tests/test_cli_bench.py \
    --ignore=tests/test_examples.py --ignore=tests/test_docs.py "$@" || failed=$?

say "lines run"
"$venv/bin/coverage" report --include='pyx/*'
exit $failed
