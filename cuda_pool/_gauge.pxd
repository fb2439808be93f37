"""Bytes in use as one thread counts them, and how high the total has been: one word to change for both.

A total changes by what the thread does and by what others do. It knows its own part, and by how much the total, as it
saw it last, may rise before it is higher than ever.
"""

from cuda_pool._likely cimport likely
from cuda_pool._relaxed cimport add_size, get_size, set_size

# Written by its thread, or by whoever has stopped that; read by anyone.
# Invariant:  base - room == what the thread has added less what it has taken away, since gauge_clear()
ctypedef struct gauge_t:
    size_t high                     # of the total, as far as the thread has seen
    size_t room                     # by which the total may rise until it is higher
    size_t base


cdef inline size_t gauge_part(const gauge_t* gauge) noexcept nogil:
    """The thread's own part; below 0 it wraps. Of what is being added just now others may see a part, or nothing."""
    return get_size(&gauge.base) - get_size(&gauge.room)


cdef inline void gauge_rise(gauge_t* gauge, size_t nbytes) noexcept nogil:
    """What goes beyond the room raises the mark."""
    cdef size_t room = gauge.room, beyond
    if likely(room >= nbytes):
        set_size(&gauge.room, room - nbytes)
        return
    beyond = nbytes - room
    set_size(&gauge.high, gauge.high + beyond)
    set_size(&gauge.base, gauge.base + beyond)
    set_size(&gauge.room, 0)


cdef inline void gauge_fall(gauge_t* gauge, size_t nbytes) noexcept nogil:
    add_size(&gauge.room, nbytes)


cdef inline bint gauge_has_room(const gauge_t* gauge, size_t nbytes) noexcept nogil:
    return gauge.room >= nbytes


cdef inline void gauge_move(gauge_t* gauge, size_t nbytes) noexcept nogil:
    """The total has risen by so much, or fallen by less than nothing, and not by the thread's own part."""
    add_size(&gauge.room, 0 - nbytes)
    add_size(&gauge.base, 0 - nbytes)


cdef inline void gauge_note(gauge_t* gauge, size_t total, size_t known) noexcept nogil:
    """Look at the total, and at how high it is known to have been."""
    cdef size_t high = gauge_higher(max(known, gauge.high), total), part = gauge_part(gauge)
    set_size(&gauge.high, high)
    set_size(&gauge.room, high - total)
    set_size(&gauge.base, high - total + part)


cdef inline void gauge_clear(gauge_t* gauge) noexcept nogil:
    set_size(&gauge.high, 0)
    set_size(&gauge.room, 0)
    set_size(&gauge.base, 0)


cdef inline size_t gauge_higher(size_t known, size_t total) noexcept nogil:
    """What others have freed may be seen before what they had allocated: a total less than nothing is not higher."""
    return total if <ptrdiff_t>(total - known) > 0 else known
