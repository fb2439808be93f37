"""Where a request gets its pages.

Virtual addresses are plentiful, so there is always a place; it is chosen so that few pages are missing. Those come from
free memory: any page that no block touches will do, as what lies in it is nobody's. The study behind the order in which
places and pages are tried is in docs/internals/virtual.md.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from cuda_pool._bits cimport log2_floor, round_up
from cuda_pool._buddy cimport (
    BUDDY_LIVE, BUDDY_PAGING, NO_BLOCK, buddy_find_fewest, buddy_free, buddy_take)
from cuda_pool._cut cimport mid_free
from cuda_pool._mid cimport (
    MID_FREE, MID_PAGING, MID_SLAB, MID_UNIT, MID_USED, NO_MID, mid_block_t, mid_find, mid_find_any, mid_find_fewest,
    mid_reserve, mid_take)
from cuda_pool._owner cimport NOBODY
from cuda_pool._pages cimport pages_counted, pages_end, pages_first, pages_has, pages_next, pages_suspended, pages_t
from cuda_pool._room cimport segment_largest_paged, segment_largest_there
from cuda_pool._segment cimport (
    TIER_BUDDY, TIER_MID, segment_make_slab, segment_reclaim, segment_run_order, segment_use_block,
    segment_use_run, segment_use_slot)
from cuda_pool._slab cimport slab_activate, slabs_class, slabs_have_record, slabs_wanted
from cuda_pool._status cimport STATUS_HOST_MEMORY, STATUS_OK, STATUS_OUT_OF_MEMORY


cdef int paging_begin(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment,
                      paging_t* paging) noexcept nogil:
    cdef int status
    paging.most = segment.pages.most
    status = begin(segment, owner, nbytes, alignment, paging)
    if status != STATUS_OUT_OF_MEMORY:
        return status
    # Empty slabs may hold what is lacking. Those that would not help stay: a request that fails changes nothing.
    if segment_largest_paged(segment) < max(round_up(nbytes, MID_UNIT), segment.granule):
        return STATUS_OUT_OF_MEMORY
    segment_reclaim(segment)
    return begin(segment, owner, nbytes, alignment, paging)


cdef int begin(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, paging_t* paging) noexcept nogil:
    cdef int status = STATUS_OUT_OF_MEMORY
    if nbytes > segment.size or alignment > segment.size:
        return STATUS_OUT_OF_MEMORY
    if nbytes <= segment.slabs.max and alignment <= segment.slot_alignment:
        status = begin_slab(segment, owner, nbytes, alignment, paging)
    paging.size_class = paging.size_class if status == STATUS_OK else -1
    if status == STATUS_OUT_OF_MEMORY and nbytes > segment.mid_max:
        status = begin_run(segment, owner, nbytes, alignment, paging)
    if status == STATUS_OUT_OF_MEMORY:
        status = begin_block(segment, owner, max(round_up(nbytes, MID_UNIT), segment.granule), alignment, segment.bias,
                             paging)
    return status


cdef int begin_slab(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment,
                    paging_t* paging) noexcept nogil:
    """Find a place for a slab of the size that demand asks for or, where there are not enough pages, of half that."""
    cdef int size_class = slabs_class(&segment.slabs, nbytes, alignment), status = STATUS_OUT_OF_MEMORY
    cdef size_t size, wanted
    if size_class < 0 or not slabs_have_record(&segment.slabs):
        return STATUS_OUT_OF_MEMORY
    size = segment.slabs.size_class[size_class].size
    wanted = slabs_wanted(&segment.slabs, owner, size_class)
    while status == STATUS_OUT_OF_MEMORY and wanted >= size:
        status = begin_block(segment, owner, round_up(wanted, segment.granule), segment.granule, 0, paging)
        wanted //= 2
    paging.size_class = size_class
    return status


cdef int begin_block(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, uint32_t bias,
                     paging_t* paging) noexcept nogil:
    cdef uint32_t size = <uint32_t>(nbytes // MID_UNIT), missing, found
    cdef int align = log2_floor(alignment // MID_UNIT) if alignment > MID_UNIT else 0
    cdef int status = STATUS_OUT_OF_MEMORY
    if not mid_reserve(&segment.mid, 2):
        return STATUS_HOST_MEMORY
    found = mid_find_fewest(&segment.mid, owner, size, align, bias, &missing)
    if found != NO_MID:
        status = set_aside_block(segment, found, size, align, bias, paging)
    if status == STATUS_OUT_OF_MEMORY:                  # one that is not among the best fits may need fewer
        found = mid_find_any(&segment.mid, owner, size, align, bias, &missing)
        if found != NO_MID:
            status = set_aside_block(segment, found, size, align, bias, paging)
    return status


cdef int set_aside_block(segment_t* segment, uint32_t found, uint32_t size, int align, uint32_t bias,
                         paging_t* paging) noexcept nogil:
    cdef uint32_t index
    cdef const mid_block_t* block
    cdef int status
    if not mid_reserve(&segment.mid, 2):
        return STATUS_HOST_MEMORY
    index = mid_take(&segment.mid, found, size, align, bias, MID_PAGING)
    block = &segment.mid.block[index]
    paging.tier = TIER_MID
    paging.index = index
    paging.bytes = <size_t>size * MID_UNIT
    segment.mid_paging += paging.bytes
    status = find_pages(segment, <size_t>block.offset * MID_UNIT, paging)
    if status != STATUS_OK:
        paging_undo(segment, paging)
    return status


cdef int begin_run(segment_t* segment, owner_t owner, size_t nbytes, size_t alignment, paging_t* paging) noexcept nogil:
    cdef size_t size = round_up(nbytes, segment.min_block)
    cdef uint32_t units = <uint32_t>(size >> segment.min_block_shift), missing, other_missing, found, other
    cdef int order = segment_run_order(segment, alignment), status
    if order < 0:
        return STATUS_OUT_OF_MEMORY
    found = buddy_find_fewest(&segment.buddy, owner, units, order, &missing)
    other = buddy_find_fewest(&segment.buddy, NOBODY, units, order, &other_missing)
    if other_missing < missing:
        found = other
    if found == NO_BLOCK:
        return STATUS_OUT_OF_MEMORY
    buddy_take(&segment.buddy, found, units)
    segment.buddy.state[found] = BUDDY_PAGING
    segment.buddy.entry[found].role.live.units = units
    paging.tier = TIER_BUDDY
    paging.index = found
    paging.units = units
    paging.bytes = size
    segment.buddy_paging += size
    status = find_pages(segment, <size_t>found << segment.min_block_shift, paging)
    if status != STATUS_OK:
        paging_undo(segment, paging)
    return status


cdef int find_pages(segment_t* segment, size_t offset, paging_t* paging) noexcept nogil:
    """Choose the pages to take and the number to create for a place that is set aside; take them out of use."""
    cdef pages_t* pages = &segment.pages
    cdef uint32_t needed, found
    paging.first = pages_first(pages, offset)
    paging.end = pages_end(pages, offset + paging.bytes)
    paging.take = NULL
    paging.takes = 0
    paging.creates = 0
    needed = pages_lacking(pages, paging)
    needed -= min(needed, pages.spares)
    if needed == 0:
        return STATUS_OK
    found = paging_free_pages(segment, paging.first, paging.end, needed, NULL)
    if found < needed and pages.created + (needed - found) > pages.limit:
        return STATUS_OUT_OF_MEMORY
    paging.creates = needed - found
    return choose_pages(segment, min(found, paging.most), paging)


cdef inline uint32_t pages_lacking(const pages_t* pages, const paging_t* paging) noexcept nogil:
    """How many pages of the place have no memory."""
    return paging.end - paging.first - pages_counted(pages.placed, paging.first, paging.end)


cdef int choose_pages(segment_t* segment, uint32_t count, paging_t* paging) noexcept nogil:
    """Take so many pages of free memory out of use, which are there."""
    cdef uint32_t at
    paging.take = <uint32_t*>malloc(max(count, <uint32_t>1) * sizeof(uint32_t))
    if paging.take == NULL:
        return STATUS_HOST_MEMORY
    paging.takes = paging_free_pages(segment, paging.first, paging.end, count, paging.take)
    for at in range(paging.takes):
        if pages_has(segment.pages.ready, paging.take[at]):
            pages_suspended(&segment.pages, paging.take[at])
    return STATUS_OK


cdef int paging_gather(segment_t* segment, uint32_t most, paging_t* paging) noexcept nogil:
    """Choose as for a request, and give the place back at once."""
    cdef pages_t* pages = &segment.pages
    cdef size_t size = segment_largest_there(segment)
    cdef int status
    pages.limit = pages.created
    paging.most = most - min(most, pages.spares)
    status = begin_unready(segment, size, paging)
    if status == STATUS_OUT_OF_MEMORY:              # some of that has yet to become anyone's
        status = begin_unready(segment, min(size, <size_t>free_pages(segment) << pages.shift), paging)
    if status != STATUS_OK:
        memset(paging, 0, sizeof(paging_t))
        return STATUS_OK if status == STATUS_OUT_OF_MEMORY else status
    if paging.bytes != 0:
        paging_undo(segment, paging)
        keep_end(pages, most, paging)
    return STATUS_OK


cdef int begin_unready(segment_t* segment, size_t nbytes, paging_t* paging) noexcept nogil:
    """Find a place unless one is ready: in the mid tier rather, where smaller requests can have the pages, too."""
    cdef int status = STATUS_OUT_OF_MEMORY
    if nbytes == 0 or is_ready(segment, nbytes):
        memset(paging, 0, sizeof(paging_t))
        return STATUS_OK
    status = begin_block(segment, NOBODY, round_up(nbytes, MID_UNIT), MID_UNIT, segment.bias, paging)
    if status == STATUS_OUT_OF_MEMORY:
        status = begin_run(segment, NOBODY, nbytes, MID_UNIT, paging)
    return status


cdef bint is_ready(const segment_t* segment, size_t nbytes) noexcept nogil:
    cdef uint32_t units = <uint32_t>(round_up(nbytes, segment.min_block) >> segment.min_block_shift), missing
    if mid_find(&segment.mid, NOBODY, <uint32_t>(round_up(nbytes, MID_UNIT) // MID_UNIT), 0, segment.bias) != NO_MID:
        return True
    return buddy_find_fewest(&segment.buddy, NOBODY, units, 0, &missing) != NO_BLOCK and missing == 0


cdef inline uint32_t free_pages(const segment_t* segment) noexcept nogil:
    return segment.pages.spares + paging_free_pages(segment, 0, 0, segment.pages.created, NULL)


cdef void keep_end(const pages_t* pages, uint32_t most, paging_t* paging) noexcept nogil:
    """Leave out the start of the place, as far as there is no memory for it now: blocks are cut from the high end."""
    cdef uint32_t lacking = pages_lacking(pages, paging), left
    paging.units = min(lacking, min(most, pages.spares) + paging.takes)
    for left in range(lacking - paging.units):
        paging.first = pages_next(pages.placed, paging.first, paging.end, False) + 1


cdef uint32_t paging_free_pages(const segment_t* segment, uint32_t first, uint32_t end, uint32_t limit,
                                uint32_t* pages) noexcept nogil:
    """Walk up from the low end: blocks of the mid tier are cut from the high end of free ones."""
    cdef uint32_t found = 0, unit, at = segment.mid.first
    cdef const mid_block_t* block
    for unit in range(segment.buddy.size if segment.buddy.lists[NOBODY].nonempty else 0):
        if found < limit and is_free_unit(segment, unit):
            found += pages_inside(segment, <size_t>unit << segment.min_block_shift,
                                  <size_t>segment.min_block << (segment.buddy.state[unit] - 1), first, end,
                                  limit - found, pages + found if pages != NULL else NULL)
    while at != NO_MID and found < limit:
        block = &segment.mid.block[at]
        if block.state == MID_FREE and block.owner == NOBODY:
            found += pages_inside(segment, <size_t>block.offset * MID_UNIT, <size_t>block.size * MID_UNIT, first, end,
                                  limit - found, pages + found if pages != NULL else NULL)
        at = block.after
    return found


cdef inline bint is_free_unit(const segment_t* segment, uint32_t unit) noexcept nogil:
    """Does a free block of nobody's start at a unit?"""
    return 0 < segment.buddy.state[unit] < BUDDY_LIVE and segment.buddy.entry[unit].owner == NOBODY


