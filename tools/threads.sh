#!/usr/bin/env bash
# Run the tests with threads in a build with the thread sanitizer.
#
#   tools/threads.sh [PYTEST ARGUMENT ...]
#
# Without arguments: the tests with threads, and all of the simulated device and of random programs on streams; with
# `-k ''` the whole suite but the tests that compile. JOBS test files run at a time (default 1), each in a process of its
# own. A report counts, and is printed, if it has a frame of ours.
# CPython is not instrumented, but its GIL is made of what the sanitizer sees: mutexes and condition variables.
. "$(dirname "$0")/common.sh"

runtime=$(gcc -print-file-name=libtsan.so)
[ -e "$runtime" ] || { echo "gcc has no libtsan.so" >&2; exit 2; }
copy_tree
say "build"
make_venv thread

say "tests"
cd "$tree"
# Tests fork while other threads run, and let child processes end by SIGSEGV. Reports go to files, as pytest holds what
# the process writes.
export TSAN_OPTIONS=halt_on_error=0:exitcode=0:die_after_fork=0:handle_segv=0:allocator_may_return_null=1:report_signal_unsafe=0:history_size=4
export TSAN_OPTIONS=$TSAN_OPTIONS:log_path=$work/report
export CI=true         # Hypothesis: no deadlines
failed=0
# A file of which no test is chosen ends with 5. The sanitizer wants addresses where it looks for them: some kernels lay
# them out too randomly.
test_file() {
    local code=0 log=$work/log.${1##*/}
    LD_PRELOAD=$runtime setarch -R "$venv/bin/python" -X faulthandler "$venv/bin/pytest" -q -p no:cacheprovider \
        -m "not gpu" -k "threads or test_sim or test_stream_programs" "${@:2}" "$1" > "$log" 2>&1 || code=$?
    if [ $code = 5 ]; then return 0; fi
    cat "$log"
    return $code
}
export -f test_file
export work venv runtime
ls -S tests/test_*.py | grep -v tests/test_build.py |
    xargs -P "${JOBS:-1}" -I {} bash -c 'test_file "$@"' test_file {} "$@" || failed=1
say "all files"
grep -h "^FAILED\|^ERROR" "$work"/log.* || true
grep -hE "^[0-9].* in [0-9.]+s" "$work"/log.* | awk '
    { for (i = 2; i <= NF; i += 1) if ($i ~ /^(passed|failed|skipped|errors?),?$/) { sub(",", "", $i); sum[$i] += $(i - 1) } }
    END { for (what in sum) print sum[what], what }'

say "thread sanitizer"
touch "$work/report.none"
cat "$work"/report.* | awk '
    /^WARNING: ThreadSanitizer/ { report = ""; ours = 0 }
    { report = report $0 "\n" }
    /\/pyx\/_[a-z_]+\.c:/ { ours = 1 }
    /^SUMMARY: ThreadSanitizer/ { all += 1; if (ours) { print report; count += 1 } }
    END { print all + 0, "reports,", count + 0, "of them with a frame of this package"; exit count > 0 }' || failed=1
exit $failed
