"""The objects that a pickle asks for again, and how often.

A pickle puts nearly every object into its memo, in case it is needed again, and few are. Whoever knows them beforehand
can let go of the others as soon as nothing else holds them, and of these after the last time.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

cdef enum:
    WORDS_MIN = 64


cdef bint gets_note(gets_t* gets, uint64_t number) noexcept nogil:
    if number >> 6 >= gets.words and not gets_reach(gets, (number >> 6) + 1):
        return False
    gets.bits[number >> 6] |= <uint64_t>1 << (number & 63)
    gets.left[number] += gets.left[number] != GETS_MANY
    return True


cdef bint gets_settle(gets_t* gets) noexcept nogil:
    cdef size_t word
    free(gets.ranks)
    gets.count = 0
    gets.ranks = <uint32_t*>calloc(gets.words + 1, sizeof(uint32_t))
    if gets.ranks == NULL:
        return False
    for word in range(gets.words):
        gets.ranks[word] = <uint32_t>gets.count
        gets.count += popcount(gets.bits[word])
    return True


cdef void gets_release(gets_t* gets) noexcept nogil:
    free(gets.bits)
    free(gets.ranks)
    free(gets.left)
    memset(gets, 0, sizeof(gets_t))


cdef bint gets_reach(gets_t* gets, size_t words) noexcept nogil:
    """Make the arrays longer, with nothing got in what is new."""
    words += words // 4 + WORDS_MIN
    if not (extend(<void**>&gets.bits, gets.words, words, sizeof(uint64_t))
            and extend(<void**>&gets.left, gets.words, words, 64)):
        return False
    gets.words = words
    return True


cdef bint extend(void** items, size_t count, size_t wanted, size_t width) noexcept nogil:
    cdef void* moved = realloc(items[0], wanted * width)
    if moved == NULL:
        return False
    items[0] = moved
    memset(<char*>moved + count * width, 0, (wanted - count) * width)
    return True
