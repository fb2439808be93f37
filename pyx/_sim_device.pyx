"""The simulated devices that are alive, the lock around them, and which one each thread has current."""

from libc.stdint cimport uint64_t

from cuda_pool._sim_memory cimport memory_owns
from cuda_pool._sim_stream cimport timeline_thread_ends

cdef extern from *:
    """
    #include <pthread.h>

    static pthread_mutex_t cuda_pool_sim_mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t cuda_pool_sim_returned = PTHREAD_COND_INITIALIZER;
    static __thread int cuda_pool_sim_current = 0;
    static __thread int cuda_pool_sim_called = 0;
    static __thread unsigned long long cuda_pool_sim_thread = 0;
    """
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef unsigned int pthread_key_t
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*) nogil
    int pthread_cond_broadcast(pthread_cond_t*) nogil
    int pthread_key_create(pthread_key_t*, void (*destructor)(void*) noexcept nogil) nogil
    int pthread_setspecific(pthread_key_t, const void*) nogil
    int pthread_mutex_lock(pthread_mutex_t*) nogil
    int pthread_mutex_unlock(pthread_mutex_t*) nogil
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil) nogil
    pthread_mutex_t cuda_pool_sim_mutex
    pthread_cond_t cuda_pool_sim_returned
    int cuda_pool_sim_current
    int cuda_pool_sim_called
    unsigned long long cuda_pool_sim_thread

cdef enum:
    SLOT_BITS = 12
    SLOTS = 1 << SLOT_BITS
    GENERATIONS = 1 << (31 - SLOT_BITS)

# Slot 0 stays empty: NO_DEVICE.
cdef sim_device_t* slots[SLOTS]
cdef int generations[SLOTS]
cdef uint64_t threads = 0           # that have got a number
cdef pthread_key_t thread_key


cdef void sim_lock() noexcept nogil:
    pthread_mutex_lock(&cuda_pool_sim_mutex)


cdef void sim_unlock() noexcept nogil:
    pthread_mutex_unlock(&cuda_pool_sim_mutex)


cdef void sim_wake() noexcept nogil:
    pthread_cond_broadcast(&cuda_pool_sim_returned)


cdef void sim_sleep() noexcept nogil:
    pthread_cond_wait(&cuda_pool_sim_returned, &cuda_pool_sim_mutex)


# The child of a fork gets the lock free, whoever held it in the parent.
pthread_atfork(sim_lock, sim_unlock, sim_unlock)


cdef int devices_add(sim_device_t* device) noexcept nogil:
    """Give the device the lowest free slot and a number."""
    cdef int slot
    for slot in range(1, SLOTS):
        if slots[slot] is NULL:
            generations[slot] = (generations[slot] + 1) % GENERATIONS
            device.number = generations[slot] << SLOT_BITS | slot
            slots[slot] = device
            return 0
    return -1


cdef void devices_remove(sim_device_t* device) noexcept nogil:
    slots[device.number & (SLOTS - 1)] = NULL


cdef sim_device_t* devices_get(int number) noexcept nogil:
    cdef sim_device_t* device = slots[number & (SLOTS - 1)]
    return device if device is not NULL and device.number == number else NULL


cdef sim_device_t* devices_owning(const char* address) noexcept nogil:
    """Search every device for an allocation or a reservation that contains `address`."""
    cdef int slot
    for slot in range(1, SLOTS):
        if slots[slot] is not NULL and memory_owns(&slots[slot].memory, address):
            return slots[slot]
    return NULL


cdef int devices_count() noexcept nogil:
    cdef int slot, count = 0
    for slot in range(1, SLOTS):
        count += slots[slot] is not NULL and not slots[slot].closed
    return count


cdef int current_number() noexcept nogil:
    """Return the number of the calling thread's current device; NO_DEVICE if it has none that is alive and open."""
    cdef sim_device_t* device = devices_get(cuda_pool_sim_current)
    return NO_DEVICE if device is NULL or device.closed else device.number


cdef void current_set(int number) noexcept nogil:
    global cuda_pool_sim_current
    cuda_pool_sim_current = number


cdef uint64_t thread_number() noexcept nogil:
    global threads, cuda_pool_sim_thread
    if cuda_pool_sim_thread == 0:
        threads += 1
        cuda_pool_sim_thread = threads
        pthread_setspecific(thread_key, <void*>threads)
    return cuda_pool_sim_thread


cdef bint thread_is_called() noexcept nogil:
    return cuda_pool_sim_called != 0


cdef void thread_set_called(bint called) noexcept nogil:
    global cuda_pool_sim_called
    cuda_pool_sim_called = called


cdef void thread_ends(void* number) noexcept nogil:
    """Destroy a thread's default streams; the system calls this when the thread ends."""
    cdef int slot
    sim_lock()
    for slot in range(1, SLOTS):
        if slots[slot] is not NULL:
            timeline_thread_ends(&slots[slot].timeline, <uint64_t>number)
    sim_unlock()


pthread_key_create(&thread_key, thread_ends)
