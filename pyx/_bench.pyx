"""Timing loops without the GIL: the pool, its tiers, libc's malloc and other libraries at the same work.

A loop keeps a fixed number of blocks live and replaces one of them again and again, so each step is a pair of free and
allocation. Sizes and the order of replacement are made beforehand. Or it plays the events of a recorded trace, each of
which is one or the other. Nobody touches the memory.

Times are those of the thread's processor, the kernel's part included: what other programs take from it does not count.
"""

import os
import statistics
import time
import timeit

from libc.math cimport pow
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, timespec

from cuda_pool._api cimport Pool
from cuda_pool._buddy cimport (
    NO_BLOCK, buddy_alloc, buddy_destroy, buddy_hold, buddy_init, buddy_release, buddy_t)
from cuda_pool._calls cimport pool_alloc, pool_alloc_as, pool_free, pool_free_async_as
from cuda_pool._cut cimport mid_free
from cuda_pool._hostmem cimport CACHE_LINE, host_align
from cuda_pool._mid cimport (
    MID_UNIT, MID_USED, NO_MID, mid_destroy, mid_extend, mid_find, mid_init, mid_reserve, mid_t, mid_take)
from cuda_pool._order cimport stream_ref_t
from cuda_pool._owner cimport NOBODY
from cuda_pool._pool cimport pool_t
from cuda_pool._slab cimport (
    NO_SLAB, NO_SLOT, slab_activate, slab_return, slab_slot, slab_take, slabs_available, slabs_class, slabs_destroy,
    slabs_init, slabs_make, slabs_of, slabs_t, slabs_unmake, slabs_wanted, slot_is_live)
from cuda_pool._trace cimport BLOCK_PREEXISTING, EVENT_ALLOC, EVENT_FREE, TraceTable, event_t, trace_t

from cuda_pool.settings import usual_classes
from cuda_pool.sizes import format_size, parse_size, shown

cdef extern from * nogil:
    """
    __attribute__((noinline)) static uintptr_t cuda_pool_opaque(uintptr_t value) {
        __asm__ volatile("" : "+r"(value) : : "memory");
        return value;
    }

    /* A name for valgrind. It is like no other function, or the linker or compiler might make one of both. */
    __attribute__((noinline)) static void cuda_pool_mark(void) {
        __asm__ volatile("# end of a round" : : : "memory");
    }
    """
    uintptr_t opaque "cuda_pool_opaque"(uintptr_t)
    void cuda_pool_mark()

cdef extern from "dlfcn.h" nogil:
    enum:
        RTLD_NOW
        RTLD_LOCAL

    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)
    char* dlerror()

# Smallest and largest size in bytes, and live blocks.
WORKLOADS = {
    "W1": (512, 512, 1),
    "W2": (64, 32 << 10, 10_000),
    "W3": (32 << 10, 1 << 20, 2_000),
    "W4": (1 << 20, 64 << 20, 200),
}
ROUNDS = 11

# What a Python program does; each is a pair of calls.
CALLS = {
    "alloc free": "ptr = pool.alloc(nbytes); pool.free(ptr)",
    "alloc free_async": "ptr = pool.alloc(nbytes); pool.free_async(ptr)",
    "buffer": "pool.buffer(nbytes)",
    "empty one": "ptr = empty.one(nbytes); empty.one(ptr)",
    "empty none": "empty.none(); empty.none()",
}

cdef enum:
    ALIGN = 256                 # ALIGNMENT
    RUN_UNIT = 64 << 10         # of the buddy tier alone

# One pair: the block at `place` goes, one of `size` bytes takes its place. In a trace it is one event: a block of
# `size` bytes comes to a place where none is, or with size 0 the one at `place` goes.
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

# Two functions of a library, as malloc and free are.
ctypedef struct library_t:
    void* (*alloc)(size_t) noexcept nogil
    void (*free)(void*) noexcept nogil

ctypedef struct nothing_t:
    int unused

ctypedef fused allocator_t:
    pool_t
    pool_stream_t
    slab_tier_t
    mid_t
    buddy_t
    libc_t
    library_t
    nothing_t


cdef class Work:
    """Steps for a loop, made beforehand: `Workload` or `TraceWork`."""

    cdef step_t* steps          # `filling` that are not timed, then those that are, up to `end`
    cdef size_t filling
    cdef size_t end
    cdef bint is_trace
    cdef readonly size_t live
    cdef readonly size_t pairs

    def __dealloc__(self):
        free(self.steps)

    cdef int make_steps(self, size_t count) except -1:
        self.steps = <step_t*>malloc(count * sizeof(step_t))
        if self.steps == NULL:
            raise MemoryError("the host has no memory left for a workload")
        self.end = count
        return 0


