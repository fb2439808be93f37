"""Streams as Python names them."""

from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport uintptr_t

from cuda_pool._driver cimport cudaStream_t
from cuda_pool._gate cimport status_raise
from cuda_pool._order cimport THREAD_HANDLE
from cuda_pool._owner cimport NOBODY
from cuda_pool._pool_stream cimport (
    pool_find_stream, pool_stream_exists, pool_stream_is_pending, pool_unvouch_stream, pool_vouch_stream)

from cuda_pool.sizes import is_index, shown

cdef enum:
    VOUCHERS_KEPT = 64          # more are looked through for those whose stream has nothing pending

ACCEPTED = "an int handle (0: the default stream), or an object with __cuda_stream__"


cdef int stream_handle(object stream, cudaStream_t* handle) except -1:
    cdef object number = stream
    if hasattr(stream, "__cuda_stream__"):
        number = protocol_handle(stream)
    if not PyLong_CheckExact(number):
        if not is_index(number):
            raise TypeError(f"a stream is {ACCEPTED}; got {shown(stream)}")
        number = number.__index__()
    if not 0 <= number < 1 << 64:
        raise ValueError(f"a stream is {ACCEPTED}; got {shown(stream)}")
    handle[0] = <cudaStream_t><uintptr_t>number
    return 0


cdef object protocol_handle(object stream):
    """Ask an object for its handle: (0, handle), a method or, in older objects, a property."""
    answer = stream.__cuda_stream__
    answer = answer() if callable(answer) else answer
    try:
        version, number = answer
    except (TypeError, ValueError):
        raise TypeError(f"__cuda_stream__ of {stream!r} gives {answer!r}, expected (0, handle)") from None
    if version != 0:
        raise ValueError(f"__cuda_stream__ of {stream!r} has version {version!r}, expected 0")
    return number


cdef class Streams:

    def __cinit__(self):
        self.vouchers = {}

    cdef int look_up(self, object stream, stream_ref_t* ref) except -1:
        cdef seen_t* seen = &self.seen[seen_slot(<void*>stream)]
        cdef tuple voucher = self.vouchers.get(id(stream))
        cdef int status
        if voucher is None:
            ref.owner, ref.serial = NOBODY, 0
            stream_handle(stream, &ref.handle)
            if PyLong_CheckExact(stream) or not hasattr(stream, "__cuda_stream__"):
                return 0
            if <uintptr_t>ref.handle <= THREAD_HANDLE:      # always there; which stream 2 is depends on the thread
                ref[0] = pool_find_stream(self.pool, ref.handle)
                return 0
            with nogil:
                status = pool_vouch_stream(self.pool, ref.handle, ref)
            status_raise(self.pool, status, 0, 0)
            if ref.owner == NOBODY:
                return 0
            if len(self.vouchers) >= VOUCHERS_KEPT:
                self.prune()
            self.vouchers[id(stream)] = (stream, ref.owner, ref.serial, <uintptr_t>ref.handle)
        else:
            reference(voucher, ref)
        seen.object = <void*>stream
        seen.ref = ref[0]
        return 0

    cdef int prune(self) except -1:
        """Let go of objects whose stream has nothing pending."""
        cdef stream_ref_t ref
        for key, voucher in list(self.vouchers.items()):
            reference(voucher, &ref)
            if not pool_stream_is_pending(self.pool, &ref):
                self.drop(key)
        return 0

    cdef int drop(self, key) except -1:
        cdef tuple voucher = self.vouchers.pop(key, None)
        cdef stream_ref_t ref
        if voucher is None:
            return 0
        if self.seen[seen_slot(<void*>voucher[0])].object == <void*>voucher[0]:
            self.seen[seen_slot(<void*>voucher[0])].object = NULL
        reference(voucher, &ref)
        pool_unvouch_stream(self.pool, &ref)
        return 0

    cdef int ask(self) except -1:
        """Ask every object whether it has the stream still: then events may be recorded on it until distrust()."""
        cdef stream_ref_t ref
        cdef cudaStream_t handle
        for voucher in list(self.vouchers.values()):
            reference(voucher, &ref)
            try:
                stream_handle(voucher[0], &handle)
            except Exception:                           # whatever it says, it does not have the stream any more
                continue
            if handle == ref.handle:
                pool_stream_exists(self.pool, &ref, True)
        return 0

    cdef int distrust(self) except -1:
        """The opposite of ask(): and let go of objects that are not needed any more."""
        cdef stream_ref_t ref
        for voucher in list(self.vouchers.values()):
            reference(voucher, &ref)
            pool_stream_exists(self.pool, &ref, False)
        return self.prune()

    cdef int forget(self, cudaStream_t handle) except -1:
        for key, voucher in list(self.vouchers.items()):
            if voucher[3] == <uintptr_t>handle:
                self.drop(key)
        return 0


cdef int reference(tuple voucher, stream_ref_t* ref) except -1:
    ref.owner = voucher[1]
    ref.serial = voucher[2]
    ref.handle = <cudaStream_t><uintptr_t>voucher[3]
    return 0
