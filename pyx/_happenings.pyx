"""What happened to a pool that somebody wants to hear of."""

from libc.stdint cimport uint32_t
from libc.string cimport memmove

from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._order cimport this_thread
from cuda_pool._relaxed cimport get_flag

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <semaphore.h>
    static sem_t cuda_pool_happened;
    static __thread int cuda_pool_attends;
    static int cuda_pool_happened_begin(void) { return sem_init(&cuda_pool_happened, 0, 0); }
    static void cuda_pool_happened_wait(void) {
        while (sem_wait(&cuda_pool_happened) != 0 && errno == EINTR)
            ;
    }
    static void cuda_pool_happened_post(void) { sem_post(&cuda_pool_happened); }
    static int cuda_pool_attend(int attends) {
        int before = cuda_pool_attends;
        cuda_pool_attends = attends;
        return before;
    }
    static inline int cuda_pool_attending(void) { return cuda_pool_attends; }
    """
    int begin "cuda_pool_happened_begin"()
    void happened_wait "cuda_pool_happened_wait"()
    void happened_post "cuda_pool_happened_post"()
    int attend "cuda_pool_attend"(int)
    int attending "cuda_pool_attending"()


cdef void happenings_note(happenings_t* happenings, happening_kind_t kind, size_t nbytes) noexcept nogil:
    cdef int attends = attending()
    cdef happening_t* item
    if not get_flag(&happenings.watched) or attends < 0:
        return
    lock_acquire(&happenings.guard)
    if happenings.count == HAPPENINGS_KEPT:
        happenings.missed += 1
    else:
        item = &happenings.item[happenings.count]
        happenings.count += 1
        item.kind, item.nbytes, item.thread = kind, nbytes, this_thread() if attends > 0 else 0
    lock_release(&happenings.guard)
    if attends == 0:
        happened_post()


cdef void happenings_refuse(happenings_t* happenings, size_t nbytes) noexcept nogil:
    if attending() == 0:
        happenings_note(happenings, HAPPENING_OOM, nbytes)


cdef bint happenings_take(happenings_t* happenings, happening_t* taken) noexcept nogil:
    cdef uint32_t at
    cdef bint found = False
    lock_acquire(&happenings.guard)
    for at in range(happenings.count):
        if happenings.item[at].thread == 0 or happenings.item[at].thread == this_thread():
            taken[0] = happenings.item[at]
            happenings.count -= 1
            memmove(&happenings.item[at], &happenings.item[at + 1], (happenings.count - at) * sizeof(happening_t))
            found = True
            break
    lock_release(&happenings.guard)
    return found


cdef int happenings_attend(int attends) noexcept nogil:
    return attend(attends)


cdef void happenings_wait() noexcept nogil:
    happened_wait()


cdef void happenings_wake() noexcept nogil:
    happened_post()


begin()
