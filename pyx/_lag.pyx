"""Play the events of a trace on simulated streams, with the device a number of events behind the host.

What an event queues is done that number of events later and not before. No data moves: the work only says which bytes
it touches, so that the simulator finds every reuse that nothing orders.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

import numpy as np

from cuda_pool._api cimport Pool
from cuda_pool._calls cimport pool_alloc, pool_free, pool_free_async
from cuda_pool._driver cimport (
    cudaErrorInvalidDevice, cudaErrorMemoryAllocation, cudaError_t, cudaStream_t, cudaSuccess)
from cuda_pool._gate cimport status_raise
from cuda_pool._pool cimport pool_get_stats, pool_stats_t
from cuda_pool._replay cimport ALIGNMENT
from cuda_pool._sim cimport Device
from cuda_pool._sim_device cimport devices_get, sim_device_t, sim_lock, sim_unlock
from cuda_pool._sim_drive cimport device_advance, device_await_all
from cuda_pool._sim_handle cimport HANDLE_STREAM, handle_get
from cuda_pool._sim_log cimport KERNEL_WRITE
from cuda_pool._sim_op cimport OP_WORK, op_make, op_t, span_make
from cuda_pool._sim_stream cimport stream_follow, stream_submit, stream_t
from cuda_pool._sim_work cimport Stream
from cuda_pool._state cimport UPSTREAM_SET_DEVICE
from cuda_pool._status cimport STATUS_CLOSED, STATUS_HOST_MEMORY, STATUS_OK, status_cuda
from cuda_pool._trace cimport BLOCK_PREEXISTING, EVENT_ALLOC, EVENT_FREE, TraceTable, event_t, trace_t

LAG_MAX = 1 << 40
STREAMS_MAX = 254       # as many as a pool keeps apart, beside the default one


cdef class LaggedReplay(Replay):
    """A run against a pool on a simulated device that is `lag` events behind the host.

    Each stream of the trace is a stream of the device; 0 is the default stream, and it and the others take no notice
    of each other. An event takes one tick of virtual time. An allocation queues work that writes the whole block. A
    free queues such work on the stream that it names, and hands the block to the pool's free_async; on another stream
    than that of the allocation it waits for that one first, as a program has to.

    `close` it before the pool.

    Parameters
    ----------
    trace : TraceTable
    pool : Pool
        On a simulated device.
    lag : int
        Events, from 1 to 2**40.

    Raises
    ------
    ValueError
        The pool is closed, its device is not simulated, `lag` is out of range, or the trace has more than 1,024
        streams.
    """

    def __cinit__(self, TraceTable trace not None, Pool pool not None, lag):
        cdef pool_stats_t stats
        status_raise(pool.state, pool_get_stats(pool.state, &stats), 0, 0)
        if not isinstance(pool.device, Device):
            raise ValueError(f"lag {lag} needs a simulated device, whose streams have virtual time; "
                             "accepted on a CUDA device: 0")
        if not 1 <= lag <= LAG_MAX:
            raise ValueError(f"lag is from 1 to {LAG_MAX} events here, got {lag}")
        self.pool = pool
        self.streams = []
        self.lagged.replay = &self.replay
        self.lagged.pool = pool.state
        self.lagged.device = pool.device.number
        self.lagged.lag = lag
        self.find_streams()

    def __dealloc__(self):
        free(self.lagged.home)
        free(self.lagged.tracks)

    def clear(self):
        """Wait for all work of the device, free every block that is live, and go back to the first event; not timed."""
        with nogil:
            work_await(&self.lagged)
        Replay.clear(self)

    def close(self):
        """Let the pool forget the streams, and destroy them; nothing can be played afterwards."""
        free(self.lagged.tracks)
        self.lagged.tracks = NULL
        while self.streams:
            stream = self.streams.pop()
            if stream.handle:
                self.pool.forget_stream(stream.handle)

    cdef int find_streams(self) except -1:
        """Find out which stream every event and every block is on, and make the streams."""
        numbers, on = np.unique(np.concatenate((self.table.stream, self.table.live["stream"])), return_inverse=True)
        if len(numbers) > STREAMS_MAX:
            raise ValueError(f"the trace has {len(numbers)} streams; accepted with a lag: {STREAMS_MAX}")
        self.on = np.ascontiguousarray(on, np.uint32)
        cdef const uint32_t[::1] view = self.on
        self.lagged.on = &view[0] if len(view) else NULL
        self.lagged.home = <uint32_t*>calloc(self.table.trace.block_count + 1, sizeof(uint32_t))
        self.lagged.tracks = <track_t*>calloc(len(numbers) + 1, sizeof(track_t))
        if self.lagged.home == NULL or self.lagged.tracks == NULL:
            raise MemoryError("no host memory for the streams of the trace")
        homes_find(&self.lagged)
        return self.open_streams(numbers.tolist())

    cdef int open_streams(self, list numbers) except -1:
        cdef track_t* track = self.lagged.tracks
        try:
            for number in numbers:
                stream = stream_open(self.pool.device, number)
                track_set(track, self.pool.device, stream)
                stream_hold(self.pool, stream)
                self.streams.append(stream)
                track += 1
        except BaseException:
            self.close()
            raise
        return 0

    cdef int acquire(self, uint32_t index, void** address) noexcept nogil:
        if self.lagged.tracks == NULL:
            return STATUS_CLOSED
        return block_alloc(&self.lagged, index, self.lagged.home[index], address)

    cdef int release(self, void* address) noexcept nogil:
        return pool_free(self.lagged.pool, address)

    cdef int advance(self, size_t stop) noexcept nogil:
        return STATUS_CLOSED if self.lagged.tracks == NULL else lagged_advance(&self.lagged, stop)


cdef Stream stream_open(device, number):
    """Return a stream for a number in the trace; a blocking one would be ordered with the default stream."""
    return device.default_stream() if number == 0 else device.stream(blocking=False)


cdef int stream_hold(Pool pool, Stream stream) except -1:
    """Promise the pool that the handle stays valid until close()."""
    if stream.handle != 0:
        pool.hold_stream(stream.handle)
    return 0


cdef int track_set(track_t* track, Device device, Stream stream) except -1:
    track.handle = stream.handle
    with nogil:
        sim_lock()
        if track.handle == 0:
            track.stream = device.state.timeline.legacy
        else:
            track.stream = <stream_t*>handle_get(HANDLE_STREAM, track.handle)
        sim_unlock()
    if track.stream == NULL:
        raise ValueError(f"{device!r} is closed")
    return 0


cdef int lagged_advance(lagged_t* self, size_t stop) noexcept nogil:
    """Play the events before `stop`, a tick each; at a failure the position is that of the event that failed."""
    cdef const event_t* event
    cdef size_t* position = &self.replay.position
    cdef int status = STATUS_OK
    while position[0] < stop:
        event = &self.replay.trace.events[position[0]]
        if event.kind == EVENT_ALLOC:
            status = event_alloc(self, event.block, self.on[position[0]])
        elif event.kind == EVENT_FREE:
            status = event_free(self, event.block, self.on[position[0]])
        if status == STATUS_OK:
            status = tick(self)
        if status != STATUS_OK:
            break
        position[0] += 1
    return status


cdef int event_alloc(lagged_t* self, uint32_t block, uint32_t on) noexcept nogil:
    cdef void** address = &self.replay.address[block]
    cdef int status = block_alloc(self, block, on, address)
    return touch(self, block, on) if status == STATUS_OK else status


cdef int event_free(lagged_t* self, uint32_t block, uint32_t on) noexcept nogil:
    cdef void** address = &self.replay.address[block]
    cdef int status = touch(self, block, on)
    if status == STATUS_OK:
        status = pool_free_async(self.pool, address[0], <cudaStream_t>self.tracks[on].handle)
    if status == STATUS_OK:
        address[0] = NULL
    return status


cdef int block_alloc(lagged_t* self, uint32_t block, uint32_t on, void** address) noexcept nogil:
    return pool_alloc(self.pool, self.replay.trace.blocks[block].size, ALIGNMENT,
                      <cudaStream_t>self.tracks[on].handle, address)


cdef int touch(lagged_t* self, uint32_t block, uint32_t on) noexcept nogil:
    """Queue work on a stream that uses the whole block, and is done `lag` ticks from now."""
    cdef size_t nbytes = self.replay.trace.blocks[block].size
    cdef stream_t* stream = self.tracks[on].stream
    cdef op_t op = op_make(OP_WORK, KERNEL_WRITE, 0)
    cdef sim_device_t* device = device_open(self)
    cdef cudaError_t code = cudaErrorInvalidDevice
    if device != NULL:
        if self.home[block] != on:
            stream_follow(stream, self.tracks[self.home[block]].stream)
        op.until = device.timeline.now + self.lag
        op.writes = span_make(&device.memory, self.replay.address[block], nbytes)
        code = stream_submit(stream, &op)
    sim_unlock()
    return status_of(code)


cdef int tick(lagged_t* self) noexcept nogil:
    cdef sim_device_t* device = device_open(self)
    cdef cudaError_t code = cudaErrorInvalidDevice
    if device != NULL:
        code = device_advance(device, 1)
    sim_unlock()
    return status_of(code)


cdef void work_await(lagged_t* self) noexcept nogil:
    """Let all work be done, and the host know it; what went wrong in it is among the device's errors."""
    cdef sim_device_t* device = device_open(self)
    if device != NULL:
        device_await_all(device)
    sim_unlock()


cdef sim_device_t* device_open(const lagged_t* self) noexcept nogil:
    """Take the simulator's lock; NULL if the device is closed, and its streams gone."""
    cdef sim_device_t* device
    sim_lock()
    device = devices_get(self.device)
    return NULL if device == NULL or device.closed else device


cdef int status_of(cudaError_t code) noexcept nogil:
    if code == cudaSuccess:
        return STATUS_OK
    return STATUS_HOST_MEMORY if code == cudaErrorMemoryAllocation else status_cuda(code, UPSTREAM_SET_DEVICE)


cdef void homes_find(lagged_t* self) noexcept nogil:
    """A block is allocated once: by an event, or before the first one, for the stream named or the one that frees it."""
    cdef const trace_t* trace = self.replay.trace
    cdef const event_t* event
    cdef size_t i
    for i in range(trace.event_count):
        event = &trace.events[i]
        if event.kind == EVENT_ALLOC or (
                event.kind == EVENT_FREE and trace.blocks[event.block].state == BLOCK_PREEXISTING):
            self.home[event.block] = self.on[i]
    for i in range(trace.live_count):
        self.home[trace.live[i].block] = self.on[trace.event_count + i]
