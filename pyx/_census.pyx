"""All live blocks of a pool at one moment: those that stay where they are from its segment, movable ones by handle."""

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from cuda_pool._extent cimport EXTENT_LIVE, extent_t, extents_destroy, extents_survey, extents_t
from cuda_pool._movables cimport MOVABLE_MOVES, MOVABLE_RESTS, movable_t
from cuda_pool._order cimport THREAD_HANDLE, stream_t
from cuda_pool._owner cimport NOBODY
from cuda_pool._state cimport pool_address
from cuda_pool._traced cimport MOVABLE_KEY, THREAD_STREAM

NO_STREAM = 0xFFFFFFFFFFFFFFFF


cdef bint census_take(census_t* census, pool_t* pool) noexcept nogil:
    cdef extents_t extents
    cdef size_t at
    extents.extent, extents.count, extents.capacity, extents.lacks_memory = NULL, 0, 0, False
    census.citizen, census.count = NULL, 0
    if extents_survey(&extents, &pool.segment):
        census.citizen = <citizen_t*>calloc(extents.count + pool.movables.count + 1, sizeof(citizen_t))
    if census.citizen != NULL:
        for at in range(extents.count):
            count_extent(census, pool, &extents.extent[at])
        for at in range(1, pool.movables.made):
            count_movable(census, pool, at)
    extents_destroy(&extents)
    return census.citizen != NULL


cdef void census_destroy(census_t* census) noexcept nogil:
    free(census.citizen)
    census.citizen, census.count = NULL, 0


cdef void count_extent(census_t* census, const pool_t* pool, const extent_t* extent) noexcept nogil:
    cdef citizen_t* citizen = &census.citizen[census.count]
    if extent.state != EXTENT_LIVE or extent.movable:
        return
    citizen.address = <size_t>pool_address(pool, extent.offset)
    citizen.key = citizen.address
    citizen.nbytes = extent.requested
    citizen.stream = stream_of(pool, extent.owner)
    census.count += 1


cdef void count_movable(census_t* census, const pool_t* pool, size_t handle) noexcept nogil:
    cdef citizen_t* citizen = &census.citizen[census.count]
    cdef const movable_t* record = &pool.movables.record[handle]
    if record.state != MOVABLE_RESTS and record.state != MOVABLE_MOVES:
        return
    citizen.address = <size_t>record.ptr
    citizen.key = MOVABLE_KEY + handle
    citizen.nbytes = record.nbytes
    citizen.stream = stream_of(pool, record.home)
    census.count += 1


cdef inline uint64_t stream_of(const pool_t* pool, owner_t owner) noexcept nogil:
    """The number of a stream in a trace; none for what nobody in particular has."""
    cdef const stream_t* stream = &pool.order.stream[owner]
    cdef uint64_t handle = <uintptr_t>stream.handle
    if owner == NOBODY:
        return NO_STREAM
    return THREAD_STREAM + stream.id if handle == THREAD_HANDLE else handle
