"""A long array in strips, the first of which can be given back while the others are in use."""

cdef enum:
    ROWS_SHIFT = 17
    STRIP = 1 << ROWS_SHIFT     # rows; some mebibytes, which the C library gives back to the system at once

# Row i is at strips[i / STRIP] + i % STRIP * width.
#   count <= room; room == strip_count * STRIP, or there is at most one strip, which has less
#   strips[i] is NULL if it was dropped
ctypedef struct rows_t:
    char** strips
    size_t strip_count, strip_room
    size_t width                # bytes of a row
    size_t count, room          # rows

# Add a row, which is not set; NULL: the host has no memory for it.
cdef void* rows_add(rows_t* rows) noexcept nogil

# Free the strips that have only rows before row `first`.
cdef void rows_drop(rows_t* rows, size_t first) noexcept nogil

# Free all rows; there are none then.
cdef void rows_release(rows_t* rows) noexcept nogil


cdef inline void* rows_at(const rows_t* rows, size_t index) noexcept nogil:
    return rows.strips[index >> ROWS_SHIFT] + (index & (STRIP - 1)) * rows.width


# Drop what lies before row `index`, which comes after all that is needed no more; call it for each.
cdef inline void rows_pass(rows_t* rows, size_t index) noexcept nogil:
    if index & (STRIP - 1) == 0:
        rows_drop(rows, index)
