#!/usr/bin/env bash
# Measure which lines of the Cython code the tests run.
#
#   tools/coverage.sh [PYTEST ARGUMENT ...]
#
# Builds with line events and prints a line for each file in pyx/. Line events take the GIL in code that otherwise runs
# without it and make it many times slower. Left out are tests with several threads in one pool (marked threads),
# which would hang, the millions of operations of test_cases.py and test_bench.py, the tests that compile, one that
# reads millions of lines, and one that counts Python's own allocations, to which line events add.
# Garbage is collected between tests only, see coverage_plugin.py. 10 to 15 minutes.
. "$(dirname "$0")/common.sh"

copy_tree
say "build"
make_venv linetrace 'coverage>=7.6'
cd "$tree"
find build/linetrace -path '*/pyx/*.c' -exec cp {} pyx/ \;      # the plugin looks for the C beside the source

say "tests"
export COVERAGE_RCFILE=$tree/tools/coveragerc COVERAGE_CORE=ctrace CI=true         # Hypothesis: no deadlines
export PYTHONPATH=$tree/tools
failed=0
"$venv/bin/coverage" run "$venv/bin/pytest" -q -p no:cacheprovider -p coverage_plugin -m "not threads and not gpu" \
    --ignore=tests/test_build.py --ignore=tests/test_cases.py --ignore=tests/test_bench.py \
    --ignore=tests/test_examples.py --ignore=tests/test_docs.py \
    --deselect=tests/test_trace.py::test_memory_does_not_grow_with_blank_text \
    --deselect=tests/test_pool.py::test_no_block_is_lost_when_the_host_has_no_memory "$@" || failed=$?

say "lines run"
"$venv/bin/coverage" report --include='pyx/*'
exit $failed
