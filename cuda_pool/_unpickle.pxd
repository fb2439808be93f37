"""The machine that reads pickles of plain data, for readers that keep something else than what it makes."""

from libc.stdint cimport uint8_t, uint64_t

from cuda_pool._pickle_gets cimport gets_t
from cuda_pool._pickle_window cimport Window

cdef enum:                  # bytes that a dict is counted for
    DICT_EMPTY = 64
    DICT_ITEMS = 112        # for the first items
    DICT_ITEM = 44          # for each

cdef class PlainUnpickler:
    cdef object pieces                  # called for the pickle from its beginning
    cdef readonly uint64_t length
    cdef Window window
    cdef list stack
    cdef gets_t gets
    cdef list memo                      # the objects that are asked for again, by gets_rank()
    cdef uint64_t numbered              # one more than the highest number that an object of the memo has
    cdef uint64_t made, most            # bytes of objects, roughly

    # Add values to a list. Nothing but `items` holds those that the pickle neither asks for again nor has twice.
    cdef int append(self, list target, list items) except -1
    # What was counted of an object that is gone.
    cdef void uncount(self, uint64_t nbytes) noexcept
    cdef object run(self)
    cdef object result(self)
    cdef bint step_common(self, uint8_t opcode) except -1
    cdef bint step_structure(self, uint8_t opcode) except -1
    cdef bint step_memo(self, uint8_t opcode) except -1
    cdef bint step_value(self, uint8_t opcode) except -1
    cdef bint step_line(self, uint8_t opcode) except -1
    cdef object integer_line(self, bytes line)
    cdef object float_line(self, bytes line)
    cdef object decoded(self, bytes text, str encoding)
    cdef int count(self, uint64_t nbytes) except -1
    cdef int push(self, object value, uint64_t nbytes) except -1
    cdef object pop(self)
    cdef list pop_marked(self)
    cdef int push_long(self, size_t count) except -1
    cdef int push_text(self, size_t count) except -1
    cdef int push_tuple(self, list items) except -1
    cdef int extend(self, list items) except -1
    cdef int set_items(self, list items) except -1
    cdef int require_key(self, object key) except -1
    cdef uint64_t number_line(self) except? 0xFFFFFFFFFFFFFFFF
    cdef int get(self, uint64_t number) except -1
    cdef int put(self, uint64_t number) except -1
    cdef int refuse_opcode(self, uint8_t opcode) except -1
    cdef str what(self, uint8_t opcode, str name)
    cdef object error(self, str reason)
