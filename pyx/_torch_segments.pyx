"""The segments of a snapshot and their blocks as numbers: what a trace needs of them."""

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from libc.stdint cimport UINT64_MAX, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from cuda_pool._rows cimport rows_add, rows_pass, rows_release, rows_t
from cuda_pool._torch_fields cimport code_read, number_read, number_take
from cuda_pool._trace cimport BYTES_MAX

from cuda_pool.torch_format import ALLOCATED, DEVICES_MAX, INACTIVE, PENDING, SEGMENT_TYPES, STATES, Block, Segment

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* value)

cdef dict CODES = {state: code for code, state in enumerate(STATES)}
cdef dict TYPES = {name: code for code, name in enumerate(SEGMENT_TYPES)}
cdef uint64_t DEVICE_LAST = DEVICES_MAX - 1
assert [CODES[state] for state in (ALLOCATED, PENDING, INACTIVE)] == [STATE_ALLOCATED, STATE_PENDING, STATE_INACTIVE]


cdef class Blocks:
    """Blocks that lie side by side, 24 bytes each. What comes out is dicts as they were, without what nobody needs."""

    def __cinit__(self):
        self.rows.width = sizeof(torch_block_t)

    def __dealloc__(self):
        rows_release(&self.rows)

    def __len__(self):
        return self.rows.count

    def __iter__(self):
        cdef const torch_block_t* block
        cdef size_t i
        for i in range(self.rows.count):
            block = block_at(&self.rows, i)
            found = {"size": block.size, "requested_size": block.requested, "state": STATES[block.state]}
            yield {"address": self.address, **found} if i == 0 and self.has_address else found

    cdef bint take(self, dict fields) except -1:
        cdef torch_block_t block
        if not (block_read(fields, &block) and self.follows(fields, &block)):
            return False
        block_add(&self.rows, &block)
        self.held[block.state] += block.size
        return True

    cdef bint follows(self, dict fields, const torch_block_t* block) except -1:
        """Whether a block begins where the last one ends; the first one may be anywhere."""
        cdef uint64_t address = 0
        if block.size > BYTES_MAX - self.total():
            return False
        if PyDict_GetItem(fields, "address") == NULL:
            return True
        if not number_read(fields, "address", UINT64_MAX, False, &address):
            return False
        if self.rows.count == 0:
            self.address = address
            self.has_address = True
        return self.has_address and address == self.address + self.total()

    cdef uint64_t total(self) noexcept:
        return self.held[STATE_ALLOCATED] + self.held[STATE_PENDING] + self.held[STATE_INACTIVE]


