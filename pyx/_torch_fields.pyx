"""Take values out of the dicts of a snapshot, without a word on what is wrong with others: their place is not known."""

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cdef extern from "Python.h":
    unsigned long long PyLong_AsUnsignedLongLong(object value) except? 0xFFFFFFFFFFFFFFFF


cdef bint number_read(dict fields, str name, uint64_t most, bint optional, uint64_t* number) except -1:
    cdef PyObject* value = PyDict_GetItem(fields, name)
    return optional if value == NULL else number_take(<object>value, most, number)


cdef bint number_take(object value, uint64_t most, uint64_t* number) except -1:
    if type(value) is not int:
        return False
    try:
        number[0] = PyLong_AsUnsignedLongLong(value)
    except OverflowError:               # it is negative, or longer than 64 bits
        return False
    return number[0] <= most


cdef int code_read(dict fields, str name, dict codes) except -2:
    cdef PyObject* value = PyDict_GetItem(fields, name)
    if value == NULL or type(<object>value) is not str:
        return -1
    cdef PyObject* code = PyDict_GetItem(codes, <object>value)
    return -1 if code == NULL else <int><object>code
