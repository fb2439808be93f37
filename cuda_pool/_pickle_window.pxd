"""The bytes of a pickle that come next, out of one that is not held whole."""

cimport cython
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

# text[position .. end - 1] are the bytes that come next, and before + position is the place of the first of them.
#   position <= end <= room and before + end <= length
#   text[0] is byte `before` of the pickle, which has `length` bytes
#   at <= before + position: where the instruction at work begins
@cython.final
cdef class Window:
    cdef object pieces
    cdef uint8_t* text
    cdef size_t position, end, room
    cdef uint64_t before, length, at

    cdef int move(self, size_t count) except -1
    cdef int add(self, const uint8_t[::1] piece) except -1
    cdef int resize(self, size_t room) except -1

    # The rest of a line, without its end.
    cdef bytes line(self)
    cdef object error(self, str reason)
    cdef object ended(self)

    cdef inline uint64_t place(self) noexcept:
        return self.before + self.position

    # The next bytes, which are valid until any are asked for again.
    cdef inline const uint8_t* take(self, size_t count) except NULL:
        if count > self.end - self.position:
            self.move(count)
        self.position += count
        return self.text + self.position - count

    # An unsigned number of `width` bytes, up to 8, the least of them first.
    cdef inline uint64_t number(self, size_t width) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t value = 0
        memcpy(&value, self.take(width), width)
        return value
