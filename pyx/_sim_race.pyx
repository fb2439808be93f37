"""Races: two streams touch the same bytes, one of them writes, and nothing orders the two.

Every access is compared with the earlier ones that may still race with something, by their vector clocks: that which
the access's own clock does not name is not ordered before it, whatever the order in which both happened to run
(Flanagan and Freund, "FastTrack", 2009, whose epochs are the pairs of lane and sequence number here).
"""

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from collections import namedtuple

from cuda_pool._sim_log import OPERATIONS

cdef enum:
    COLLECT_FLOOR = 256


class Access(namedtuple("Access", "stream operation address nbytes tick write")):
    """What one operation did to a range of device memory.

    Attributes
    ----------
    stream : int
        Id of the stream.
    operation : str
        ``"write"``, ``"read"``, or the CUDA call.
    address, nbytes : int
        The range.
    tick : int
        Virtual time at which it ran.
    write : bool
        Whether it changed the bytes.
    """

    __slots__ = ()

    def __str__(self):
        verb = "writes" if self.write else "reads"
        return (f"{self.operation} on stream {self.stream} at tick {self.tick} {verb} {self.nbytes} bytes "
                f"at {self.address:#x}")


class Race(namedtuple("Race", "first second")):
    """Two accesses of which one writes, to bytes that both touch, with nothing that orders them.

    Attributes
    ----------
    first, second : Access
        In the order in which they happened to run.
    """

    __slots__ = ()

    def __str__(self):
        return f"nothing orders {self.first} and {self.second}"


cdef bint races_init(races_t* self) noexcept nogil:
    memset(self, 0, sizeof(races_t))
    self.collect_at = COLLECT_FLOOR
    self.records = <race_t*>malloc(RACE_LIMIT * sizeof(race_t))
    return self.records is not NULL


cdef void races_free(races_t* self) noexcept nogil:
    races_forget(self)
    free(self.found)
    free(self.records)
    self.found = NULL
    self.records = NULL


cdef bint races_add(races_t* self, const access_t* access, const uint64_t* clock, uint32_t lanes) noexcept nogil:
    """Compare an access with all that overlap it, then keep it."""
    cdef node_t* made = <node_t*>malloc(sizeof(node_t))
    if made is NULL or not races_find(self, access.address, access.address + access.nbytes):
        free(made)
        return False
    races_report(self, access, clock, lanes)
    races_supersede(self, access)
    made.access = access[0]
    made.serial = self.serial
    made.priority = scatter(self.serial)
    self.serial += 1
    self.nodes += 1
    self.root = treap_insert(self.root, made)
    return True


cdef bint races_collect(races_t* self, const uint64_t** clocks, uint32_t count, uint32_t lanes) noexcept nogil:
    """Drop what every clock names."""
    cdef uint64_t i
    if not races_find(self, 0, ~<uint64_t>0):
        return False
    for i in range(self.found_count):
        if named_by_all(&self.found[i].access, clocks, count, lanes):
            races_drop(self, self.found[i])
    self.collect_at = max(<uint64_t>COLLECT_FLOOR, 2 * self.nodes)
    return True


cdef void races_forget(races_t* self) noexcept nogil:
    treap_free(self.root)
    self.root = NULL
    self.nodes = 0
    self.collect_at = COLLECT_FLOOR


cdef bint races_forget_range(races_t* self, uint64_t address, uint64_t nbytes) noexcept nogil:
    cdef uint64_t i
    if not races_find(self, address, address + nbytes):
        return False
    for i in range(self.found_count):
        races_drop(self, self.found[i])
    return True


cdef const access_t* races_beyond(races_t* self, uint64_t address, uint64_t nbytes,
                                  const uint64_t* clock) noexcept nogil:
    cdef const access_t* access
    cdef uint64_t i
    if not races_find(self, address, address + nbytes):
        return NULL
    for i in range(self.found_count):
        access = &self.found[i].access
        if clock[access.lane] < access.sequence:
            return access
    return NULL


