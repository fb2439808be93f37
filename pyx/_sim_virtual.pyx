"""Virtual memory of one simulated device: reserved addresses, physical memory, and which of it is mapped where.

Physical memory is part of a sparse file in host memory (memfd), so that remapping it moves the data without a copy. Its
place in the file is never given out twice: neighbours that are made one after the other lie side by side there, and the
kernel makes one mapping of those that are mapped side by side.
"""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE,
    mmap, munmap)
from posix.unistd cimport close, ftruncate, getpid

from cuda_pool._driver cimport CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
from cuda_pool._hostmem cimport host_map, host_unmap
from cuda_pool._sim_handle cimport HANDLE_MEMORY, handle_add, handle_get, handle_remove, handle_was_used
from cuda_pool._sim_log cimport (
    MISUSE_HANDLE_SIZE, MISUSE_MAPPED, MISUSE_NO_ACCESS, MISUSE_NONE, MISUSE_NOT_MAPPED, MISUSE_NOT_RESERVED,
    MISUSE_OUTSIDE, MISUSE_PART_MAPPING, MISUSE_PART_RESERVATION, MISUSE_READ_ONLY, MISUSE_STILL_MAPPED,
    MISUSE_UNALIGNED, MISUSE_UNKNOWN)

cdef extern from "<sys/mman.h>" nogil:
    unsigned int MFD_CLOEXEC
    int memfd_create(const char*, unsigned int)

cdef extern from "<fcntl.h>" nogil:
    int FALLOC_FL_PUNCH_HOLE
    int FALLOC_FL_KEEP_SIZE
    int fallocate(int, int, long, long)

cdef enum:
    PAGE = 4096
    GENERATIONS = 0x7FFF
    SLOT_BITS = 48                  # of a handle; what is above is its generation

cdef const uint64_t SLOT_MASK = 0xFFFFFFFFFFFF
cdef const uint64_t FILE_BYTES = 0x1000000000000000
cdef uint64_t generation = 0        # of the handle given out last


# --- reservations -----------------------------------------------------------------------------------------------------

cdef reservation_t* virtual_find(const virtual_t* self, uint64_t address) noexcept nogil:
    """Return the reservation that contains an address, or NULL."""
    cdef size_t i = entries_above(self, address)
    if i == 0 or address - self.entries[i - 1].address >= self.entries[i - 1].size:
        return NULL
    return &self.entries[i - 1]


cdef int virtual_reserve_fault(const virtual_t* self, size_t size, size_t alignment) noexcept nogil:
    return MISUSE_UNALIGNED if not is_whole(self, size) or alignment & (alignment - 1) else MISUSE_NONE


