"""Which objects a pickle asks for again, by their numbers in its memo, and how often."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    GETS_MANY = 255         # so often, or more often

# Bit `i` of `bits` is set if the pickle gets object `i`.
#   ranks[w] == number of bits that are set in bits[0 .. w - 1], once gets_settle() has counted them
#   count == number of bits that are set, likewise
#   left[i] == how often object `i` is still to be got, or GETS_MANY, which stays
ctypedef struct gets_t:
    uint64_t* bits
    uint32_t* ranks
    size_t words            # in both arrays; 64 of `left` for each
    size_t count
    uint8_t* left

cdef extern from *:
    int popcount "__builtin_popcountll"(unsigned long long) noexcept nogil

# Note a get of object `number`. The arrays grow up to the highest number, by a fourth more than that needs: they take
# less than two bytes a number. False: the host has no memory. They are the caller's to free, with gets_release().
cdef bint gets_note(gets_t* gets, uint64_t number) noexcept nogil

# Number those that are got, after the last of them; False without host memory.
cdef bint gets_settle(gets_t* gets) noexcept nogil
cdef void gets_release(gets_t* gets) noexcept nogil


# The place of object `number` among those that are got, or -1 if it never is.
cdef inline Py_ssize_t gets_rank(const gets_t* gets, uint64_t number) noexcept nogil:
    cdef uint64_t bit = <uint64_t>1 << (number & 63)
    if number >> 6 >= gets.words or not gets.bits[number >> 6] & bit:
        return -1
    return gets.ranks[number >> 6] + popcount(gets.bits[number >> 6] & (bit - 1))


# Count a get of object `number`, which has a rank; True if it was the last.
cdef inline bint gets_end(gets_t* gets, uint64_t number) noexcept nogil:
    if gets.left[number] == GETS_MANY:
        return False
    gets.left[number] -= 1
    return gets.left[number] == 0
