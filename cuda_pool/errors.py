"""Exceptions of the package."""

from .sizes import format_size


class OutOfMemoryError(MemoryError):
    """No block of the requested size could be found.

    All attributes are in bytes.

    Attributes
    ----------
    requested : int
        Size that was asked for.
    free : int
        Bytes of the pool that are not in use.
    largest_free : int
        Largest request that would succeed, if need be once pending work is done.
    reserved : int
        Bytes that the pool holds from the device.
    capacity : int
        Bytes that the pool may hold at most.
    hint : str
        What can be done about it, or nothing.
    moment : dict or None
        What the pool was like then, as plain values: what `report` is made of. None where there was no pool yet.
    evidence : cuda_pool.evidence.Evidence or None
        What a recorder of the pool's allocations tells about it; None where nothing was recorded.
    """

    def __init__(self, requested, free, largest_free, reserved, capacity, hint=""):
        self.requested = requested
        self.free = free
        self.largest_free = largest_free
        self.reserved = reserved
        self.capacity = capacity
        self.hint = hint
        self.moment = None
        self.evidence = None
        super().__init__(requested, free, largest_free, reserved, capacity, *([hint] if hint else ()))

    def __str__(self):
        names = ("requested", "free", "largest free", "reserved", "capacity")
        figures = ", ".join(f"{name} {_readable(n)}" for name, n in zip(names, self.args))
        hint = self.hint or ("report() says why" if self.moment is not None else "")
        return f"out of memory: {figures}; {hint}" if hint else f"out of memory: {figures}"

    def report(self):
        """Say why, in words: fragmentation, a leak, a pool that is too small, pending work.

        The pool is not looked at again: it may be closed, or have changed.

        Returns
        -------
        cuda_pool.diagnosis.Diagnosis
            ``print`` shows its causes, what has the memory, and what helps; ``rich.print`` does so with tables;
            `as_dict` has the figures.
        """
        from .diagnosis import diagnose, moment_of_error        # which needs numpy
        return diagnose(self.requested, moment_of_error(self), self.evidence)


class InvalidPointerError(ValueError):
    """The address is not one that the pool handed out and still holds.

    The message says which: never allocated by this pool, inside a block, already freed, or the pool is closed.
    """


class CudaError(RuntimeError):
    """A CUDA call failed.

    Attributes
    ----------
    code : int
        The cudaError_t.
    name : str
        Its name, such as ``"cudaErrorMemoryAllocation"``.
    call : str
        The function that returned it.
    """

    def __init__(self, code, name, call, hint=""):
        self.code = code
        self.name = name
        self.call = call
        self.hint = hint
        super().__init__(code, name, call, hint)

    def __str__(self):
        text = f"{self.call} failed: {self.name} ({self.code})"
        return f"{text}; {self.hint}" if self.hint else text


class DeviceUnavailableError(CudaError):
    """There is no usable CUDA device; the message names the simulated one as the way to go on."""


class _FileError(ValueError):
    def __init__(self, path, reason):
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    def __str__(self):
        return f"{self.path!r}: {self.reason}"


class ProfileError(_FileError):
    """A file is no profile that this version can read.

    Attributes
    ----------
    path : str or bytes
        The file.
    reason : str
        What is wrong there, and what is accepted.
    """


class SnapshotError(_FileError):
    """A file is no snapshot that this version can read.

    Attributes
    ----------
    path : str or bytes
        The file.
    reason : str
        What is wrong there, and what is accepted.
    """


class TraceError(ValueError):
    """A trace cannot be read.

    Attributes
    ----------
    row : int or None
        Line of the file, counted from 1; the header is row 1. None in a file that has no lines, such as a pickle.
    reason : str
        What is wrong there, and what is accepted.
    place : str
        Where it is: ``"row 7"``, ``"byte 1234"`` or ``"segments[3].blocks[0].size"``.
    """

    def __init__(self, row, reason, place=None):
        self.row = row
        self.reason = reason
        self.place = f"row {row}" if place is None else place
        super().__init__(row, reason, *(() if place is None else (place,)))

    def __str__(self):
        return f"{self.place}: {self.reason}"


def _readable(nbytes):
    if nbytes > 1 << 64:            # no device; Python refuses to write an int of thousands of digits
        return "more than 2**64 bytes"
    return f"{nbytes} bytes ({format_size(nbytes)})"
