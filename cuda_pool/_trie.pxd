"""The free blocks of an owner, by size: bins, and in each a digital search tree over the key (size, offset).

A bitmap says which bins have any, as in TLSF (Masmano et al., ECRTS 2004). The nodes of a tree are the blocks' records
(Coffman and Eve, CACM 13(7), 1970). All of it is inline, for whoever allocates and frees.
"""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._bits cimport ctz64, log2_floor
from cuda_pool._mid cimport FREE_NODE, MID_STEPS, NO_MID, mid_bins_t, mid_block_t, mid_node_t, mid_t
from cuda_pool._owner cimport owner_t

cdef enum:
    STEP_BITS = 5               # 1 << STEP_BITS == MID_STEPS
    WORD_BITS = 6


cdef inline int bin_of(uint32_t size) noexcept nogil:
    cdef int power = log2_floor(size)
    return (power << STEP_BITS) - MID_STEPS + <int>((<uint64_t>size << STEP_BITS) >> power)


cdef inline int next_bin(const mid_bins_t* bins, int bin) noexcept nogil:
    """First non-empty bin after `bin`, or -1."""
    cdef int word = bin >> WORD_BITS
    cdef uint64_t bits = bins.filled[word] & ~<uint64_t>1 << (bin & 63), words
    if bits == 0:
        words = bins.words & ~<uint64_t>1 << word
        if words == 0:
            return -1
        word = ctz64(words)
        bits = bins.filled[word]
    return word << WORD_BITS | ctz64(bits)


cdef inline uint64_t block_key(const mid_block_t* block) noexcept nogil:
    return <uint64_t>block.size << 32 | block.offset


cdef inline uint64_t key_path(const mid_t* mid, uint32_t size, uint32_t offset) noexcept nogil:
    """Return the key without the bits that all blocks of its bin share at the top, and no offset has at its top."""
    cdef int power = log2_floor(size)
    cdef int shared = 32 - (power - STEP_BITS if power > STEP_BITS else 0)
    return (<uint64_t>size << 32 | offset << mid.offset_spare) << shared


cdef inline uint32_t find_key(const mid_t* mid, owner_t owner, uint32_t size, uint32_t offset) noexcept nogil:
    """Return the owner's free block with the smallest key of at least (size, offset); NO_MID if there is none."""
    cdef const mid_bins_t* bins = &mid.bins[owner]
    cdef int bin = bin_of(size), above = next_bin(bins, bin)
    cdef uint32_t found = NO_MID
    if bins.root[bin] != NO_MID and not (mid.good_fit and above >= 0):
        found = trie_lower_bound(mid, bins, bin, size, offset)
    if found != NO_MID or above < 0:
        return found
    found = bins.root[above]
    return found if mid.good_fit or is_leaf(mid, found) else trie_smallest(mid, found, NO_MID)


cdef inline uint32_t trie_lower_bound(const mid_t* mid, const mid_bins_t* bins, int bin, uint32_t size,
                               uint32_t offset) noexcept nogil:
    """Return the block of the bin with the smallest key of at least (size, offset).

    The walk follows the bits of that key. What is larger hangs to the right of the walk, the smallest of it in the
    last subtree passed on that side.
    """
    cdef uint32_t node = bins.root[bin]
    cdef uint32_t best = NO_MID, larger = NO_MID, right
    cdef uint64_t path = key_path(mid, size, offset), best_key = <uint64_t>-1
    cdef uint64_t least = <uint64_t>size << 32 | offset
    cdef const mid_block_t* block
    while node != NO_MID:
        block = &mid.block[node]
        if least <= block_key(block) < best_key:
            best = node
            best_key = block_key(block)
        right = block.role.node.child[1]
        if path >> 63 == 0 and right != NO_MID:
            larger = right
        node = block.role.node.child[path >> 63]
        path <<= 1
    return best if larger == NO_MID else trie_smallest(mid, larger, best)


cdef inline uint32_t trie_smallest(const mid_t* mid, uint32_t node, uint32_t best) noexcept nogil:
    """Return the block with the smallest key among `best` and the subtree of `node`."""
    cdef uint64_t best_key = <uint64_t>-1 if best == NO_MID else block_key(&mid.block[best])
    while node != NO_MID:
        if block_key(&mid.block[node]) < best_key:
            best = node
            best_key = block_key(&mid.block[node])
        node = child_or_other(&mid.block[node], 0)
    return best


cdef inline bint is_leaf(const mid_t* mid, uint32_t node) noexcept nogil:
    return mid.block[node].role.node.child[0] | mid.block[node].role.node.child[1] == 0


cdef inline uint32_t child_or_other(const mid_block_t* block, int side) noexcept nogil:
    cdef uint32_t child = block.role.node.child[side]
    return child if child != NO_MID else block.role.node.child[1 - side]


cdef inline void trie_insert(mid_t* mid, mid_bins_t* bins, uint32_t index) noexcept nogil:
    cdef mid_block_t* block = &mid.block[index]
    cdef int bin = bin_of(block.size)
    cdef uint32_t* link = &bins.root[bin]
    cdef uint32_t parent = NO_MID
    cdef uint64_t path
    if link[0] == NO_MID:
        bins.filled[bin >> WORD_BITS] |= <uint64_t>1 << (bin & 63)
        bins.words |= <uint64_t>1 << (bin >> WORD_BITS)
    else:
        path = key_path(mid, block.size, block.offset)
        while link[0] != NO_MID:
            parent = link[0]
            link = &mid.block[parent].role.node.child[path >> 63]
            path <<= 1
    link[0] = index
    block.role.node.parent = parent
    block.role.node.child[0] = NO_MID
    block.role.node.child[1] = NO_MID
    block.role.node.bin = FREE_NODE | <uint32_t>bin


cdef inline void trie_cut(mid_t* mid, uint32_t leaf) noexcept nogil:
    """Take a leaf out of its trie."""
    cdef const mid_block_t* block = &mid.block[leaf]
    cdef uint32_t bin = block.role.node.bin & ~FREE_NODE
    cdef mid_bins_t* bins
    cdef mid_node_t* parent
    if block.role.node.parent != NO_MID:
        parent = &mid.block[block.role.node.parent].role.node
        parent.child[parent.child[1] == leaf] = NO_MID
    else:
        bins = &mid.bins[block.owner]
        bins.root[bin] = NO_MID
        bins.filled[bin >> WORD_BITS] &= ~(<uint64_t>1 << (bin & 63))
        if bins.filled[bin >> WORD_BITS] == 0:
            bins.words &= ~(<uint64_t>1 << (bin >> WORD_BITS))


cdef inline void trie_replace(mid_t* mid, uint32_t index) noexcept nogil:
    """Take an inner node out of its trie; a leaf below it, which shares its prefix, moves into its place."""
    cdef mid_block_t* block = &mid.block[index]
    cdef mid_node_t* parent
    cdef uint32_t leaf = index, child = child_or_other(block, 1)
    while child != NO_MID:
        leaf = child
        child = child_or_other(&mid.block[leaf], 1)
    trie_cut(mid, leaf)
    if block.role.node.parent != NO_MID:
        parent = &mid.block[block.role.node.parent].role.node
        parent.child[parent.child[1] == index] = leaf
    else:
        mid.bins[block.owner].root[block.role.node.bin & ~FREE_NODE] = leaf
    mid.block[leaf].role.node = block.role.node
    for side in range(2):
        child = block.role.node.child[side]
        if child != NO_MID:
            mid.block[child].role.node.parent = leaf
