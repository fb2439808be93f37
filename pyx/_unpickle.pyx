# cython: wraparound=True, boundscheck=True
"""Read a pickle of plain data: dicts, lists, tuples, numbers, strings, True, False and None.

A pickle is a program for a small stack machine, part of which can import and call anything. This machine has only the
instructions that make plain data, so nothing can run; an instruction that would is refused by name. Memory is bounded
by the length of the pickle, too: lengths and memo numbers in it are not believed, and what is made is counted. Objects
that are not asked for again are not kept in case they are.

The pickle is read twice, in pieces, and is never held whole: a first look finds what is asked for again. Reading it
ends with the right result or an error if it is another one the second time.

The instructions are those of CPython's ``pickletools`` module, protocols 0 to 5.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

import functools
import gc
import struct

from cuda_pool._pickle_gets cimport gets_end, gets_rank, gets_release
from cuda_pool._pickle_look cimport look_through
from cuda_pool._pickle_window cimport Window

from cuda_pool._pickle_window import pieces_of
from cuda_pool.errors import TraceError
from cuda_pool.sizes import shown

MEMORY_MIN = 64 << 20       # bytes of Python objects that any pickle may make
MEMORY_PER_BYTE = 24        # and for each of its own bytes; a snapshot takes 5, and segments that cannot be packed 16
DIGITS_MAX = 40             # of a number in text
KEY_MAX = 1 << 63           # integers that are keys of a dict; larger ones can be made to share a hash

NO_VALUE = "the pickle is damaged: an instruction finds no value"
NO_TEXT = "a string is damaged: it is not UTF-8"
ACCEPTED = "expected plain dicts, lists, tuples, numbers, strings, True, False and None"
OPCODES = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x69: "INST", 0x6f: "OBJ", 0x52: "REDUCE", 0x62: "BUILD", 0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x50: "PERSID", 0x51: "BINPERSID", 0x42: "BINBYTES",
    0x43: "SHORT_BINBYTES", 0x8e: "BINBYTES8", 0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
    0x8f: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET",
}

cdef object MARK = object()


cdef class PlainUnpickler:
    """Read one pickle of plain data.

    Parameters
    ----------
    pieces : callable
        Returns an iterable of bytes-like objects, the pickle from its beginning; it is called twice. What follows the
        end of the pickle is refused.

    Attributes
    ----------
    length : int
        Bytes of the pickle, once it was looked at.
    """

    def __cinit__(self, pieces not None):
        self.pieces = pieces
        self.stack = []

    def __dealloc__(self):
        gets_release(&self.gets)

    def load(self):
        """Return what the pickle holds.

        Raises
        ------
        TraceError
            It is damaged, or holds anything else than plain data; `place` is the byte.
        MemoryError
            The host has no memory for it.
        """
        gets_release(&self.gets)
        self.length = look_through(self.pieces(), &self.gets)
        self.most = MEMORY_MIN + MEMORY_PER_BYTE * self.length
        self.window = Window(self.pieces(), self.length)
        self.memo = [MARK] * <Py_ssize_t>self.gets.count
        collects = gc.isenabled()
        gc.disable()                    # it would look through all that was made so far, again and again
        try:
            return self.run()
        finally:
            if collects:
                gc.enable()

    cdef object run(self):
        cdef uint8_t opcode
        while True:
            self.window.at = self.window.place()
            opcode = self.window.take(1)[0]
            if self.step_common(opcode):
                continue
            if opcode == c".":
                return self.result()
            if not (self.step_structure(opcode) or self.step_memo(opcode) or self.step_value(opcode)):
                self.refuse_opcode(opcode)

    cdef object result(self):
        value = self.pop()
        if self.stack:
            raise self.error("the pickle ends with values that belong to nothing")
        if self.window.place() != self.length:
            raise TraceError(None, "there is more after the end of the pickle", f"byte {self.window.place()}")
        return value

    cdef bint step_common(self, uint8_t opcode) except -1:
        """Nearly all instructions of a long pickle are of these."""
        if opcode == c"h":
            self.get(self.window.number(1))
        elif opcode == c"j":
            self.get(self.window.number(4))
        elif opcode == 0x94:
            self.put(self.numbered)
        elif opcode == c"K":
            self.push(<long>self.window.number(1), 0)
        elif opcode == c"M":
            self.push(<long>self.window.number(2), 32)
        elif opcode == c"J":
            self.push(<long><int32_t>self.window.number(4), 32)
        elif opcode == 0x8a:
            self.push_long(self.window.number(1))
        elif opcode == 0x8c:
            self.push_text(self.window.number(1))
        elif opcode == c"(":
            self.stack.append(MARK)
        elif opcode == c"}":
            self.push({}, DICT_EMPTY)
        elif opcode == c"]":
            self.push([], 56)
        elif opcode == c"u":
            self.set_items(self.pop_marked())
        elif opcode == c"e":
            PyErr_CheckSignals()
            self.extend(self.pop_marked())
        else:
            return False
        return True

    cdef bint step_structure(self, uint8_t opcode) except -1:
        if opcode == c"a":
            self.extend([self.pop()])
        elif opcode == c"s":
            self.set_items([self.pop(), self.pop()][::-1])
        elif opcode == c"t":
            self.push_tuple(self.pop_marked())
        elif opcode == c")":
            self.push((), 0)
        elif 0x85 <= opcode <= 0x87:
            self.push_tuple([self.pop() for _ in range(opcode - 0x84)][::-1])
        elif opcode == c"l":
            items = self.pop_marked()
            self.push(items, 56 + 8 * len(items))
        elif opcode == c"d":
            items = self.pop_marked()
            self.push({}, DICT_EMPTY)
            self.set_items(items)
        elif opcode == c"0":
            if self.stack and self.stack[-1] is MARK:
                self.stack.pop()
            else:
                self.pop()
        elif opcode == c"1":
            self.pop_marked()
        elif opcode == c"2":
            value = self.pop()
            self.stack += (value, value)
        else:
            return False
        return True

    cdef bint step_memo(self, uint8_t opcode) except -1:
        if opcode == c"q":
            self.put(self.window.number(1))
        elif opcode == c"r":
            self.put(self.window.number(4))
        elif opcode == c"g":
            self.get(self.number_line())
        elif opcode == c"p":
            self.put(self.number_line())
        elif opcode == 0x80:
            if self.window.number(1) > 5:
                raise self.error("the protocol of the pickle is newer than 5")
        elif opcode == 0x95:
            if self.window.number(8) > self.length - self.window.place():
                raise self.error("the pickle is truncated: a frame is longer than the rest of it")
        else:
            return False
        return True

    cdef bint step_value(self, uint8_t opcode) except -1:
        if opcode == 0x8b:
            self.push_long(self.window.number(4))
        elif opcode == c"G":
            self.push(struct.unpack(">d", self.window.take(8)[:8])[0], 24)
        elif opcode == c"N":
            self.push(None, 0)
        elif opcode == 0x88 or opcode == 0x89:
            self.push(opcode == 0x88, 0)
        elif opcode == c"X":
            self.push_text(self.window.number(4))
        elif opcode == 0x8d:
            self.push_text(self.window.number(8))
        elif opcode == c"U":
            self.push_text(self.window.number(1))
        elif opcode == c"T":
            self.push_text(self.window.number(4))
        else:
            return self.step_line(opcode)
        return True

    cdef bint step_line(self, uint8_t opcode) except -1:
        """Values of protocol 0, which are lines of text."""
        cdef bytes line
        if opcode not in b"ILFVS":
            return False
        line = self.window.line()
        if opcode == c"I" and line in (b"00", b"01"):
            self.push(line == b"01", 0)
        elif opcode == c"I":
            self.push(self.integer_line(line), 32)
        elif opcode == c"L":
            self.push(self.integer_line(line.removesuffix(b"L")), 48)
        elif opcode == c"F":
            self.push(self.float_line(line), 24)
        elif opcode == c"V":
            self.push(self.decoded(line, "raw-unicode-escape"), 52 + len(line))
        else:
            self.push(self.decoded(line[1:-1], "unicode-escape"), 52 + len(line))
        return True

    # Text

    cdef object integer_line(self, bytes line):
        if 0 < len(line) <= DIGITS_MAX and line.removeprefix(b"-").isdigit():
            return int(line)
        raise self.error(f"{shown(line)[1:]} is no number: expected at most {DIGITS_MAX} digits")

    cdef object float_line(self, bytes line):
        try:
            return float(line[:DIGITS_MAX])
        except ValueError:
            raise self.error(f"{shown(line)[1:]} is no number") from None

    cdef object decoded(self, bytes text, str encoding):
        try:
            return text.decode(encoding)
        except UnicodeDecodeError:
            raise self.error(NO_TEXT) from None

    # The stack

    cdef int count(self, uint64_t nbytes) except -1:
        self.made += nbytes
        if self.made > self.most:
            raise self.error(f"the pickle makes more than {self.most} bytes of objects, which no snapshot of its "
                             "length does")
        return 0

    cdef void uncount(self, uint64_t nbytes) noexcept:
        self.made -= nbytes

    cdef int push(self, object value, uint64_t nbytes) except -1:
        self.stack.append(value)
        return self.count(nbytes)

    cdef object pop(self):
        if not self.stack or self.stack[-1] is MARK:
            raise self.error(NO_VALUE)
        return self.stack.pop()

    cdef list pop_marked(self):
        """Take off the values above the last mark, and the mark."""
        cdef list stack = self.stack
        cdef Py_ssize_t first = len(stack)
        cdef list items
        while first > 0 and stack[first - 1] is not MARK:
            first -= 1
        if first == 0:
            raise self.error("the pickle is damaged: a mark is missing")
        items = stack[first:]
        del stack[first - 1:]
        return items

    cdef int push_long(self, size_t count) except -1:
        cdef const uint8_t* text = self.window.take(count)
        cdef int64_t value = 0
        if 0 < count <= sizeof(value):
            memcpy(&value, text, count)
            if count < sizeof(value) and text[count - 1] & 0x80:
                value -= <int64_t>1 << 8 * count
            return self.push(value, 32)
        return self.push(int.from_bytes(text[:count], "little", signed=True), 32 + count)

    cdef int push_text(self, size_t count) except -1:
        cdef const uint8_t* text = self.window.take(count)
        try:
            value = PyUnicode_DecodeUTF8(<const char*>text, count, "surrogatepass")
        except UnicodeDecodeError:
            raise self.error(NO_TEXT) from None
        return self.push(value, 52 + 4 * count)

    cdef int push_tuple(self, list items) except -1:
        return self.push(tuple(items), 48 + 8 * len(items))

    cdef int extend(self, list items) except -1:
        target = self.pop()
        cdef size_t count = len(items)
        if type(target) is not list:
            raise self.error(f"the pickle is damaged: it appends to a {type(target).__name__}")
        self.append(target, items)
        return self.push(target, 16 * count)

    cdef int append(self, list target, list items) except -1:
        target.extend(items)
        return 0

    cdef int set_items(self, list items) except -1:
        target = self.pop()
        cdef Py_ssize_t i
        if type(target) is not dict or len(items) % 2:
            raise self.error(f"the pickle is damaged: it sets items of a {type(target).__name__}")
        if items and not <dict>target:
            self.count(DICT_ITEMS)
        for i in range(0, len(items), 2):
            self.require_key(items[i])
            (<dict>target)[items[i]] = items[i + 1]
        return self.push(target, DICT_ITEM * (len(items) // 2))

    cdef int require_key(self, object key) except -1:
        if type(key) is str or type(key) is int and -KEY_MAX <= key < KEY_MAX:
            return 0
        raise self.error(f"a dict has a key of type {type(key).__name__}: expected a string or a 64-bit integer")

    cdef int get(self, uint64_t number) except -1:
        cdef Py_ssize_t rank = gets_rank(&self.gets, number)
        if rank < 0 or self.memo[rank] is MARK:
            raise self.error(f"the pickle is damaged: it has no object {number}")
        self.stack.append(self.memo[rank])
        if gets_end(&self.gets, number):
            self.memo[rank] = MARK
        return 0

    cdef uint64_t number_line(self) except? 0xFFFFFFFFFFFFFFFF:
        """Read the number of an object; one that no object can have leads to a number that none has."""
        number = self.integer_line(self.window.line())
        return number if 0 <= number < KEY_MAX else KEY_MAX

    cdef int put(self, uint64_t number) except -1:
        """Remember the topmost value, if it is asked for again."""
        cdef Py_ssize_t rank = gets_rank(&self.gets, number)
        if not self.stack or self.stack[-1] is MARK:
            raise self.error(NO_VALUE)
        if number > self.window.place():      # which would only be there to take memory
            raise self.error(f"the pickle is damaged: object {number} is beyond all that it can hold")
        self.numbered = max(self.numbered, number + 1)
        if rank >= 0:
            self.memo[rank] = self.stack[-1]
        return 0

    cdef int refuse_opcode(self, uint8_t opcode) except -1:
        name = OPCODES.get(opcode)
        if name is None:
            raise self.error(f"the pickle is damaged: there is no instruction 0x{opcode:02x}")
        raise self.error(f"the pickle holds {self.what(opcode, name)}: {ACCEPTED}")

    cdef str what(self, uint8_t opcode, str name):
        """Say in words what an instruction that is not for plain data is about."""
        if opcode == c"c" or opcode == c"i":
            module, attribute = self.window.line(), self.window.line()
            return f"{shown(self.decoded(module + b'.' + attribute, 'latin-1'))} ({name}), which is no plain data"
        if opcode == 0x93 and len(self.stack) > 1 and all(type(text) is str for text in self.stack[-2:]):
            return f"{shown('.'.join(self.stack[-2:]))} ({name}), which is no plain data"
        return f"an instruction {name}, which is not for plain data"

    cdef object error(self, str reason):
        return self.window.error(reason)


def loads(text not None):
    """Return the plain data that a pickle in memory holds; see `PlainUnpickler`."""
    return PlainUnpickler(functools.partial(pieces_of, text)).load()
