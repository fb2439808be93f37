"""Read a pickle that comes in pieces, of which no more are held than the instruction at work needs.

What a pickle says of the length of a string is not believed: it is compared with what is left, and the window grows as
the bytes come. After a long one it is small again.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcpy, memmove

from cuda_pool.errors import TraceError

PIECE = 1 << 20             # bytes of a piece of a pickle in memory

cdef enum:
    ROOM_KEPT = 4 << 20     # bytes


@cython.final
cdef class Window:
    """The bytes of a pickle that come next; it belongs to one thread.

    Parameters
    ----------
    pieces : iterable of bytes-like
        The pickle, in order.
    length : int
        Bytes of all of them; what there is beyond is not read.
    """

    def __cinit__(self, pieces, uint64_t length):
        self.pieces = iter(pieces)
        self.length = length
        self.resize(1)                  # so that even the end of an empty pickle has an address

    def __dealloc__(self):
        PyMem_RawFree(self.text)

    cdef bytes line(self):
        cdef size_t seen = 0
        cdef const uint8_t* first
        cdef const uint8_t* end = NULL
        while end == NULL:
            first = self.text + self.position
            end = <const uint8_t*>memchr(first + seen, c"\n", self.end - self.position - seen)
            if end == NULL:
                seen = self.end - self.position
                if self.before + self.end == self.length:
                    raise self.error("the pickle is truncated: a line has no end")
                self.move(seen + 1)
        self.position += end - first + 1
        return first[:end - first]

    cdef int move(self, size_t count) except -1:
        """Move on until `count` bytes are there."""
        if count > self.length - self.place():
            raise self.ended()
        memmove(self.text, self.text + self.position, self.end - self.position)
        self.before += self.position
        self.end -= self.position
        self.position = 0
        if self.room > ROOM_KEPT >= count and self.end < ROOM_KEPT:
            self.resize(ROOM_KEPT)
        while self.end < count:
            piece = next(self.pieces, None)
            if piece is None:           # the file is shorter than it was
                raise self.ended()
            self.add(piece)
        return 0

    cdef int add(self, const uint8_t[::1] piece) except -1:
        cdef size_t count = min(<uint64_t>piece.shape[0], self.length - self.before - self.end)
        if self.end + count > self.room:
            self.resize(max(self.end + count, self.room + self.room // 4))
        if count:
            memcpy(self.text + self.end, &piece[0], count)
        self.end += count
        return 0

    cdef int resize(self, size_t room) except -1:
        cdef void* moved = PyMem_RawRealloc(self.text, room)
        if moved == NULL:
            raise MemoryError(f"no host memory for {room} bytes of a pickle")
        self.text = <uint8_t*>moved
        self.room = room
        return 0

    cdef object error(self, str reason):
        return TraceError(None, reason, f"byte {self.at}")

    cdef object ended(self):
        return self.error("the pickle is truncated: it ends within an instruction")


def pieces_of(text not None, Py_ssize_t size=PIECE):
    """Yield what is in memory already, in pieces of up to `size` bytes."""
    whole = memoryview(text)
    for first in range(0, len(whole), size):
        yield whole[first:first + size]