cdef class Segments:
    """Segments with their blocks: a sequence of `cuda_pool.torch_format.Segment`, which are made when asked for.

    A segment takes 64 bytes, and each of its blocks 24. Two of them are equal if their segments are; so are a list and
    one of them. It is safe to read from several threads, until `take_standing` takes the blocks over.
    """

    def __cinit__(self):
        self.rows.width = sizeof(torch_segment_t)
        self.blocks.width = sizeof(torch_block_t)

    def __dealloc__(self):
        rows_release(&self.rows)
        rows_release(&self.blocks)

    def __len__(self):
        return self.rows.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.segment(i) for i in range(*index.indices(self.rows.count))]
        cdef Py_ssize_t i = index
        if i < 0:
            i += self.rows.count
        if not 0 <= i < <Py_ssize_t>self.rows.count:
            raise IndexError(f"there are {self.rows.count} segments, and none at {index}")
        return self.segment(i)

    def __iter__(self):
        cdef size_t i
        for i in range(self.rows.count):
            yield self.segment(i)

    def __eq__(self, other):
        if not isinstance(other, (Segments, list)):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other))

    __hash__ = None

    def append(self, found not None):
        """Add a `cuda_pool.torch_format.Segment`, which was looked at."""
        cdef torch_segment_t segment
        cdef torch_block_t block
        segment.address, segment.total, segment.stream = found.address, found.total_size, found.stream
        segment.pool[0], segment.pool[1] = found.pool_id
        segment.device, segment.kind = found.device, TYPES[found.segment_type]
        segment.is_expandable, segment.first = found.is_expandable, self.blocks.count
        try:
            for each in found.blocks:
                block = torch_block_t(each.size, each.requested_size, CODES[each.state])
                block_add(&self.blocks, &block)
            self.add(&segment)
        except BaseException:
            self.blocks.count = segment.first
            raise

    def extend(self, Segments other not None):
        """Add a copy of all segments of another one."""
        cdef torch_segment_t segment
        cdef torch_block_t block
        cdef size_t i, j
        for i in range(other.rows.count):
            segment = segment_at(&other.rows, i)[0]
            for j in range(segment.first, segment.first + segment.count):
                block = block_at(&other.blocks, j)[0]       # which may move, if the other one is this one
                block_add(&self.blocks, &block)
            segment.first = self.blocks.count - segment.count
            self.add(&segment)

    def totals(self):
        """Return how many bytes each device has that there is a segment of; a dict."""
        cdef const torch_segment_t* segment
        cdef size_t i
        found = {}
        for i in range(self.rows.count):
            segment = segment_at(&self.rows, i)
            found[segment.device] = found.get(segment.device, 0) + segment.total
        return found

    def overlap(self):
        """Return the numbers of two segments that share memory, the one with the lower address first, or None."""
        cdef size_t count = self.rows.count
        cdef torch_segment_t** order = <torch_segment_t**>PyMem_RawMalloc((count + 1) * sizeof(void*))
        cdef size_t i
        if order == NULL:
            raise MemoryError(f"no host memory for {count} segments of a snapshot")
        try:
            for i in range(count):
                order[i] = segment_at(&self.rows, i)
            qsort(order, count, sizeof(void*), &compared)
            for i in range(1, count):
                if overlaps(order[i - 1], order[i]):
                    return self.number(order[i - 1]), self.number(order[i])
        finally:
            PyMem_RawFree(order)
        return None

    cdef size_t number(self, const torch_segment_t* segment) noexcept:
        cdef size_t i = 0
        while segment_at(&self.rows, i) != segment:
            i += 1
        return i

    cdef bint take(self, dict fields) except -1:
        cdef torch_segment_t segment
        memset(&segment, 0, sizeof(segment))
        cdef Blocks blocks = blocks_of(fields)
        if blocks is None or not (segment_read(fields, &segment) and agrees(fields, &segment, blocks)):
            return False
        segment.total = blocks.total()
        segment.first = self.blocks.count
        blocks_move(&self.blocks, &blocks.rows)
        self.add(&segment)
        return True

    cdef int add(self, const torch_segment_t* segment) except -1:
        """Add a segment, whose blocks are the last ones."""
        cdef torch_segment_t* added = <torch_segment_t*>rows_add(&self.rows)
        if added == NULL:
            raise MemoryError(f"no host memory for {self.rows.count + 1} segments of a snapshot")
        added[0] = segment[0]
        added.count = self.blocks.count - segment.first
        return 0

    cdef object segment(self, size_t index):
        cdef const torch_segment_t* found = segment_at(&self.rows, index)
        cdef const torch_block_t* block
        cdef size_t i
        segment = Segment(found.address, [], found.device, found.stream, SEGMENT_TYPES[found.kind],
                          (found.pool[0], found.pool[1]), bool(found.is_expandable))
        address = found.address
        for i in range(found.first, found.first + found.count):
            block = block_at(&self.blocks, i)
            segment.blocks.append(Block(address, block.size, block.requested, STATES[block.state]))
            address += block.size
        return segment


cdef int block_add(rows_t* blocks, const torch_block_t* block) except -1:
    cdef torch_block_t* added = <torch_block_t*>rows_add(blocks)
    if added == NULL:
        raise MemoryError(f"no host memory for {blocks.count + 1} blocks of a snapshot")
    added[0] = block[0]
    return 0


