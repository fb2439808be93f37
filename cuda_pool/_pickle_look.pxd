"""A first look at a pickle, which finds what it gets out of its memo."""

from libc.stdint cimport uint8_t, uint64_t

from cuda_pool._pickle_gets cimport gets_t

# How far the look has come. It may stand anywhere in an instruction, as the pickle comes in pieces.
#   seen == bytes of all pieces so far
#   skip == bytes that are passed over before anything else
#   kind == what the number or line is for that is being read, NO_MORE after the last instruction, or 0: the next byte
#           is an instruction. number == what `have` bytes of it say
ctypedef struct look_t:
    uint64_t seen, skip, number
    uint8_t kind, have

# Look at the next piece. False: the host has no memory.
cdef bint look_on(look_t* look, gets_t* gets, const uint8_t* text, size_t length) noexcept nogil

# Look at all pieces, and settle `gets`; return the number of bytes.
cdef uint64_t look_through(pieces, gets_t* gets) except? 0xFFFFFFFFFFFFFFFF
