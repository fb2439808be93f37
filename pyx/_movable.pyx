"""Owning objects for blocks that may be moved."""

cimport cython
from libc.stdint cimport uint32_t, uintptr_t

from cuda_pool._driver cimport driver_is_shut
from cuda_pool._gate cimport status_raise
from cuda_pool._order cimport stream_ref_t
from cuda_pool._pin cimport (
    pin_drop, pin_free, pin_look, pin_take, pin_take_on, pin_try_free, pin_try_take)
from cuda_pool._pool cimport pool_release
from cuda_pool._relaxed cimport get_flag
from cuda_pool._state cimport pool_t
from cuda_pool._status cimport (
    STATUS_CLOSED, STATUS_FORKED, STATUS_FREED_POINTER, STATUS_OK, STATUS_WOULD_WAIT)

from cuda_pool.errors import InvalidPointerError
from cuda_pool.sizes import format_size


@cython.no_gc_clear             # the destructor still needs the owner when a cycle is collected
cdef class Movable:
    """Own a block that the pool may move while it is not pinned; made by ``Pool.movable``.

    The block has an address from ``pin`` to the end of its ``with`` block. At that end all work that uses the address
    is to be queued: on the block's home, which is the stream it was made for; on streams that were named to ``pin`` or
    ``record_use``; or on a stream for whose work the home was told to wait. The block goes back in the order of its
    home when it is freed, leaves its ``with`` block, or dies. Any thread may call any method.

    Attributes
    ----------
    nbytes : int
        Bytes that were asked for.
    stream : int or object
        The home, as it was given.
    freed : bool
        Whether the block has gone back.
    """

    def __cinit__(self):
        self.freed = True           # owns nothing until it is made

    @property
    def address(self):
        """Address of the first byte while the block is pinned, by whomever; 0 if it is empty.

        Raises
        ------
        InvalidPointerError
            The block is not pinned, so it has no address that lasts; it is freed; or its pool is closed.
        """
        cdef void* ptr
        cdef uint32_t pins = self.look(&ptr)
        if pins == 0 and self.nbytes != 0:
            raise InvalidPointerError("a movable block has an address only while it is pinned: "
                                      "with movable.pin() as ptr")
        return <uintptr_t>ptr

    @property
    def pinned(self):
        """Whether anyone has the block pinned.

        Raises
        ------
        InvalidPointerError
            The block is freed, or its pool is closed.
        """
        cdef void* ptr
        return self.look(&ptr) != 0

    def pin(self, stream=None):
        """Return a context manager that pins the block and gives its address.

        Pins are counted; the block stays where it is until the last one ends. To enter the context waits for a move
        that is under way, without the GIL.

        Parameters
        ----------
        stream : int or object with __cuda_stream__, optional
            Stream other than the home on which the block is going to be used. It is put behind the block's last move,
            and a later move or free of the block waits for its work. It has to exist until the block is freed, or be
            forgotten before it is destroyed.

        Raises
        ------
        InvalidPointerError
            The block is freed, or its pool is closed; when the context is entered.
        CudaError
            The driver was asked about `stream`, and failed; the block is not pinned.
        ValueError, TypeError
            `stream` is no stream, or is being captured and cannot wait for a move (ValueError).
        RuntimeError
            As for ``Pool.record_use``.
        """
        self.require()
        return Pin(self, stream)

    def record_use(self, stream):
        """Let the block, which is pinned, be used on one more stream; as if it were pinned for that, too.

        Raises
        ------
        InvalidPointerError
            As for ``address``.
        CudaError, TypeError, ValueError, RuntimeError
            As for ``pin``.
        """
        if self.address != 0:
            self.take(stream)
            self.drop()

    def free(self):
        """Give the block back now, in the order of its home; a second call does nothing.

        Raises
        ------
        ValueError
            The block is pinned.
        CudaError
            A driver call failed; the block is still there, and ``free`` can be tried again.
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        """
        self.release()

    def __len__(self):
        return self.nbytes

    def __enter__(self):
        self.require()
        return self

    def __exit__(self, *exception):
        self.release()

    def __repr__(self):
        state = "freed" if self.freed else f"on stream {self.stream!r}"
        return f"<cuda_pool.Movable of {format_size(self.nbytes)} {state}>"

    def __dealloc__(self):
        """Give the block back; a pool that is closed or belongs to the parent process has nothing to take.

        What an exception would say goes to sys.unraisablehook.
        """
        cdef int status
        if self.freed:
            return
        status = pin_try_free(self.pool, self.record)
        if driver_is_shut():
            return
        status = self.finish(status)
        if status != STATUS_CLOSED and status != STATUS_FORKED:
            status_raise(self.pool, status, self.nbytes, 0)

    cdef int release(self) except -1:
        cdef int status
        if self.freed:
            return 0
        self.freed = True                       # at once: another thread may come while this one waits without the GIL
        status = self.finish(pin_try_free(self.pool, self.record))
        if status != STATUS_OK and status != STATUS_CLOSED:     # a closed pool took everything back
            self.freed = False
            status_raise(self.pool, status, self.nbytes, 0)
        return 0

    cdef int finish(self, int status) noexcept:
        """Do what the free had to leave to the driver."""
        if status == STATUS_WOULD_WAIT:
            with nogil:
                status = pin_free(self.pool, self.record)
        elif get_flag(&self.pool.release_due):
            with nogil:
                pool_release(self.pool)
        return status

    cdef int require(self) except -1:
        cdef void* ptr
        self.look(&ptr)
        return 0

    cdef uint32_t look(self, void** ptr) except? 0:
        cdef uint32_t pins = 0
        if self.freed:
            raise freed()
        movable_raise(self, pin_look(self.pool, self.record, ptr, &pins))
        return pins

    cdef size_t take(self, object stream) except? 0:
        """Pin the block, for use on one more stream unless that is None."""
        cdef stream_ref_t on
        cdef void* ptr = NULL
        cdef int status
        if self.freed:
            raise freed()
        if stream is None:
            status = pin_try_take(self.pool, self.record, &ptr)
            if status == STATUS_WOULD_WAIT:
                with nogil:
                    status = pin_take(self.pool, self.record, &ptr)
        else:
            self.streams.find(stream, &on)
            self.streams.ask()
            with nogil:
                status = pin_take_on(self.pool, self.record, &on, &ptr)
            self.streams.distrust()
        movable_raise(self, status)
        return <size_t>ptr

    cdef int drop(self) except -1:
        """Take a pin back; a closed pool has none, and a child's pins are the parent's."""
        cdef int status = pin_drop(self.pool, self.record)
        if status != STATUS_CLOSED and status != STATUS_FORKED:
            movable_raise(self, status)
        return 0


