"""Timing loops without the GIL: the pool, its tiers and libc's malloc at the same work.

A loop keeps a fixed number of blocks live and replaces one of them again and again, so each step is a pair of free and
allocation. Sizes and the order of replacement are made beforehand. Nobody touches the memory.

Times are those of the thread's processor, the kernel's part included: what other programs take from it does not count.
"""

import statistics
import time
import timeit

from libc.math cimport pow
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, timespec

from cuda_pool._api cimport Pool
from cuda_pool._buddy cimport (
    NO_BLOCK, buddy_alloc, buddy_destroy, buddy_hold, buddy_init, buddy_release, buddy_t)
from cuda_pool._calls cimport pool_alloc, pool_alloc_as, pool_free, pool_free_async_as
from cuda_pool._hostmem cimport CACHE_LINE, host_align
from cuda_pool._mid cimport (
    MID_UNIT, MID_USED, NO_MID, mid_destroy, mid_extend, mid_find, mid_free, mid_init, mid_reserve, mid_t, mid_take)
from cuda_pool._order cimport stream_ref_t
from cuda_pool._owner cimport NOBODY
from cuda_pool._pool cimport pool_t
from cuda_pool._slab cimport (
    NO_SLAB, NO_SLOT, slab_activate, slab_return, slab_slot, slab_take, slabs_available, slabs_class, slabs_destroy,
    slabs_init, slabs_make, slabs_of, slabs_t, slabs_unmake, slabs_wanted, slot_is_live)

from cuda_pool.settings import usual_classes
from cuda_pool.sizes import format_size, parse_size, shown

cdef extern from * nogil:
    """
    __attribute__((noinline)) static uintptr_t cuda_pool_opaque(uintptr_t value) {
        __asm__ volatile("" : "+r"(value) : : "memory");
        return value;
    }
    """
    uintptr_t opaque "cuda_pool_opaque"(uintptr_t)

# Smallest and largest size in bytes, and live blocks.
WORKLOADS = {
    "W1": (512, 512, 1),
    "W2": (64, 32 << 10, 10_000),
    "W3": (32 << 10, 1 << 20, 2_000),
    "W4": (1 << 20, 64 << 20, 200),
}
ROUNDS = 11

cdef enum:
    ALIGN = 256                 # ALIGNMENT
    RUN_UNIT = 64 << 10         # of the buddy tier alone

# One pair: the block at `place` goes, one of `size` bytes takes its place.
ctypedef struct step_t:
    uint32_t size
    uint32_t place

# A live block, as its allocator's free wants it; address 0 while there is none.
cdef enum:
    SLABS = 1 << 22             # that the slab tier alone may make

ctypedef struct held_t:
    uintptr_t address
    uint32_t slab               # slab tier only

# A pool as one stream sees it.
ctypedef struct pool_stream_t:
    pool_t* pool
    stream_ref_t stream

# The slab tier alone: a new slab lies behind the last one.
ctypedef struct slab_tier_t:
    slabs_t slabs
    size_t end

ctypedef struct libc_t:
    int unused

ctypedef struct nothing_t:
    int unused

ctypedef fused allocator_t:
    pool_t
    pool_stream_t
    slab_tier_t
    mid_t
    buddy_t
    libc_t
    nothing_t


cdef class Workload:
    """Random sizes, spread evenly over their logarithms, and a random order of replacement.

    Parameters
    ----------
    smallest, largest : int
        Sizes in bytes, below 4 GiB.
    live : int
        Blocks that are live at any time.
    pairs : int
        Steps of a round: pairs of a free and an allocation.
    seed : int
        The same seed gives the same work.
    """

    cdef step_t* steps          # `live` that fill the places, then `pairs`
    cdef readonly size_t live
    cdef readonly size_t pairs
    cdef readonly size_t smallest
    cdef readonly size_t largest

    def __cinit__(self, smallest, largest, live, pairs=100_000, uint64_t seed=1):
        if not 1 <= smallest <= largest < 1 << 32:
            raise ValueError(f"sizes are from 1 byte to below 4 GiB, the smallest first, got {smallest} and {largest}")
        if not 1 <= live < 1 << 32 or pairs < 1:
            raise ValueError(f"live (below 2**32) and pairs are at least 1, got {live} and {pairs}")
        self.smallest, self.largest, self.live, self.pairs = smallest, largest, live, pairs
        self.steps = <step_t*>malloc((self.live + self.pairs) * sizeof(step_t))
        if self.steps == NULL:
            raise MemoryError("the host has no memory left for a workload")
        steps_draw(self, seed)

    def __dealloc__(self):
        free(self.steps)

    @classmethod
    def named(cls, name, pairs=100_000):
        """Return one of `WORKLOADS`."""
        return cls(*WORKLOADS[name], pairs)


