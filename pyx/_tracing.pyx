"""Record what a program allocates and frees, while it runs."""

import atexit
import contextlib
import errno
import fcntl
import gzip
import os
import shutil
import sys
import tempfile
import threading
import weakref

from libc.stdint cimport uint32_t
from libc.string cimport strerror

from cuda_pool._api cimport Pool
from cuda_pool._census cimport NO_STREAM, census_destroy, census_t, census_take, citizen_t
from cuda_pool._gate cimport status_raise
from cuda_pool._locks cimport enter, enter_all, leave, leave_all
from cuda_pool._relaxed cimport get_pointer, get_u64, set_pointer
from cuda_pool._ring cimport put_u32, see_u32
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK
from cuda_pool._tracer cimport (
    tracer_add_live, tracer_destroy, tracer_discard, tracer_flush, tracer_make, tracer_reset, tracer_start, tracer_stop)

from cuda_pool._atomic import open_atomically, require_writable
from cuda_pool._living import Living
from cuda_pool.sizes import is_index, shown

cdef enum:
    DEPTH_USUAL = 32
    DEPTH_MOST = 1000
    STATUS_RECORDED = -1            # another recording of the pool is under way

DRAFT_SUFFIX = ".part"
COUNTS = ("events", "lost", "waits", "unknown", "error")

cdef object under_way = Living()


def record(Pool pool not None, path=None, *, stacks=False):
    """Record what is allocated and freed in a pool from now on, until the result is closed.

    Every call counts, from Python, Cython or C, on any thread. Blocks that are live at the beginning are in the trace
    as such. The calling threads put each event into a ring of 65,536 in memory, without the GIL; a thread of its own
    writes them to a file. When the ring is full, callers wait for that thread, so that nothing is left out.

    Parameters
    ----------
    pool : Pool
    path : str or os.PathLike, optional
        Where the trace goes when the recording ends, as trace CSV, compressed if the name ends in ``.gz``. Until then
        it grows, uncompressed, in a file with that name and ``.part`` behind it. By default it is in a temporary file,
        which is gone when the result is: see `Tracing.save`.
    stacks : bool or int, default False
        Keep the Python stack of each allocation that is made from Python, with 32 frames or as many as given, for
        ``pool.leaks()``.

    Returns
    -------
    Tracing
        A context manager.

    Raises
    ------
    ValueError
        The pool is closed, or recorded already.
    OSError
        A file cannot be written.
    RuntimeError
        The pool was made before the process forked, and belongs to the parent.
    """
    cdef Tracing tracing = tracing_begin(pool, _path(path), _depth(stacks))
    tracing.kept = pool
    return tracing


def tracing_of(Pool pool not None):
    """Return the recording of a pool that is under way, or None."""
    return tracing_at(pool.state)


cdef Tracing tracing_at(const pool_t* pool):
    cdef tracer_t* tracer = <tracer_t*>get_pointer(<void* const*>&pool.tracer)
    return None if tracer == NULL or tracer.keeper == NULL else <Tracing>tracer.keeper


def tracing_begin(Pool pool not None, path, depth):
    """Begin a recording that ends when it is closed; the pool, if it keeps it, has to do that at its own end."""
    cdef Tracing tracing = Tracing.__new__(Tracing)
    tracing.path = path
    tracing.depth = depth
    tracing.owner = weakref.ref(pool)
    tracing.open_file()
    try:
        tracing.begin(pool, pool.state)
    except BaseException:
        tracing.drop_file()
        raise
    under_way.add(tracing)
    return tracing


def tracing_arguments(path, stacks):
    """Return the path and the depth that are meant by ``Pool(trace=path, stacks=stacks)``."""
    if path is None and stacks is not False:
        raise ValueError("stacks is for a pool that is recorded: give a path as trace, or use cuda_pool.record(); "
                         f"got {shown(stacks)}")
    return _path(path), _depth(stacks)


