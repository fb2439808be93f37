"""Mid tier: coalescing blocks of any multiple of 256 bytes, exact best fit.

Free blocks are segregated into bins by size (32 for each power of two), found through a bitmap as in TLSF (Masmano et
al., ECRTS 2004). Inside a bin they form a digital search tree over the key (size, offset) whose nodes are the blocks
themselves (Coffman and Eve, CACM 13(7), 1970; Lea's allocator keeps its large bins the same way). The best fit is the
smallest key that is large enough, so the choice depends on the set of free blocks only, not on the order in which they
were freed. Bookkeeping lies in records outside the memory. What every allocation and free needs is inline, in _trie and
_cut.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cuda_pool._bits cimport log2_floor
from cuda_pool._cut cimport (
    free_insert, free_merged, free_remove, is_mergeable, mark_taken, mid_absorb_next, mid_split, record_make,
    record_return)
from cuda_pool._hostmem cimport host_map, host_unmap
from cuda_pool._owner cimport NOBODY, OWNERS, batch_within, later_batch, view_allows
from cuda_pool._side cimport SIDES
from cuda_pool._trie cimport WORD_BITS, bin_of, child_or_other, find_key, key_path

cdef enum:
    BINS_COLOUR = 11
    RECORDS_COLOUR = 22         # even: a group of records starts with a pair of lines
    RECORDS_SPARE = 512         # beside blocks: record 0, and those that are reserved and not needed
    NO_RECORD = 0x3FFFFFFF      # what a tag can name


cdef int mid_init(mid_t* mid, uint32_t start, uint32_t end, size_t most) noexcept nogil:
    cdef int side
    mid.start = end
    mid.end = end
    mid.used = 0
    mid.owned = 0
    mid.free_blocks = 0
    mid.first = NO_MID
    mid.gap = NO_MID
    mid.owners = NOBODY + 1
    mid.bins = <mid_bins_t*>host_map(OWNERS * sizeof(mid_bins_t), BINS_COLOUR)      # zeros: every root is NO_MID
    mid.capacity = <uint32_t>min(most + RECORDS_SPARE, <size_t>NO_RECORD)
    mid.block = <mid_block_t*>host_map(records_bytes(mid), RECORDS_COLOUR)
    mid.made = 1                # record 0 is NO_MID
    mid.side = 0
    for side in range(SIDES):
        mid.spare[side] = NO_MID
    mid.spares = 0
    mid.good_fit = False
    mid.pages = NULL
    mid.gaps = 0
    mid.gaps_max = 0
    mid.offset_spare = 31 - log2_floor(max(end, 2) - 1)
    if mid.bins == NULL or mid.block == NULL:
        mid_destroy(mid)
        return 0
    if start < end:
        mid_extend(mid, end - start, NOBODY, 0)
    return 1


cdef void mid_destroy(mid_t* mid) noexcept nogil:
    host_unmap(mid.block, records_bytes(mid), RECORDS_COLOUR)
    mid.block = NULL
    host_unmap(mid.bins, OWNERS * sizeof(mid_bins_t), BINS_COLOUR)
    mid.bins = NULL


cdef inline size_t records_bytes(const mid_t* mid) noexcept nogil:
    return <size_t>mid.capacity * sizeof(mid_block_t)


cdef void mid_more_records(mid_t* mid) noexcept nogil:
    """The lowest is the first to be used."""
    cdef uint32_t end = min((mid.made | RECORD_GROUP - 1) + 1, mid.capacity), index = end, other
    cdef int side = 0
    while index != mid.made:
        index -= 1
        mid.block[index].side = <uint8_t>mid.side
        mid.block[index].after = mid.spare[mid.side]
        mid.spare[mid.side] = index
    mid.spares += end - mid.made
    mid.made = end
    if mid.spare[mid.side] != NO_MID:
        return
    while mid.spare[side] == NO_MID:
        side += 1
    other = mid.spare[side]
    mid.spare[side] = NO_MID
    mid.spare[mid.side] = other


cdef uint32_t mid_find(const mid_t* mid, owner_t owner, uint32_t size, int align, uint32_t bias) noexcept nogil:
    cdef uint32_t found = mid_find_key(mid, owner, size, 0), missing
    cdef int looked = 1
    if mid.pages != NULL:
        found = candidate_with_fewest(mid, owner, size, align, bias, &missing)
        return found if missing == 0 else <uint32_t>NO_MID
    while align != 0 and found != NO_MID and not aligned_fits(mid, found, size, align, bias):
        if looked == MID_CANDIDATES:
            return mid_find_key(mid, owner, size + (<uint32_t>1 << align) - 1, 0)   # enough wherever it starts
        found = mid_find_key(mid, owner, mid.block[found].size, mid.block[found].offset + 1)
        looked += 1
    return found


cdef uint32_t mid_find_fewest(const mid_t* mid, owner_t owner, uint32_t size, int align, uint32_t bias,
                              uint32_t* missing) noexcept nogil:
    cdef uint32_t other_missing
    cdef uint32_t found = candidate_with_fewest(mid, owner, size, align, bias, missing), other
    if owner == NOBODY:
        return found
    other = candidate_with_fewest(mid, NOBODY, size, align, bias, &other_missing)
    if other_missing >= missing[0]:
        return found
    missing[0] = other_missing
    return other


cdef uint32_t candidate_with_fewest(const mid_t* mid, owner_t owner, uint32_t size, int align, uint32_t bias,
                                    uint32_t* missing) noexcept nogil:
    """The candidate with the fewest pages missing; the best fit of those with equally few."""
    cdef uint32_t found = mid_find_key(mid, owner, size, 0), best = NO_MID
    cdef int looked = 0
    missing[0] = <uint32_t>-1
    while found != NO_MID and missing[0] != 0 and looked < MID_CANDIDATES:
        note_fewest(mid, found, size, align, bias, &best, missing)
        found = mid_find_key(mid, owner, mid.block[found].size, mid.block[found].offset + 1)
        looked += 1
    return best


cdef uint32_t mid_find_any(const mid_t* mid, owner_t owner, uint32_t size, int align, uint32_t bias,
                           uint32_t* needed) noexcept nogil:
    """Whole pages of a free block count; those at its ends, which it shares with what is used, are there anyhow."""
    cdef uint32_t at = mid.first, best = NO_MID, whole
    needed[0] = <uint32_t>-1
    while at != NO_MID:
        if (mid.block[at].state == MID_FREE and mid.block[at].owner in (NOBODY, owner) and mid.block[at].size >= size
                and aligned_fits(mid, at, size, align, bias)):
            whole = whole_pages(mid, &mid.block[at], mid_cut_start(mid, &mid.block[at], size, align, bias), size)
            if whole < needed[0]:
                best = at
                needed[0] = whole
        at = mid.block[at].after
    return best


cdef uint32_t whole_pages(const mid_t* mid, const mid_block_t* block, uint32_t start, uint32_t size) noexcept nogil:
    """Pages that lie in the free block with all of their bytes, and of which a place in it takes something."""
    cdef uint32_t page = page_units(mid.pages)
    cdef uint32_t first = max(start // page, (block.offset + page - 1) // page)
    cdef uint32_t end = min((start + size - 1) // page + 1, (block.offset + block.size) // page)
    return end - first if end > first else 0


cdef inline void note_fewest(const mid_t* mid, uint32_t index, uint32_t size, int align, uint32_t bias, uint32_t* best,
                             uint32_t* missing) noexcept nogil:
    cdef uint32_t lacking
    if not aligned_fits(mid, index, size, align, bias):
        return
    lacking = units_missing(mid, mid_cut_start(mid, &mid.block[index], size, align, bias), size)
    if lacking < missing[0]:
        best[0] = index
        missing[0] = lacking


cdef uint32_t mid_find_exact(const mid_t* mid, owner_t owner, uint32_t size, uint32_t offset) noexcept nogil:
    cdef uint32_t found = mid_find_key(mid, owner, size, offset)
    return found if mid.block[found].size == size and mid.block[found].offset == offset else NO_MID


cdef uint32_t mid_find_allowed(const mid_t* mid, const view_t* view, uint32_t size, int align,
                               uint32_t bias) noexcept nogil:
    cdef uint32_t best = NO_MID, found
    cdef int owner
    for owner in range(NOBODY + 1, mid.owners):
        found = mid_find(mid, <owner_t>owner, size, align, bias) if owner != view.owner else NO_MID
        if found != NO_MID and is_allowed(mid, found, view):
            if best == NO_MID or mid.block[found].size < mid.block[best].size:
                best = found
    return best


cdef uint32_t mid_join(mid_t* mid, const view_t* view, uint32_t size, int align, uint32_t bias) noexcept nogil:
    """Join only what the request needs, at the high end of the run: that is where mid_take() cuts."""
    cdef uint32_t length, at, end
    cdef uint32_t first = find_run(mid, view, size, align, bias, &length)
    if first == NO_MID:
        return NO_MID
    end = mid.block[first].offset + length
    at = block_at(mid, first, aligned_start(end - size, align, bias))
    join_run(mid, at, end, view)
    return at


cdef uint32_t block_at(mid_t* mid, uint32_t index, uint32_t offset) noexcept nogil:
    """Find the block from `index` up that starts at `offset`: cut a free one in two where none does."""
    cdef mid_block_t* block = &mid.block[index]
    while block.offset + block.size <= offset:
        index = block.after
        block = &mid.block[index]
    if block.offset == offset:
        return index
    free_remove(mid, index)
    mid_split(mid, index, offset)
    free_insert(mid, index, block.owner, block.batch)
    index = block.after
    free_insert(mid, index, block.owner, block.batch)
    return index


cdef bint mid_could_join(const mid_t* mid, const view_t* view, uint32_t size, int align, uint32_t bias) noexcept nogil:
    cdef uint32_t length
    return find_run(mid, view, size, align, bias, &length) != NO_MID


cdef uint32_t find_run(const mid_t* mid, const view_t* view, uint32_t size, int align, uint32_t bias,
                       uint32_t* length) noexcept nogil:
    """Find the smallest run of allowed neighbours that holds the request: its first block, and its units."""
    cdef uint32_t at = mid.first, first = NO_MID, best = NO_MID, units = 0
    length[0] = <uint32_t>-1
    while at != NO_MID:
        if not is_allowed(mid, at, view):
            at = mid.block[at].after
            continue
        first = at
        units = 0
        while is_allowed(mid, at, view):
            units += mid.block[at].size
            at = mid.block[at].after
        if (size <= units < length[0] and run_fits(mid.block[first].offset, units, size, align, bias)
                and is_run_ready(mid, mid.block[first].offset + units, size, align, bias)):
            best = first
            length[0] = units
    return best


cdef inline bint is_run_ready(const mid_t* mid, uint32_t end, uint32_t size, int align, uint32_t bias) noexcept nogil:
    return mid.pages == NULL or units_missing(mid, aligned_start(end - size, align, bias), size) == 0


cdef uint32_t mid_take(mid_t* mid, uint32_t found, uint32_t size, int align, uint32_t bias,
                       mid_state_t state) noexcept nogil:
    cdef mid_block_t* block = &mid.block[found]
    cdef uint32_t end = block.offset + block.size
    cdef uint32_t start = mid_cut_start(mid, block, size, align, bias)
    cdef uint32_t high = aligned_start(end - size, align, bias)
    cdef uint32_t gap = high - start if mid.pages != NULL and start == whole_start(mid, block, size, high) else 0
    free_remove(mid, found)
    if start + size < end:
        mid_split(mid, found, start + size)
        free_insert(mid, block.after, block.owner, block.batch)
    if start > block.offset:
        found = mid_split(mid, found, start)
        free_insert(mid, mid.block[found].before, block.owner, block.batch)
    mark_taken(mid, found, state, gap)
    return found


cdef uint32_t mid_take_exact(mid_t* mid, const view_t* view, uint32_t near, uint32_t start, uint32_t size,
                             mid_state_t state) noexcept nogil:
    cdef uint32_t end = start + size, at
    if end > mid.end:
        return NO_MID
    while mid.block[near].offset + mid.block[near].size <= start:
        near = mid.block[near].after
    at = near
    while at != NO_MID and mid.block[at].offset < end:
        if not is_allowed(mid, at, view):
            return NO_MID
        at = mid.block[at].after
    at = block_at(mid, near, start)
    if end < mid.end:
        block_at(mid, at, end)
    if mid.block[at].size < size or mid.block[at].owner not in (NOBODY, view.owner):
        join_run(mid, at, end, view)
    return mid_take(mid, at, size, 0, 0, state)


cdef void mid_adopt(mid_t* mid, const view_t* view) noexcept nogil:
    cdef uint32_t at = mid.first
    if mid.owned == 0 and view.owner == NOBODY:
        return
    while at != NO_MID:
        if mid.block[at].owner != view.owner and is_allowed(mid, at, view):
            free_remove(mid, at)
            at = free_merged(mid, at, view.owner, view.batch)
        at = mid.block[at].after


cdef void mid_pass_on(mid_t* mid, owner_t owner, uint32_t limit, owner_t to, uint32_t batch) noexcept nogil:
    cdef uint32_t at = mid.first
    cdef mid_block_t* block
    if mid_has_none(mid, owner):
        return
    while at != NO_MID:
        block = &mid.block[at]
        if block.state == MID_FREE and block.owner == owner and batch_within(block.batch, limit):
            free_remove(mid, at)
            at = free_merged(mid, at, to, batch)
        at = mid.block[at].after


cdef void mid_rename(mid_t* mid, owner_t owner, owner_t to, uint32_t batch) noexcept nogil:
    cdef uint32_t at = mid.first
    while at != NO_MID:
        if mid.block[at].state != MID_FREE and mid.block[at].owner == owner:
            mid.block[at].owner = to
            mid.block[at].batch = batch
        at = mid.block[at].after


cdef void mid_extend(mid_t* mid, uint32_t size, owner_t owner, uint32_t batch) noexcept nogil:
    cdef uint32_t index = mid.first
    mid.start -= size
    if is_mergeable(mid, index, owner):
        batch = later_batch(batch, mid.block[index].batch)
        free_remove(mid, index)
    else:
        index = record_make(mid)
        mid.block[index].size = 0
        mid.block[index].before = NO_MID
        mid.block[index].after = mid.first
        if mid.first != NO_MID:
            mid.block[mid.first].before = index
        mid.first = index
    mid.block[index].offset = mid.start
    mid.block[index].size += size
    free_insert(mid, index, owner, batch)


cdef uint32_t mid_edge(const mid_t* mid, owner_t owner) noexcept nogil:
    return mid.block[mid.first].size if is_mergeable(mid, mid.first, owner) else 0


cdef uint32_t mid_allowed_edge(const mid_t* mid, const view_t* view) noexcept nogil:
    cdef uint32_t at = mid.first, units = 0
    while is_allowed(mid, at, view):
        units += mid.block[at].size
        at = mid.block[at].after
    return units


cdef void mid_shrink(mid_t* mid, uint32_t size) noexcept nogil:
    cdef uint32_t index = mid.first
    cdef mid_block_t* block = &mid.block[index]
    if size == 0:
        return
    free_remove(mid, index)
    mid.start += size
    if block.size > size:
        block.offset += size
        block.size -= size
        free_insert(mid, index, block.owner, block.batch)
        return
    mid.first = block.after
    if mid.first != NO_MID:
        mid.block[mid.first].before = NO_MID
    record_return(mid, index)


cdef uint32_t mid_largest(const mid_t* mid, owner_t owner) noexcept nogil:
    cdef const mid_bins_t* bins = &mid.bins[owner]
    cdef int word
    cdef uint32_t node, largest = 0
    if mid_has_none(mid, owner):
        return 0
    word = log2_floor(bins.words)
    node = bins.root[word << WORD_BITS | log2_floor(bins.filled[word])]
    while node != NO_MID:
        largest = max(largest, mid.block[node].size)
        node = child_or_other(&mid.block[node], 1)
    return largest


cdef inline bint is_allowed(const mid_t* mid, uint32_t index, const view_t* view) noexcept nogil:
    """Is a block free, and may the asker use it?"""
    cdef const mid_block_t* block = &mid.block[index]
    return block.state == MID_FREE and view_allows(view, block.owner, block.batch)


cdef void join_run(mid_t* mid, uint32_t first, uint32_t end, const view_t* view) noexcept nogil:
    """Make one free block of those from `first` to `end`: the asker's, which is behind all of their work.

    Below it there may be more of the asker's: it is taken at once, so nobody sees two neighbours of one owner.
    """
    cdef mid_block_t* block = &mid.block[first]
    free_remove(mid, first)
    while block.offset + block.size < end:
        free_remove(mid, block.after)
        mid_absorb_next(mid, first)
    free_insert(mid, first, view.owner, view.batch)


cdef uint32_t mid_find_key(const mid_t* mid, owner_t owner, uint32_t size, uint32_t offset) noexcept nogil:
    return find_key(mid, owner, size, offset)


cdef inline bint aligned_fits(const mid_t* mid, uint32_t index, uint32_t size, int align, uint32_t bias) noexcept nogil:
    return run_fits(mid.block[index].offset, mid.block[index].size, size, align, bias)


cdef const char* mid_check(const mid_t* mid) noexcept nogil:
    cdef uint64_t free_blocks = 0, in_tries = 0
    cdef const char* broken = tiling_check(mid, &free_blocks)
    cdef int owner
    for owner in range(mid.owners):
        if broken == NULL:
            broken = bins_check(mid, <owner_t>owner, &in_tries)
    if broken == NULL and free_blocks != mid.free_blocks:
        broken = b"mid: free_blocks differs from the free blocks"
    if broken == NULL and in_tries != free_blocks:
        broken = b"mid: a free block is not in exactly one trie"
    return records_check(mid) if broken == NULL else broken


cdef const char* records_check(const mid_t* mid) noexcept nogil:
    cdef uint32_t index, spares = 0
    cdef int side
    for side in range(SIDES):
        index = mid.spare[side]
        while index != NO_MID and spares <= mid.spares:
            if mid.block[index].state != MID_SPARE:
                return b"mid: a record that is used is on a chain of those that are not"
            spares += 1
            index = mid.block[index].after
    if spares != mid.spares:
        return b"mid: spares is not the number of records on the chains"
    for index in range(2, mid.made):
        if index % RECORD_GROUP != 0 and mid.block[index].side != mid.block[index - 1].side:
            return b"mid: a group of records is of two sides"
    return NULL


cdef const char* tiling_check(const mid_t* mid, uint64_t* free_blocks) noexcept nogil:
    cdef uint32_t index = mid.first, before = NO_MID, at = mid.start
    cdef uint64_t used = 0, owned = 0, gaps = 0
    cdef const mid_block_t* block
    while index != NO_MID:
        block = &mid.block[index]
        if block.offset != at or block.before != before or block.size == 0 or block.state == MID_SPARE:
            return b"mid: the blocks do not tile the range"
        if block.state == MID_FREE and is_mergeable(mid, before, block.owner):
            return b"mid: two free neighbours of one owner were not merged"
        free_blocks[0] += block.state == MID_FREE
        used += 0 if block.state == MID_FREE else block.size
        gaps += block.role.live.gap if mid.pages != NULL and block.state != MID_FREE else 0
        owned += block.size if block.state == MID_FREE and block.owner != NOBODY else 0
        at += block.size
        before = index
        index = block.after
    if at != mid.end:
        return b"mid: the blocks do not tile the range"
    if used != mid.used or owned != mid.owned:
        return b"mid: used + free != end - start, or owned is wrong"
    if gaps != mid.gaps or gaps > mid.gaps_max:
        return b"mid: gaps != sum of the blocks' gaps, or > gaps_max"
    return NULL


cdef const char* bins_check(const mid_t* mid, owner_t owner, uint64_t* count) noexcept nogil:
    cdef const mid_bins_t* bins = &mid.bins[owner]
    cdef const char* broken
    cdef int bin, word
    for word in range(MID_WORDS):
        if (bins.words >> word & 1) != (bins.filled[word] != 0):
            return b"mid: a bit of words disagrees with its word"
    for bin in range(MID_BINS):
        if (bins.filled[bin >> WORD_BITS] >> (bin & 63) & 1) != (bins.root[bin] != NO_MID):
            return b"mid: a bit of filled disagrees with its root"
        broken = trie_check(mid, owner, bin, count)
        if broken != NULL:
            return broken
    return NULL


cdef const char* trie_check(const mid_t* mid, owner_t owner, int bin, uint64_t* count) noexcept nogil:
    """Walk one trie depth first, along the parent links: the way up is compared bit by bit."""
    cdef uint32_t node = mid.bins[owner].root[bin], came = NO_MID
    cdef const mid_block_t* block
    cdef const mid_node_t* links
    while node != NO_MID:
        block = &mid.block[node]
        links = &block.role.node
        if came == links.parent:                        # first visit, from above
            if block.state != MID_FREE or block.owner != owner or bin_of(block.size) != bin:
                return b"mid: a block in a trie is not free, not the owner's, or in the wrong bin"
            if links.bin != (FREE_NODE | <uint32_t>bin):
                return b"mid: a free block may be taken for a live one"
            if owner == NOBODY and block.batch != 0:
                return b"mid: a block of nobody's has a batch"
            if not trie_place_check(mid, node):
                return b"mid: a trie does not follow the bits of its keys"
            count[0] += 1
            if count[0] > mid.made:
                return b"mid: a trie has a cycle"
            if links.child[0] != NO_MID:
                came, node = node, links.child[0]
                continue
            came = NO_MID
        if came == links.child[0] and links.child[1] != NO_MID:
            came, node = node, links.child[1]
            continue
        came, node = node, links.parent
    return NULL


cdef bint trie_place_check(const mid_t* mid, uint32_t node) noexcept nogil:
    """Is every ancestor's link towards `node` the one that the node's key says?"""
    cdef uint32_t at = node, parent = mid.block[node].role.node.parent
    cdef uint64_t path = key_path(mid, mid.block[node].size, mid.block[node].offset)
    cdef int depth = 0
    while parent != NO_MID:
        depth += 1
        parent = mid.block[parent].role.node.parent
        if depth > 64:
            return False
    while depth > 0:
        depth -= 1
        parent = mid.block[at].role.node.parent
        if mid.block[parent].role.node.child[path << depth >> 63] != at:
            return False
        at = parent
    return True