cdef bint races_copy(const races_t* self, races_t* copy) noexcept nogil:
    cdef size_t kept = min(self.count, <uint64_t>RACE_LIMIT)
    copy[0] = self[0]
    copy.records = <race_t*>malloc((kept + 1) * sizeof(race_t))
    if copy.records is NULL:
        return False
    memcpy(copy.records, self.records, kept * sizeof(race_t))
    return True


cdef list races_list(const races_t* self):
    """Return the races that are kept, oldest first."""
    cdef uint64_t i
    return [Race(access_tuple(&self.records[i].first), access_tuple(&self.records[i].second))
            for i in range(min(self.count, <uint64_t>RACE_LIMIT))]


cdef object access_tuple(const access_t* access):
    return Access(access.stream, OPERATIONS[access.operation], access.address, access.nbytes, access.tick,
                  bool(access.write))


cdef bint races_check(const races_t* self) noexcept nogil:
    cdef const node_t* previous = NULL
    cdef uint64_t nodes = 0
    return treap_check(self.root, &previous, &nodes) and nodes == self.nodes


# --- what an access means for those before it -------------------------------------------------------------------------

cdef void races_report(races_t* self, const access_t* access, const uint64_t* clock, uint32_t lanes) noexcept nogil:
    """Record a race with the latest access of each other stream that is among those found and not ordered before."""
    cdef uint64_t i
    for i in range(self.found_count):
        if is_race(&self.found[i].access, access, clock, lanes) and is_latest(self, i, access, clock, lanes):
            if self.count < RACE_LIMIT:
                self.records[self.count].first = self.found[i].access
                self.records[self.count].second = access[0]
            self.count += 1


cdef bint is_race(const access_t* earlier, const access_t* access, const uint64_t* clock,
                  uint32_t lanes) noexcept nogil:
    cdef uint64_t known = clock[earlier.lane] if earlier.lane < lanes else 0
    return earlier.lane != access.lane and (earlier.write or access.write) and known < earlier.sequence


cdef bint is_latest(const races_t* self, uint64_t candidate, const access_t* access, const uint64_t* clock,
                    uint32_t lanes) noexcept nogil:
    cdef const access_t* mine = &self.found[candidate].access
    cdef const access_t* other
    cdef uint64_t i
    for i in range(self.found_count):
        other = &self.found[i].access
        if other.stream == mine.stream and is_race(other, access, clock, lanes) and (
                other.sequence > mine.sequence or other.sequence == mine.sequence and i > candidate):
            return False
    return True


cdef void races_supersede(races_t* self, const access_t* access) noexcept nogil:
    """Drop what only races where this access does too: the lane's earlier ones that it covers."""
    cdef const access_t* earlier
    cdef uint64_t i
    for i in range(self.found_count):
        earlier = &self.found[i].access
        if earlier.lane == access.lane and (access.write or not earlier.write) and (
                access.address <= earlier.address
                and earlier.address + earlier.nbytes <= access.address + access.nbytes):
            races_drop(self, self.found[i])


cdef bint named_by_all(const access_t* access, const uint64_t** clocks, uint32_t count, uint32_t lanes) noexcept nogil:
    cdef uint32_t i
    if access.lane >= lanes:
        return False
    for i in range(count):
        if clocks[i][access.lane] < access.sequence:
            return False
    return True


cdef bint races_find(races_t* self, uint64_t start, uint64_t end) noexcept nogil:
    """Leave the nodes that overlap [start, end) in `found`, rising by address."""
    if self.found_room < self.nodes and not found_reserve(self):
        return False
    self.found_count = 0
    treap_find(self, self.root, start, end)
    return True


cdef bint found_reserve(races_t* self) noexcept nogil:
    cdef uint64_t room = 2 * self.nodes + 64
    cdef void* moved = realloc(self.found, room * sizeof(node_t*))
    if moved is NULL:
        return False
    self.found = <node_t**>moved
    self.found_room = room
    return True


