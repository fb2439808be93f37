"""Races: two streams touch the same bytes, one of them writes, and nothing orders the two."""

from libc.stdint cimport uint32_t, uint64_t

# What one operation did to one range of device memory. In its lane it is the operation number `sequence`.
ctypedef struct access_t:
    uint64_t address
    uint64_t nbytes
    uint64_t stream                 # id
    uint64_t tick
    uint64_t sequence
    uint32_t lane
    int operation                   # index in OPERATIONS
    bint write

ctypedef struct race_t:
    access_t first                  # ran before the second
    access_t second

# A treap (Seidel and Aragon, "Randomized search trees", 1996) over the addresses, each node with the largest end
# below it, so that it is an interval tree (Cormen et al., "Introduction to Algorithms", 14.3).
ctypedef struct node_t:
    access_t access
    uint64_t end                    # largest address + nbytes in this subtree
    uint64_t serial
    uint64_t priority
    node_t* left
    node_t* right

cdef enum:
    RACE_LIMIT = 1000               # races kept; the count goes on

# For each node: keys on the left < (address, serial) < keys on the right; priority >= the children's;
#   end == max(address + nbytes, left.end, right.end)
#   nodes == number of nodes below root
# races_check() asserts these; records holds the first min(count, RACE_LIMIT) races. Guarded by the simulator's lock.
ctypedef struct races_t:
    node_t* root
    uint64_t nodes
    uint64_t serial
    uint64_t collect_at             # nodes from which on it is worth looking for some to drop
    node_t** found                  # scratch space of a search
    uint64_t found_count
    uint64_t found_room
    race_t* records
    uint64_t count

cdef bint races_init(races_t* self) noexcept nogil
cdef void races_free(races_t* self) noexcept nogil

# Enter an access whose operation comes after all that `clock` names; False without host memory for it.
# For each other stream, the latest of its accesses that races with this one becomes one race.
cdef bint races_add(races_t* self, const access_t* access, const uint64_t* clock, uint32_t lanes) noexcept nogil

# Drop the accesses that every `clock` names: nothing that comes later than these clocks can race with them.
cdef bint races_collect(races_t* self, const uint64_t** clocks, uint32_t count, uint32_t lanes) noexcept nogil

# Drop every access, or every access that lies in [address, address + nbytes): the memory there is gone.
cdef void races_forget(races_t* self) noexcept nogil
cdef bint races_forget_range(races_t* self, uint64_t address, uint64_t nbytes) noexcept nogil

# An access to [address, address + nbytes) that `clock`, which has all lanes, does not name; NULL: there is none.
cdef const access_t* races_beyond(races_t* self, uint64_t address, uint64_t nbytes,
                                  const uint64_t* clock) noexcept nogil

# False without host memory for it; the copy's records are the caller's to free().
cdef bint races_copy(const races_t* self, races_t* copy) noexcept nogil
cdef list races_list(const races_t* self)
cdef bint races_check(const races_t* self) noexcept nogil