cdef uint32_t pages_inside(const segment_t* segment, size_t offset, size_t nbytes, uint32_t first, uint32_t end,
                           uint32_t limit, uint32_t* pages) noexcept nogil:
    """The pages with memory that lie in a free block with all of their bytes."""
    cdef const pages_t* under = &segment.pages
    cdef uint32_t at = pages_first(under, round_up(offset, <size_t>1 << under.shift))
    cdef uint32_t last = pages_first(under, offset + nbytes), found = 0
    if pages == NULL:
        found = pages_counted(under.placed, at, last) - pages_counted(under.placed, max(at, first), min(last, end))
        return min(found, limit)
    at = pages_next(under.placed, at, last, True) if at < last else last
    while at < last and found < limit:
        if not first <= at < end:
            pages[found] = at
            found += 1
        at = pages_next(under.placed, at + 1, last, True)
    return found


cdef int paging_end(segment_t* segment, owner_t owner, const paging_t* paging, size_t nbytes, size_t* offset,
                    size_t* used) noexcept nogil:
    cdef uint32_t slab, block = paging.index if paging.tier == TIER_MID else NO_MID
    cdef int status
    put_into_use(segment, paging)
    if paging.size_class >= 0:
        status = segment_make_slab(segment, owner, paging.size_class, block, NO_BLOCK, paging.bytes, &slab)
        if status == STATUS_OK:
            slab_activate(&segment.slabs, slab)
            segment_use_slot(segment, paging.size_class, slab, nbytes, offset, used)
        return status
    if block != NO_MID:
        segment_use_block(segment, block, nbytes, offset, used)
    else:
        segment_use_run(segment, paging.index, paging.units, nbytes, offset, used)
    return STATUS_OK


cdef void put_into_use(segment_t* segment, const paging_t* paging) noexcept nogil:
    if paging.tier == TIER_MID:
        segment.mid_paging -= paging.bytes
        segment.mid.block[paging.index].state = MID_SLAB if paging.size_class >= 0 else MID_USED
    else:
        segment.buddy_paging -= paging.bytes


cdef void paging_undo(segment_t* segment, const paging_t* paging) noexcept nogil:
    """The place is whose it was before."""
    cdef const mid_block_t* block
    if paging.tier == TIER_MID:
        segment.mid_paging -= paging.bytes
        block = &segment.mid.block[paging.index]
        mid_free(&segment.mid, paging.index, block.owner, block.batch)
    else:
        segment.buddy_paging -= paging.bytes
        segment.buddy.state[paging.index] = 0
        buddy_free(&segment.buddy, paging.index, paging.units, segment.buddy.entry[paging.index].owner,
                   segment.buddy.entry[paging.index].batch)


cdef void paging_destroy(paging_t* paging) noexcept nogil:
    free(paging.take)
    paging.take = NULL