cdef class Workload(Work):
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

    cdef readonly size_t smallest
    cdef readonly size_t largest

    def __cinit__(self, smallest, largest, live, pairs=100_000, uint64_t seed=1):
        if not 1 <= smallest <= largest < 1 << 32:
            raise ValueError(f"sizes are from 1 byte to below 4 GiB, the smallest first, got {smallest} and {largest}")
        if not 1 <= live < 1 << 32 or pairs < 1:
            raise ValueError(f"live (below 2**32) and pairs are at least 1, got {live} and {pairs}")
        self.smallest, self.largest, self.live, self.pairs = smallest, largest, live, pairs
        self.make_steps(self.live + self.pairs)
        self.filling = self.live
        steps_draw(self, seed)

    @classmethod
    def named(cls, name, pairs=100_000):
        """Return one of `WORKLOADS`."""
        return cls(*WORKLOADS[name], pairs)


cdef class TraceWork(Work):
    """The events of a trace, in program order; a round plays all of them, and two events count as a pair.

    Blocks that were live before the first event are allocated, and what is left is freed, while no time is taken. Frees
    of blocks that are not live, and blocks of no bytes, are left out.

    Parameters
    ----------
    trace : Trace
        Its blocks are below 4 GiB each.
    """

    def __cinit__(self, TraceTable trace not None):
        cdef const trace_t* events = &trace.trace
        self.is_trace = True
        self.live = events.block_count
        self.make_steps(events.block_count + events.event_count)
        if not steps_of_trace(self, events):
            raise ValueError("a trace for a timing loop has blocks below 4 GiB each, and events")


cdef class Loop:
    """A workload played against one allocator; its blocks stay live between the rounds, but those of a trace do not."""

    cdef readonly Work workload
    cdef size_t live
    cdef held_t* held

    def __cinit__(self, Work workload not None, *args, **kwargs):
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
        cdef const step_t* first = self.workload.steps
        cdef const step_t* timed = first + self.workload.filling
        cdef uint64_t start = 0, end = 0
        cdef int failed = 0
        with nogil:
            if self.held[self.live - 1].address == 0:
                failed = self.play(first, timed)
            start = now()
            if not failed:
                failed = self.play(timed, first + self.workload.end)
            end = now()
            if failed or self.workload.is_trace:
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

    def __cinit__(self, Work workload, Pool pool not None):
        self.pool = pool

    def __dealloc__(self):
        if self.pool is not None:
            self.drop()

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return steps_play(self.workload, self.pool.state, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(self.pool.state, self.held, self.live)


cdef class StreamLoop(Loop):
    """The same on one stream, whose order the frees are in: threads with loops on several streams of a pool meet there.

    `stream` is a stream that stays one: 0, 2 if the loop runs in the thread that made it, an object, or a handle that
    the pool holds.
    """

    cdef readonly Pool pool
    cdef pool_stream_t on

    def __cinit__(self, Work workload, Pool pool not None, stream):
        self.pool = pool
        self.on.pool = pool.state
        pool.streams.find(stream, &self.on.stream)

    def __dealloc__(self):
        if self.pool is not None:
            self.drop()

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return steps_play(self.workload, &self.on, self.held, step, end)

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
        return steps_play(self.workload, &self.tier, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.tier, self.held, self.live)


cdef class MidLoop(Loop):
    """The mid tier through its own functions; it owns `capacity` bytes from the start."""

    cdef mid_t tier

    def __cinit__(self, Work workload, capacity="64GiB"):
        cdef uint32_t units = units_of(capacity, MID_UNIT)
        if not mid_init(&self.tier, units, units, units) or not mid_reserve(&self.tier, 1):
            raise MemoryError("the host has no memory left for a mid tier")
        mid_extend(&self.tier, units, NOBODY, 0)

    def __dealloc__(self):
        mid_destroy(&self.tier)

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return steps_play(self.workload, &self.tier, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.tier, self.held, self.live)


cdef class BuddyLoop(Loop):
    """The buddy tier through its own functions, over `capacity` bytes in units of 64 KiB."""

    cdef buddy_t tier

    def __cinit__(self, Work workload, capacity="64GiB"):
        if not buddy_init(&self.tier, units_of(capacity, RUN_UNIT)):
            raise MemoryError("the host has no memory left for a buddy tier")

    def __dealloc__(self):
        buddy_destroy(&self.tier)

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return steps_play(self.workload, &self.tier, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.tier, self.held, self.live)


cdef class MallocLoop(Loop):
    """libc's malloc and free."""

    cdef libc_t libc

    def __dealloc__(self):
        self.drop()

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return steps_play(self.workload, &self.libc, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.libc, self.held, self.live)


cdef class LibraryLoop(Loop):
    """Two functions of a shared library, called by their addresses.

    Parameters
    ----------
    workload : Work
    library : str or os.PathLike
        As for ``dlopen``; it stays loaded.
    alloc, free : str
        Names of functions like libc's: ``void *alloc(size_t)``, which returns NULL on failure, and
        ``void free(void *)``.

    Raises
    ------
    OSError
        There is no such library, or it lacks a function.
    """

    cdef library_t library

    def __cinit__(self, Work workload, library, alloc, free):
        cdef void* handle
        path = os.fsencode(library)
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)
        if handle == NULL:
            raise OSError((<bytes>dlerror()).decode())
        self.library.alloc = <void* (*)(size_t) noexcept nogil>find_symbol(handle, alloc)
        self.library.free = <void (*)(void*) noexcept nogil>find_symbol(handle, free)

    def __dealloc__(self):
        if self.library.free != NULL:
            self.drop()

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return steps_play(self.workload, &self.library, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.library, self.held, self.live)


