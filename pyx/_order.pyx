"""The streams that a pool knows, and how far their work is known to have come.

What is freed on a stream belongs to a batch; an event that is recorded later covers it. Batches are numbered for all
streams together, so that a block that was used on several of them needs one number only.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from cuda_pool._hostmem cimport host_map, host_unmap
from cuda_pool._owner cimport NOBODY, later_batch
from cuda_pool._relaxed cimport set_u16

# In this module only: another that included it would count threads of its own.
cdef extern from * nogil:
    """
    #include <stdint.h>
    static uint64_t cuda_pool_threads;
    static __thread uint64_t cuda_pool_thread_number;
    static inline uint64_t cuda_pool_this_thread(void) {
        if (cuda_pool_thread_number == 0)
            cuda_pool_thread_number = __atomic_add_fetch(&cuda_pool_threads, 1, __ATOMIC_RELAXED);
        return cuda_pool_thread_number;
    }
    """
    uint64_t count_this_thread "cuda_pool_this_thread"()

cdef enum:
    WAITED_COLOUR = 53
    WAITED_BYTES = OWNERS * OWNERS * 4


cdef int order_init(order_t* order) noexcept nogil:
    memset(order, 0, sizeof(order_t))
    order.batch = 1
    order.streams = LEGACY
    order.waited = <uint32_t*>host_map(WAITED_BYTES, WAITED_COLOUR)
    if order.waited == NULL:
        return 0
    order_add(order, STREAM_LEGACY, NULL, 0)
    return 1


cdef uint64_t this_thread() noexcept nogil:
    return count_this_thread()


cdef void order_destroy(order_t* order) noexcept nogil:
    host_unmap(order.waited, WAITED_BYTES, WAITED_COLOUR)
    order.waited = NULL


cdef owner_t order_search(order_t* order, cudaStream_t handle) noexcept nogil:
    cdef uint64_t thread = this_thread() if <uintptr_t>handle == THREAD_HANDLE else 0
    cdef const stream_t* stream
    cdef int at
    for at in range(LEGACY + 1, order.streams):
        stream = &order.stream[at]
        if stream.handle == handle and is_named(stream, thread):
            set_u16(&order.lookup[lookup_slot(handle)], <owner_t>at)
            return <owner_t>at
    return NOBODY


cdef inline bint is_named(const stream_t* stream, uint64_t thread) noexcept nogil:
    """Is it the stream that its handle names, in this thread?"""
    if thread != 0:
        return stream.kind == STREAM_THREAD and stream.id == thread
    return stream.kind == STREAM_HANDLE or stream.kind == STREAM_VOUCHED or stream.kind == STREAM_HELD


cdef owner_t order_add(order_t* order, stream_kind_t kind, cudaStream_t handle, uint64_t id) noexcept nogil:
    cdef int at = LEGACY
    cdef stream_t* stream
    while at < OWNERS and order.stream[at].kind != STREAM_SPARE:
        at += 1
    if at == OWNERS:
        return NOBODY
    stream = &order.stream[at]
    memset(stream, 0, sizeof(stream_t))
    stream.kind = kind
    stream.handle = handle
    stream.id = id
    order.serials += 1
    stream.serial = order.serials
    # Blocks that came from a stream which had this record before are old enough for anyone.
    stream.done = order.batch - 1
    stream.freed = order.batch - 1
    order.streams = max(order.streams, at + 1)
    return <owner_t>at


cdef void order_drop(order_t* order, owner_t owner) noexcept nogil:
    cdef int other
    order.stream[owner].kind = STREAM_SPARE
    order.stream[owner].serial = 0
    order.stream[owner].marks = 0
    order.stream[owner].freed = order.stream[owner].done        # a spare record is never pending
    for other in range(OWNERS):
        order_waited(order, owner, <owner_t>other)[0] = 0
        order_waited(order, <owner_t>other, owner)[0] = 0


cdef void order_view(const order_t* order, owner_t asker, view_t* view) noexcept nogil:
    cdef int owner
    view.owner = asker
    view.batch = order.batch if asker != NOBODY else 0
    memset(view.limit, 0, sizeof(view.limit))
    for owner in range(LEGACY, order.streams):
        view.limit[owner] = later_batch(order.stream[owner].done, order_waited(order, asker, <owner_t>owner)[0])


cdef cudaEvent_t order_mark(order_t* order, owner_t owner, cudaEvent_t event, uint32_t batch) noexcept nogil:
    cdef stream_t* stream = &order.stream[owner]
    cdef cudaEvent_t replaced = NULL
    if stream.marks == MARKS:
        stream.marks -= 1
        replaced = stream.mark[stream.marks].event
    stream.mark[stream.marks].event = event
    stream.mark[stream.marks].batch = batch
    stream.marks += 1
    stream.unmarked = 0
    return replaced


cdef cudaEvent_t order_pass_mark(order_t* order, owner_t owner) noexcept nogil:
    cdef stream_t* stream = &order.stream[owner]
    cdef cudaEvent_t event = stream.mark[0].event
    cdef int at
    stream.done = later_batch(stream.done, stream.mark[0].batch)
    stream.marks -= 1
    for at in range(stream.marks):
        stream.mark[at] = stream.mark[at + 1]
    return event


cdef bint order_any_pending(const order_t* order, owner_t but) noexcept nogil:
    cdef int owner
    for owner in range(LEGACY, order.streams):
        if owner != but and order.stream[owner].kind != STREAM_CAPTURE and stream_is_pending(&order.stream[owner]):
            return True
    return False


cdef const char* order_check(const order_t* order) noexcept nogil:
    cdef const stream_t* stream
    cdef uint32_t last
    cdef int owner, at
    for owner in range(LEGACY, order.streams):
        stream = &order.stream[owner]
        last = stream.done
        if not batch_within(stream.freed, order.batch) or not 0 <= stream.marks <= MARKS:
            return b"order: a stream is ahead of its pool"
        for at in range(stream.marks):
            if not batch_within(last, stream.mark[at].batch):
                return b"order: the events of a stream are not in their order"
            last = stream.mark[at].batch
        if not batch_within(last, order.batch):
            return b"order: an event covers a batch that is still to come"
    return NULL
