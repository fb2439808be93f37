"""Long arrays whose rows are made one by one, and later gone through once, from the first to the last."""

from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc


cdef void* rows_add(rows_t* rows) noexcept nogil:
    if rows.count == rows.room and not (strip_grow(rows) if rows.room < STRIP else strip_add(rows, STRIP)):
        return NULL
    rows.count += 1
    return rows_at(rows, rows.count - 1)


cdef void rows_drop(rows_t* rows, size_t first) noexcept nogil:
    cdef size_t strip = first >> ROWS_SHIFT
    while strip > 0 and rows.strips[strip - 1] != NULL:
        strip -= 1
        PyMem_RawFree(rows.strips[strip])
        rows.strips[strip] = NULL


cdef void rows_release(rows_t* rows) noexcept nogil:
    cdef size_t strip
    for strip in range(rows.strip_count):
        PyMem_RawFree(rows.strips[strip])
    PyMem_RawFree(rows.strips)
    rows.strips = NULL
    rows.strip_count = rows.strip_room = rows.count = rows.room = 0


cdef bint strip_grow(rows_t* rows) noexcept nogil:
    """Double the only strip: a pickle may have any number of arrays with one row."""
    cdef void* moved
    if rows.strip_count == 0:
        return strip_add(rows, 1)
    moved = PyMem_RawRealloc(rows.strips[0], 2 * rows.room * rows.width)
    if moved == NULL:
        return False
    rows.strips[0] = <char*>moved
    rows.room *= 2
    return True


cdef bint strip_add(rows_t* rows, size_t room) noexcept nogil:
    cdef size_t wanted = 2 * rows.strip_room if rows.strip_room else 1
    cdef void* moved
    if rows.strip_count == rows.strip_room:
        moved = PyMem_RawRealloc(rows.strips, wanted * sizeof(char*))
        if moved == NULL:
            return False
        rows.strips = <char**>moved
        rows.strip_room = wanted
    moved = PyMem_RawRealloc(NULL, room * rows.width)
    if moved == NULL:
        return False
    rows.strips[rows.strip_count] = <char*>moved
    rows.strip_count += 1
    rows.room += room
    return True
