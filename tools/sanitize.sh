#!/usr/bin/env bash
# Run the tests in a build with address and undefined-behaviour sanitizers.
#
#   tools/sanitize.sh [PYTEST ARGUMENT ...]
#
# The first error ends the process with a report. CPython keeps memory until the process ends, so leaks are not looked
# for here; tools/valgrind.sh does. Left out are the tests that compile, the one that wants a figure for malloc, and two
# that want more than 64 MiB at once.
. "$(dirname "$0")/common.sh"

copy_tree
say "build"
make_venv sanitize

say "tests"
cd "$tree"
export PYTHONMALLOC=malloc
# malloc is timed on traces that allocate hundreds of GiB in all: here it refuses the large blocks, else the sanitizer
# would mark every byte of them. Reports go to files, as pytest holds what the process writes when it ends.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1:max_allocation_size_mb=64
export ASAN_OPTIONS=$ASAN_OPTIONS:handle_segv=0:log_path=$work/report      # tests let child processes end by SIGSEGV
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:log_path=$work/report
export CI=true         # Hypothesis: no deadlines
failed=0
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
    "$venv/bin/python" -X faulthandler "$venv/bin/pytest" -q -p no:cacheprovider -m "not gpu" \
    --ignore=tests/test_build.py --deselect=tests/test_cli.py::test_replay_as_json \
    --deselect=tests/test_cases_streams.py::test_case_30_pending_work_is_waited_for \
    --deselect=tests/test_readers.py::test_compressed_bomb "$@" || failed=$?

for report in "$work"/report.*; do
    if [ -e "$report" ] && grep -q 'ERROR: \|runtime error: ' "$report"; then cat "$report"; failed=1; fi
done
exit $failed
