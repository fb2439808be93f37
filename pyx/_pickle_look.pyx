"""Find the objects that a pickle asks for again without making any.

The instructions lie one behind the other and none of them jumps, so one look at each is enough; the pickle comes in
pieces, of which none is needed again. The look ends where the pickle does, and where it is damaged or holds what is no
plain data: reading it ends there, too.
"""

from libc.stdint cimport UINT64_MAX, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from cuda_pool._pickle_gets cimport gets_note, gets_settle, gets_t

# What follows an instruction: so many bytes, up to 8, or
cdef enum:
    GET_LINE = 9            # the number of an object, in a line
    LINE = 10
    NO_MORE = 11            # nothing: it is the last one, or none that is read
    GET = 16                # beyond this: the number of an object, in so many bytes
    COUNTED = 32            # beyond this: a length of so many bytes, and what it says

cdef uint8_t[256] KINDS

memset(KINDS, NO_MORE, sizeof(KINDS))
for kind, opcodes in (
        (0, b"(}]ueast)ld012N\x85\x86\x87\x88\x89\x94"), (1, b"qK\x80"), (2, b"M"), (4, b"rJ"), (8, b"G\x95"),
        (GET + 1, b"h"), (GET + 4, b"j"), (GET_LINE, b"g"), (LINE, b"pILFVS"),
        (COUNTED + 1, b"\x8a\x8cU"), (COUNTED + 4, b"\x8bXT"), (COUNTED + 8, b"\x8d")):
    for opcode in opcodes:
        KINDS[<uint8_t>opcode] = kind
del kind, opcodes, opcode


cdef uint64_t look_through(pieces, gets_t* gets) except? 0xFFFFFFFFFFFFFFFF:
    cdef look_t look
    cdef const uint8_t[::1] piece
    cdef size_t length
    cdef bint has_room = True
    memset(&look, 0, sizeof(look_t))
    for piece in pieces:
        length = piece.shape[0]
        if length:
            with nogil:
                has_room = look_on(&look, gets, &piece[0], length)
        if not has_room:
            break
    if not (has_room and gets_settle(gets)):
        raise MemoryError("no host memory to read a pickle")
    return look.seen


cdef bint look_on(look_t* look, gets_t* gets, const uint8_t* text, size_t length) noexcept nogil:
    cdef size_t at = 0
    cdef size_t count
    cdef bint has_room = True
    look.seen += length
    while at < length and look.kind != NO_MORE and has_room:
        if look.skip:
            count = min(look.skip, length - at)
            look.skip -= count
        elif look.kind == 0 and length - at > 8:
            count = look_whole(look, gets, text + at, &has_room)
        else:
            count = 1
            has_room = look_byte(look, gets, text[at])
        at += count
    return has_room


cdef inline size_t look_whole(look_t* look, gets_t* gets, const uint8_t* text, bint* has_room) noexcept nogil:
    """Look at an instruction whose number is in this piece; return how many bytes it has, without what it counts."""
    cdef uint8_t kind = KINDS[text[0]]
    cdef uint64_t number = 0
    if kind <= 8:
        return 1 + kind
    if kind <= NO_MORE:
        look.number = 0
        look.kind = kind
        return 1
    memcpy(&number, text + 1, kind & 15)
    has_room[0] = number_take(look, gets, kind, number)
    return 1 + (kind & 15)


cdef bint look_byte(look_t* look, gets_t* gets, uint8_t byte) noexcept nogil:
    """Look at one byte, of an instruction that may begin in one piece and end in another."""
    cdef uint8_t kind = look.kind
    if kind == 0:
        begin(look, KINDS[byte])
    elif kind == LINE or kind == GET_LINE:
        if byte == c"\n":
            look.kind = 0
            return number_take(look, gets, kind, look.number)
        look.number = with_digit(look.number, byte)
    else:
        look.number |= <uint64_t>byte << 8 * look.have
        look.have += 1
        if look.have == kind & 15:
            look.kind = 0
            return number_take(look, gets, kind, look.number)
    return True


cdef void begin(look_t* look, uint8_t kind) noexcept nogil:
    look.number = 0
    look.have = 0
    if kind <= 8:
        look.skip = kind
    else:
        look.kind = kind


cdef inline bint number_take(look_t* look, gets_t* gets, uint8_t kind, uint64_t number) noexcept nogil:
    """Do what an instruction is for. An object has no number that is above the bytes before it."""
    if kind > COUNTED:
        look.skip = number
    elif kind != LINE and number < look.seen:
        return gets_note(gets, number)
    return True


cdef uint64_t with_digit(uint64_t number, uint8_t byte) noexcept nogil:
    if not c"0" <= byte <= c"9" or number > <uint64_t>1 << 58:
        return UINT64_MAX               # which no object has
    return 10 * number + byte - c"0"