cdef int blocks_move(rows_t* blocks, rows_t* source) except -1:
    """Add blocks that are nowhere else afterwards."""
    cdef size_t i
    try:
        for i in range(source.count):
            rows_pass(source, i)
            block_add(blocks, block_at(source, i))
    finally:
        rows_release(source)
    return 0


cdef bint block_read(dict fields, torch_block_t* block) except -1:
    cdef int state = code_read(fields, "state", CODES)
    if state < 0 or not number_read(fields, "size", BYTES_MAX, False, &block.size) or block.size == 0:
        return False
    block.state = state
    block.requested = block.size
    return (number_read(fields, "requested_size", BYTES_MAX, True, &block.requested)
            and (state == STATE_INACTIVE or block.requested <= block.size))


cdef bint segment_read(dict fields, torch_segment_t* segment) except -1:
    """Take all but the blocks out of a dict."""
    cdef int kind = code_read(fields, "segment_type", TYPES)
    cdef PyObject* is_expandable = PyDict_GetItem(fields, "is_expandable")
    cdef uint64_t device = 0
    if not (kind >= 0 and number_read(fields, "address", UINT64_MAX, False, &segment.address)
            and number_read(fields, "device", DEVICE_LAST, True, &device)
            and number_read(fields, "stream", UINT64_MAX, True, &segment.stream)
            and pool_read(fields, segment.pool)):
        return False
    segment.device = <uint32_t>device
    segment.kind = kind
    segment.is_expandable = is_expandable != NULL and <object>is_expandable is True
    return True


cdef bint pool_read(dict fields, uint64_t* pool) except -1:
    found = fields.get("segment_pool_id", (0, 0))
    return (type(found) in (tuple, list) and len(found) == 2
            and number_take(found[0], UINT64_MAX, &pool[0]) and number_take(found[1], UINT64_MAX, &pool[1]))


cdef Blocks blocks_of(dict fields):
    """The blocks of a segment, if they are all packed and nothing else has them; else None."""
    cdef PyObject* found = PyDict_GetItem(fields, "blocks")
    if found == NULL or Py_REFCNT(found) != 1 or type(<object>found) is not list:
        return None
    cdef list parts = <list>found
    if not parts:
        return Blocks()
    if len(parts) != 1 or type(parts[0]) is not Blocks or Py_REFCNT(PyList_GET_ITEM(parts, 0)) != 1:
        return None
    return parts[0]


cdef bint agrees(dict fields, const torch_segment_t* segment, Blocks blocks) except -1:
    """Whether what a segment says of its blocks is so."""
    cdef uint64_t active = blocks.held[STATE_ALLOCATED] + blocks.held[STATE_PENDING]
    return ((not blocks.has_address or blocks.address == segment.address)
            and blocks.total() <= UINT64_MAX - segment.address
            and is_stated(fields, "total_size", False, blocks.total())
            and is_stated(fields, "allocated_size", True, blocks.held[STATE_ALLOCATED])
            and is_stated(fields, "active_size", True, active))


cdef bint is_stated(dict fields, str name, bint optional, uint64_t held) except -1:
    cdef uint64_t stated = held
    return number_read(fields, name, BYTES_MAX, optional, &stated) and stated == held


cdef bint overlaps(const torch_segment_t* one, const torch_segment_t* other) noexcept nogil:
    """Whether a segment ends behind the beginning of another one, which has no lower address."""
    return one.device == other.device and other.address - one.address < one.total


cdef int compared(const void* one, const void* other) noexcept nogil:
    """The order of device and address; of equal ones, that of the file, as far as they have blocks."""
    cdef const torch_segment_t* first = (<const torch_segment_t**>one)[0]
    cdef const torch_segment_t* second = (<const torch_segment_t**>other)[0]
    if first.device != second.device:
        return 1 if first.device > second.device else -1
    if first.address != second.address:
        return 1 if first.address > second.address else -1
    if first.first != second.first:
        return 1 if first.first > second.first else -1
    return 1 if first.count > second.count else -1
