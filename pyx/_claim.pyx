"""Which addresses the pools of this process have: each region is claimed while its pool has it.

A driver that returns what is live already is found out here, whichever pool it gave it to.
"""

from libc.stdint cimport uint32_t

from cuda_pool._hostmem cimport host_grow
from cuda_pool._lock cimport lock_acquire, lock_release, lock_t

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil)

cdef lock_t guard                   # for what follows
guard.word = 0
cdef claim_t* claims = NULL
cdef uint32_t capacity = 0
cdef uint32_t made = 0


cdef bint claim_make(const claim_t* claim, claim_t* other) noexcept nogil:
    global made
    cdef uint32_t at
    cdef bint clear = True
    lock_acquire(&guard)
    for at in range(made):
        if overlap(&claims[at], claim):
            other[0] = claims[at]
            clear = False
            break
    if clear and host_grow(<void**>&claims, sizeof(claim_t), &capacity, made + 1):
        claims[made] = claim[0]
        made += 1
    lock_release(&guard)
    return clear


cdef inline bint overlap(const claim_t* one, const claim_t* other) noexcept nogil:
    return (one.driver == other.driver and one.device == other.device and one.start < other.end
            and other.start < one.end)


cdef void claim_drop(const claim_t* claim) noexcept nogil:
    global made
    cdef uint32_t at
    lock_acquire(&guard)
    for at in range(made):
        if (claims[at].driver == claim.driver and claims[at].device == claim.device
                and claims[at].start == claim.start and claims[at].end == claim.end):
            made -= 1
            claims[at] = claims[made]
            break
    lock_release(&guard)


cdef void forking() noexcept nogil:
    lock_acquire(&guard)


cdef void forked() noexcept nogil:
    lock_release(&guard)


pthread_atfork(forking, forked, forked)
