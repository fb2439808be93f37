"""Values out of the dicts of a snapshot."""

from libc.stdint cimport uint64_t

# Take a number from 0 to `most`; False if it is anything else. One that may be absent leaves `number` as it is.
cdef bint number_read(dict fields, str name, uint64_t most, bint optional, uint64_t* number) except -1

# The same of a value.
cdef bint number_take(object value, uint64_t most, uint64_t* number) except -1

# The number that `codes` has for a string; -1 if it is no string, or none of them.
cdef int code_read(dict fields, str name, dict codes) except -2
