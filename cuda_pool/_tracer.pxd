"""A tracer: the notes of what was allocated and freed, and the thread that writes them to a file as a trace.

That thread never takes the GIL, so that whoever waits for it, with the GIL or without, waits for the disk only.
"""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._ledger cimport ledger_t
from cuda_pool._lock cimport lock_t
from cuda_pool._ring cimport ring_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass

cdef enum:
    STREAM_OF_BLOCK = 1         # of a free that names no stream: that of the allocation. The handle 1 is stream 0

# Fields from `events` to `named` are written by the writer only.
ctypedef struct tracer_t:
    ring_t ring
    uint32_t open               # calls are to be noted
    uint32_t stopping           # the writer ends when all is written
    uint32_t hurried            # somebody waits for `written`
    uint32_t is_running         # there is a writer
    uint32_t taken              # by a recording that is not over
    int file                    # descriptor
    void* keeper                # the Python object of the recording, NULL once it ends; to be read with the GIL
    void* owner                 # the same if it keeps stacks, else NULL
    uint32_t (*stack_of)(void* owner) noexcept nogil    # the number of the calling thread's stack: has the GIL
    uint64_t waits              # times that a caller found the ring full
    uint64_t events             # rows for allocations and frees, written or lost
    uint64_t lost               # rows of those, or of blocks that were live before, that could not be written
    uint64_t unknown            # frees of blocks that the ledger does not have
    uint64_t written            # tickets whose rows are in the file
    uint64_t named              # blocks
    uint64_t length             # bytes in the file: whole rows
    uint32_t error              # errno of what ended the writing, or 0
    lock_t guard                # of the ledger
    ledger_t ledger
    char* text                  # rows that are not in the file yet
    size_t text_length
    pthread_t thread

cdef tracer_t* tracer_make() noexcept nogil             # NULL when the host has no memory
cdef void tracer_destroy(tracer_t* tracer) noexcept nogil
# Begin with an empty file, without a writer so far.
cdef void tracer_reset(tracer_t* tracer, int file) noexcept nogil
# Note a block that was live before the first event, while there is no writer.
cdef void tracer_add_live(tracer_t* tracer, uint64_t key, uint64_t size, uint64_t stream) noexcept nogil
cdef int tracer_start(tracer_t* tracer) noexcept nogil  # errno
# Write everything whose ticket was given out until now.
cdef void tracer_flush(tracer_t* tracer) noexcept nogil
# Write everything, and end the writer. Nobody begins a note any more, but some may be under way.
cdef void tracer_stop(tracer_t* tracer) noexcept nogil
# Drop the notes of a recording that is stopped and that nobody writes: they would be the next one's.
cdef void tracer_discard(tracer_t* tracer) noexcept nogil
