"""The allocations of one simulated device: each its own mapping between two guard pages, in a table by address."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE, \
    mmap, mprotect, munmap

from cuda_pool._sim_log cimport MISUSE_NONE, MISUSE_OUTSIDE
from cuda_pool._sim_virtual cimport reservation_t, virtual_clear, virtual_find, virtual_place


cdef int memory_allocate(memory_t* self, size_t nbytes, char** address) noexcept nogil:
    """Map `nbytes` > 0 bytes and enter them into the table."""
    cdef live_t entry
    if nbytes > memory_free(self) or not table_reserve(self):
        return -1
    if not mapping_make(nbytes, offset_next(self), &entry):
        return -1
    self.serial += 1
    entry.serial = self.serial
    entry.leaving = False
    table_insert(self, entry)
    self.allocated += nbytes
    address[0] = entry.address
    return 0


cdef void memory_release(memory_t* self, live_t* entry) noexcept nogil:
    """Unmap an allocation and take it from the table."""
    cdef size_t after = self.count - (entry - self.entries) - 1
    munmap(entry.mapping, entry.mapped)
    self.allocated -= entry.size
    memmove(entry, entry + 1, after * sizeof(live_t))
    self.count -= 1


cdef void memory_clear(memory_t* self) noexcept nogil:
    """Unmap everything."""
    virtual_clear(&self.space)
    while self.count > 0:
        memory_release(self, &self.entries[self.count - 1])
    free(self.entries)
    self.entries = NULL
    self.room = 0


cdef size_t memory_free(const memory_t* self) noexcept nogil:
    return self.memory - self.allocated - self.space.physical


cdef int memory_place(const memory_t* self, const void* address, size_t nbytes, bint write,
                      place_t* place) noexcept nogil:
    """Tell what is at a range, and whether it may be read, or written."""
    cdef const live_t* live = memory_find(self, <const char*>address)
    cdef const reservation_t* reservation
    if live is NULL:
        reservation = virtual_find(&self.space, <uint64_t>address)
        place.base = 0 if reservation is NULL else reservation.address
        place.size = 0 if reservation is NULL else reservation.size
        return virtual_place(&self.space, <uint64_t>address, nbytes, write, &place.serial)
    place.base = <uint64_t>live.address
    place.size = live.size
    place.serial = live.serial
    return MISUSE_OUTSIDE if nbytes > live.size - (<const char*>address - live.address) else MISUSE_NONE


cdef bint memory_owns(const memory_t* self, const void* address) noexcept nogil:
    """Tell whether an address is allocated or reserved on the device."""
    return (memory_find(self, <const char*>address) is not NULL
            or virtual_find(&self.space, <uint64_t>address) is not NULL)


cdef bint memory_copy(const memory_t* self, memory_t* copy) noexcept nogil:
    copy[0] = self[0]
    copy.entries = <live_t*>malloc((self.count + 1) * sizeof(live_t))
    if copy.entries is NULL:
        return False
    if self.count > 0:
        memcpy(copy.entries, self.entries, self.count * sizeof(live_t))
    return True


cdef live_t* memory_find(const memory_t* self, const char* address) noexcept nogil:
    cdef size_t i = table_above(self, address)
    if i == 0 or address >= self.entries[i - 1].address + self.entries[i - 1].size:
        return NULL
    return &self.entries[i - 1]


cdef live_t* memory_largest(const memory_t* self) noexcept nogil:
    """Return the largest allocation, or NULL if there is none."""
    cdef live_t* largest = NULL
    cdef size_t i
    for i in range(self.count):
        if largest is NULL or self.entries[i].size > largest.size:
            largest = &self.entries[i]
    return largest


cdef bint mapping_make(size_t nbytes, size_t offset, live_t* entry) noexcept nogil:
    """Map memory that starts `offset` bytes into a page; untouched pages cost the host nothing."""
    cdef size_t inner = (nbytes + offset + PAGE - 1) // PAGE * PAGE
    cdef char* mapping = <char*>mmap(NULL, inner + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                     -1, 0)
    if mapping == MAP_FAILED:
        return False
    if mprotect(mapping + PAGE, inner, PROT_READ | PROT_WRITE) != 0:
        munmap(mapping, inner + 2 * PAGE)
        return False
    entry.address = mapping + PAGE + offset
    entry.size = nbytes
    entry.mapping = mapping
    entry.mapped = inner + 2 * PAGE
    return True


cdef size_t offset_next(memory_t* self) noexcept nogil:
    """Choose how far into its first page the next allocation starts."""
    cdef size_t alignment = self.base_alignment
    if alignment == 0:
        return 0
    if self.random == 0:
        return alignment
    # An odd multiple: aligned to base_alignment and to nothing larger.
    return alignment * (2 * (random_next(self) % (PAGE // (2 * alignment))) + 1)


cdef uint64_t random_next(memory_t* self) noexcept nogil:
    """Marsaglia's xorshift (Journal of Statistical Software 8(14), 2003) with the shifts 13, 7, 17."""
    self.random ^= self.random << 13
    self.random ^= self.random >> 7
    self.random ^= self.random << 17
    return self.random >> 32


cdef size_t table_above(const memory_t* self, const char* address) noexcept nogil:
    """Return the index of the first entry that starts above `address`."""
    cdef size_t low = 0, high = self.count, middle
    while low < high:
        middle = (low + high) // 2
        if self.entries[middle].address <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef void table_insert(memory_t* self, live_t entry) noexcept nogil:
    cdef size_t i = table_above(self, entry.address)
    memmove(&self.entries[i + 1], &self.entries[i], (self.count - i) * sizeof(live_t))
    self.entries[i] = entry
    self.count += 1


cdef bint table_reserve(memory_t* self) noexcept nogil:
    """Make room for one more entry."""
    cdef size_t room = self.room * 2 if self.room > 0 else 16
    if self.count < self.room:
        return True
    cdef live_t* entries = <live_t*>realloc(self.entries, room * sizeof(live_t))
    if entries is NULL:
        return False
    self.entries = entries
    self.room = room
    return True