cdef class Tracing:
    """A recording of a pool; made by `cuda_pool.record`, or by ``Pool(trace=path)`` as ``pool.tracing``.

    It ends when it is closed, leaves its ``with`` block or dies, or with its pool or the interpreter. Every method may
    be called from any thread.

    Attributes
    ----------
    path : str or None
        As given.
    depth : int
        Frames of a stack that are kept, 0 for none.
    """

    def __cinit__(self, *args, **kwargs):
        self.lock = threading.Lock()
        self.numbers, self.stacks = {}, [()]
        self.counts = dict.fromkeys(COUNTS, 0)

    @property
    def closed(self):
        """Whether the recording has ended."""
        return self.pool == NULL

    @property
    def events(self):
        """Allocations and frees that were taken out of the ring so far."""
        return self.count("events")

    @property
    def lost(self):
        """Rows that could not be written: 0 unless the disk is full, or fails."""
        return self.count("lost")

    @property
    def waits(self):
        """How often a caller looked for a place in a ring that was full."""
        return self.count("waits")

    @property
    def unknown(self):
        """Frees of blocks that the recording does not know: whose allocation was under way when it began."""
        return self.count("unknown")

    @property
    def trace(self):
        """What was recorded until now, as a `cuda_pool.trace.Trace`, read from the file.

        Raises
        ------
        OSError
            The file cannot be read, or could not be written.
        RuntimeError
            The recording belongs to the parent process.
        """
        from cuda_pool.trace import Trace
        with self._rows() as path:
            return Trace.read(path)

    def save(self, path):
        """Write what was recorded until now as trace CSV.

        Parameters
        ----------
        path : str or os.PathLike
            Compressed with gzip when the name ends in ``.gz``. An existing file is replaced only when all is written.

        Raises
        ------
        OSError
            The file cannot be written, or that of the recording could not be.
        RuntimeError
            The recording belongs to the parent process.
        """
        with self._rows() as rows:
            copy_rows(rows, path)

    def close(self):
        """End the recording; a second call does nothing.

        Waits, without the GIL, for calls of the pool that are under way, and for the disk.

        Raises
        ------
        OSError
            Something could not be written. What could be is in the file that ends in ``.part``, where there is a path.
        """
        if not self.is_inherited():
            with self.lock:
                self.end()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        try:
            self.close()
        finally:
            if self.file is not None:
                self.file.close()

    def __repr__(self):
        state = "ended" if self.closed else "under way"
        return f"<cuda_pool.Tracing {state}, {self.events} events{'' if self.path is None else f' in {self.path!r}'}>"

    @contextlib.contextmanager
    def _rows(self):
        """Let the file be complete, and yield a path at which it can be read."""
        if self.is_inherited():
            raise RuntimeError("the recording belongs to the parent process, which forked")
        pool = self.owner()                     # as long as it lives, so does the ring
        with self.lock:
            if self.pool != NULL:
                with nogil:
                    tracer_flush(self.tracer)
            self.require_whole()
            yield self.path if self.file is None else f"/proc/self/fd/{self.file.fileno()}"
        del pool

    cdef bint is_inherited(self) noexcept:
        """Is this a forked child? There is no writer, and the file is the parent's."""
        return self.pool != NULL and self.pool.generation != self.pool.forks[0]

    cdef int require_whole(self) except -1:
        error = self.count("error")
        if error:
            where = f": what was written until then is in {self.draft}" if self.draft else ""
            raise OSError(error, f"{strerror(error).decode()}: the recording lacks {self.count('lost')} rows{where}")
        return 0

    cdef int open_file(self) except -1:
        """Open the file of the rows: a draft beside the path where that will be a regular file."""
        if self.path is not None:
            require_writable(self.path)
        if self.path is None or (os.path.exists(self.path) and not os.path.isfile(self.path)):
            self.file = tempfile.TemporaryFile(buffering=0)
            return 0
        draft = os.path.realpath(self.path) + DRAFT_SUFFIX
        while self.file is None:
            self.file = _own_draft(draft)
        self.draft = draft
        return 0

    cdef int drop_file(self) except -1:
        if self.draft is not None:
            os.unlink(self.draft)
        self.file.close()
        self.file = None
        return 0

    cdef int begin(self, object pool, pool_t* state) except -1:
        cdef census_t census
        cdef tracer_t* tracer = NULL
        cdef int file = self.file.fileno(), status, fault
        cdef void* keeper = <void*>self
        cdef bint keeps = self.depth != 0
        with nogil:
            status = attach(state, file, keeper, keeps, &tracer, &census)
        if status == STATUS_RECORDED:
            raise ValueError("the pool is recorded already: close that recording first (pool.tracing)")
        status_raise(state, status, 0, 0)
        with nogil:
            note_live(tracer, &census)
            census_destroy(&census)
            fault = tracer_start(tracer)
        self.pool, self.tracer = state, tracer
        if fault:
            self.pool = NULL
            tracer.keeper = tracer.owner = NULL
            detach(state, tracer)
            with nogil:
                tracer_discard(tracer)
            put_u32(&tracer.taken, 0)
            raise OSError(fault, f"{strerror(fault).decode()}: no thread can be started to write the recording")
        return 0

    cdef int end(self) except -1:
        cdef pool_t* pool = self.pool
        if pool == NULL:
            return 0
        under_way.discard(self)
        self.tracer.keeper = self.tracer.owner = NULL
        with nogil:
            detach(pool, self.tracer)
        self.counts = {name: self.count(name) for name in COUNTS}
        self.pool = NULL
        put_u32(&self.tracer.taken, 0)
        try:
            self.publish()
        finally:
            self.kept = None
        return 0

    cdef int publish(self) except -1:
        """Let the file have its name, if all is written."""
        self.require_whole()
        if self.path is None:
            return 0
        if self.draft is None:
            copy_rows(f"/proc/self/fd/{self.file.fileno()}", self.path)
            return 0
        if self.path.endswith(".gz"):
            copy_rows(self.draft, self.path)
            os.unlink(self.draft)
        else:
            os.replace(self.draft, os.path.realpath(self.path))
        self.file.close()
        self.file = self.draft = None
        return 0

    cdef object count(self, str name):
        if self.pool == NULL:
            return self.counts[name]
        if name == "events":
            return get_u64(&self.tracer.events)
        if name == "lost":
            return get_u64(&self.tracer.lost)
        if name == "waits":
            return get_u64(&self.tracer.waits)
        return get_u64(&self.tracer.unknown) if name == "unknown" else see_u32(&self.tracer.error)

    cdef uint32_t stack_number(self) except? 0xFFFFFFFF:
        """The number of the calling thread's stack, from its innermost Python frame outwards."""
        frame, stack = sys._getframe(0), []
        while frame is not None and len(stack) < self.depth:
            stack.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        key = tuple(stack)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.stacks)
            self.stacks.append(key)
        return number


