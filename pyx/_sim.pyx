"""The simulated device as Python sees it: its settings, what it saw, and what it shall get wrong."""

from collections import Counter
from weakref import WeakValueDictionary

from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from cuda_pool._driver cimport Device as BaseDevice, cudaError_t, cudaErrorNotPermitted, driver_check
from cuda_pool._sim_calls cimport sim_table
from cuda_pool._sim_device cimport (
    NO_DEVICE, current_number, current_set, devices_add, devices_remove, sim_lock, sim_unlock, thread_is_called)
from cuda_pool._sim_drive cimport device_advance, device_clear
from cuda_pool._sim_log cimport *
from cuda_pool._sim_memory cimport memory_copy, memory_free, memory_t
from cuda_pool._sim_race cimport races_copy, races_free, races_list, races_t
from cuda_pool._sim_stream cimport timeline_check, timeline_init
from cuda_pool._sim_virtual cimport range_t, virtual_check, virtual_copy
from cuda_pool._sim_work cimport Graph, event_new, stream_default, stream_new

import cuda_pool._sim_stream_calls      # each fills its part of the driver table
import cuda_pool._sim_virtual_calls
from cuda_pool._sim_log import NAMES as _NAMES
from cuda_pool._sim_settings import alignment, code_of, flag, granule, integer, memory_size, nanoseconds, seed_state
from cuda_pool._sim_work import launch as _launch
from cuda_pool.sizes import format_size

_ALIASABLE = ("cudaMalloc", "cudaMallocAsync")

# Every Device that is alive, by its number.
_devices = WeakValueDictionary()


