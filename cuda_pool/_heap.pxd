"""A heap: what guards the slabs of one owner, so that threads on different streams do not wait for each other."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._lock cimport lock_t

cdef enum:
    HEAP_PADDING = 12               # words that make a heap two cache lines: one fetches its neighbour, too

ctypedef struct heap_t:
    lock_t lock
    size_t unmarked                 # bytes freed asynchronously, and not counted in the stream's record yet
    size_t spares                   # empty slabs that seats left beside the one of their lists
    uint32_t side                   # of the seat that took the lock last,
    uint32_t turns                  # and how often it was such a one
    uint64_t padding[HEAP_PADDING]
