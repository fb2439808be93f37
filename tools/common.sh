# Sourced by the scripts beside it: a copy of the tree and a virtual environment, both in a temporary folder.
# PYTHON is the interpreter (default python3). The working tree is left as it is.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/main
venv=$work/venv
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '\n== %s\n' "$*"; }

copy_tree() {
    mkdir -p "$tree"
    tar -C "$root" --exclude=./.git --exclude=./build --exclude=./dist --exclude='./.venv*' --exclude='*.egg-info' \
        --exclude='*.so' --exclude=__pycache__ --exclude=./.hypothesis --exclude=./asv_bench/.asv -cf - . |
        tar -C "$tree" -xf -
    if [ -d "$root/../shared" ]; then ln -s "$(cd "$root/../shared" && pwd)" "$work/shared"; fi
}

# make_venv KIND REQUIREMENT...: install the copied tree, with what its tests need, from a build of that kind. Tests
# that are timed look at the kind.
make_venv() {
    export CUDA_POOL_BUILD=$1
    shift
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install -q "$tree[test]" "$@"
}
