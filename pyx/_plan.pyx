"""Which moves bring the free memory of a range together.

Between two pieces that stay, movable ones can be put anywhere. Of such stretches the one is chosen that can hold the
largest free run, and in it the window of that length with the fewest bytes to move. What lies in the window goes into
the gaps outside it, each gap being filled with the largest pieces that fit. If splinters are left that matter, the
pieces of the stretch are packed against its upper end: the gap there is filled in the same way, and where nothing fits,
the piece below it makes way first. No move ends where its piece lies, so a copy never overlaps itself.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, qsort

from cuda_pool._bits cimport log2_floor, round_up
from cuda_pool._hostmem cimport host_grow
from cuda_pool._mid cimport aligned_start

cdef enum:
    SPLINTERS = 32              # a 32nd of what can be reached may stay in splinters
    WORTHWHILE = 64             # a piece makes way for a gap of at least a 64th of its size


# A stretch between two pieces that stay, by the indices of these.
ctypedef struct stretch_t:
    uint32_t below
    uint32_t above
    uint32_t movable                # units of its pieces


cdef void plan_init(plan_t* plan, uint32_t bias, uint32_t run) noexcept nogil:
    plan.bias = bias
    plan.run = run
    plan.piece = NULL
    plan.pieces = 0
    plan.capacity = 0
    plan.move = NULL
    plan.moves = 0
    plan.candidate = NULL
    plan.next = NULL
    plan.candidates = 0
    plan.gap = NULL
    plan.gaps = 0
    plan.largest = 0
    plan.reach = 0


cdef void plan_destroy(plan_t* plan) noexcept nogil:
    free(plan.piece)
    free(plan.move)
    free(plan.candidate)
    free(plan.next)
    free(plan.gap)


cdef int plan_reserve(plan_t* plan, uint32_t pieces) noexcept nogil:
    return host_grow(<void**>&plan.piece, sizeof(piece_t), &plan.capacity, plan.pieces + pieces + 2)


cdef void plan_add(plan_t* plan, uint32_t offset, uint32_t size, uint32_t movable, uint32_t needs,
                   int align) noexcept nogil:
    cdef piece_t* piece
    plan.pieces += 1
    piece = &plan.piece[plan.pieces]
    piece.offset = offset
    piece.size = size
    piece.movable = movable
    piece.needs = needs
    piece.align = <uint8_t>align
    piece.settled = False
    piece.before = plan.pieces - 1
    piece.after = plan.pieces + 1


cdef int plan_measure(plan_t* plan, uint32_t low, uint32_t floor, uint32_t high) noexcept nogil:
    cdef stretch_t stretch
    plan.low, plan.floor, plan.high = low, floor, high
    if not plan_reserve(plan, 2):
        return 0
    plan_add(plan, high, 0, 0, 0, 0)
    plan.pieces -= 1
    plan.piece[0].offset = low
    plan.piece[0].size = 0
    plan.piece[0].movable = 0
    plan.piece[0].after = 1
    plan.largest = largest_gap(plan)
    plan.reach = max(best_stretch(plan, &stretch), plan.largest)
    return 1


cdef uint32_t largest_gap(const plan_t* plan) noexcept nogil:
    cdef uint32_t at = plan.piece[0].after, largest = 0, last = plan.pieces + 1
    while True:
        largest = max(largest, worth(plan, end_of(plan, plan.piece[at].before), plan.piece[at].offset))
        if at == last:
            return largest
        at = plan.piece[at].after


cdef inline uint32_t end_of(const plan_t* plan, uint32_t at) noexcept nogil:
    return plan.piece[at].offset + plan.piece[at].size


cdef uint32_t worth(const plan_t* plan, uint32_t start, uint32_t end) noexcept nogil:
    """Units of the largest request that a gap would serve."""
    cdef uint32_t block = 1
    if start >= end or end >= plan.floor:
        return end - start
    block <<= log2_floor(end - start)
    while block >= plan.run and round_up(start, block) + block > end:
        block >>= 1
    return block if block >= plan.run else 0


cdef uint32_t best_stretch(const plan_t* plan, stretch_t* best) noexcept nogil:
    """Find the stretch that can hold the largest free run, given what fits outside it; the units of that run."""
    cdef uint64_t room = room_in(plan, 0, plan.pieces + 1), within, outside
    cdef uint32_t at, reach, found = 0
    cdef stretch_t stretch
    stretch.below = 0
    stretch.movable = 0
    best[0] = stretch
    for at in range(1, plan.pieces + 2):
        if plan.piece[at].movable != 0:
            stretch.movable += plan.piece[at].needs
            continue
        stretch.above = at
        within = plan.piece[at].offset - end_of(plan, stretch.below)
        outside = room - room_in(plan, stretch.below, at)
        reach = <uint32_t>(within - (stretch.movable - outside if stretch.movable > outside else 0))
        if reach > found and stretch.movable <= within:
            found = reach
            best[0] = stretch
        stretch.below = at
        stretch.movable = 0
    return found


cdef uint64_t room_in(const plan_t* plan, uint32_t below, uint32_t above) noexcept nogil:
    """Free units above the floor between two pieces, none of which has moved yet."""
    cdef uint64_t room = 0
    cdef uint32_t at, start
    for at in range(below + 1, above + 1):
        start = max(end_of(plan, at - 1), plan.floor)
        if plan.piece[at].offset > start:
            room += plan.piece[at].offset - start
    return room


cdef void plan_choose(plan_t* plan) noexcept nogil:
    """The moves of a part after which the largest gap is no larger than before it are left out."""
    cdef stretch_t stretch
    cdef uint32_t reach = best_stretch(plan, &stretch), start, filled, moves
    if reach <= plan.largest or not make_room(plan):
        return
    start = cheapest_window(plan, &stretch, reach)
    if list_candidates(plan, start, start + reach):
        list_gaps(plan, start, start + reach)
        fill_gaps(plan)
    filled, moves = largest_gap(plan), plan.moves
    if filled < reach - reach // SPLINTERS and list_candidates(plan, end_of(plan, stretch.below),
                                                              plan.piece[stretch.above].offset):
        pack(plan, &stretch)
    if largest_gap(plan) <= max(filled, plan.largest):
        plan.moves = moves if filled > plan.largest else 0


cdef bint make_room(plan_t* plan) noexcept nogil:
    """A piece goes into a gap outside the window at most once, makes way at most once, and gets its place once."""
    cdef size_t count = plan.pieces + 3
    plan.move = <move_t*>malloc(3 * count * sizeof(move_t))
    plan.candidate = <uint32_t*>malloc(count * sizeof(uint32_t))
    plan.next = <uint32_t*>malloc(count * sizeof(uint32_t))
    plan.gap = <gap_t*>malloc(2 * count * sizeof(gap_t))
    return plan.move != NULL and plan.candidate != NULL and plan.next != NULL and plan.gap != NULL


cdef uint32_t cheapest_window(const plan_t* plan, const stretch_t* stretch, uint32_t length) noexcept nogil:
    """Find where in a stretch the window begins in which the fewest units lie.

    Moved down to the end of a piece a window has no more in it, so only such are tried. Gaps below the floor cannot be
    filled: there the window begins with the stretch.
    """
    cdef uint32_t high = plan.piece[stretch.above].offset, below = stretch.below, start = end_of(plan, below)
    cdef uint32_t best = start, end = below + 1
    cdef uint64_t inside = 0, least = <uint64_t>-1
    while start + length <= high:
        while plan.piece[end].offset < start + length and end < stretch.above:
            inside += plan.piece[end].needs
            end += 1
        if inside < least:
            least = inside
            best = start
        below += 1
        if start < plan.floor or below >= stretch.above:
            break
        if below < end:
            inside -= plan.piece[below].needs
        else:
            end = below + 1
        start = end_of(plan, below)
    return best


# Candidates

cdef bint list_candidates(plan_t* plan, uint32_t start, uint32_t end) noexcept nogil:
    """List the movable pieces that start in [start, end) now, by size; whether there are any."""
    cdef uint32_t at = plan.piece[0].after, last = plan.pieces + 1
    plan.candidates = 0
    while at != last:
        plan.piece[at].settled = not start <= plan.piece[at].offset < end or plan.piece[at].movable == 0
        if not plan.piece[at].settled:
            plan.candidate[plan.candidates] = at
            plan.candidates += 1
        at = plan.piece[at].after
    sort_candidates(plan)
    for at in range(plan.candidates + 1):
        plan.next[at] = at
    return plan.candidates != 0


ctypedef struct ranked_t:
    uint32_t needs
    uint32_t offset
    uint32_t at


cdef int by_rank(const void* one, const void* other) noexcept nogil:
    cdef const ranked_t* a = <const ranked_t*>one
    cdef const ranked_t* b = <const ranked_t*>other
    if a.needs != b.needs:
        return 1 if a.needs < b.needs else -1
    return 1 if a.offset > b.offset else -1


cdef void sort_candidates(plan_t* plan) noexcept nogil:
    """Where the host has no memory for it, any order will do."""
    cdef uint32_t at, index
    cdef ranked_t* ranked = <ranked_t*>malloc((plan.candidates + 1) * sizeof(ranked_t))
    if ranked == NULL:
        return
    for at in range(plan.candidates):
        index = plan.candidate[at]
        ranked[at].needs = plan.piece[index].needs
        ranked[at].offset = plan.piece[index].offset
        ranked[at].at = index
    qsort(ranked, plan.candidates, sizeof(ranked_t), by_rank)
    for at in range(plan.candidates):
        plan.candidate[at] = ranked[at].at
    free(ranked)


cdef uint32_t largest_fitting(plan_t* plan, uint32_t units) noexcept nogil:
    """Take the largest candidate without a place that needs at most so many units; 0 if there is none."""
    cdef uint32_t low = 0, high = plan.candidates, middle
    while low < high:
        middle = (low + high) // 2
        if plan.piece[plan.candidate[middle]].needs > units:
            low = middle + 1
        else:
            high = middle
    low = unsettled_from(plan, low)
    return plan.candidate[low] if low < plan.candidates else 0


cdef uint32_t unsettled_from(plan_t* plan, uint32_t rank) noexcept nogil:
    """The first candidate from a rank on that has no place yet: links that were followed become shorter."""
    cdef uint32_t found = rank, after
    while found < plan.candidates and plan.piece[plan.candidate[found]].settled:
        found = plan.next[found] if plan.next[found] != found else found + 1
    while rank < found:
        after = plan.next[rank] if plan.next[rank] != rank else rank + 1
        plan.next[rank] = found
        rank = after
    return found


# Moves

cdef void put(plan_t* plan, uint32_t at, uint32_t target, uint32_t above) noexcept nogil:
    """Note a move, and let the piece stand below `above`."""
    cdef piece_t* piece = &plan.piece[at]
    cdef move_t* move = &plan.move[plan.moves]
    plan.moves += 1
    move.movable = piece.movable
    move.source = piece.offset
    move.target = target
    move.needs = piece.needs
    plan.piece[piece.before].after = piece.after
    plan.piece[piece.after].before = piece.before
    piece.after = above
    piece.before = plan.piece[above].before
    plan.piece[piece.before].after = at
    plan.piece[above].before = at
    piece.offset = target
    piece.size = piece.needs


# Into the gaps outside the window

cdef void fill_gaps(plan_t* plan) noexcept nogil:
    cdef uint32_t at, piece, above, room, target
    for at in range(plan.gaps):
        above = plan.gap[at].above
        room = plan.gap[at].end - plan.gap[at].start
        piece = largest_fitting(plan, room)
        while piece != 0:
            target = aligned_start(plan.gap[at].start + room - plan.piece[piece].needs, plan.piece[piece].align,
                                   plan.bias)
            if not plan.gap[at].start <= target < plan.gap[at].end:
                break
            put(plan, piece, target, above)
            plan.piece[piece].settled = True
            above = piece
            room = target - plan.gap[at].start
            piece = largest_fitting(plan, room)


cdef void list_gaps(plan_t* plan, uint32_t start, uint32_t end) noexcept nogil:
    """List what is free outside a window, the smallest gap first."""
    cdef uint32_t at = 0, low, high
    plan.gaps = 0
    while at != plan.pieces + 1:
        low = max(end_of(plan, at), plan.floor)
        at = plan.piece[at].after
        high = plan.piece[at].offset
        add_gap(plan, low, min(high, start), at)
        add_gap(plan, max(low, end), high, at)
    qsort(plan.gap, plan.gaps, sizeof(gap_t), by_length)


cdef inline void add_gap(plan_t* plan, uint32_t start, uint32_t end, uint32_t above) noexcept nogil:
    if start < end:
        plan.gap[plan.gaps].above = above
        plan.gap[plan.gaps].start = start
        plan.gap[plan.gaps].end = end
        plan.gaps += 1


cdef int by_length(const void* one, const void* other) noexcept nogil:
    cdef const gap_t* a = <const gap_t*>one
    cdef const gap_t* b = <const gap_t*>other
    if a.end - a.start != b.end - b.start:
        return 1 if a.end - a.start > b.end - b.start else -1
    return 1 if a.start > b.start else -1


# Against the upper end of the stretch

cdef void pack(plan_t* plan, const stretch_t* stretch) noexcept nogil:
    """Settle the pieces of a stretch one below the other."""
    cdef uint32_t above = stretch.above, below, start, piece, target, limit = 3 * plan.pieces
    while plan.moves < limit:
        below = plan.piece[above].before
        start = max(end_of(plan, below), plan.floor)
        if below == stretch.below or plan.piece[above].offset <= plan.floor:
            return
        piece = largest_fitting(plan, plan.piece[above].offset - start)
        target = 0
        if piece != 0:
            target = aligned_start(plan.piece[above].offset - plan.piece[piece].needs, plan.piece[piece].align,
                                   plan.bias)
        if piece != 0 and start <= target < plan.piece[above].offset:
            put(plan, piece, target, above)
        elif not (is_worthwhile(plan, below, above) and make_way(plan, stretch, below)):
            piece = below
        else:
            continue
        plan.piece[piece].settled = True
        above = piece


cdef inline bint is_worthwhile(const plan_t* plan, uint32_t piece, uint32_t above) noexcept nogil:
    """Is there a gap between two pieces that is worth moving the lower one twice?"""
    return plan.piece[above].offset - end_of(plan, piece) > plan.piece[piece].size // WORTHWHILE


cdef bint make_way(plan_t* plan, const stretch_t* stretch, uint32_t piece) noexcept nogil:
    """Move a piece to the lowest gap of its stretch that holds it; False if there is none below it."""
    cdef uint32_t at = stretch.below, start, target
    while at != piece:
        start = max(end_of(plan, at), plan.floor)
        at = plan.piece[at].after
        target = aligned_start(plan.piece[at].offset - plan.piece[piece].needs, plan.piece[piece].align, plan.bias)
        if start + plan.piece[piece].needs <= plan.piece[at].offset and target >= start:
            put(plan, piece, target, at if at != piece else plan.piece[piece].after)
            return True
    return False
