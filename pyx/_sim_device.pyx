"""The simulated devices that are alive, the lock around them, and which one each thread has current."""

from cuda_pool._sim_memory cimport memory_find

cdef extern from *:
    """
    #include <pthread.h>

    static pthread_mutex_t cuda_pool_sim_mutex = PTHREAD_MUTEX_INITIALIZER;
    static __thread int cuda_pool_sim_current = 0;
    """
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_lock(pthread_mutex_t*) nogil
    int pthread_mutex_unlock(pthread_mutex_t*) nogil
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil) nogil
    pthread_mutex_t cuda_pool_sim_mutex
    int cuda_pool_sim_current

cdef enum:
    SLOT_BITS = 12
    SLOTS = 1 << SLOT_BITS
    GENERATIONS = 1 << (31 - SLOT_BITS)

# Slot 0 stays empty: NO_DEVICE.
cdef sim_device_t* slots[SLOTS]
cdef int generations[SLOTS]


cdef void sim_lock() noexcept nogil:
    pthread_mutex_lock(&cuda_pool_sim_mutex)


cdef void sim_unlock() noexcept nogil:
    pthread_mutex_unlock(&cuda_pool_sim_mutex)


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
    """Search every device for an allocation that contains `address`."""
    cdef int slot
    for slot in range(1, SLOTS):
        if slots[slot] is not NULL and memory_find(&slots[slot].memory, address) is not NULL:
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
