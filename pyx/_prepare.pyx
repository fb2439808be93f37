"""Ready slabs: those that a segment makes ahead of need, and those that it has too many of."""

from libc.stdint cimport uint32_t

from cuda_pool._bits cimport round_up
from cuda_pool._learn cimport demand_t, demand_target, learn_t
from cuda_pool._segment cimport segment_admit, segment_drop_slab, segment_add_slab
from cuda_pool._slab cimport NO_SLAB, SLAB_BYTES_MAX, demand_of, slabs_of, slabs_pass, slabs_ready
from cuda_pool._status cimport STATUS_OK

cdef enum:
    READY_SHARE = 2                 # peaks of classes need not come together: so much of it is made ready at most


cdef void segment_admit_stream(segment_t* segment, owner_t owner) noexcept nogil:
    cdef learn_t* learn = segment.learn
    cdef const size_t* slots
    cdef int index
    segment_admit(segment, owner)
    if learn == NULL or learn.planned >= learn.plan_streams:
        return
    slots = &learn.plan[learn.planned * learn.plan_classes]
    for index in range(learn.plan_classes):
        demand_of(&segment.slabs, owner, index).expected = slots[index]
    learn.planned += 1
    prepare_all(segment, owner)


cdef void segment_follow(segment_t* segment) noexcept nogil:
    """Return what will not be needed, and make ready what will: after a shortage not until a whole period is over."""
    cdef learn_t* learn = segment.learn
    cdef int owner
    if learn == NULL or learn.periods == segment.slabs.passed:
        return
    slabs_pass(&segment.slabs, learn.periods)
    if not learn.predicts:
        return
    for owner in range(segment.slabs.owners):
        drop_surplus(segment, <owner_t>owner)
    if not learn.short_of or learn.periods - learn.shortage > 1:
        learn.short_of = False
        for owner in range(segment.slabs.owners):
            prepare_all(segment, <owner_t>owner)


cdef void drop_surplus(segment_t* segment, owner_t owner) noexcept nogil:
    """Return the ready slabs that the owner is not expected to need."""
    cdef int index
    cdef const demand_t* demand
    cdef uint32_t slab
    for index in range(segment.slabs.classes):
        demand = demand_of(&segment.slabs, owner, index)
        slab = slabs_ready(slabs_of(&segment.slabs, owner, index))
        while slab != NO_SLAB and (demand.active + demand.ready - segment.slabs.slab[slab].slots
                                   >= demand_target(demand)):
            segment_drop_slab(segment, slab)
            slab = slabs_ready(slabs_of(&segment.slabs, owner, index))


cdef void prepare_all(segment_t* segment, owner_t owner) noexcept nogil:
    cdef int index
    for index in range(segment.slabs.classes):
        if not segment_prepare(segment, owner, index, demand_target(demand_of(&segment.slabs, owner, index))):
            return


cdef bint segment_prepare(segment_t* segment, owner_t owner, int size_class, size_t slots) noexcept nogil:
    cdef const demand_t* demand = demand_of(&segment.slabs, owner, size_class)
    cdef size_t nbytes
    cdef uint32_t slab
    while demand.active + demand.ready < slots:
        if segment.slabs.ready_bytes >= segment.size // READY_SHARE:
            return False
        nbytes = bytes_for(segment, size_class, slots - demand.active - demand.ready)
        if segment_add_slab(segment, owner, NULL, size_class, nbytes, &slab) != STATUS_OK:
            return False
    return True


cdef size_t segment_bytes_ahead(const segment_t* segment, owner_t owner, int size_class) noexcept nogil:
    cdef const demand_t* demand = demand_of(&segment.slabs, owner, size_class)
    cdef size_t target = demand_target(demand)
    if not segment_predicts(segment) or target <= demand.active + demand.ready:
        return 0
    return bytes_for(segment, size_class, target - demand.active - demand.ready)


cdef inline size_t bytes_for(const segment_t* segment, int size_class, size_t slots) noexcept nogil:
    """Bytes of one slab, of as many as are needed, for some slots."""
    cdef size_t size = segment.slabs.size_class[size_class].size
    return round_up(max(size, min(slots * size, <size_t>SLAB_BYTES_MAX)), segment.granule)


cdef bint segment_drop_ready(segment_t* segment, owner_t owner, int size_class) noexcept nogil:
    cdef uint32_t slab = slabs_ready(slabs_of(&segment.slabs, owner, size_class))
    if slab == NO_SLAB:
        return False
    while slab != NO_SLAB:
        segment_drop_slab(segment, slab)
        slab = slabs_ready(slabs_of(&segment.slabs, owner, size_class))
    if segment.learn != NULL:
        segment.learn.short_of = True
        segment.learn.shortage = segment.learn.periods
    return True