cdef class Loop:
    """A workload played against one allocator; its blocks stay live between the rounds."""

    cdef readonly Workload workload
    cdef size_t live
    cdef held_t* held

    def __cinit__(self, Workload workload not None, *args, **kwargs):
        self.workload = workload
        self.live = workload.live
        self.held = <held_t*>host_align(2 * CACHE_LINE, held_bytes(self.live))
        if self.held == NULL:
            raise MemoryError("the host has no memory left for a loop")
        memset(self.held, 0, held_bytes(self.live))

    def __dealloc__(self):
        free(self.held)

    def run(self):
        """Play one round.

        Returns
        -------
        float
            Nanoseconds per pair, the loop itself included.

        Raises
        ------
        MemoryError
            An allocation or a free failed; all blocks are returned.
        """
        cdef const step_t* pairs = self.workload.steps + self.live
        cdef uint64_t start = 0, end = 0
        cdef int failed = 0
        with nogil:
            if self.held[self.live - 1].address == 0:
                failed = self.play(self.workload.steps, pairs)
            start = now()
            if not failed:
                failed = self.play(pairs, pairs + self.workload.pairs)
            end = now()
            if failed:
                self.drop()
        if failed:
            raise MemoryError(f"{type(self).__name__}: an allocation or a free failed")
        return (end - start) / <double>self.workload.pairs

    # 0, or not: the first failure ends it.
    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return 0

    cdef void drop(self) noexcept nogil:
        pass


cdef inline size_t held_bytes(size_t live) noexcept nogil:
    """Whole lines: loops of two threads share none."""
    return live * sizeof(held_t) + 2 * CACHE_LINE - 1 & -2 * CACHE_LINE


