"""Captures: what is allocated and freed while a stream is captured into a graph."""

import warnings

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._gate cimport status_raise
from cuda_pool._owner cimport NOBODY
from cuda_pool._pool cimport pool_is_closed
from cuda_pool._pool_stream cimport pool_begin_capture, pool_end_capture, pool_release_capture
from cuda_pool._status cimport STATUS_CLOSED
from cuda_pool._stream cimport stream_handle


cdef class Capture:
    """Keep the memory of a CUDA graph for the graph; made by ``Pool.capture``.

    Inside the ``with`` block, whose stream is being captured, the pool makes no driver call for the stream, and serves
    it from memory that no work is pending on. What is allocated there stays the graph's, freed or not, until
    ``release``: the graph uses it each time it is launched. What is freed there may be allocated again there. If the
    block is left by an exception there is no graph, and everything is released at once.

    Not safe to use from several threads at once.
    """

    def __enter__(self):
        cdef cudaStream_t stream
        cdef int status
        if self.handle == NULL or self.owner != NOBODY:
            raise RuntimeError("a capture is made by Pool.capture, and entered once")
        stream_handle(self.stream, &stream)
        with nogil:
            status = pool_begin_capture(self.handle, stream, &self.owner)
        status_raise(self.handle, status, 0, 0)
        self.under_way = True
        return self

    def __exit__(self, kind, *exception):
        self.under_way = False
        cdef int status = pool_end_capture(self.handle, self.owner)
        if status != STATUS_CLOSED:
            status_raise(self.handle, status, 0, 0)
        if kind is not None:
            self.release()

    def release(self, stream=None):
        """Let others have the memory of the graph, which is gone; a second call does nothing.

        Parameters
        ----------
        stream : int or object with __cuda_stream__, optional
            Stream of the last launch, which may still be running: the memory is then freed in the order of that
            stream. Without it, the work of every launch has to be done.

        Raises
        ------
        RuntimeError
            The capture is still under way.
        CudaError
            The driver was asked about the stream, and failed; nothing is released.
        """
        cdef cudaStream_t last
        cdef int status
        if self.under_way:
            raise RuntimeError("the capture is still under way: leave its with block first")
        if self.owner == NOBODY:
            return
        if stream is None:
            with nogil:
                status = pool_release_capture(self.handle, self.owner, NULL)
        else:
            stream_handle(stream, &last)
            with nogil:
                status = pool_release_capture(self.handle, self.owner, &last)
        if status != STATUS_CLOSED:             # a closed pool took everything back
            status_raise(self.handle, status, 0, 0)
        self.owner = NOBODY

    def __repr__(self):
        state = "under way" if self.under_way else "released" if self.owner == NOBODY else "done"
        return f"<cuda_pool.Capture of {self.stream!r}, {state}>"

    def __dealloc__(self):
        if self.owner != NOBODY and not pool_is_closed(self.handle):
            warnings.warn("a capture was dropped without release(): its memory is not used again before the pool is "
                          "closed", ResourceWarning)


cdef Capture capture_make(object pool, pool_t* handle, object stream):
    cdef Capture capture = Capture.__new__(Capture)
    capture.pool = pool
    capture.handle = handle
    capture.stream = stream
    return capture
