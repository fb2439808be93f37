"""Build the Cython modules: pyx/_name.pyx becomes cuda_pool._name.

CUDA_POOL_BUILD selects the kind of build; each kind has its own folder below build/.
  release    (default) optimised, no tracing
  linetrace  line events for coverage (tools/coverage.sh)
  sanitize   address and undefined-behaviour sanitizers (tools/sanitize.sh)
  thread     thread sanitizer (tools/threads.sh)
"""

import os
import re
import sys
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
KIND = os.environ.get("CUDA_POOL_BUILD", "release")
BUILD_DIR = Path("build", KIND)
C_DIR = BUILD_DIR / f"cython-{Cython.__version__}"      # C of another Cython, or kind, is not up to date

# Counters that are written one by one and read as a vector stall until the writes have reached the cache.
COMPILE_ARGS = {
    "release": ["-O3", "-g1", "-fno-tree-slp-vectorize"],
    "linetrace": ["-O1", "-g1", "-DCYTHON_TRACE=1", "-DCYTHON_TRACE_NOGIL=1", "-DCYTHON_USE_SYS_MONITORING=0"],
    "thread": ["-O1", "-g", "-fsanitize=thread", "-fno-omit-frame-pointer"],
    "sanitize": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined",
                 "-fno-omit-frame-pointer"],
}
LINK_ARGS = {"sanitize": ["-fsanitize=address,undefined"], "thread": ["-fsanitize=thread"]}
DIRECTIVES = {
    "language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False,
    "binding": True, "embedsignature": False, "freethreading_compatible": False, "linetrace": KIND == "linetrace",
}
CIMPORT = re.compile(r"^\s*(?:from\s+cuda_pool\.(\w+)\s+cimport|cimport\s+cuda_pool\.(\w+))", re.M)


def cimported(path):
    """Names of the cuda_pool modules whose declarations `path` uses directly."""
    return {a or b for a, b in CIMPORT.findall(path.read_text())}


def declarations(pyx):
    """Every .pxd that a .pyx depends on, directly or through another; its own is one of them."""
    found, todo = set(), {pyx.stem} | cimported(pyx)
    while todo:
        pxd = Path("cuda_pool", f"{todo.pop()}.pxd")
        if pxd not in found and pxd.exists():
            found.add(pxd)
            todo |= cimported(pxd)
    return sorted(found)


def discard_stale_c(pyx, depends):
    """Remove the C of a module that is older than what it depends on; new C is compiled anyhow.

    cythonize looks for a module's own .pxd only beside its .pyx, so it would miss ours.
    """
    c_file = C_DIR / pyx.with_suffix(".c")
    if c_file.exists() and any(path.stat().st_mtime > c_file.stat().st_mtime for path in depends):
        c_file.unlink()


def extension(pyx):
    discard_stale_c(pyx, [*declarations(pyx), Path("setup.py")])
    return Extension(
        f"cuda_pool.{pyx.stem}", [str(pyx)],
        extra_compile_args=[*COMPILE_ARGS[KIND], "-fvisibility=hidden"],
        extra_link_args=LINK_ARGS.get(KIND, []),
        define_macros=[("CYTHON_EXTERN_C", "extern")],
    )


if KIND not in COMPILE_ARGS:
    sys.exit(f"CUDA_POOL_BUILD is one of {', '.join(COMPILE_ARGS)}; got {KIND!r}")
os.chdir(ROOT)
setup(
    ext_modules=cythonize([extension(pyx) for pyx in sorted(Path("pyx").glob("*.pyx"))], build_dir=str(C_DIR),
                          include_path=["."], compiler_directives=DIRECTIVES),
    options={"build": {"build_base": str(BUILD_DIR)}, "build_ext": {"parallel": os.cpu_count() or 1}},
)