cdef void races_drop(races_t* self, node_t* node) noexcept nogil:
    self.root = treap_remove(self.root, node)
    self.nodes -= 1
    free(node)


# --- the treap --------------------------------------------------------------------------------------------------

cdef void treap_find(races_t* self, node_t* node, uint64_t start, uint64_t end) noexcept nogil:
    if node is NULL or node.end <= start:
        return
    treap_find(self, node.left, start, end)
    if node.access.address >= end:
        return
    if node.access.address + node.access.nbytes > start:
        self.found[self.found_count] = node
        self.found_count += 1
    treap_find(self, node.right, start, end)


cdef node_t* treap_insert(node_t* root, node_t* made) noexcept nogil:
    if root is NULL or root.priority < made.priority:
        treap_split(root, made, &made.left, &made.right)
        return node_measure(made)
    if node_before(made, root):
        root.left = treap_insert(root.left, made)
    else:
        root.right = treap_insert(root.right, made)
    return node_measure(root)


cdef node_t* treap_remove(node_t* root, const node_t* gone) noexcept nogil:
    if root is gone:
        return treap_merge(root.left, root.right)
    if node_before(gone, root):
        root.left = treap_remove(root.left, gone)
    else:
        root.right = treap_remove(root.right, gone)
    return node_measure(root)


cdef void treap_split(node_t* root, const node_t* at, node_t** below, node_t** above) noexcept nogil:
    """Part a treap into what comes before `at` and what comes after."""
    if root is NULL:
        below[0] = NULL
        above[0] = NULL
    elif node_before(root, at):
        treap_split(root.right, at, &root.right, above)
        below[0] = node_measure(root)
    else:
        treap_split(root.left, at, below, &root.left)
        above[0] = node_measure(root)


cdef node_t* treap_merge(node_t* below, node_t* above) noexcept nogil:
    if below is NULL or above is NULL:
        return above if below is NULL else below
    if below.priority > above.priority:
        below.right = treap_merge(below.right, above)
        return node_measure(below)
    above.left = treap_merge(below, above.left)
    return node_measure(above)


cdef void treap_free(node_t* root) noexcept nogil:
    if root is not NULL:
        treap_free(root.left)
        treap_free(root.right)
        free(root)


cdef bint treap_check(const node_t* root, const node_t** previous, uint64_t* nodes) noexcept nogil:
    """Walk the treap in its order; `previous` is the node before the next one."""
    if root is NULL:
        return True
    if not treap_check(root.left, previous, nodes):
        return False
    if previous[0] is not NULL and not node_before(previous[0], root):
        return False
    if root.end != end_of(root) or priority_of(root.left) > root.priority or priority_of(root.right) > root.priority:
        return False
    previous[0] = root
    nodes[0] += 1
    return treap_check(root.right, previous, nodes)


cdef uint64_t priority_of(const node_t* node) noexcept nogil:
    return 0 if node is NULL else node.priority


cdef bint node_before(const node_t* a, const node_t* b) noexcept nogil:
    if a.access.address != b.access.address:
        return a.access.address < b.access.address
    return a.serial < b.serial


cdef node_t* node_measure(node_t* node) noexcept nogil:
    node.end = end_of(node)
    return node


cdef uint64_t end_of(const node_t* node) noexcept nogil:
    cdef uint64_t end = node.access.address + node.access.nbytes
    if node.left is not NULL:
        end = max(end, node.left.end)
    if node.right is not NULL:
        end = max(end, node.right.end)
    return end


cdef uint64_t scatter(uint64_t number) noexcept nogil:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014): priorities that look random and repeat in each run."""
    number += <uint64_t>0x9E3779B97F4A7C15
    number = (number ^ (number >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    number = (number ^ (number >> 27)) * <uint64_t>0x94D049BB133111EB
    return number ^ (number >> 31)
