"""Owning objects: memory of a pool that goes back when the object does."""

cimport cython
from libc.stdint cimport uintptr_t

from cuda_pool._calls cimport pool_free_async_as, pool_try_free_async_as
from cuda_pool._dlpack cimport dlpack_capsule, dlpack_device
from cuda_pool._driver cimport cudaStream_t, driver_is_shut
from cuda_pool._gate cimport status_raise
from cuda_pool._order cimport stream_ref_t
from cuda_pool._pool cimport pool_release, pool_size_of
from cuda_pool._pool_stream cimport pool_stream_wait
from cuda_pool._relaxed cimport get_flag
from cuda_pool._state cimport pool_t
from cuda_pool._status cimport STATUS_CLOSED, STATUS_FORKED, STATUS_OK, STATUS_WOULD_WAIT
from cuda_pool._stream cimport stream_handle

from cuda_pool.errors import InvalidPointerError
from cuda_pool.sizes import format_size


@cython.freelist(64)
@cython.no_gc_clear             # the destructor still needs the owner when a cycle is collected
cdef class Buffer:
    """Own a block of a pool; made by ``Pool.buffer``.

    The block goes back in the order of the buffer's stream when the buffer is freed, leaves its ``with`` block, or
    dies, whichever comes first. An array made from it through ``__cuda_array_interface__`` or DLPack keeps it alive.
    ``free`` by hand while such arrays are in use is the caller's fault, as with any owner.

    Attributes
    ----------
    nbytes : int
        Bytes that were asked for.
    freed : bool
        Whether the block has gone back.
    """

    @property
    def ptr(self):
        """Address of the first byte, 0 if the buffer is empty.

        Raises
        ------
        InvalidPointerError
            The buffer is freed, or its pool is closed.
        """
        self.require()
        return <uintptr_t>self.address

    @property
    def __cuda_array_interface__(self):
        """The buffer as bytes, version 3 of the protocol, with the stream of the buffer.

        Raises
        ------
        InvalidPointerError
            As for ``ptr``.
        """
        self.require()
        return {
            "shape": (self.nbytes,), "typestr": "|u1", "strides": None, "version": 3,
            "data": (<uintptr_t>self.address, False),
            "stream": <uintptr_t>self.stream.handle or 1,     # the protocol's legacy default is 1
        }

    def __dlpack_device__(self):
        """Return (device type, ordinal): CUDA, or the CPU where the device is simulated.

        Raises
        ------
        InvalidPointerError
            As for ``ptr``.
        """
        self.require()
        return dlpack_device(self.owner.device)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Export the buffer as a one-dimensional array of bytes that keeps it alive.

        Parameters
        ----------
        stream : int, optional
            The consumer's stream, None for the legacy default one; unless it is the buffer's own, or -1, the buffer's
            stream is waited for.
        max_version : (int, int), optional
            From (1, 0) on the capsule is a ``dltensor_versioned``.
        dl_device, copy
            Accepted where they ask for what there is: this device and no copy.

        Raises
        ------
        BufferError
            Another device or a copy is asked for.
        InvalidPointerError
            As for ``ptr``.
        CudaError
            Waiting for the buffer's stream failed; nothing is exported.
        """
        self.require()
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the buffer is on {self.__dlpack_device__()}, it cannot be exported to {dl_device}")
        if copy:
            raise BufferError("a copy was asked for: a buffer is only exported as it is")
        self.order_before(stream)
        return dlpack_capsule(self, self.address, self.nbytes, self.owner.device, max_version)

    def free(self):
        """Give the block back now, in the order of the buffer's stream; a second call does nothing.

        Safe to call from several threads at once: one of them frees. Where the driver has to be asked, that happens
        without the GIL.

        Raises
        ------
        InvalidPointerError
            The block was freed behind the back of the buffer.
        CudaError
            A driver call failed; the block is still the buffer's, and ``free`` can be tried again.
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
        state = "freed" if self.freed else f"at 0x{<uintptr_t>self.address:x}"
        return f"<cuda_pool.Buffer of {format_size(self.nbytes)} {state}>"

    def __dealloc__(self):
        """Give the block back; a pool that is closed or belongs to the parent process has nothing to take.

        What an exception would say goes to sys.unraisablehook.
        """
        cdef int status
        if self.freed or self.address == NULL:
            return
        status = pool_try_free_async_as(self.pool, self.address, &self.stream)
        if (status == STATUS_OK and not get_flag(&self.pool.release_due)) or driver_is_shut():
            return
        status = self.finish(status)
        if status != STATUS_CLOSED and status != STATUS_FORKED:
            status_raise(self.pool, status, self.nbytes, <size_t>self.address)

    cdef int release(self) except -1:
        cdef int status
        if self.freed:
            return 0
        self.freed = True                       # at once: another thread may come while this one waits without the GIL
        if self.address == NULL:
            return 0
        status = self.finish(pool_try_free_async_as(self.pool, self.address, &self.stream))
        if status != STATUS_OK and status != STATUS_CLOSED:     # a closed pool took everything back
            self.freed = False
            status_raise(self.pool, status, self.nbytes, <size_t>self.address)
        self.address = NULL
        return 0

    cdef int finish(self, int status) noexcept:
        """Do what the free had to leave to the driver."""
        if status == STATUS_WOULD_WAIT:
            with nogil:
                status = pool_free_async_as(self.pool, self.address, &self.stream)
        elif self.address != NULL and get_flag(&self.pool.release_due):
            with nogil:
                pool_release(self.pool)
        return status

    cdef int require(self) except -1:
        """Raise InvalidPointerError unless the memory is still there."""
        cdef size_t requested, used
        if self.freed or self.pool == NULL:
            raise InvalidPointerError("the buffer is freed, or was not made by Pool.buffer")
        if self.address != NULL:
            status_raise(self.pool, pool_size_of(self.pool, self.address, &requested, &used), self.nbytes,
                         <size_t>self.address)

    cdef int order_before(self, object stream) except -1:
        """Let the consumer's stream see what was queued on the buffer's, by waiting for it."""
        cdef cudaStream_t consumer
        cdef cudaStream_t legacy = <cudaStream_t><uintptr_t>1
        cdef int status
        if self.address == NULL or (stream is not None and stream == -1):
            return 0
        stream_handle(1 if stream is None else stream, &consumer)       # the protocol's None is the legacy default
        if consumer != self.stream.handle and not (consumer == legacy and self.stream.handle == NULL):
            with nogil:
                status = pool_stream_wait(self.pool, self.stream.handle)
            status_raise(self.pool, status, self.nbytes, 0)
        return 0


cdef Buffer buffer_wrap(object owner, pool_t* pool, const stream_ref_t* stream):
    cdef Buffer buffer = Buffer.__new__(Buffer)
    buffer.owner = owner
    buffer.pool = pool
    buffer.stream = stream[0]
    return buffer
