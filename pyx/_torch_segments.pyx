"""The segments of a snapshot and their blocks as numbers: what a trace needs of them."""

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from libc.stdint cimport UINT64_MAX, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memset

from cuda_pool._torch_fields cimport code_read, number_read, number_take
from cuda_pool._trace cimport BYTES_MAX

from cuda_pool.torch_format import ALLOCATED, DEVICES_MAX, INACTIVE, PENDING, SEGMENT_TYPES, STATES, Block, Segment

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* value)

cdef enum:
    SEGMENTS_ROOM = 4

cdef dict CODES = {state: code for code, state in enumerate(STATES)}
cdef dict TYPES = {name: code for code, name in enumerate(SEGMENT_TYPES)}
cdef uint64_t DEVICE_LAST = DEVICES_MAX - 1
assert [CODES[state] for state in (ALLOCATED, PENDING, INACTIVE)] == [STATE_ALLOCATED, STATE_PENDING, STATE_INACTIVE]


cdef class Blocks:
    """Blocks that lie side by side, 24 bytes each. What comes out is dicts as they were, without what nobody needs."""

    def __dealloc__(self):
        PyMem_RawFree(self.items)

    def __len__(self):
        return self.count

    def __iter__(self):
        cdef size_t i
        for i in range(self.count):
            found = {"size": self.items[i].size, "requested_size": self.items[i].requested,
                     "state": STATES[self.items[i].state]}
            yield {"address": self.address, **found} if i == 0 and self.has_address else found

    cdef bint take(self, dict fields) except -1:
        cdef torch_block_t block
        if not (block_read(fields, &block) and self.follows(fields, &block)):
            return False
        self.add(&block)
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
        if self.count == 0:
            self.address = address
            self.has_address = True
        return self.has_address and address == self.address + self.total()

    cdef uint64_t total(self) noexcept:
        return self.held[STATE_ALLOCATED] + self.held[STATE_PENDING] + self.held[STATE_INACTIVE]

    cdef int give(self, torch_segment_t* segment) except -1:
        """Become the blocks of a segment, and have none any more."""
        self.resize(self.count)
        segment.total = self.total()
        segment.count = self.count
        segment.blocks = self.items
        self.items = NULL
        self.count = self.room = 0
        return 0

    cdef int resize(self, size_t room) except -1:
        self.items = <torch_block_t*>resized(self.items, room, sizeof(torch_block_t))
        self.room = room
        return 0

    cdef int add(self, const torch_block_t* block) except -1:
        if self.count == self.room:
            self.resize(2 * self.room if self.room else 1)     # many segments have one
        self.items[self.count] = block[0]
        self.count += 1
        self.held[block.state] += block.size
        return 0