cdef class Device(BaseDevice):
    """Simulate a CUDA device with real host memory behind CUDA's calls.

    Memory that is never touched costs the host nothing, so a device may be larger than the host. Misuse (freeing
    or touching what is not allocated, a stream or an event that was destroyed, an address or a stream of another
    device than the current one) fails as CUDA would, and is listed in `errors`.

    Work on streams takes virtual time, which passes in advance() and in the calls that wait for work; no thread
    runs behind the scenes. CUDA's own copies and fills take no time, so they are done at once unless something
    before them on their stream is not.

    Parameters
    ----------
    memory : int or str
        Size of the device's memory: bytes, or text such as ``"8GiB"``; at most 64 TiB.
    ordinal : int
        Number by which the log and the user know the device. Several devices may have the same one.
    seed : int, optional
        Picks the order in which streams run, among those that nothing forbids, by starting operations late, and
        spreads the addresses that ``base_alignment`` allows; the same seed does the same each time. Without one,
        operations start as early as they can, and what ends at the same time does so in the order of the calls.
    base_alignment : int, optional
        Make cudaMalloc return addresses that are a multiple of this and of no larger power of two:
        256, 512, 1024 or 2048. By default they are aligned to the host's pages.
    granularity : int or str, optional
        Bytes of which all sizes and addresses of virtual memory are a multiple: a power of two from 4 KiB to 1 GiB, by
        default 2 MiB. 0 makes a device without virtual memory, as old ones are.
    lazy : bool, optional
        Put host memory behind virtual addresses only when an operation of the device first moves data there, so that
        mapping and unmapping cost next to nothing. The host itself must then not follow an address to which the
        device has moved nothing.

    Raises
    ------
    ValueError
        A parameter is not one of the values above.
    RuntimeError
        4,095 simulated devices are alive already.

    Notes
    -----
    Every method may be called from any thread. A device is a context manager that closes itself.
    """

    def __cinit__(self, *args, **kwargs):
        log_init(&self.state.log)
        misuses_init(&self.state.misuses)
        cdef bint made
        with nogil:
            sim_lock()
            made = timeline_init(&self.state.timeline, &self.state.memory, &self.state.misuses)
            sim_unlock()
        _need(made)

    def __init__(self, memory="8GiB", ordinal=0, seed=None, *, base_alignment=None, granularity="2MiB", lazy=False):
        if self.listed:
            raise RuntimeError("a simulated device is set up once; make a new one")
        self.state.memory.memory = memory_size(memory)
        self.state.ordinal = integer("ordinal", ordinal, 0, 0x7FFFFFFF)
        self.state.memory.random = self.state.timeline.random = seed_state(seed)
        self.state.memory.base_alignment = alignment(base_alignment)
        self.state.memory.space.granularity = granule(granularity)
        self.state.memory.space.lazy = flag("lazy", lazy)
        device_enlist(self)
        self.driver = sim_table()
        self.number = self.state.timeline.device = self.state.number
        self.ordinal = self.state.ordinal
        self.seed = seed
        self.name = f"simulated device with {format_size(self.state.memory.memory)}"
        _devices[self.number] = self

    def __dealloc__(self):
        with nogil:
            sim_lock()
            if self.listed:
                devices_remove(&self.state)
            device_clear(&self.state)
            races_free(&self.state.timeline.races)
            sim_unlock()
        free(self.state.log.records)
        free(self.state.misuses.records)

    @property
    def memory(self):
        """Size of the device's memory in bytes."""
        return self.state.memory.memory

    @property
    def allocated(self):
        """Bytes that are allocated now, or made with cuMemCreate and not gone yet."""
        cdef size_t allocated
        with nogil:
            sim_lock()
            allocated = self.state.memory.memory - memory_free(&self.state.memory)
            sim_unlock()
        return allocated

    @property
    def physical(self):
        """Bytes made with cuMemCreate that are not gone yet: they have a handle or are mapped."""
        cdef size_t physical
        with nogil:
            sim_lock()
            physical = self.state.memory.space.physical
            sim_unlock()
        return physical

    @property
    def reserved(self):
        """Dict of the address ranges that are reserved, address to size in bytes."""
        return device_ranges(self, False)

    @property
    def mapped(self):
        """Dict of the mappings of physical memory, address to size in bytes."""
        return device_ranges(self, True)

    @property
    def live(self):
        """Dict of the allocations of cudaMalloc and cudaMallocAsync that are live, address to size in bytes."""
        cdef memory_t copy
        cdef bint copied
        with nogil:
            sim_lock()
            copied = memory_copy(&self.state.memory, &copy)
            sim_unlock()
        _need(copied)
        try:
            return {<uintptr_t>copy.entries[i].address: copy.entries[i].size for i in range(copy.count)}
        finally:
            free(copy.entries)

    @property
    def calls(self):
        """Counter of the CUDA calls made on the device, by name."""
        cdef uint64_t counts[CALL_COUNT]
        with nogil:
            sim_lock()
            memcpy(counts, self.state.log.by_name, sizeof(counts))
            sim_unlock()
        return Counter({name: counts[i] for i, name in enumerate(_NAMES) if counts[i]})

    @property
    def log(self):
        """List of the latest 65,536 calls: (name, arguments, ordinal of the thread's current device or None).

        A cudaSetDevice is listed at the device it names, every other call at the device it ran on.
        """
        cdef log_t copy
        cdef bint copied
        with nogil:
            sim_lock()
            copied = log_copy(&self.state.log, &copy)
            sim_unlock()
        _need(copied)
        try:
            return log_list(&copy)
        finally:
            free(copy.records)

    @property
    def errors(self):
        """List of the misuses that the device refused, as text; the first 1,000 are kept."""
        cdef misuses_t copy
        cdef bint copied
        with nogil:
            sim_lock()
            copied = misuses_copy(&self.state.misuses, &copy)
            sim_unlock()
        _need(copied)
        try:
            return misuses_list(&copy)
        finally:
            free(copy.records)

    @property
    def closed(self):
        """Whether close() was called."""
        cdef bint closed
        with nogil:
            sim_lock()
            closed = self.state.closed
            sim_unlock()
        return closed

    def clear_log(self):
        """Forget the calls recorded so far: `log` and `calls` start anew."""
        with nogil:
            sim_lock()
            log_clear(&self.state.log)
            sim_unlock()

    def fail(self, name, after=0, code="cudaErrorMemoryAllocation", times=1):
        """Make a CUDA call fail.

        Parameters
        ----------
        name : str
            The call, such as ``"cudaMalloc"`` or ``"cuMemCreate"``.
        after : int
            Number of calls that go well before; 2 makes the third call fail.
        code : int or str
            What the call returns: a cudaError_t or a CUresult, or the name of one.
        times : int
            Number of calls in a row that fail.

        Raises
        ------
        ValueError
            The simulator has no such call or code, or a number is out of range.
        RuntimeError
            64 faults are waiting already.
        """
        rule_add(self, name, code_of(code), after, times)

    def alias(self, name="cudaMalloc", after=0, times=1):
        """Make an allocation return an address that is live already, as a broken driver would.

        The address is that of the largest live allocation; while there is none the call does what it always does.

        Parameters
        ----------
        name : str
            ``"cudaMalloc"`` or ``"cudaMallocAsync"``.
        after, times : int
            As for fail().
        """
        if name not in _ALIASABLE:
            raise ValueError(f"an address is returned by {' or '.join(_ALIASABLE)}, not by {name!r}")
        rule_add(self, name, RULE_ALIAS, after, times)

    def delay(self, name, seconds):
        """Make every later call of `name` on this device take `seconds` longer; 0 ends that."""
        cdef int call = call_index(name)
        cdef int64_t delay_ns = nanoseconds(seconds)
        with nogil:
            sim_lock()
            self.state.faults.delay_ns[call] = delay_ns
            sim_unlock()

    def clear_faults(self):
        """Take back every fail(), alias() and delay() that is still to come."""
        with nogil:
            sim_lock()
            memset(&self.state.faults, 0, sizeof(faults_t))
            sim_unlock()

    @property
    def now(self):
        """Virtual time in ticks."""
        cdef uint64_t now
        with nogil:
            sim_lock()
            now = self.state.timeline.now
            sim_unlock()
        return now

    @property
    def pending(self):
        """Number of operations that are queued on the device's streams and not complete."""
        cdef uint64_t pending
        with nogil:
            sim_lock()
            pending = self.state.timeline.pending
            sim_unlock()
        return pending

    @property
    def races(self):
        """List of Race: accesses of two streams to the same bytes, one of them writing, that nothing orders.

        Ordered means: by the stream, by an event that was waited for, by the legacy default stream, or because the
        host knew that the first was complete when it queued the second (it synchronized, or a query said so; this
        counts for all threads). An access is compared with the latest of each other stream that conflicts with it.
        The first 1,000 races are kept; `race_count` goes on.
        """
        cdef races_t copy
        cdef bint copied
        with nogil:
            sim_lock()
            copied = races_copy(&self.state.timeline.races, &copy)
            sim_unlock()
        _need(copied)
        try:
            return races_list(&copy)
        finally:
            free(copy.records)

    @property
    def race_count(self):
        """Number of races found."""
        cdef uint64_t count
        with nogil:
            sim_lock()
            count = self.state.timeline.races.count
            sim_unlock()
        return count

    @property
    def tracked(self):
        """Number of accesses that are kept because something may still race with them."""
        cdef uint64_t nodes
        with nogil:
            sim_lock()
            nodes = self.state.timeline.races.nodes
            sim_unlock()
        return nodes

    def stream(self, blocking=True):
        """Make a stream.

        Parameters
        ----------
        blocking : bool
            Whether the legacy default stream and this one wait for each other's work (cudaStreamDefault), or not
            (cudaStreamNonBlocking).

        Returns
        -------
        Stream
        """
        return stream_new(self, self.number, blocking)

    def default_stream(self, per_thread=False):
        """Return the legacy default stream (handle 0), or the one of the thread that uses it (handle 2)."""
        return stream_default(self, self.number, per_thread)

    def event(self):
        """Make an Event that is not recorded yet."""
        return event_new(self, self.number)

    def advance(self, ticks):
        """Let `ticks` of virtual time pass: what ends in it completes, and host functions that are due run.

        Other than synchronize() this is no way to learn that work is complete: it orders nothing.
        """
        cdef uint64_t passing = integer("ticks", ticks, 0, 1 << 40)
        cdef cudaError_t code = cudaErrorNotPermitted
        with nogil:
            if not thread_is_called():
                sim_lock()
                code = device_advance(&self.state, passing)
                sim_unlock()
        driver_check(self.driver, code, "advance")

    def launch(self, graph, stream):
        """Queue all that was captured in a graph on a stream.

        Parameters
        ----------
        graph : Graph or int
            From Stream.end_capture(), or a cudaGraph_t from cudaStreamEndCapture.
        stream : Stream, int or object with __cuda_stream__
            What it has queued comes before the graph, what it gets next comes after.

        Raises
        ------
        ValueError
            The graph was released, or never was one.
        CudaError
            The stream was destroyed, belongs to another device, or is captured itself.
        """
        if isinstance(graph, Graph):
            graph.launch(stream)
        else:
            _launch(graph, 0, stream)

    def check(self):
        """Assert the invariants of streams, race detector and virtual memory, as their declarations state them."""
        cdef bint streams, mappings
        with nogil:
            sim_lock()
            streams = timeline_check(&self.state.timeline)
            mappings = virtual_check(&self.state.memory.space)
            sim_unlock()
        assert streams, "the simulated device's streams are inconsistent"
        assert mappings, "the simulated device's virtual memory is inconsistent"

    def close(self):
        """Unmap all memory of the device and drop its streams with what they have queued.

        Every later call on it fails with cudaErrorInvalidDevice.
        """
        with nogil:
            sim_lock()
            self.state.closed = True
            device_clear(&self.state)
            sim_unlock()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def current_device():
    """Return the simulated device that is current in the calling thread, or None."""
    cdef int number
    with nogil:
        sim_lock()
        number = current_number()
        sim_unlock()
    return _devices.get(number)


