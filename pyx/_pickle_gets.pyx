"""Find the objects that a pickle asks for again, and how often, without making any.

A pickle puts nearly every object into its memo, in case it is needed again, and few are. Whoever knows them beforehand
can let go of the others as soon as nothing else holds them, and of these after the last time. The instructions lie one
behind the other and none of them jumps, so one look at each is enough. The look ends where the pickle does, and where
it is damaged or holds what is no plain data: reading it ends there, too.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcpy, memset

# What follows an instruction: so many bytes, up to 8, or
cdef enum:
    GET_1 = 9               # the number of an object, in 1 or 4 bytes or a line
    GET_4 = 10
    GET_LINE = 11
    LINE = 12
    NO_MORE = 13            # nothing: it is the last one, or none that is read
    COUNTED = 16            # beyond this: a length of so many bytes, and what it says

cdef uint8_t[256] KINDS

memset(KINDS, NO_MORE, sizeof(KINDS))
for kind, opcodes in (
        (0, b"(}]ueast)ld012N\x85\x86\x87\x88\x89\x94"), (1, b"qK\x80"), (2, b"M"), (4, b"rJ"), (8, b"G\x95"),
        (GET_1, b"h"), (GET_4, b"j"), (GET_LINE, b"g"), (LINE, b"pILFVS"),
        (COUNTED + 1, b"\x8a\x8cU"), (COUNTED + 4, b"\x8bXT"), (COUNTED + 8, b"\x8d")):
    for opcode in opcodes:
        KINDS[<uint8_t>opcode] = kind
del kind, opcodes, opcode


cdef bint gets_find(gets_t* gets, const uint8_t* text, size_t length) noexcept nogil:
    cdef size_t position = 0, first
    cdef uint8_t kind
    if not gets_prepare(gets, length):
        return False
    while position < length:
        kind = KINDS[text[position]]
        first = position + 1
        position = first + (kind if kind <= 8 else arguments_length(kind, text + first, length - first))
        if position <= length and GET_1 <= kind <= GET_LINE:
            get_note(gets, get_number(kind, text + first, position - first))
    return ranks_count(gets)


cdef void gets_release(gets_t* gets) noexcept nogil:
    free(gets.bits)
    free(gets.ranks)
    free(gets.left)
    memset(gets, 0, sizeof(gets_t))


cdef bint gets_prepare(gets_t* gets, size_t length) noexcept nogil:
    memset(gets, 0, sizeof(gets_t))
    gets.words = length // 64 + 1       # memory that is never written to takes none
    gets.bits = <uint64_t*>calloc(gets.words, sizeof(uint64_t))
    gets.left = <uint8_t*>calloc(gets.words, 64)
    return gets.bits != NULL and gets.left != NULL


cdef bint ranks_count(gets_t* gets) noexcept nogil:
    cdef size_t word
    while gets.words > 1 and gets.bits[gets.words - 1] == 0:
        gets.words -= 1
    gets.ranks = <uint32_t*>calloc(gets.words, sizeof(uint32_t))
    if gets.ranks == NULL:
        return False
    for word in range(gets.words):
        gets.ranks[word] = <uint32_t>gets.count
        gets.count += popcount(gets.bits[word])
    return True


cdef void get_note(gets_t* gets, uint64_t number) noexcept nogil:
    if number >> 6 < gets.words:
        gets.bits[number >> 6] |= <uint64_t>1 << (number & 63)
        gets.left[number] += gets.left[number] != GETS_MANY


cdef uint64_t get_number(uint8_t kind, const uint8_t* arguments, size_t count) noexcept nogil:
    """The number of the object that an instruction gets, or one that is beyond all."""
    cdef uint64_t number = 0
    cdef size_t i
    if kind != GET_LINE:
        return number_of(arguments, count)
    for i in range(count - 1):
        if not c"0" <= arguments[i] <= c"9" or number > <uint64_t>1 << 58:
            return ~<uint64_t>0
        number = 10 * number + arguments[i] - c"0"
    return number


cdef size_t arguments_length(uint8_t kind, const uint8_t* arguments, size_t left) noexcept nogil:
    """Bytes that follow an instruction; more than are left if it is the last one, or is cut off."""
    cdef const uint8_t* end
    if kind == GET_1:
        return 1
    if kind == GET_4:
        return 4
    if kind == GET_LINE or kind == LINE:
        end = <const uint8_t*>memchr(arguments, c"\n", left)
        return left + 1 if end == NULL else end - arguments + 1
    return left + 1 if kind == NO_MORE else counted_length(kind - COUNTED, arguments, left)


cdef size_t counted_length(size_t width, const uint8_t* arguments, size_t left) noexcept nogil:
    cdef uint64_t count
    if width > left:
        return left + 1
    count = number_of(arguments, width)
    return left + 1 if count > left - width else width + count


cdef inline uint64_t number_of(const uint8_t* text, size_t width) noexcept nogil:
    cdef uint64_t value = 0
    memcpy(&value, text, width)
    return value
