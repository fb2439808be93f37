"""A ring of notes: making it, and waiting for it."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <semaphore.h>
    #include <time.h>
    static void cuda_pool_ring_wait(sem_t *filled, long milliseconds) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += milliseconds * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        while (sem_timedwait(filled, &until) != 0 && errno == EINTR)
            ;
    }
    """
    void wait_filled "cuda_pool_ring_wait"(sem_t*, long milliseconds)


cdef bint ring_init(ring_t* ring) noexcept nogil:
    memset(ring, 0, sizeof(ring_t))
    ring.note = <note_t*>calloc(RING_NOTES, sizeof(note_t))
    ring.credits = RING_NOTES
    return ring.note != NULL and sem_init(&ring.filled, 0, 0) == 0


cdef void ring_destroy(ring_t* ring) noexcept nogil:
    if ring.note != NULL:
        sem_destroy(&ring.filled)
    free(ring.note)
    ring.note = NULL


cdef void ring_wait(ring_t* ring, long milliseconds) noexcept nogil:
    wait_filled(&ring.filled, milliseconds)
