#!/usr/bin/env bash
# Run random operations on pools under valgrind's memcheck.
#
#   tools/valgrind.sh [OPERATIONS]
#
# 10^6 operations by default, shared between pools with different settings and loads, with check() now and then. Exits 1
# when memcheck finds an error or lost memory that involves code of this package; its record is printed.
. "$(dirname "$0")/common.sh"

command -v valgrind > /dev/null || { echo "valgrind is not installed" >&2; exit 2; }
copy_tree
say "build"
make_venv release

say "${1:-1000000} operations"
cd "$work"      # not the source tree: its cuda_pool is not built
PYTHONMALLOC=malloc valgrind --leak-check=full --show-leak-kinds=definite --num-callers=30 --error-limit=no \
    --fullpath-after= --log-file=log "$venv/bin/python" "$root/tools/random_operations.py" "${1:-1000000}"

say "memcheck"
grep 'ERROR SUMMARY' log
# CPython has errors of its own under memcheck. A record is this package's if it has a frame of it in a stack above the
# first frame of the interpreter's loop: what runs below an import that a module of ours makes is not ours.
sed 's/^==[0-9]*== \{0,1\}//' log | awk -v RS='' -F '\n' '
    {
        ours = looped = 0
        for (i = 1; i <= NF; i++) {
            if ($i ~ /^ *at 0x/) looped = 0
            if ($i ~ /_PyEval_EvalFrameDefault/) looped = 1
            if (!looped && $i ~ /\/pyx\/_[a-z_]+\.c:/) ours = 1
        }
        if (ours) { print $0 "\n"; count += 1 }
    }
    END { print count + 0, "of them with a frame of this package"; exit count > 0 }'
