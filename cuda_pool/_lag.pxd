"""A trace in play on the streams of a simulated device that is behind the host."""

from libc.stdint cimport uint32_t, uint64_t

from cuda_pool._pool cimport pool_t
from cuda_pool._replay cimport Replay, replay_t
from cuda_pool._sim_stream cimport stream_t

# A stream of the trace. What it points to is alive while the device is open and the replay is not closed.
ctypedef struct track_t:
    uint64_t handle
    stream_t* stream

# tracks == NULL: closed. The entries of `on` and `home` are indices into it.
ctypedef struct lagged_t:
    replay_t* replay
    pool_t* pool
    int device                  # number
    uint64_t lag                # ticks; an event takes one
    track_t* tracks
    const uint32_t* on          # of each event, then of each live block: the stream that it names
    uint32_t* home              # of each block: the stream that it is allocated on

cdef class LaggedReplay(Replay):
    cdef lagged_t lagged
    cdef object on              # keeps lagged.on alive
    cdef list streams           # and this what the tracks point to

    cdef int find_streams(self) except -1
    cdef int open_streams(self, list numbers) except -1
