"""The streams that a pool knows, and how far their work is known to have come: bookkeeping only, no driver call."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from cuda_pool._driver cimport cudaEvent_t, cudaStream_t
from cuda_pool._owner cimport LEGACY, OWNERS, batch_within, owner_t, view_t
from cuda_pool._relaxed cimport get_u16, get_u32, set_u32

ctypedef int stream_kind_t

cdef enum:                      # stream_kind_t
    STREAM_SPARE = 0                # an unused record
    STREAM_LEGACY                   # handle 0 or 1: always there
    STREAM_THREAD                   # handle 2 of one thread: only that thread can name it
    STREAM_HANDLE                   # a plain handle: the stream may be destroyed, and its handle used again, unheard
    STREAM_VOUCHED                  # given as an object, which is kept and can be asked whether it still is that stream
    STREAM_HELD                     # exists until it is forgotten: a promise
    STREAM_GONE                     # destroyed, as far as anyone knows: never called again
    STREAM_CAPTURE                  # not a stream: what was freed in a capture, until its graph is gone

cdef enum:
    LEGACY_HANDLE = 1               # its other handle, beside 0
    THREAD_HANDLE = 2
    MARKS = 8
    LOOKUPS = 64

# An event that was recorded when batches up to `batch` had been freed.
ctypedef struct mark_t:
    cudaEvent_t event
    uint32_t batch

# Invariants, asserted by order_check(); batches are compared as batch_within() does:
#   done <= mark[0].batch <= mark[1].batch <= ... <= the pool's batch;  freed <= the pool's batch
#   a stream has pending frees  <=>  done < freed
ctypedef struct stream_t:
    stream_kind_t kind
    cudaStream_t handle
    uint64_t serial                 # of this use of the record: never used twice in a pool
    uint64_t id                     # what cudaStreamGetId said, or the number of the thread
    uint32_t freed                  # last batch in which something was freed on it; see stream_freed()
    uint32_t done                   # batches up to this one are over
    int marks
    mark_t mark[MARKS]              # oldest first
    size_t unmarked                 # bytes freed since the last mark
    owner_t capture                 # what it frees into while it is captured, or NOBODY
    uint32_t homes                  # movable blocks whose home it is: it keeps its record for them
    bint fresh                      # STREAM_VOUCHED: its object was asked just now

# A batch is what is freed between two events, on whichever stream they are recorded: `batch` counts them.
ctypedef struct order_t:
    stream_t stream[OWNERS]
    int streams                     # records below are, or were, in use
    uint32_t batch
    uint64_t serials                # given out
    int captures                    # under way
    owner_t lookup[LOOKUPS]         # by handle: where a search ended last
    uint32_t* waited                # [asker * OWNERS + owner]: the asker's work is behind batches up to this one

# A stream as somebody remembers it: the record may serve another one by now.
ctypedef struct stream_ref_t:
    owner_t owner
    uint64_t serial
    cudaStream_t handle

# The calling thread's number: never used again, unlike the system's.
cdef uint64_t this_thread() noexcept nogil
cdef int order_init(order_t* order) noexcept nogil              # 0 when the host has no memory
cdef void order_destroy(order_t* order) noexcept nogil
# The record of a handle, or NOBODY.
cdef owner_t order_search(order_t* order, cudaStream_t handle) noexcept nogil
# A new record, or NOBODY when all are in use.
cdef owner_t order_add(order_t* order, stream_kind_t kind, cudaStream_t handle, uint64_t id) noexcept nogil
# Give a record back: what was freed on it is over, or another one's by now. Events that it had are the caller's.
cdef void order_drop(order_t* order, owner_t owner) noexcept nogil
cdef void order_view(const order_t* order, owner_t asker, view_t* view) noexcept nogil
# An event was recorded for batches up to `batch`. Where there is no room it takes the place of the newest mark, whose
# event is returned; NULL otherwise.
cdef cudaEvent_t order_mark(order_t* order, owner_t owner, cudaEvent_t event, uint32_t batch) noexcept nogil
# The oldest event is over: take it out. Whatever it covers is done.
cdef cudaEvent_t order_pass_mark(order_t* order, owner_t owner) noexcept nogil
cdef bint order_any_pending(const order_t* order, owner_t but) noexcept nogil
cdef const char* order_check(const order_t* order) noexcept nogil


cdef inline bint stream_is_pending(const stream_t* stream) noexcept nogil:
    return not batch_within(get_u32(&stream.freed), stream.done)


cdef inline bint stream_can_vanish(const stream_t* stream) noexcept nogil:
    """May no event be recorded on it except in a call that was given the stream, and cannot anyone be asked?"""
    return stream.kind == STREAM_HANDLE or stream.kind == STREAM_THREAD


cdef inline bint ref_is_valid(const order_t* order, const stream_ref_t* ref) noexcept nogil:
    return order.stream[ref.owner].serial == ref.serial and ref.owner != 0


cdef inline stream_ref_t ref_to(const order_t* order, owner_t owner, cudaStream_t handle) noexcept nogil:
    cdef stream_ref_t ref
    ref.owner = owner
    ref.serial = order.stream[owner].serial
    ref.handle = handle
    return ref


cdef inline void stream_freed(order_t* order, owner_t owner, size_t nbytes) noexcept nogil:
    """Note that something was freed on a stream, with the pool's lock held."""
    set_u32(&order.stream[owner].freed, order.batch)
    order.stream[owner].unmarked += nbytes


cdef inline owner_t order_find(order_t* order, cudaStream_t handle) noexcept nogil:
    """The same as order_search(), from where that ended last time."""
    cdef owner_t owner
    cdef const stream_t* stream
    if <uintptr_t>handle <= LEGACY_HANDLE:
        return LEGACY
    owner = order_glance(order, handle)
    stream = &order.stream[owner]
    if stream.handle == handle and (stream.kind == STREAM_HANDLE or stream.kind == STREAM_HELD):
        return owner
    return order_search(order, handle)


cdef inline owner_t order_glance(const order_t* order, cudaStream_t handle) noexcept nogil:
    """Whose handle it was when it was searched last; no lock is needed to look."""
    return get_u16(&order.lookup[lookup_slot(handle)])


cdef inline int lookup_slot(cudaStream_t handle) noexcept nogil:
    cdef uintptr_t key = <uintptr_t>handle
    if key == THREAD_HANDLE:
        key = <uintptr_t>this_thread() << 4         # threads that use it at the same time are neighbours
    return <int>(key >> 4 ^ key >> 12) & (LOOKUPS - 1)


cdef inline uint32_t* order_waited(const order_t* order, owner_t asker, owner_t owner) noexcept nogil:
    return &order.waited[asker * OWNERS + owner]