cdef class Segments:
    """Segments with their blocks: a sequence of `cuda_pool.torch_format.Segment`, which are made when asked for.

    A segment takes 64 bytes, and each of its blocks 24. Two of them are equal if their segments are; so are a list and
    one of them. It is safe to read from several threads.
    """

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.count):
            PyMem_RawFree(self.items[i].blocks)
        PyMem_RawFree(self.items)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.segment(i) for i in range(*index.indices(self.count))]
        cdef Py_ssize_t i = index
        if i < 0:
            i += self.count
        if not 0 <= i < <Py_ssize_t>self.count:
            raise IndexError(f"there are {self.count} segments, and none at {index}")
        return self.segment(i)

    def __iter__(self):
        cdef size_t i
        for i in range(self.count):
            yield self.segment(i)

    def __eq__(self, other):
        if not isinstance(other, (Segments, list)):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other))

    __hash__ = None

    def append(self, found not None):
        """Add a `cuda_pool.torch_format.Segment`, which was looked at."""
        cdef torch_segment_t segment
        segment.address, segment.total, segment.stream = found.address, found.total_size, found.stream
        segment.pool[0], segment.pool[1] = found.pool_id
        segment.device, segment.kind = found.device, TYPES[found.segment_type]
        segment.is_expandable, segment.count = found.is_expandable, len(found.blocks)
        self.reserve()
        segment.blocks = blocks_like(found.blocks)
        self.store(&segment)

    def extend(self, Segments other not None):
        """Add a copy of all segments of another one."""
        cdef torch_segment_t segment
        cdef size_t i
        for i in range(other.count):
            segment = other.items[i]
            self.reserve()
            segment.blocks = <torch_block_t*>resized(NULL, segment.count, sizeof(torch_block_t))
            memcpy(segment.blocks, other.items[i].blocks, segment.count * sizeof(torch_block_t))
            self.store(&segment)

    def totals(self):
        """Return how many bytes each device has that there is a segment of; a dict."""
        cdef size_t i
        found = {}
        for i in range(self.count):
            found[self.items[i].device] = found.get(self.items[i].device, 0) + self.items[i].total
        return found

    def overlap(self):
        """Return the numbers of two segments that share memory, the one with the lower address first, or None."""
        cdef const torch_segment_t** order = <const torch_segment_t**>resized(NULL, self.count, sizeof(void*))
        cdef size_t i
        try:
            for i in range(self.count):
                order[i] = &self.items[i]
            qsort(order, self.count, sizeof(torch_segment_t*), &compared)
            for i in range(1, self.count):
                if (order[i - 1].device == order[i].device
                        and order[i].address - order[i - 1].address < order[i - 1].total):
                    return order[i - 1] - self.items, order[i] - self.items
        finally:
            PyMem_RawFree(order)
        return None

    cdef bint take(self, dict fields) except -1:
        cdef torch_segment_t segment
        memset(&segment, 0, sizeof(segment))
        cdef Blocks blocks = blocks_of(fields)
        if blocks is None or not (segment_read(fields, &segment) and agrees(fields, &segment, blocks)):
            return False
        self.reserve()
        blocks.give(&segment)
        self.store(&segment)
        return True

    cdef int reserve(self) except -1:
        """Make room for one more segment."""
        cdef size_t room = 2 * self.room if self.room else SEGMENTS_ROOM
        if self.count == self.room:
            self.items = <torch_segment_t*>resized(self.items, room, sizeof(torch_segment_t))
            self.room = room
        return 0

    cdef void store(self, const torch_segment_t* segment) noexcept:
        self.items[self.count] = segment[0]
        self.count += 1

    cdef object segment(self, size_t index):
        cdef torch_segment_t* found = &self.items[index]
        cdef size_t i
        segment = Segment(found.address, [], found.device, found.stream, SEGMENT_TYPES[found.kind],
                          (found.pool[0], found.pool[1]), bool(found.is_expandable))
        address = found.address
        for i in range(found.count):
            segment.blocks.append(Block(address, found.blocks[i].size, found.blocks[i].requested,
                                        STATES[found.blocks[i].state]))
            address += found.blocks[i].size
        return segment


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


cdef int compared(const void* one, const void* other) noexcept nogil:
    """The order of device and address; of equal ones, that of the file."""
    cdef const torch_segment_t* first = (<const torch_segment_t**>one)[0]
    cdef const torch_segment_t* second = (<const torch_segment_t**>other)[0]
    if first.device != second.device:
        return 1 if first.device > second.device else -1
    if first.address != second.address:
        return 1 if first.address > second.address else -1
    return 1 if first > second else -1


cdef torch_block_t* blocks_like(list found) except NULL:
    cdef torch_block_t* blocks = <torch_block_t*>resized(NULL, len(found), sizeof(torch_block_t))
    cdef size_t i
    try:
        for i, block in enumerate(found):
            blocks[i] = torch_block_t(block.size, block.requested_size, CODES[block.state])
    except BaseException:
        PyMem_RawFree(blocks)
        raise
    return blocks


cdef void* resized(void* items, size_t count, size_t width) except NULL:
    """Return an array with room for so many items; what there was of it is as it was if the host has no memory."""
    cdef void* moved = PyMem_RawRealloc(items, (count if count else 1) * width)
    if moved == NULL:
        raise MemoryError(f"no host memory for {count} segments or blocks of a snapshot")
    return moved
