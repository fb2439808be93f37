"""Files that are either written whole or not at all."""

import contextlib
import errno
import os
import shutil
import stat
import tempfile

DRAFT = ".cuda-pool-"           # short: a name that the target may have must not become too long for its draft


@contextlib.contextmanager
def open_atomically(path):
    """Open a file for writing bytes; it takes its name only when the block ends without an error.

    Parameters
    ----------
    path : str or os.PathLike
        A link is followed. What is no regular file (a pipe, a terminal, ``/dev/null``) is written as it is. A file
        that may be written in a folder that may not is overwritten when the block ends without an error; only a disk
        that is full then can leave half of it.

    Yields
    ------
    file : io.BufferedWriter

    Raises
    ------
    OSError
        The file cannot be written. What had the name before still has it.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        opened = open(path, "wb")           # not by its real name, which a pipe does not have
    elif _is_fixed(path):
        opened = _overwritten(path)
    else:
        opened = _replaced(path)
    with opened as file:
        yield file


def require_writable(path):
    """Raise OSError unless open_atomically() can write there, as far as that shows beforehand."""
    _require(os.fspath(path), errno.ENOENT, path)       # the real path of "" is the folder that one is in
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        folder = os.path.dirname(os.path.realpath(path))
        os.stat(folder)
        _require(os.path.isdir(folder), errno.ENOTDIR, path)
        _require(_may_write(folder, os.W_OK | os.X_OK), errno.EACCES, path)
        return
    _require(not stat.S_ISDIR(mode), errno.EISDIR, path)
    _require(_may_write(path, os.W_OK) or stat.S_ISREG(mode) and not _is_fixed(path), errno.EACCES, path)


def _require(condition, code, path):
    if not condition:
        raise OSError(code, os.strerror(code), path)


def _may_write(path, access):
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


def _is_fixed(path):
    """Return whether `path` is there, in a folder that takes no draft."""
    folder = os.path.dirname(os.path.realpath(path))
    return os.path.isfile(path) and not _may_write(folder, os.W_OK | os.X_OK)


@contextlib.contextmanager
def _overwritten(target):
    with tempfile.TemporaryFile() as draft, open(target, "r+b") as file:
        yield draft
        draft.seek(0)
        shutil.copyfileobj(draft, file)
        file.truncate()


@contextlib.contextmanager
def _replaced(path):
    target = os.path.realpath(path)
    try:
        descriptor, draft = tempfile.mkstemp(dir=os.path.dirname(target), prefix=DRAFT)
    except OSError as error:            # which names the draft
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.chmod(draft, _mode(target))
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def _mode(target):
    """Permissions that an ordinary open() would leave on the file."""
    try:
        return os.stat(target).st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