cdef class EmptyLoop(Loop):
    """Two calls that do nothing, which the compiler cannot see through: what any loop costs."""

    cdef nothing_t nothing

    cdef int play(self, const step_t* step, const step_t* end) noexcept nogil:
        return steps_play(self.workload, &self.nothing, self.held, step, end)

    cdef void drop(self) noexcept nogil:
        release_all(&self.nothing, self.held, self.live)


cdef class Empty:
    """Methods that do nothing: what a call from Python costs at the least."""

    def none(self):
        """Take nothing."""

    def one(self, value):
        """Take one argument."""


cdef class Calls:
    """A statement as a Python program makes it: the interpreter's part is in the time.

    Parameters
    ----------
    statement : str
        What is repeated; a pair of calls.
    names : dict
        What it uses.
    calls : int
        Repetitions in a round.
    """

    cdef readonly str statement
    cdef object timer
    cdef readonly long calls

    def __cinit__(self, str statement not None, dict names not None, calls=1000):
        given = f"{', '.join(names)}, = given"
        self.statement, self.calls = statement, calls
        self.timer = timeit.Timer(statement, given, time.thread_time, {"given": tuple(names.values())})

    def run(self):
        """Play one round.

        Returns
        -------
        float
            Nanoseconds for one repetition.
        """
        return self.timer.timeit(self.calls) / self.calls * 1e9


def pool_calls(Pool pool not None, nbytes=512, calls=1000):
    """Return what a Python program does with a pool, and two calls of an empty method, by name.

    Parameters
    ----------
    pool : Pool
    nbytes : int
        Size of the allocations.
    calls : int
        Repetitions in a round.

    Returns
    -------
    dict of str to Calls
    """
    names = {"pool": pool, "empty": Empty(), "nbytes": nbytes}
    return {what: Calls(statement, names, calls) for what, statement in CALLS.items()}


def mark():
    """Mark the end of a round for a program that counts instructions from outside."""
    cuda_pool_mark()


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
    timed = pool_calls(pool, nbytes, calls)
    return medians([timed[what].run for what in ("alloc free", "empty one", "empty none")], rounds)


def medians(functions, rounds):
    """Call functions in turn, and return the median of what each returns."""
    return [statistics.median(column) for column in in_turn(functions, rounds)]


def in_turn(functions, rounds):
    """Call functions in turn, once for nothing and then `rounds` times; return what each returned, a list for each."""
    for function in functions:
        function()
    return list(map(list, zip(*([function() for function in functions] for _ in range(rounds)))))


cdef void* find_symbol(void* library, str name) except NULL:
    cdef bytes symbol = name.encode()
    cdef void* found = dlsym(library, symbol)
    if found == NULL:
        raise OSError((<bytes>dlerror()).decode())
    return found


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


cdef bint steps_of_trace(Work work, const trace_t* trace) noexcept:
    """Return False for a block that is too large, or if no event is left."""
    cdef uint32_t index
    cdef size_t position, count = 0
    for index in range(<uint32_t>trace.block_count):
        if trace.blocks[index].size > UINT32_MAX:
            return False
        if trace.blocks[index].state == BLOCK_PREEXISTING and trace.blocks[index].size > 0:
            step_set(&work.steps[count], trace.blocks[index].size, index)
            count += 1
    work.filling = count
    for position in range(trace.event_count):
        count += event_as_step(trace, &trace.events[position], &work.steps[count])
    work.end = count
    work.pairs = (count - work.filling + 1) // 2
    return work.pairs > 0


cdef inline size_t event_as_step(const trace_t* trace, const event_t* event, step_t* step) noexcept nogil:
    """Return how many steps it makes: none or one."""
    cdef uint64_t nbytes = trace.blocks[event.block].size
    if nbytes == 0 or event.kind != EVENT_ALLOC and event.kind != EVENT_FREE:
        return 0
    step_set(step, nbytes if event.kind == EVENT_ALLOC else 0, event.block)
    return 1


cdef inline void step_set(step_t* step, uint64_t nbytes, uint32_t place) noexcept nogil:
    step.size = <uint32_t>nbytes
    step.place = place


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

cdef inline int steps_play(Work work, allocator_t* allocator, held_t* held, const step_t* step,
                           const step_t* end) noexcept nogil:
    if work.is_trace:
        return perform(allocator, held, step, end)
    return replace(allocator, held, step, end)


cdef int perform(allocator_t* allocator, held_t* held, const step_t* step, const step_t* end) noexcept nogil:
    """Play events."""
    cdef held_t* at
    cdef int failed
    while step < end:
        at = &held[step.place]
        if step.size != 0:
            failed = acquire(allocator, step.size, at)
        else:
            failed = release(allocator, at)
            at.address = 0
        if failed:
            return 1
        step += 1
    return 0


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
    elif allocator_t is library_t:
        held.address = <uintptr_t>allocator.alloc(nbytes)
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
    elif allocator_t is library_t:
        allocator.free(<void*>held.address)
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
