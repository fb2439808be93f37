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
# CPython has errors of its own under memcheck; a record is this package's if one of its frames is.
sed 's/^==[0-9]*== \{0,1\}//' log | awk -v RS='' '
    /\/pyx\/_[a-z_]+\.c:/ { print $0 "\n"; ours += 1 }
    END { print ours + 0, "of them with a frame of this package"; exit ours > 0 }'
