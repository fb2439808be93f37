"""What a pool has learned, as a profile."""

from libc.stdlib cimport free, malloc

from cuda_pool._api cimport Pool
from cuda_pool._gate cimport status_raise
from cuda_pool._learn cimport BINS, bin_t
from cuda_pool._locks cimport enter, leave
from cuda_pool._order cimport LEGACY, STREAM_CAPTURE, STREAM_SPARE
from cuda_pool._owner cimport OWNERS
from cuda_pool._pool cimport pool_get_stats, pool_stats_t, pool_t
from cuda_pool._slab cimport demand_of, slabs_note
from cuda_pool._status cimport STATUS_OK

from cuda_pool.profile import SETTINGS, Blocks, Profile, Slots

# A copy, of which Python objects are made without the pool's locks: that may run any code.
ctypedef struct learned_t:
    int streams
    bint is_stream[OWNERS]
    size_t* highest                 # slots by stream and size class
    bin_t bin[BINS]


def profile_of(Pool pool not None):
    """Return the Profile of what a pool has needed so far.

    Raises
    ------
    ValueError
        The pool is closed.
    RuntimeError
        The pool was made before the process forked, and belongs to the parent.
    """
    cdef pool_stats_t stats
    cdef learned_t learned
    cdef size_t classes = len(pool.settings.size_classes)
    status_raise(pool.state, pool_get_stats(pool.state, &stats), 0, 0)
    learned.highest = <size_t*>malloc(OWNERS * (classes + 1) * sizeof(size_t))
    if learned.highest == NULL:
        raise MemoryError("the host has no memory left for a profile")
    try:
        status_raise(pool.state, copy_learned(pool.state, classes, &learned), 0, 0)
        streams = [slots_of(&learned.highest[at * classes], pool.settings.size_classes)
                   for at in range(learned.streams) if learned.is_stream[at]]
        larger = blocks_of(learned.bin)
    finally:
        free(learned.highest)
    return Profile(
        peak_requested=stats.requested_high, peak_used=stats.used_high, peak_reserved=stats.reserved_high,
        allocations=stats.alloc_count, streams=streams, larger=larger, created_by=_writer(),
        settings={name: getattr(pool.settings, name) for name in SETTINGS})


cdef int copy_learned(pool_t* pool, size_t classes, learned_t* learned) noexcept nogil:
    cdef int status = enter(pool), at
    cdef size_t index
    if status != STATUS_OK:
        return status
    slabs_note(&pool.segment.slabs)
    learned.streams = pool.order.streams - LEGACY
    for at in range(learned.streams):
        learned.is_stream[at] = at == 0 or pool.order.stream[LEGACY + at].kind not in (STREAM_SPARE, STREAM_CAPTURE)
        for index in range(classes):
            learned.highest[at * classes + index] = demand_of(&pool.segment.slabs, LEGACY + at, <int>index).highest
    learned.bin = pool.learn.bin
    leave(pool)
    return STATUS_OK


cdef object slots_of(const size_t* highest, size_classes):
    return [Slots(size, highest[at]) for at, size in enumerate(size_classes) if highest[at] != 0]


cdef object blocks_of(const bin_t* bins):
    cdef int at
    return [Blocks(1 << at, max(bins[at].bytes_highest, bins[at].bytes_high), bins[at].blocks_highest)
            for at in range(BINS) if bins[at].blocks_highest != 0]


def _writer():
    from cuda_pool import __version__
    return f"cuda_pool {__version__}"
