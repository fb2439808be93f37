"""Files that are either written whole or not at all."""

import contextlib
import os
import tempfile


@contextlib.contextmanager
def open_atomically(path):
    """Open a file for writing bytes; it takes its name only when the block ends without an error.

    Parameters
    ----------
    path : str or os.PathLike
        A link is followed. What is no regular file (a pipe, a terminal, ``/dev/null``) is written as it is.

    Yields
    ------
    file : io.BufferedWriter

    Raises
    ------
    OSError
        The file cannot be written. What had the name before still has it.
    """
    target = os.path.realpath(path)
    if os.path.lexists(target) and not os.path.isfile(target):
        with open(target, "wb") as file:
            yield file
        return
    descriptor, draft = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
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
