"""Read the pickle of a PyTorch snapshot, and keep its entries, segments and blocks as numbers.

`SnapshotUnpickler` takes what a trace needs out of a dict when it comes into its list, and lets the dict go, with the
stack frames and whatever else is in it.
"""

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject

import functools

from cuda_pool._torch_entries cimport Entries, entry_read, entry_t
from cuda_pool._torch_segments cimport Blocks, Segments, torch_block_t, torch_segment_t
from cuda_pool._unpickle cimport DICT_EMPTY, DICT_ITEM, DICT_ITEMS, PlainUnpickler

from cuda_pool._pickle_window import pieces_of

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* value)

cdef enum:
    PART = 256              # bytes of the object itself, of any kind, with its first rows


cdef class SnapshotUnpickler(PlainUnpickler):
    """Read a pickle as `PlainUnpickler` does, but keep what lists have side by side packed: as one of their items.

    An `Entries` takes the place of entries of a trace, a `Blocks` of blocks, and a `Segments` of segments. These are
    dicts which have all that such a thing needs, in the ranges that it needs, and which nothing else in the pickle
    refers to. Any other dict remains one, for whoever knows its place to say what is wrong with it.
    """

    cdef int append(self, list target, list items) except -1:
        cdef PyObject* item
        cdef object last = target[len(target) - 1] if target else None
        cdef object part
        cdef Py_ssize_t i
        for i in range(len(items)):
            item = PyList_GET_ITEM(items, i)
            part = None
            if Py_REFCNT(item) == 1 and type(<object>item) is dict:
                part = self.packed(last, <dict>item)
            if part is None:
                target.append(<object>item)
            else:
                if part is not last:
                    target.append(part)
                self.uncount(DICT_EMPTY + DICT_ITEMS + DICT_ITEM * len(<dict>item))
                items[i] = None         # which ends the dict
            last = part
        return 0

    cdef object packed(self, object last, dict fields):
        """Return what has taken a dict over: the last part of its list or a new one; or None."""
        cdef entry_t entry
        if entry_read(fields, &entry):
            if type(last) is not Entries:
                last = Entries()
                self.count(PART)
            (<Entries>last).add(&entry)
            self.count(sizeof(entry_t))
            return last
        if PyDict_GetItem(fields, "blocks") != NULL:
            return self.with_segment(last, fields)
        return self.with_block(last, fields) if PyDict_GetItem(fields, "state") != NULL else None

    cdef object with_segment(self, object last, dict fields):
        cdef Segments segments = last if type(last) is Segments else Segments()
        if not segments.take(fields):
            return None
        self.count(sizeof(torch_segment_t) + (0 if segments is last else PART))
        return segments

    cdef object with_block(self, object last, dict fields):
        cdef Blocks blocks
        if type(last) is Blocks and (<Blocks>last).take(fields):
            self.count(sizeof(torch_block_t))
            return last
        blocks = Blocks()
        if not blocks.take(fields):
            return None
        self.count(PART + sizeof(torch_block_t))
        return blocks


def loads(text not None):
    """Return what the pickle of a snapshot in memory holds; see `SnapshotUnpickler`."""
    return SnapshotUnpickler(functools.partial(pieces_of, text)).load()
