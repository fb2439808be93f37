"""The memory of a pool at one moment, as a snapshot."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cuda_pool._api cimport Pool
from cuda_pool._extent cimport extent_t, extents_destroy, extents_survey, extents_t
from cuda_pool._gate cimport status_raise
from cuda_pool._locks cimport enter, leave
from cuda_pool._order cimport (
    LEGACY, STREAM_CAPTURE, STREAM_GONE, STREAM_HANDLE, STREAM_HELD, STREAM_LEGACY, STREAM_SPARE, STREAM_THREAD,
    STREAM_VOUCHED)
from cuda_pool._owner cimport OWNERS
from cuda_pool._pool cimport pool_t
from cuda_pool._region cimport region_t
from cuda_pool._room cimport segment_largest_free
from cuda_pool._segment cimport TIER_BUDDY, TIER_MID, TIER_SLAB
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK

from cuda_pool.snapshot import STATES, Block, Segment, Snapshot, Stream

KINDS = {
    STREAM_LEGACY: "default", STREAM_THREAD: "per-thread default", STREAM_HANDLE: "handle", STREAM_VOUCHED: "object",
    STREAM_HELD: "held", STREAM_GONE: "gone", STREAM_CAPTURE: "capture",
}
cdef object TIER_NAMES = {TIER_SLAB: "slab", TIER_MID: "mid", TIER_BUDDY: "buddy"}

# A stream as the pool knows it.
ctypedef struct known_t:
    int kind
    uintptr_t handle
    uint64_t id

# A copy, of which Python objects are made without the pool's locks: that may run any code.
ctypedef struct picture_t:
    extents_t extents
    region_t* region                # ascending addresses
    uint32_t regions
    known_t stream[OWNERS]
    int streams                     # owners from here on have nothing
    size_t capacity
    size_t reserved
    size_t spare                    # bytes of memory that is mapped nowhere, or not to be used yet
    size_t largest_free


def snapshot_of(Pool pool not None):
    """Return the Snapshot of a pool, or raise as ``Pool.snapshot`` says."""
    cdef picture_t picture
    cdef int status
    memset(&picture, 0, sizeof(picture))
    try:
        with nogil:
            status = picture_take(pool.state, &picture)
        status_raise(pool.state, status, 0, 0)
        streams, index = streams_of(&picture)
        return Snapshot(
            backing="malloc" if pool.state.segment.pages.shift == 0 else "virtual", capacity=picture.capacity,
            reserved=picture.reserved, spare=picture.spare, largest_free=picture.largest_free,
            page=1 << pool.state.segment.pages.shift if pool.state.segment.pages.shift else 0,
            granule=pool.state.segment.granule, streams=streams, segments=segments_of(&picture, index),
            created_by=_writer(), device=pool.device.ordinal)
    finally:
        extents_destroy(&picture.extents)
        free(picture.region)


cdef int picture_take(pool_t* pool, picture_t* picture) noexcept nogil:
    cdef int status = enter(pool)
    if status != STATUS_OK:
        return status
    if not extents_survey(&picture.extents, &pool.segment) or not regions_copy(pool, picture):
        status = STATUS_HOST_MEMORY
    streams_copy(pool, picture)
    picture.capacity = pool.capacity
    picture.reserved = pool.reserved
    picture.spare = <size_t>(pool.segment.pages.created - pool.segment.pages.ready_count) << pool.segment.pages.shift
    picture.largest_free = segment_largest_free(&pool.segment)
    leave(pool)
    return status


cdef bint regions_copy(const pool_t* pool, picture_t* picture) noexcept nogil:
    """Copy the regions; where pages move, the range of addresses is the only one."""
    cdef bint is_virtual = pool.segment.pages.shift != 0
    cdef uint32_t at, count = 1 if is_virtual else pool.regions.count
    picture.region = <region_t*>calloc(count + 1, sizeof(region_t))
    if picture.region == NULL:
        return False
    picture.regions = count
    if is_virtual:
        picture.region[0].address = pool.base
        picture.region[0].size = pool.segment.size
        return True
    for at in range(count):
        picture.region[at] = pool.regions.region[at]
    return True


cdef void streams_copy(const pool_t* pool, picture_t* picture) noexcept nogil:
    cdef int owner
    picture.streams = pool.order.streams
    for owner in range(LEGACY, pool.order.streams):
        picture.stream[owner].kind = pool.order.stream[owner].kind
        picture.stream[owner].handle = <uintptr_t>pool.order.stream[owner].handle
        picture.stream[owner].id = pool.order.stream[owner].id


cdef object streams_of(const picture_t* picture):
    """Return the streams, and a dict from an owner to its place among them."""
    streams, index = [], {}
    cdef int owner
    for owner in range(LEGACY, picture.streams):
        if picture.stream[owner].kind != STREAM_SPARE:
            index[owner] = len(streams)
            streams.append(Stream(picture.stream[owner].handle, picture.stream[owner].id,
                                  KINDS[picture.stream[owner].kind]))
    return streams, index


cdef object segments_of(const picture_t* picture, dict index):
    segments = []
    cdef uint32_t at
    for at in range(picture.regions):
        segments.append(segment_of(picture, &picture.region[at], index))
    return segments


cdef object segment_of(const picture_t* picture, const region_t* region, dict index):
    """Return the Segment of a region, with the extents that lie in its part of the offsets."""
    blocks = []
    cdef size_t at = extent_from(&picture.extents, region.offset)
    cdef const extent_t* extent
    cdef size_t shift = region.address - region.offset
    while at < picture.extents.count and picture.extents.extent[at].offset < region.offset + region.size:
        extent = &picture.extents.extent[at]
        blocks.append(Block(extent.offset + shift, extent.size, extent.requested, STATES[extent.state],
                            TIER_NAMES[extent.tier], index.get(extent.owner), None, extent.movable != 0))
        at += 1
    return Segment(region.address, region.size, tuple(blocks))


cdef size_t extent_from(const extents_t* extents, size_t offset) noexcept:
    """The first extent that does not begin below an offset."""
    cdef size_t low = 0, high = extents.count, middle
    while low < high:
        middle = (low + high) // 2
        if extents.extent[middle].offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _writer():
    from cuda_pool import __version__
    return f"cuda_pool {__version__}"
