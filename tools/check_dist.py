"""Check what a source distribution and a wheel contain.

    python tools/check_dist.py dist/cuda_pool-*.tar.gz dist/cuda_pool-*.whl
"""

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
IN_SDIST = ("pyx", "cuda_pool", "tests", "docs", "examples", "asv_bench", "tools", ".ci", "setup.py", "pyproject.toml",
            "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
LEFTOVERS = {".so", ".o", ".pyc"}
CYTHON_LEFTOVERS = {".c", ".html"}          # beside Cython's sources; elsewhere they may be sources themselves
CYTHON_FOLDERS = {"pyx", "cuda_pool", "examples"}
IN_WHEEL = {".py", ".pxd", ".pyi", ".h", ".so"}
PAGE = PurePosixPath("cuda_pool", "map")         # its .html, .css and .js are sources


def main():
    faults = [f"{Path(name).name}: {fault}" for name in sys.argv[1:] for fault in check(Path(name))]
    print("\n".join(faults) or f"{len(sys.argv) - 1} archives hold what they should")
    return bool(faults)


def check(path):
    """Yield what is wrong with an archive."""
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            names = {"/".join(PurePosixPath(name).parts[1:]) for name in files(archive)}
        yield from check_sdist(names)
    else:
        with zipfile.ZipFile(path) as archive:
            yield from check_wheel(set(archive.namelist()))


def files(archive):
    return (member.name for member in archive if member.isfile())


def check_sdist(names):
    yield from (f"lacks {name}" for name in source_names() - names)
    yield from (f"holds {name}" for name in names if is_leftover(PurePosixPath(name)))


def check_wheel(names):
    names = {name for name in names if ".dist-info/" not in name}
    package = {f"cuda_pool/{path.relative_to(ROOT / 'cuda_pool').as_posix()}" for path in sources("cuda_pool")}
    yield from (f"lacks {name}" for name in package - names)
    built = {name.split(".")[0] for name in names if name.endswith(".so")}
    modules = {f"cuda_pool/{path.stem}" for path in (ROOT / "pyx").glob("*.pyx")}
    yield from (f"lacks the module {name}" for name in modules - built)
    yield from (f"holds the module {name}, which has no source" for name in built - modules)
    yield from (f"holds {name}" for name in names - package
                if PurePosixPath(name).suffix not in IN_WHEEL or not name.startswith("cuda_pool/"))


def source_names():
    """Names below the root of everything that a source distribution holds."""
    return {path.relative_to(ROOT).as_posix() for name in IN_SDIST for path in sources(name)}


def sources(name):
    """Return the files of a source folder, or the file itself; leftovers of builds and runs left out."""
    top = ROOT / name
    paths = top.rglob("*") if top.is_dir() else [top]
    return [path for path in paths if not path.is_dir() and not is_leftover(path.relative_to(ROOT))]


def is_leftover(path):
    """Tell whether a path below the root is something that a build or a run leaves there."""
    if {"__pycache__", "_build", ".asv"} & set(path.parts):
        return True
    if PurePosixPath(path).parent == PAGE and path.suffix not in LEFTOVERS:
        return False
    return path.suffix in LEFTOVERS | (CYTHON_LEFTOVERS if path.parts[0] in CYTHON_FOLDERS else set())


if __name__ == "__main__":
    sys.exit(main())
