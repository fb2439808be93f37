"""Virtual memory of one simulated device: reserved addresses, physical memory, and which of it is mapped where."""

from libc.stdint cimport uint64_t

# Physical memory: `size` bytes of the device's file from `position` on. It lasts while it has a handle or is mapped.
ctypedef struct physical_t:
    physical_t* previous
    physical_t* next
    uint64_t handle                 # 0 once released; no other memory of the process gets the same one soon
    uint64_t position               # no other memory of the device ever has it
    size_t size
    uint64_t mappings
    int device                      # number
    bint touched                    # host memory may hold bytes of it

ctypedef struct mapping_t:
    uint64_t address
    size_t size
    uint64_t serial                 # of the device's allocations and mappings, from 1
    physical_t* physical            # its first `size` bytes
    int access                      # CUmemAccess_flags
    bint real                       # the file is behind the addresses; else they are inaccessible to the host

# Addresses between two guard pages, inaccessible to the host where nothing is mapped.
ctypedef struct reservation_t:
    uint64_t address
    size_t size
    size_t mapped                   # bytes
    mapping_t** pages               # by granule: what is mapped there, or NULL

# Everything is a multiple of the granularity.
#   entries[0 .. count) rise by address and do not overlap
#   mapped == sum of the sizes of what is in `pages`, each in all the granules that it covers
#   sum(mappings) == number of mappings in all reservations; a physical_t with none has a handle
#   physical == sum of the sizes of all from `first` on
# virtual_check() asserts these. Guarded by the simulator's lock.
ctypedef struct virtual_t:
    size_t granularity              # 0: the device has no virtual memory
    bint lazy                       # mappings become real only when an operation moves data there
    int file                        # memfd, if there is a `process`
    int process                     # that made the file; a fork's child shares it and must not take bytes out of it
    uint64_t position               # where the next physical memory goes in the file
    size_t physical                 # bytes
    physical_t* first
    reservation_t* entries
    size_t count
    size_t room

ctypedef struct range_t:
    uint64_t address
    size_t size

cdef reservation_t* virtual_find(const virtual_t* self, uint64_t address) noexcept nogil

# Each returns what is wrong with a call's arguments, one of misuse_e; MISUSE_NONE: the call may be carried out.
cdef int virtual_reserve_fault(const virtual_t* self, size_t size, size_t alignment) noexcept nogil
cdef int virtual_free_fault(const virtual_t* self, uint64_t address, size_t size) noexcept nogil
cdef int virtual_map_fault(const virtual_t* self, uint64_t address, size_t size,
                           const physical_t* physical) noexcept nogil
cdef int virtual_range_fault(const virtual_t* self, uint64_t address, size_t size) noexcept nogil  # whole mappings only

# What carries them out. False, and nothing changed, when the host refuses.
cdef bint virtual_reserve(virtual_t* self, size_t size, size_t alignment, uint64_t* address) noexcept nogil
cdef void virtual_free(virtual_t* self, uint64_t address) noexcept nogil
cdef bint virtual_map(virtual_t* self, uint64_t address, size_t size, physical_t* physical,
                      uint64_t serial) noexcept nogil
cdef bint virtual_unmap(virtual_t* self, uint64_t address, size_t size) noexcept nogil
cdef bint virtual_set_access(virtual_t* self, uint64_t address, size_t size, int access) noexcept nogil

cdef physical_t* physical_create(virtual_t* self, size_t size, int device) noexcept nogil   # NULL: the host refuses
cdef void physical_release(virtual_t* self, physical_t* physical) noexcept nogil
cdef physical_t* physical_get(uint64_t handle) noexcept nogil           # of any device; NULL if nothing alive has it
cdef bint physical_was_released(uint64_t handle) noexcept nogil

# Whether the range may be read, or written; else one of misuse_e. *serial: the highest of its mappings, which is
# another one when any of them was made since; 0 unless all of it is mapped.
cdef int virtual_place(const virtual_t* self, uint64_t address, size_t nbytes, bint write,
                       uint64_t* serial) noexcept nogil

# Put host memory behind a range that virtual_place() found good; False when the host refuses.
cdef bint virtual_touch(virtual_t* self, uint64_t address, size_t nbytes) noexcept nogil

cdef void virtual_clear(virtual_t* self) noexcept nogil
cdef bint virtual_check(const virtual_t* self) noexcept nogil

# The reservations, or the mappings, rising by address; the ranges are the caller's to free(). False: no host memory.
cdef bint virtual_copy(const virtual_t* self, bint mapped, range_t** ranges, size_t* count) noexcept nogil