cdef class PoolLoop(Loop):
    """The pool through its nogil functions: lock, statistics and pointer checks included."""

    cdef readonly Pool pool

    def __cinit__(self, Workload workload, Pool pool not None):
        self.pool = pool

    def __dealloc__(self):
        if self.pool is not None:
            self.drop()

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return replace(self.pool.state, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(self.pool.state, self.held, self.live)


cdef class StreamLoop(Loop):
    """The same on one stream, whose order the frees are in: threads with loops on several streams of a pool meet there.

    `stream` is a stream that stays one: 0, 2 if the loop runs in the thread that made it, an object, or a handle that
    the pool holds.
    """

    cdef readonly Pool pool
    cdef pool_stream_t on

    def __cinit__(self, Workload workload, Pool pool not None, stream):
        self.pool = pool
        self.on.pool = pool.state
        pool.streams.find(stream, &self.on.stream)

    def __dealloc__(self):
        if self.pool is not None:
            self.drop()

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return replace(&self.on, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.on, self.held, self.live)


cdef class SlabLoop(Loop):
    """The slab tier through its own functions, with the usual classes up to the workload's largest size."""

    cdef slab_tier_t tier

    def __cinit__(self, Workload workload):
        cdef size_t sizes[512]          # MOST_CLASSES
        classes = usual_classes(workload.largest)
        for index, size in enumerate(classes):
            sizes[index] = size
        self.tier.end = ALIGN           # no slot at 0
        if not slabs_init(&self.tier.slabs, sizes, <int>len(classes), SLABS, False):
            raise MemoryError("the host has no memory left for a slab tier")

    def __dealloc__(self):
        slabs_destroy(&self.tier.slabs)

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return replace(&self.tier, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.tier, self.held, self.live)


cdef class MidLoop(Loop):
    """The mid tier through its own functions; it owns `capacity` bytes from the start."""

    cdef mid_t tier

    def __cinit__(self, Workload workload, capacity="64GiB"):
        cdef uint32_t units = units_of(capacity, MID_UNIT)
        if not mid_init(&self.tier, units, units, units) or not mid_reserve(&self.tier, 1):
            raise MemoryError("the host has no memory left for a mid tier")
        mid_extend(&self.tier, units, NOBODY, 0)

    def __dealloc__(self):
        mid_destroy(&self.tier)

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return replace(&self.tier, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.tier, self.held, self.live)


cdef class BuddyLoop(Loop):
    """The buddy tier through its own functions, over `capacity` bytes in units of 64 KiB."""

    cdef buddy_t tier

    def __cinit__(self, Workload workload, capacity="64GiB"):
        if not buddy_init(&self.tier, units_of(capacity, RUN_UNIT)):
            raise MemoryError("the host has no memory left for a buddy tier")

    def __dealloc__(self):
        buddy_destroy(&self.tier)

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return replace(&self.tier, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.tier, self.held, self.live)


cdef class MallocLoop(Loop):
    """libc's malloc and free."""

    cdef libc_t libc

    def __dealloc__(self):
        self.drop()

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return replace(&self.libc, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.libc, self.held, self.live)


cdef class EmptyLoop(Loop):
    """Two calls that do nothing, which the compiler cannot see through: what any loop costs."""

    cdef nothing_t nothing

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return replace(&self.nothing, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.nothing, self.held, self.live)


cdef class Empty:
    """Methods that do nothing: what a call from Python costs at the least."""

    def none(self):
        """Take nothing."""

    def one(self, value):
        """Take one argument."""


def compare(loops, rounds=ROUNDS):
    """Run loops in turn, round after round, so that whatever slows the machine down slows all of them.

    Parameters
    ----------
    loops : sequence of Loop
    rounds : int
        Rounds of each, after one that is not counted.

    Returns
    -------
    list of float
        The median of the nanoseconds per pair, for each loop.
    """
    return medians([loop.run for loop in loops], rounds)


def compare_calls(Pool pool not None, nbytes=512, rounds=101, calls=1000):
    """Time an allocation and its free as a Python program makes them, beside two calls of an empty method.

    Parameters
    ----------
    pool : Pool
    nbytes : int
        Size of the allocation.
    rounds : int
        Rounds of each, in turn, after one that is not counted.
    calls : int
        Pairs in a round.

    Returns
    -------
    list of float
        Medians of the nanoseconds for a pair: the pool, a method with one argument, a method with none.
    """
    statements = ("ptr = pool.alloc(nbytes); pool.free(ptr)",
                  "ptr = empty.one(nbytes); empty.one(ptr)",
                  "empty.none(); empty.none()")
    timers = [timeit.Timer(statement, "pool, empty, nbytes = given", time.thread_time,
                           {"given": (pool, Empty(), nbytes)}) for statement in statements]
    return medians([lambda timer=timer: timer.timeit(calls) / calls * 1e9 for timer in timers], rounds)


def medians(functions, rounds):
    """Call functions in turn, and return the median of what each returns."""
    for function in functions:
        function()
    return [statistics.median(column) for column in zip(*([function() for function in functions]
                                                          for _ in range(rounds)))]


cdef uint32_t units_of(capacity, size_t unit) except 0:
    """Convert the capacity of a tier."""
    nbytes = parse_size(capacity)
    if not unit <= nbytes < unit << 31:
        raise ValueError(f"capacity is from {format_size(unit)} to below {format_size(unit << 31)}, "
                         f"got {shown(nbytes)} bytes")
    return nbytes // unit


# The work

cdef void steps_draw(Workload work, uint64_t seed) noexcept:
    cdef uint64_t state = seed
    cdef double spread = work.largest / <double>work.smallest
    cdef size_t index
    for index in range(work.live + work.pairs):
        work.steps[index].size = <uint32_t>min(work.smallest * pow(spread, draw(&state) / 2.0**64), work.largest)
        work.steps[index].place = <uint32_t>(index if index < work.live else draw(&state) % work.live)


cdef uint64_t draw(uint64_t* state) noexcept nogil:
    """Return the next number of a splitmix64 sequence (Steele, Lea and Flood, OOPSLA 2014)."""
    cdef uint64_t mixed
    state[0] += 0x9E3779B97F4A7C15ULL
    mixed = (state[0] ^ state[0] >> 30) * 0xBF58476D1CE4E5B9ULL
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBULL
    return mixed ^ mixed >> 31


cdef uint64_t now() noexcept nogil:
    cdef timespec spent
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent)
    return <uint64_t>spent.tv_sec * 1_000_000_000 + spent.tv_nsec


# The loops; each allocator has a copy of its own, in which its functions are called directly

cdef int replace(allocator_t* allocator, held_t* held, const step_t* step, const step_t* end) noexcept nogil:
    cdef held_t* at
    while step < end:
        at = &held[step.place]
        if release(allocator, at) != 0 or acquire(allocator, step.size, at) != 0:
            return 1
        step += 1
    return 0


cdef void release_all(allocator_t* allocator, held_t* held, size_t count) noexcept nogil:
    cdef size_t place
    for place in range(count):
        release(allocator, &held[place])
        held[place].address = 0