def set_current_device(device):
    """Make a simulated device, or None, current in the calling thread, without an entry in any log.

    Raises
    ------
    ValueError
        The device is closed.
    """
    cdef int number = NO_DEVICE if device is None else number_of(device)
    current_set(number)


cdef int number_of(Device device) except -1:
    if device.state.closed:
        raise ValueError(f"{device!r} is closed")
    return device.number


cdef int device_enlist(Device device) except -1:
    cdef int status
    with nogil:
        sim_lock()
        status = devices_add(&device.state)
        sim_unlock()
    if status != 0:
        raise RuntimeError("too many simulated devices are alive: 4,095 at most")
    device.listed = True
    return 0


cdef dict device_ranges(Device device, bint mapped):
    cdef range_t* ranges
    cdef size_t i, count
    cdef bint copied
    with nogil:
        sim_lock()
        copied = virtual_copy(&device.state.memory.space, mapped, &ranges, &count)
        sim_unlock()
    _need(copied)
    try:
        return {ranges[i].address: ranges[i].size for i in range(count)}
    finally:
        free(ranges)


cdef int rule_add(Device device, name, int code, after, times) except -1:
    cdef rule_t rule
    cdef bint added
    rule.name = call_index(name)
    rule.code = code
    rule.after = integer("after", after, 0, (1 << 64) - 1)
    rule.times = integer("times", times, 1, (1 << 64) - 1)
    with nogil:
        sim_lock()
        added = faults_add(&device.state.faults, rule)
        sim_unlock()
    if not added:
        raise RuntimeError(f"{RULE_LIMIT} faults are waiting already; clear_faults() takes them back")
    return 0


def _need(copied):
    if not copied:
        raise MemoryError("no host memory for a copy of the simulated device's records")