cdef int copy_rows(str source, object path) except -1:
    with open(source, "rb") as rows, open_atomically(path) as file:
        if os.fsdecode(path).endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed:
                shutil.copyfileobj(rows, packed, 1 << 20)
        else:
            shutil.copyfileobj(rows, file, 1 << 20)
    return 0


cdef uint32_t stack_of(void* owner) noexcept with gil:
    """What goes wrong here goes to sys.unraisablehook, and the allocation on."""
    cdef Tracing tracing = <Tracing>owner
    return tracing.stack_number()


cdef int attach(pool_t* pool, int file, void* keeper, bint keeps_stacks, tracer_t** tracer,
                census_t* census) noexcept nogil:
    """Let calls be noted from now on, in a ring that nobody empties yet, and count what is live."""
    cdef tracer_t* made = tracer_make()
    cdef int status = enter(pool) if made != NULL else STATUS_HOST_MEMORY
    if status == STATUS_OK:
        if pool.tracer_kept != NULL and see_u32(&pool.tracer_kept.taken):
            status = STATUS_RECORDED
        elif not census_take(census, pool):
            status = STATUS_HOST_MEMORY
        else:
            if pool.tracer_kept == NULL:
                pool.tracer_kept = made
                made = NULL
            tracer[0] = pool.tracer_kept
            tracer_reset(tracer[0], file)
            tracer[0].keeper = keeper
            tracer[0].owner = keeper if keeps_stacks else NULL
            tracer[0].stack_of = stack_of
            tracer[0].taken = 1
            put_u32(&tracer[0].open, 1)
            set_pointer(<void**>&pool.tracer, tracer[0])
        leave(pool)
    tracer_destroy(made)
    return status


cdef void note_live(tracer_t* tracer, const census_t* census) noexcept nogil:
    cdef const citizen_t* citizen
    cdef size_t at
    for at in range(census.count):
        citizen = &census.citizen[at]
        tracer_add_live(tracer, citizen.key, citizen.nbytes, citizen.stream if citizen.stream != NO_STREAM else 0)


cdef void detach(pool_t* pool, tracer_t* tracer) noexcept nogil:
    enter_all(pool)
    set_pointer(<void**>&pool.tracer, NULL)
    leave_all(pool)
    tracer_stop(tracer)


def _path(path):
    if path is None:
        return None
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"the path of a trace is a str or an os.PathLike, got {shown(path)}")
    return os.fsdecode(path)


def _own_draft(draft):
    """Open the file for one recording, and empty what a crash has left; None if it has just got its final name."""
    file = open(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)
    try:
        _lock(file, draft)
        if os.path.exists(draft) and os.path.samestat(os.stat(draft), os.fstat(file.fileno())):
            file.truncate()
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _lock(file, draft):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(errno.EAGAIN, "another recording is written there", draft) from None
    except OSError:
        pass                        # a file system without locks


def _depth(stacks):
    if isinstance(stacks, bool):
        return DEPTH_USUAL if stacks else 0
    if not is_index(stacks):
        raise TypeError(f"stacks is True, False or a number of frames, got {shown(stacks)}")
    if not 0 <= stacks <= DEPTH_MOST:
        raise ValueError(f"stacks is True, False or a number of frames from 0 to {DEPTH_MOST}, got {shown(stacks)}")
    return stacks.__index__()


def _end_all():
    """At exit: what is recorded from here on is what other functions do that run at exit."""
    for tracing in under_way:
        try:
            tracing.close()
        except Exception:
            sys.excepthook(*sys.exc_info())


def _leave_files():
    """In a forked child: the files are the parent's, and their locks end with it."""
    for tracing in list(under_way):
        (<Tracing?>tracing).file.close()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_leave_files)
