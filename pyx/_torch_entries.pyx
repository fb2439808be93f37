"""Read the pickle of a PyTorch snapshot, and keep the entries of its traces as numbers.

A trace has millions of entries, each a dict with stack frames of its own. `SnapshotUnpickler` takes what a trace needs
out of an entry when it comes into its list, and lets the dict go.
"""

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from libc.stdint cimport UINT64_MAX, uint64_t

import functools

from cuda_pool._trace cimport BYTES_MAX
from cuda_pool._unpickle cimport DICT_EMPTY, DICT_ITEM, DICT_ITEMS, PlainUnpickler

from cuda_pool._pickle_window import pieces_of
from cuda_pool.torch_format import ACTIONS, BLOCK_ACTIONS, OTHER_ACTIONS, Entry

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* value)
    unsigned long long PyLong_AsUnsignedLongLong(object value) except? 0xFFFFFFFFFFFFFFFF

cdef enum:
    ROOM_MIN = 4            # entries: a pickle may have any number of lists with one
    ENTRIES_MIN = 64 + ROOM_MIN * sizeof(entry_t)

cdef dict CODES = {action: code for code, action in enumerate(ACTIONS)}
cdef dict OPTIONAL = {action: True for action in OTHER_ACTIONS}     # entries that may lack an address and a size
assert [CODES[action] for action in (*BLOCK_ACTIONS, "oom")] == [
    ACTION_ALLOC, ACTION_FREE_REQUESTED, ACTION_FREE_COMPLETED, ACTION_OOM]


cdef class Entries:
    """Entries of a trace, 32 bytes each: a sequence of `cuda_pool.torch_format.Entry`, which are made when asked for.

    Two of them are equal if their entries are; so are a list and one of them. It is safe to read from several threads.
    """

    def __dealloc__(self):
        PyMem_RawFree(self.items)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.entry(i) for i in range(*index.indices(self.count))]
        cdef Py_ssize_t i = index
        if i < 0:
            i += self.count
        if not 0 <= i < <Py_ssize_t>self.count:
            raise IndexError(f"there are {self.count} entries, and none at {index}")
        return self.entry(i)

    def __iter__(self):
        cdef size_t i
        for i in range(self.count):
            yield self.entry(i)

    def __eq__(self, other):
        if not isinstance(other, (Entries, list)):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other))

    __hash__ = None

    def append(self, str action not None, uint64_t addr, uint64_t size, uint64_t stream):
        """Add an entry with one of the known actions."""
        cdef entry_t entry = entry_t(addr, size, stream, CODES[action])
        self.add(&entry)

    def extend(self, Entries other not None):
        """Add all entries of another trace."""
        cdef size_t i
        for i in range(other.count):
            self.add(&other.items[i])

    def tally(self, str action not None):
        """Return how many entries have an action."""
        cdef size_t i, found = 0
        cdef int code = CODES[action]
        for i in range(self.count):
            found += self.items[i].action == code
        return found

    cdef int add(self, const entry_t* entry) except -1:
        if self.count == self.room:
            self.grow()
        self.items[self.count] = entry[0]
        self.count += 1
        return 0

    cdef int grow(self) except -1:
        cdef size_t room = 2 * self.room if self.room else ROOM_MIN
        cdef void* moved = PyMem_RawRealloc(self.items, room * sizeof(entry_t))
        if moved == NULL:
            raise MemoryError(f"no host memory for {self.count + 1} entries of a trace")
        self.items = <entry_t*>moved
        self.room = room
        return 0

    cdef object entry(self, size_t index):
        cdef entry_t* found = &self.items[index]
        return Entry(ACTIONS[found.action], found.addr, found.size, found.stream)


cdef class SnapshotUnpickler(PlainUnpickler):
    """Read a pickle as `PlainUnpickler` does, but keep entries that lists have side by side as one `Entries`.

    These are dicts which have all that an entry of a trace needs, in the ranges that it needs, and which nothing else
    in the pickle refers to. Any other dict remains one, for whoever knows its place to say what is wrong with it.
    """

    cdef int append(self, list target, list items) except -1:
        cdef Entries entries = None
        cdef entry_t entry
        cdef PyObject* item
        cdef Py_ssize_t i
        if target and type(target[len(target) - 1]) is Entries:
            entries = target[len(target) - 1]
        for i in range(len(items)):
            item = PyList_GET_ITEM(items, i)
            if not entry_read(item, &entry):
                target.append(<object>item)
                entries = None
                continue
            if entries is None:
                entries = Entries()
                target.append(entries)
                self.count(ENTRIES_MIN)
            entries.add(&entry)
            self.uncount(DICT_EMPTY + DICT_ITEMS + DICT_ITEM * len(<dict>item))
            self.count(sizeof(entry_t))
            items[i] = None             # which ends the dict
        return 0


def loads(text not None):
    """Return what the pickle of a snapshot in memory holds; see `SnapshotUnpickler`."""
    return SnapshotUnpickler(functools.partial(pieces_of, text)).load()


cdef bint entry_read(PyObject* found, entry_t* entry) except -1:
    """Take the numbers of an entry out of a dict that only one list has; False if it is anything else."""
    if Py_REFCNT(found) != 1 or type(<object>found) is not dict:
        return False
    cdef dict fields = <dict>found
    cdef PyObject* action = PyDict_GetItem(fields, "action")
    if action == NULL or type(<object>action) is not str:
        return False
    cdef PyObject* code = PyDict_GetItem(CODES, <object>action)
    if code == NULL or PyDict_GetItem(fields, "address") != NULL:   # which a segment or a block has
        return False
    entry.action = <object>code
    cdef bint optional = PyDict_GetItem(OPTIONAL, <object>action) != NULL
    cdef str place = "device_free" if entry.action == ACTION_OOM else "addr"
    return (number_read(fields, place, UINT64_MAX, optional, &entry.addr)
            and number_read(fields, "size", BYTES_MAX, optional, &entry.size)
            and number_read(fields, "stream", UINT64_MAX, True, &entry.stream))


cdef bint number_read(dict fields, str name, uint64_t most, bint optional, uint64_t* number) except -1:
    cdef PyObject* value = PyDict_GetItem(fields, name)
    number[0] = 0
    if value == NULL:
        return optional
    if type(<object>value) is not int:
        return False
    try:
        number[0] = PyLong_AsUnsignedLongLong(<object>value)
    except OverflowError:               # it is negative, or longer than 64 bits
        return False
    return number[0] <= most