cdef class Pin:
    """A context in which a movable block stays where it is; made by ``Movable.pin``. It can be entered again."""

    cdef Movable movable
    cdef object stream
    cdef int entered

    def __cinit__(self, Movable movable not None, stream):
        self.movable = movable
        self.stream = stream

    def __enter__(self):
        cdef size_t address = self.movable.take(self.stream)
        self.entered += 1
        return address

    def __exit__(self, *exception):
        if self.entered > 0:
            self.entered -= 1
            self.movable.drop()

    def __repr__(self):
        return f"<pin of {self.movable!r}, {'entered' if self.entered else 'not entered'}>"

    def __dealloc__(self):
        while self.entered > 0:
            self.entered -= 1
            pin_drop(self.movable.pool, self.movable.record)


cdef int movable_raise(Movable movable, int status) except -1:
    if status == STATUS_FREED_POINTER:
        raise freed()
    if status == STATUS_CLOSED:
        raise InvalidPointerError("the pool of the movable block is closed")
    return status_raise(movable.pool, status, movable.nbytes, 0)


cdef object freed():
    return InvalidPointerError("the movable block is freed, or was not made by Pool.movable")


cdef Movable movable_wrap(object owner, pool_t* pool, Streams streams, size_t nbytes, object stream):
    cdef Movable movable = Movable.__new__(Movable)
    movable.owner = owner
    movable.pool = pool
    movable.streams = streams
    movable.nbytes = nbytes
    movable.stream = stream
    return movable
