"""Build the Cython modules: pyx/_name.pyx becomes cuda_pool._name.

CUDA_POOL_BUILD selects the kind of build:
  release    (default) optimised, no tracing
  linetrace  line events for coverage (tools/coverage.sh)
  sanitize   address and undefined-behaviour sanitizers (tools/sanitize.sh)
"""

import os
import re
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
C_DIR = Path("build", "cython")
KIND = os.environ.get("CUDA_POOL_BUILD", "release")

COMPILE_ARGS = {
    "release": ["-O3", "-g1"],
    "linetrace": ["-O1", "-DCYTHON_TRACE=1", "-DCYTHON_TRACE_NOGIL=1", "-DCYTHON_USE_SYS_MONITORING=0"],
    "sanitize": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined",
                 "-fno-omit-frame-pointer"],
}
LINK_ARGS = {"sanitize": ["-fsanitize=address,undefined"]}
CIMPORT = re.compile(r"^\s*(?:from\s+cuda_pool\.(\w+)\s+cimport|cimport\s+cuda_pool\.(\w+))", re.M)


def cimported(path):
    """Names of the cuda_pool modules whose declarations `path` uses directly."""
    return {a or b for a, b in CIMPORT.findall(path.read_text())}


def declarations(stem):
    """Every .pxd that pyx/<stem>.pyx depends on, directly or through another."""
    found, todo = set(), {stem} | cimported(Path("pyx", f"{stem}.pyx"))
    while todo:
        pxd = Path("cuda_pool", f"{todo.pop()}.pxd")
        if pxd not in found and pxd.exists():
            found.add(pxd)
            todo |= cimported(pxd)
    return sorted(found)


def extension(pyx):
    depends = declarations(pyx.stem)
    c_file = C_DIR / pyx.with_suffix(".c")
    # cythonize looks for a module's own .pxd only beside its .pyx, so it would miss ours.
    if c_file.exists() and any(p.stat().st_mtime > c_file.stat().st_mtime for p in depends):
        c_file.unlink()
    return Extension(
        f"cuda_pool.{pyx.stem}", [str(pyx)],
        depends=[str(p) for p in depends],
        extra_compile_args=COMPILE_ARGS[KIND] + ["-fvisibility=hidden"],
        extra_link_args=LINK_ARGS.get(KIND, []),
        define_macros=[("CYTHON_EXTERN_C", "extern")],
    )


os.chdir(ROOT)
setup(
    ext_modules=cythonize(
        [extension(pyx) for pyx in sorted(Path("pyx").glob("*.pyx"))],
        build_dir=str(C_DIR),
        include_path=["."],
        compiler_directives={
            "language_level": 3, "boundscheck": False, "wraparound": False,
            "cdivision": True, "initializedcheck": False, "binding": True, "embedsignature": False,
            "freethreading_compatible": False,
            "linetrace": KIND == "linetrace",
        },
    ),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