cdef inline int acquire(allocator_t* allocator, uint32_t nbytes, held_t* held) noexcept nogil:
    """Return 0, or not: then held.address is 0."""
    if allocator_t is pool_t:
        return pool_alloc(allocator, nbytes, ALIGN, NULL, <void**>&held.address)
    elif allocator_t is pool_stream_t:
        return pool_alloc_as(allocator.pool, nbytes, ALIGN, &allocator.stream, <void**>&held.address)
    elif allocator_t is slab_tier_t:
        return slot_acquire(allocator, nbytes, held)
    elif allocator_t is mid_t:
        return block_acquire(allocator, nbytes, held)
    elif allocator_t is buddy_t:
        return run_acquire(allocator, nbytes, held)
    elif allocator_t is libc_t:
        held.address = <uintptr_t>malloc(nbytes)
        return held.address == 0
    else:
        held.address = opaque(nbytes)
        return 0


cdef inline int release(allocator_t* allocator, held_t* held) noexcept nogil:
    """Return 0, also where nothing is held."""
    if allocator_t is pool_t:
        return pool_free(allocator, <void*>held.address)
    elif allocator_t is pool_stream_t:
        return pool_free_async_as(allocator.pool, <void*>held.address, &allocator.stream)
    elif allocator_t is slab_tier_t:
        return slot_release(allocator, held)
    elif allocator_t is mid_t:
        return block_release(allocator, held)
    elif allocator_t is buddy_t:
        return run_release(allocator, held)
    elif allocator_t is libc_t:
        free(<void*>held.address)
        return 0
    else:
        opaque(held.address)
        return 0


# The tiers alone

cdef inline int slot_acquire(slab_tier_t* tier, size_t nbytes, held_t* held) noexcept nogil:
    cdef int size_class = slabs_class(&tier.slabs, nbytes, ALIGN)
    cdef uint32_t slab = slabs_available(slabs_of(&tier.slabs, NOBODY, size_class))
    held.address = 0
    if slab == NO_SLAB:
        slab = slab_append(tier, size_class)
        if slab == NO_SLAB:
            return 1
    held.slab = slab
    held.address = slab_take(&tier.slabs, slab, nbytes)
    return 0


cdef inline int slot_release(slab_tier_t* tier, const held_t* held) noexcept nogil:
    cdef uint32_t slot
    if held.address == 0:
        return 0
    slot = slab_slot(&tier.slabs, held.slab, held.address)
    if slot == NO_SLOT or not slot_is_live(&tier.slabs.slab[held.slab], slot):
        return 1
    if slab_return(&tier.slabs, held.slab, slot):
        slabs_unmake(&tier.slabs, held.slab)
    return 0


cdef uint32_t slab_append(slab_tier_t* tier, int size_class) noexcept nogil:
    cdef size_t nbytes = slabs_wanted(&tier.slabs, NOBODY, size_class)
    cdef uint32_t slab = slabs_make(&tier.slabs, NOBODY, size_class, tier.end, nbytes, 0, 0)
    if slab != NO_SLAB:
        slab_activate(&tier.slabs, slab)
        tier.end += nbytes
    return slab


cdef inline int block_acquire(mid_t* tier, size_t nbytes, held_t* held) noexcept nogil:
    cdef uint32_t units = <uint32_t>((nbytes + MID_UNIT - 1) // MID_UNIT), found
    held.address = 0
    if not mid_reserve(tier, 2):
        return 1
    found = mid_find(tier, NOBODY, units, 0, 0)
    if found == NO_MID:
        return 1
    held.address = mid_take(tier, found, units, 0, 0, MID_USED)
    return 0


cdef inline int block_release(mid_t* tier, const held_t* held) noexcept nogil:
    if held.address != 0:
        mid_free(tier, <uint32_t>held.address, NOBODY, 0)
    return 0


cdef inline int run_acquire(buddy_t* tier, size_t nbytes, held_t* held) noexcept nogil:
    """The address is 1 + the run's first unit."""
    cdef uint32_t units = <uint32_t>((nbytes + RUN_UNIT - 1) // RUN_UNIT)
    cdef uint32_t run = buddy_alloc(tier, NOBODY, units, 0)
    held.address = 0
    if run == NO_BLOCK:
        return 1
    buddy_hold(tier, run, units, 0)
    held.address = <uintptr_t>run + 1
    return 0


cdef inline int run_release(buddy_t* tier, const held_t* held) noexcept nogil:
    if held.address != 0:
        buddy_release(tier, <uint32_t>(held.address - 1), NOBODY, 0)
    return 0