cdef bint virtual_reserve(virtual_t* self, size_t size, size_t alignment, uint64_t* address) noexcept nogil:
    cdef reservation_t made
    cdef size_t i
    made.size = size
    made.mapped = 0
    made.pages = <mapping_t**>host_map(size // self.granularity * sizeof(mapping_t*), 0)
    if made.pages is NULL:
        return False
    if not entries_reserve(self) or not addresses_take(&made, max(alignment, self.granularity)):
        pages_free(self, &made)
        return False
    i = entries_above(self, made.address)
    memmove(&self.entries[i + 1], &self.entries[i], (self.count - i) * sizeof(reservation_t))
    self.entries[i] = made
    self.count += 1
    address[0] = made.address
    return True


cdef int virtual_free_fault(const virtual_t* self, uint64_t address, size_t size) noexcept nogil:
    cdef const reservation_t* found = virtual_find(self, address)
    if found is NULL:
        return MISUSE_NOT_RESERVED
    if found.address != address or found.size != size:
        return MISUSE_PART_RESERVATION
    return MISUSE_NONE if found.mapped == 0 else MISUSE_STILL_MAPPED


cdef void virtual_free(virtual_t* self, uint64_t address) noexcept nogil:
    """Give a reservation back in which nothing is mapped."""
    cdef reservation_t* found = virtual_find(self, address)
    cdef size_t after = self.count - (found - self.entries) - 1
    munmap(<void*>(found.address - PAGE), found.size + 2 * PAGE)
    pages_free(self, found)
    memmove(found, found + 1, after * sizeof(reservation_t))
    self.count -= 1


cdef bint addresses_take(reservation_t* made, size_t alignment) noexcept nogil:
    """Take aligned addresses and a guard page on both sides, and give back what that leaves over."""
    cdef size_t wanted = made.size + 2 * PAGE, taken = wanted + alignment
    cdef uint64_t start, end
    if taken < made.size or taken < alignment:
        return False
    start = <uint64_t>mmap(NULL, taken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if <void*>start == MAP_FAILED:
        return False
    end = start + taken
    made.address = (start + PAGE + alignment - 1) & ~(<uint64_t>alignment - 1)
    if made.address - PAGE > start:
        munmap(<void*>start, made.address - PAGE - start)
    if end > made.address - PAGE + wanted:
        munmap(<void*>(made.address - PAGE + wanted), end - (made.address - PAGE + wanted))
    return True


cdef size_t entries_above(const virtual_t* self, uint64_t address) noexcept nogil:
    """Return the index of the first reservation that starts above `address`."""
    cdef size_t low = 0, high = self.count, middle
    while low < high:
        middle = (low + high) // 2
        if self.entries[middle].address <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint entries_reserve(virtual_t* self) noexcept nogil:
    """Make room for one more reservation."""
    cdef size_t room = 2 * self.room if self.room > 0 else 16
    cdef void* moved
    if self.count < self.room:
        return True
    moved = realloc(self.entries, room * sizeof(reservation_t))
    if moved is NULL:
        return False
    self.entries = <reservation_t*>moved
    self.room = room
    return True


cdef void pages_free(const virtual_t* self, reservation_t* reservation) noexcept nogil:
    host_unmap(reservation.pages, reservation.size // self.granularity * sizeof(mapping_t*), 0)


# --- physical memory --------------------------------------------------------------------------------------------------

cdef physical_t* physical_create(virtual_t* self, size_t size, int device) noexcept nogil:
    """Make physical memory, whose bytes are 0, and give it a handle."""
    global generation
    cdef physical_t* made
    cdef uint64_t slot
    if size > FILE_BYTES - self.position:
        return NULL
    made = <physical_t*>calloc(1, sizeof(physical_t))
    slot = handle_add(HANDLE_MEMORY, made) if made is not NULL else 0
    if slot == 0:
        free(made)
        return NULL
    generation = generation % GENERATIONS + 1
    made.handle = generation << SLOT_BITS | slot
    made.position = self.position
    made.size = size
    made.device = device
    made.next = self.first
    if made.next is not NULL:
        made.next.previous = made
    self.first = made
    self.position += size
    self.physical += size
    return made


cdef physical_t* physical_get(uint64_t handle) noexcept nogil:
    cdef physical_t* found = <physical_t*>handle_get(HANDLE_MEMORY, handle & SLOT_MASK)
    return found if found is not NULL and found.handle == handle else NULL


cdef bint physical_was_released(uint64_t handle) noexcept nogil:
    return physical_get(handle) is NULL and 0 < handle >> SLOT_BITS <= GENERATIONS and handle_was_used(
        HANDLE_MEMORY, handle & SLOT_MASK)


cdef void physical_release(virtual_t* self, physical_t* physical) noexcept nogil:
    """Take the handle back; memory that is mapped lasts until it is unmapped."""
    handle_remove(HANDLE_MEMORY, physical.handle & SLOT_MASK)
    physical.handle = 0
    physical_settle(self, physical)


cdef void physical_settle(virtual_t* self, physical_t* physical) noexcept nogil:
    """Let memory go that has neither a handle nor a mapping."""
    if physical.handle != 0 or physical.mappings > 0:
        return
    if physical.touched and self.process == getpid():
        fallocate(self.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical.position, physical.size)
    if physical.next is not NULL:
        physical.next.previous = physical.previous
    if physical.previous is not NULL:
        physical.previous.next = physical.next
    else:
        self.first = physical.next
    self.physical -= physical.size
    free(physical)


# --- mappings ---------------------------------------------------------------------------------------------------------

cdef int virtual_map_fault(const virtual_t* self, uint64_t address, size_t size,
                           const physical_t* physical) noexcept nogil:
    cdef const reservation_t* found = virtual_find(self, address)
    cdef size_t page
    if not is_whole(self, size) or address % self.granularity != 0:
        return MISUSE_UNALIGNED
    if found is NULL or size > found.size - (address - found.address):
        return MISUSE_NOT_RESERVED
    if size > physical.size:
        return MISUSE_HANDLE_SIZE
    for page in range(page_of(self, found, address), page_of(self, found, address + size)):
        if found.pages[page] is not NULL:
            return MISUSE_MAPPED
    return MISUSE_NONE


cdef bint virtual_map(virtual_t* self, uint64_t address, size_t size, physical_t* physical,
                      uint64_t serial) noexcept nogil:
    """Map the first `size` bytes of physical memory, with no access to them yet."""
    cdef reservation_t* found = virtual_find(self, address)
    cdef mapping_t* made = <mapping_t*>calloc(1, sizeof(mapping_t))
    if made is NULL:
        return False
    made.address = address
    made.size = size
    made.serial = serial
    made.physical = physical
    physical.mappings += 1
    pages_set(self, found, made, made)
    found.mapped += size
    return True


cdef int virtual_range_fault(const virtual_t* self, uint64_t address, size_t size) noexcept nogil:
    """Tell what keeps a range from being one or more whole mappings side by side."""
    cdef const reservation_t* found = virtual_find(self, address)
    cdef const mapping_t* mapping
    cdef uint64_t at = address
    if not is_whole(self, size) or address % self.granularity != 0:
        return MISUSE_UNALIGNED
    if found is NULL or size > found.size - (address - found.address):
        return MISUSE_NOT_RESERVED
    while at < address + size:
        mapping = found.pages[page_of(self, found, at)]
        if mapping is NULL:
            return MISUSE_NOT_MAPPED
        if mapping.address != at or at + mapping.size > address + size:
            return MISUSE_PART_MAPPING
        at += mapping.size
    return MISUSE_NONE


cdef bint virtual_unmap(virtual_t* self, uint64_t address, size_t size) noexcept nogil:
    cdef reservation_t* found = virtual_find(self, address)
    cdef mapping_t* mapping
    cdef uint64_t at = address
    if range_has_real(self, found, address, size) and mmap(
            <void*>address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
            0) == MAP_FAILED:
        return False
    while at < address + size:
        mapping = found.pages[page_of(self, found, at)]
        at += mapping.size
        mapping_free(self, found, mapping)
    return True


cdef bint virtual_set_access(virtual_t* self, uint64_t address, size_t size, int access) noexcept nogil:
    cdef reservation_t* found = virtual_find(self, address)
    cdef mapping_t* mapping
    cdef uint64_t at = address
    while at < address + size:
        mapping = found.pages[page_of(self, found, at)]
        if needs_host(self, mapping, access) and not mapping_apply(self, mapping, access):
            access_restore(self, found, address, at)
            return False
        at += mapping.size
    at = address
    while at < address + size:
        mapping = found.pages[page_of(self, found, at)]
        mapping.access = access
        at += mapping.size
    return True


cdef int virtual_place(const virtual_t* self, uint64_t address, size_t nbytes, bint write,
                       uint64_t* serial) noexcept nogil:
    cdef const reservation_t* found = virtual_find(self, address)
    cdef const mapping_t* mapping
    cdef uint64_t at = address, latest = 0
    cdef int kind = MISUSE_NONE
    serial[0] = 0
    if found is NULL:
        return MISUSE_UNKNOWN
    if nbytes > found.size - (address - found.address):
        return MISUSE_OUTSIDE
    while at < address + nbytes:
        mapping = found.pages[page_of(self, found, at)]
        if mapping is NULL:
            return MISUSE_NOT_MAPPED
        if mapping.access == CU_MEM_ACCESS_FLAGS_PROT_NONE:
            kind = MISUSE_NO_ACCESS
        elif write and mapping.access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
            kind = MISUSE_READ_ONLY
        latest = max(latest, mapping.serial)
        at = mapping.address + mapping.size
    serial[0] = latest
    return kind


cdef bint virtual_touch(virtual_t* self, uint64_t address, size_t nbytes) noexcept nogil:
    cdef reservation_t* found = virtual_find(self, address) if self.lazy else NULL
    cdef mapping_t* mapping
    cdef uint64_t at = address
    while found is not NULL and at < address + nbytes:
        mapping = found.pages[page_of(self, found, at)]
        if not mapping.real and not mapping_apply(self, mapping, mapping.access):
            return False
        at = mapping.address + mapping.size
    return True


cdef bint is_whole(const virtual_t* self, size_t size) noexcept nogil:
    return size > 0 and size % self.granularity == 0


cdef size_t page_of(const virtual_t* self, const reservation_t* reservation, uint64_t address) noexcept nogil:
    return (address - reservation.address) // self.granularity


cdef void pages_set(const virtual_t* self, reservation_t* reservation, const mapping_t* where,
                    mapping_t* entry) noexcept nogil:
    """Enter `entry`, which may be NULL, into all the granules of a mapping."""
    cdef size_t page
    for page in range(page_of(self, reservation, where.address),
                      page_of(self, reservation, where.address + where.size)):
        reservation.pages[page] = entry


cdef void mapping_free(virtual_t* self, reservation_t* reservation, mapping_t* mapping) noexcept nogil:
    """Forget a mapping; its addresses are inaccessible already."""
    pages_set(self, reservation, mapping, NULL)
    reservation.mapped -= mapping.size
    mapping.physical.mappings -= 1
    physical_settle(self, mapping.physical)
    free(mapping)


cdef bint range_has_real(const virtual_t* self, const reservation_t* reservation, uint64_t address,
                         size_t size) noexcept nogil:
    cdef const mapping_t* mapping
    cdef uint64_t at = address
    while at < address + size:
        mapping = reservation.pages[page_of(self, reservation, at)]
        if mapping.real:
            return True
        at += mapping.size
    return False


cdef bint needs_host(const virtual_t* self, const mapping_t* mapping, int access) noexcept nogil:
    return mapping.real or access != CU_MEM_ACCESS_FLAGS_PROT_NONE and not self.lazy


cdef void access_restore(virtual_t* self, reservation_t* reservation, uint64_t address, uint64_t end) noexcept nogil:
    """Let the host have the access to [address, end) again that the mappings say."""
    cdef mapping_t* mapping
    while address < end:
        mapping = reservation.pages[page_of(self, reservation, address)]
        if mapping.real:
            mapping_apply(self, mapping, mapping.access)
        address += mapping.size


cdef bint mapping_apply(virtual_t* self, mapping_t* mapping, int access) noexcept nogil:
    """Put the file behind the addresses of a mapping."""
    cdef int protection = PROT_NONE
    if access != CU_MEM_ACCESS_FLAGS_PROT_NONE:
        protection = PROT_READ | PROT_WRITE if access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE else PROT_READ
    if not file_open(self) or mmap(<void*>mapping.address, mapping.size, protection,
                                   MAP_SHARED | MAP_FIXED | MAP_NORESERVE, self.file,
                                   mapping.physical.position) == MAP_FAILED:
        return False
    mapping.real = True
    mapping.physical.touched = True
    return True


cdef bint file_open(virtual_t* self) noexcept nogil:
    """Make the file if there is none; it is sparse, so its size costs nothing."""
    if self.process != 0:
        return True
    self.file = memfd_create("cuda_pool", MFD_CLOEXEC)
    if self.file < 0:
        return False
    if ftruncate(self.file, FILE_BYTES) != 0:
        close(self.file)
        return False
    self.process = getpid()
    return True


# --- all of it --------------------------------------------------------------------------------------------------------

cdef void virtual_clear(virtual_t* self) noexcept nogil:
    """Give back every address, all physical memory and the file."""
    if self.process != 0:
        close(self.file)
    self.process = 0
    while self.count > 0:
        reservation_drop(self, &self.entries[self.count - 1])
    while self.first is not NULL:
        physical_release(self, self.first)
    free(self.entries)
    self.entries = NULL
    self.room = 0


cdef void reservation_drop(virtual_t* self, reservation_t* reservation) noexcept nogil:
    """Give back a reservation with all that is mapped in it."""
    cdef size_t page
    for page in range(reservation.size // self.granularity if reservation.mapped > 0 else 0):
        if reservation.pages[page] is not NULL:
            mapping_free(self, reservation, reservation.pages[page])
    virtual_free(self, reservation.address)


cdef bint virtual_check(const virtual_t* self) noexcept nogil:
    cdef const physical_t* physical = self.first
    cdef uint64_t mappings = 0, size = 0
    cdef size_t i
    while physical is not NULL:
        if physical.handle == 0 and physical.mappings == 0:
            return False
        mappings += physical.mappings
        size += physical.size
        physical = physical.next
    for i in range(self.count):
        if i > 0 and self.entries[i - 1].address + self.entries[i - 1].size > self.entries[i].address:
            return False
        if not reservation_check(self, &self.entries[i], &mappings):
            return False
    return mappings == 0 and size == self.physical


cdef bint reservation_check(const virtual_t* self, const reservation_t* reservation, uint64_t* mappings) noexcept nogil:
    """Count the reservation's mappings down."""
    cdef size_t page = 0, inside, mapped = 0
    cdef const mapping_t* mapping
    while page < reservation.size // self.granularity:
        mapping = reservation.pages[page]
        if mapping is NULL:
            page += 1
            continue
        if page_of(self, reservation, mapping.address) != page:
            return False
        for inside in range(page, page_of(self, reservation, mapping.address + mapping.size)):
            if reservation.pages[inside] is not mapping:
                return False
        page = page_of(self, reservation, mapping.address + mapping.size)
        mapped += mapping.size
        mappings[0] -= 1
    return mapped == reservation.mapped


cdef bint virtual_copy(const virtual_t* self, bint mapped, range_t** ranges, size_t* count) noexcept nogil:
    cdef size_t i, room = self.count
    if mapped:
        for i in range(self.count):
            room += self.entries[i].mapped // self.granularity
    count[0] = 0
    ranges[0] = <range_t*>malloc((room + 1) * sizeof(range_t))
    if ranges[0] is NULL:
        return False
    for i in range(self.count):
        if mapped:
            mappings_copy(self, &self.entries[i], ranges[0], count)
        else:
            ranges[0][i].address = self.entries[i].address
            ranges[0][i].size = self.entries[i].size
            count[0] += 1
    return True


cdef void mappings_copy(const virtual_t* self, const reservation_t* reservation, range_t* ranges,
                        size_t* count) noexcept nogil:
    cdef size_t page
    cdef const mapping_t* mapping
    for page in range(reservation.size // self.granularity if reservation.mapped > 0 else 0):
        mapping = reservation.pages[page]
        if mapping is not NULL and page_of(self, reservation, mapping.address) == page:
            ranges[count[0]].address = mapping.address
            ranges[count[0]].size = mapping.size
            count[0] += 1
