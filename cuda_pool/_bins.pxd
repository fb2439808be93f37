"""A cache: free slots and blocks that one thread keeps at hand for one stream, so that it needs no lock to reuse them.

To the tiers they are in use. Whoever takes the pool's locks empties all caches first, so that nothing is ever missing.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

from cuda_pool._bits cimport log2_floor
from cuda_pool._driver cimport cudaStream_t
from cuda_pool._mid cimport MID_UNIT, mid_block_t
from cuda_pool._owner cimport owner_t

cdef enum:
    # A bin of slots holds at most bin_bytes() of the pool, and BIN_MOST.
    BIN_LEAST = 2                   # slots, however small the pool is
    BIN_MOST = 64
    BIN_ALIGNMENT = 256             # settings.ALIGNMENT
    BLOCK_ENTRIES = 16              # a bin of blocks of the mid tier holds so many,
    BLOCK_ENTRIES_MOST = 64         # or so many, see _crowd
    BLOCK_SHIFT_LEAST = 12
    BLOCK_SHIFT_MOST = 20
    BLOCK_LEAST = 1 << BLOCK_SHIFT_LEAST    # bytes: blocks from 4 KiB
    BLOCK_MOST = 1 << BLOCK_SHIFT_MOST      # up to 1 MiB
    BLOCK_STEPS = 8                 # bins between a power of two and the next
    BLOCK_BINS = (BLOCK_SHIFT_MOST - BLOCK_SHIFT_LEAST) * BLOCK_STEPS + 1

cdef extern from * nogil:
    """
    #define CUDA_POOL_FRESH 0x40000000u
    #define CUDA_POOL_CACHED ((uint64_t)1 << 63)
    """
    const uint32_t FRESH "CUDA_POOL_FRESH"          # bit of the mark of a slot that was never handed out
    const uint64_t CACHED "CUDA_POOL_CACHED"        # bit of what a cached block says was requested; then the mark

# `record` is a slot_t in a bin of a size class, and a mid_block_t in one of blocks.
ctypedef struct entry_t:
    void* ptr
    void* record

# The last one in is the first out: the entries lie in [floor, top), and there may be some up to `limit`. In a bin of
# blocks there is one below `floor` as well, see bin_holds().
ctypedef struct bin_t:
    entry_t* top
    entry_t* floor
    entry_t* limit
    size_t size                     # bytes of each slot

# Invariants, the last one asserted by pool_check(), which finds all bins empty:
#   floor <= top <= limit in every bin;  not refilled, and nothing freed at the seat  =>  the bins of slots are empty
#   blocks_bytes == sum over the blocks;  blocks_bytes <= blocks_most
#   the record of an entry has the seat's mark, unless the slot was freed twice at one time and is somebody else's
#   with all locks held all bins are empty
ctypedef struct cache_t:
    owner_t owner
    bint by_handle                  # may be meant by its handle alone: the stream is held, or a default one
    uint64_t serial                 # of the owner's record
    cudaStream_t handle
    size_t table_max                # largest request that the table has
    const uint16_t* table           # bytes from `bin` to that for n * SLAB_UNIT bytes at BIN_ALIGNMENT
    size_t slab_max                 # largest request that is a slot's
    bint refilled                   # since it was emptied
    size_t blocks_bytes             # of blocks
    size_t blocks_most
    uint32_t* freed                 # the owner's `freed`: the last batch in which something was
    size_t unmarked                 # bytes freed asynchronously, not yet counted in the heap
    size_t unmarked_most            # from there on the stream wants an event
    int classes
    size_t mapped                   # bytes of host memory; 0: see is_cache()
    int colour
    bin_t block[BLOCK_BINS + 1]     # the last one is always empty
    bin_t bin[1]                    # `classes` of them, one that is always empty, then the table and the entries


cdef inline int block_bin(size_t nbytes) noexcept nogil:
    """The bin whose blocks have from so many bytes on, or from a little less."""
    cdef int shift = log2_floor(nbytes)
    return (shift - BLOCK_SHIFT_LEAST) * BLOCK_STEPS + <int>(nbytes >> (shift - 3) & (BLOCK_STEPS - 1))


cdef inline bint is_cache(const cache_t* cache) noexcept nogil:
    """Is it one, and not what a seat has in its place?"""
    return cache.mapped != 0


cdef inline void cache_limit_blocks(cache_t* cache, size_t most, int entries) noexcept nogil:
    """Let blocks in a cache be at most so many bytes, and so many in a bin; there are no more."""
    cdef int index
    cache.blocks_most = most
    for index in range(BLOCK_BINS):
        cache.block[index].limit = cache.block[index].floor + entries


cdef inline uint32_t bin_count(const bin_t* bin) noexcept nogil:
    return <uint32_t>(bin.top - bin.floor)


cdef inline bint bin_holds(const bin_t* bin, size_t nbytes) noexcept nogil:
    """Is the block that would be taken large enough? In an empty bin that is the one below its floor, without size."""
    return <size_t>(<mid_block_t*>(bin.top - 1).record).size * MID_UNIT >= nbytes
