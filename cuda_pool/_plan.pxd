"""Which moves bring the free memory of a range together: arithmetic on a snapshot, without any lock."""

from libc.stdint cimport uint8_t, uint32_t

# What lies in a range and is not free. Units are those of the mid tier.
ctypedef struct piece_t:
    uint32_t offset
    uint32_t size
    uint32_t movable                # number of its record; 0: it stays where it is
    uint32_t needs                  # units that a movable one takes where it goes
    uint8_t align                   # its start is to be a multiple of 1 << align units
    bint settled                    # has got its place
    uint32_t before                 # neighbours in the order of addresses, as they are after the moves so far
    uint32_t after

ctypedef struct move_t:
    uint32_t movable
    uint32_t source
    uint32_t target
    uint32_t needs

# Free units between two pieces.
ctypedef struct gap_t:
    uint32_t start
    uint32_t end
    uint32_t above                  # the piece above it

# The range is [low, high); moves end in [floor, high). A gap below the floor that does not touch it is worth as much as
# the largest block in it that the buddy tier could make. Pieces stand in the order of addresses from index 1 on,
# between two that stand for the ends of the range.
ctypedef struct plan_t:
    uint32_t low
    uint32_t floor
    uint32_t high
    uint32_t bias                   # alignment is that of offset + bias
    uint32_t run                    # units of the mid tier in one of the buddy tier, a power of two
    piece_t* piece
    uint32_t pieces
    uint32_t capacity
    move_t* move
    uint32_t moves
    uint32_t* candidate             # movable pieces, the largest first, of equal ones the lowest
    uint32_t* next                  # of each candidate: one from there on that has no place yet, or a step towards it
    uint32_t candidates
    gap_t* gap
    uint32_t gaps
    uint32_t largest                # what the largest gap was worth as it was found, in units
    uint32_t reach                  # units that can be free in one piece

cdef void plan_init(plan_t* plan, uint32_t bias, uint32_t run) noexcept nogil
cdef void plan_destroy(plan_t* plan) noexcept nogil
# Make room for so many more pieces; 0 when the host has no memory.
cdef int plan_reserve(plan_t* plan, uint32_t pieces) noexcept nogil
# Append a piece, which lies above all others.
cdef void plan_add(plan_t* plan, uint32_t offset, uint32_t size, uint32_t movable, uint32_t needs,
                   int align) noexcept nogil
# Find out what can be reached, once all pieces are there; 0 when the host has no memory.
cdef int plan_measure(plan_t* plan, uint32_t low, uint32_t floor, uint32_t high) noexcept nogil
# Choose the moves, to be made in their order; each ends in what is free then.
cdef void plan_choose(plan_t* plan) noexcept nogil
