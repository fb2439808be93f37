"""The entries of a snapshot's traces as numbers.

A trace has millions of entries, each a dict with stack frames of its own.
"""

from cpython.dict cimport PyDict_GetItem
from libc.stdint cimport UINT64_MAX, uint64_t

from cuda_pool._rows cimport rows_add, rows_release
from cuda_pool._torch_fields cimport code_read, number_read
from cuda_pool._trace cimport BYTES_MAX

from cuda_pool.torch_format import ACTIONS, BLOCK_ACTIONS, OTHER_ACTIONS, Entry

cdef dict CODES = {action: code for code, action in enumerate(ACTIONS)}
cdef int OTHERS = min(CODES[action] for action in OTHER_ACTIONS)    # from here on, an address and a size may be missing
assert [CODES[action] for action in (*BLOCK_ACTIONS, "oom")] == [
    ACTION_ALLOC, ACTION_FREE_REQUESTED, ACTION_FREE_COMPLETED, ACTION_OOM]
assert ACTIONS[OTHERS:] == OTHER_ACTIONS


cdef class Entries:
    """Entries of a trace, 32 bytes each: a sequence of `cuda_pool.torch_format.Entry`, which are made when asked for.

    Two of them are equal if their entries are; so are a list and one of them. It is safe to read from several threads,
    until an `EntryTaker` takes the entries over.
    """

    def __cinit__(self):
        self.rows.width = sizeof(entry_t)

    def __dealloc__(self):
        rows_release(&self.rows)

    def __len__(self):
        return self.rows.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.entry(i) for i in range(*index.indices(self.rows.count))]
        cdef Py_ssize_t i = index
        if i < 0:
            i += self.rows.count
        if not 0 <= i < <Py_ssize_t>self.rows.count:
            raise IndexError(f"there are {self.rows.count} entries, and none at {index}")
        return self.entry(i)

    def __iter__(self):
        cdef size_t i
        for i in range(self.rows.count):
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
        cdef entry_t entry
        cdef size_t i
        for i in range(other.rows.count):
            entry = entry_at(&other.rows, i)[0]             # which may move, if the other one is this one
            self.add(&entry)

    def tally(self, str action not None):
        """Return how many entries have an action."""
        cdef size_t i, found = 0
        cdef int code = CODES[action]
        for i in range(self.rows.count):
            found += entry_at(&self.rows, i).action == code
        return found

    cdef int add(self, const entry_t* entry) except -1:
        cdef entry_t* added = <entry_t*>rows_add(&self.rows)
        if added == NULL:
            raise MemoryError(f"no host memory for {self.rows.count + 1} entries of a trace")
        added[0] = entry[0]
        return 0

    cdef object entry(self, size_t index):
        cdef entry_t* found = entry_at(&self.rows, index)
        return Entry(ACTIONS[found.action], found.addr, found.size, found.stream)


cdef bint entry_read(dict fields, entry_t* entry) except -1:
    cdef int action = code_read(fields, "action", CODES)
    if action < 0 or PyDict_GetItem(fields, "address") != NULL:     # which a segment or a block has
        return False
    entry[0] = entry_t(0, 0, 0, action)
    return (number_read(fields, "device_free" if action == ACTION_OOM else "addr", UINT64_MAX, action >= OTHERS,
                        &entry.addr)
            and number_read(fields, "size", BYTES_MAX, action >= OTHERS, &entry.size)
            and number_read(fields, "stream", UINT64_MAX, True, &entry.stream))
