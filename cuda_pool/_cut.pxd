"""The inline part of _mid: blocks are cut in two, merged with their neighbours, and put among the free ones."""

from libc.stdint cimport uint8_t, uint32_t

from cuda_pool._mid cimport (
    MID_FREE, MID_SPARE, NO_MID, mid_better, mid_block_t, mid_find_key, mid_has_none, mid_more_records, mid_state_t,
    mid_t)
from cuda_pool._owner cimport NOBODY, later_batch, owner_t
from cuda_pool._trie cimport find_key, is_leaf, trie_cut, trie_insert, trie_replace


cdef inline uint32_t mid_take_best(mid_t* mid, owner_t owner, uint32_t size, mid_state_t state) noexcept nogil:
    """The same as mid_take() with the best fit among the owner's blocks and nobody's, or NO_MID: without pages and
    alignment.
    """
    cdef uint32_t found = find_key(mid, NOBODY, size, 0)
    cdef mid_block_t* block
    if mid.owned != 0 and owner != NOBODY and not mid_has_none(mid, owner):
        found = mid_better(mid, mid_find_key(mid, owner, size, 0), found)
    if found == NO_MID:
        return NO_MID
    block = &mid.block[found]
    free_remove(mid, found)
    if block.size > size:
        found = mid_split(mid, found, block.offset + block.size - size)
        free_insert(mid, mid.block[found].before, block.owner, block.batch)
    mark_taken(mid, found, state, 0)
    return found


cdef inline void mark_taken(mid_t* mid, uint32_t index, mid_state_t state, uint32_t gap) noexcept nogil:
    cdef mid_block_t* block = &mid.block[index]
    block.state = <uint8_t>state
    block.role.live.gap = gap
    mid.gaps += gap
    mid.used += block.size


cdef inline void mid_free(mid_t* mid, uint32_t index, owner_t owner, uint32_t batch) noexcept nogil:
    mid.used -= mid.block[index].size
    if mid.pages != NULL:
        mid.gaps -= mid.block[index].role.live.gap
    free_merged(mid, index, owner, batch)


cdef inline uint32_t free_merged(mid_t* mid, uint32_t index, owner_t owner, uint32_t batch) noexcept nogil:
    """Insert a block, merged with the free neighbours of the same owner; the index of the result."""
    cdef mid_block_t* block = &mid.block[index]
    if is_mergeable(mid, block.after, owner):
        batch = later_batch(batch, mid.block[block.after].batch)
        free_remove(mid, block.after)
        mid_absorb_next(mid, index)
    if is_mergeable(mid, block.before, owner):
        index = block.before
        batch = later_batch(batch, mid.block[index].batch)
        free_remove(mid, index)
        mid_absorb_next(mid, index)
    free_insert(mid, index, owner, batch)
    return index


cdef inline bint is_mergeable(const mid_t* mid, uint32_t index, owner_t owner) noexcept nogil:
    return mid.block[index].state == MID_FREE and mid.block[index].owner == owner


cdef inline void free_insert(mid_t* mid, uint32_t index, owner_t owner, uint32_t batch) noexcept nogil:
    cdef mid_block_t* block = &mid.block[index]
    block.state = MID_FREE
    block.owner = owner
    block.batch = batch
    mid.free_blocks += 1
    if owner != NOBODY:
        mid.owned += block.size
    trie_insert(mid, &mid.bins[owner], index)


cdef inline void free_remove(mid_t* mid, uint32_t index) noexcept nogil:
    cdef const mid_block_t* block = &mid.block[index]
    mid.free_blocks -= 1
    if block.owner != NOBODY:
        mid.owned -= block.size
    if is_leaf(mid, index):
        trie_cut(mid, index)
    else:
        trie_replace(mid, index)


cdef inline uint32_t mid_split(mid_t* mid, uint32_t index, uint32_t offset) noexcept nogil:
    """Cut a block in two at `offset`: the new upper part's index. Needs one reserved record."""
    cdef uint32_t made = record_make(mid)
    cdef mid_block_t* block = &mid.block[index]
    cdef mid_block_t* upper = &mid.block[made]
    upper.offset = offset
    upper.owner = block.owner
    upper.batch = block.batch
    upper.size = block.offset + block.size - offset
    upper.before = index
    upper.after = block.after
    block.size -= upper.size
    block.after = made
    if upper.after != NO_MID:
        mid.block[upper.after].before = made
    return made


cdef inline void mid_absorb_next(mid_t* mid, uint32_t index) noexcept nogil:
    """Merge a block with the one above it."""
    cdef mid_block_t* block = &mid.block[index]
    cdef uint32_t gone = block.after
    block.size += mid.block[gone].size
    block.after = mid.block[gone].after
    if block.after != NO_MID:
        mid.block[block.after].before = index
    record_return(mid, gone)


cdef inline uint32_t record_make(mid_t* mid) noexcept nogil:
    """Return the index of an unused record; mid_reserve() has made sure that there is one."""
    cdef uint32_t* spare = &mid.spare[mid.side]
    cdef uint32_t index
    if spare[0] == NO_MID:
        mid_more_records(mid)
    index = spare[0]
    spare[0] = mid.block[index].after
    mid.spares -= 1
    return index


cdef inline void record_return(mid_t* mid, uint32_t index) noexcept nogil:
    cdef mid_block_t* record = &mid.block[index]
    record.state = MID_SPARE
    record.after = mid.spare[record.side]
    mid.spare[record.side] = index
    mid.spares += 1
