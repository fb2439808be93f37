"""Play a trace event by event, and note where its blocks are and what the pool holds: for pictures of any moment."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

import numpy as np

from cuda_pool._pages cimport pages_t
from cuda_pool._pool cimport pool_t
from cuda_pool._replay cimport Replay
from cuda_pool._room cimport segment_largest_free
from cuda_pool._segment cimport place_t, segment_is_live, segment_pending, segment_total
from cuda_pool._state cimport UPSTREAM_MEM_MAP, UPSTREAM_MEM_UNMAP, pool_offset
from cuda_pool._trace cimport EVENT_ALLOC, EVENT_FREE, event_t

NEVER = 0xFFFFFFFF          # the event at which a block that stays is freed
SAMPLES = 1_000_000            # looks at the largest free block in the course of a trace


cdef class Recorder:
    """A replay that is watched: has `place` and `run` of its own, and all else of `cuda_pool._replay.Replay`.

    Moments are numbers of events that were played: a block is live at the moments from `born` to before `died`. It is
    the only one that uses the pool.

    Parameters
    ----------
    loop : Replay
        Against a pool.

    Attributes
    ----------
    address, used, tier, born, died : numpy.ndarray
        One value for each block of the trace; `tier` is 0 for a block that was never allocated, or has no byte.
    samples : list of (int, int, int)
        Moment, largest free block and pending bytes: looked at a million times or more, or at each event of a shorter
        trace, and noted where they changed.
    reserved : list of (int, int)
        Moment, and bytes held from the device from then on.
    regions : list of list of int
        Address, size, and the moments at which the region came and was given back; the range of addresses of a pool
        whose pages move.
    pages : list of (int, int, bool)
        Moment, page of that range, and whether there is memory from then on; empty unless pages move.
    """

    cdef readonly Replay loop
    cdef readonly object address, used, tier, born, died
    cdef readonly list samples, reserved, regions, pages
    cdef uint64_t[::1] addresses
    cdef uint64_t[::1] sizes
    cdef uint8_t[::1] tiers
    cdef uint32_t[::1] births
    cdef uint32_t[::1] deaths
    cdef uint64_t[::1] ready            # the pages that had memory when it looked last
    cdef size_t reserved_now
    cdef size_t page_calls
    cdef size_t region_changes
    cdef tuple last_sample

    def __cinit__(self, Replay loop not None):
        if loop.pool is None:
            raise ValueError("a replay against libc's malloc has no pool to record")
        self.loop = loop

    def __getattr__(self, name):
        return getattr(self.loop, name)

    def place(self):
        """Allocate the blocks that were live before the first event, and begin the record."""
        cdef size_t count = self.loop.replay.trace.block_count, index
        self.address, self.used = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        self.tier, self.born = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
        self.died = np.full(count, NEVER, np.uint32)
        self.addresses, self.sizes, self.tiers = self.address, self.used, self.tier
        self.births, self.deaths = self.born, self.died
        self.samples, self.reserved, self.regions, self.pages = [], [], [], []
        self.ready = np.zeros(page_words(self.loop.pool.state) + 1, np.uint64)
        self.last_sample = None
        self.reserved_now = self.page_calls = self.region_changes = <size_t>-1
        self.loop.place()
        for index in range(count):
            self.note_block(<uint32_t>index, 0)
        self.look(0)
        self.sample(0)

    def run(self, size_t count):
        """Play the next events, as the replay does, and note what each did."""
        cdef size_t events = self.loop.replay.trace.event_count, moment
        cdef size_t every = max(events // SAMPLES, 1)
        cdef size_t stop = min(self.loop.replay.position + count, events)
        while self.loop.replay.position < stop and self.loop.failure is None:
            self.loop.run(1)
            moment = self.loop.replay.position
            if self.loop.failure is None:
                self.note_event(moment)
            self.look(moment)
            if moment % every == 0 or moment == events or self.loop.failure is not None:
                self.sample(moment)

    cdef int note_event(self, size_t moment) except -1:
        cdef const event_t* event = &self.loop.replay.trace.events[moment - 1]
        if event.kind == EVENT_ALLOC:
            self.note_block(event.block, moment)
        elif event.kind == EVENT_FREE:
            self.deaths[event.block] = <uint32_t>moment
        return 0

    cdef int note_block(self, uint32_t index, size_t moment) except -1:
        """Note where a block is; nothing if it has no address."""
        cdef pool_t* pool = self.loop.pool.state
        cdef void* ptr = self.loop.replay.address[index]
        cdef place_t place
        if ptr == NULL or not segment_is_live(&pool.segment, pool_offset(pool, ptr), &place):
            return 0
        self.addresses[index] = <size_t>ptr
        self.sizes[index] = place.used
        self.tiers[index] = <uint8_t>place.tier
        self.births[index] = <uint32_t>moment
        return 0

    cdef int look(self, size_t moment) except -1:
        """Note what changed in the memory that the pool holds."""
        cdef const pool_t* pool = self.loop.pool.state
        cdef size_t calls = pool.upstream[UPSTREAM_MEM_MAP] + pool.upstream[UPSTREAM_MEM_UNMAP]
        if pool.reserved != self.reserved_now:
            self.reserved_now = pool.reserved
            self.reserved.append((moment, pool.reserved))
        if calls != self.page_calls:
            self.page_calls = calls
            self.look_at_pages(moment)
        if pool.grow_count + pool.trim_count != self.region_changes:
            self.region_changes = pool.grow_count + pool.trim_count
            self.look_at_regions(moment)
        return 0

    cdef int look_at_pages(self, size_t moment) except -1:
        cdef const pages_t* pages = &self.loop.pool.state.segment.pages
        cdef size_t word, words = page_words(self.loop.pool.state)
        cdef uint64_t changed
        cdef uint32_t page
        for word in range(words):
            changed = self.ready[word] ^ pages.ready[word]
            self.ready[word] = pages.ready[word]
            for page in range(64 if changed != 0 else 0):
                if changed >> page & 1:
                    self.pages.append((moment, word * 64 + page, self.ready[word] >> page & 1 != 0))
        return 0

    cdef int look_at_regions(self, size_t moment) except -1:
        found = regions_of(self.loop.pool.state)
        for region in self.regions:
            if region[3] == NEVER and (region[0], region[1]) not in found:
                region[3] = moment
            elif region[3] == NEVER:
                found.remove((region[0], region[1]))
        self.regions += [[address, size, moment, NEVER] for address, size in found]
        return 0

    cdef int sample(self, size_t moment) except -1:
        """Look at what is free. Nothing is locked, and no cache emptied, which would change what happens next."""
        cdef pool_t* pool = self.loop.pool.state
        cdef size_t held = pool.segment.size if pool.segment.pages.shift == 0 else pool.reserved
        cdef size_t free = held - segment_total(&pool.segment).used
        now = min(segment_largest_free(&pool.segment), free), segment_pending(&pool.segment)
        if now != self.last_sample:
            self.samples.append((moment, *now))
            self.last_sample = now
        return 0


cdef size_t page_words(const pool_t* pool) noexcept:
    return 0 if pool.segment.pages.shift == 0 else (pool.segment.pages.count + 63) // 64


cdef object regions_of(const pool_t* pool):
    """Return (address, size) of what the pool has; where pages move, of its range of addresses."""
    cdef uint32_t at
    if pool.segment.pages.shift != 0:
        return [(pool.base, pool.segment.size)]
    return [(pool.regions.region[at].address, pool.regions.region[at].size) for at in range(pool.regions.count)]
