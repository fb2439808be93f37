"""Simulated streams, events and graphs as Python sees them, and the work that tests put on streams.

None of these methods counts as a CUDA call: `calls` and `log` of the device show what the code under test did.
"""

import operator

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from cuda_pool._driver cimport (
    cudaErrorInvalidDevice, cudaErrorInvalidResourceHandle, cudaErrorMemoryAllocation, cudaErrorNotPermitted,
    cudaErrorNotReady, cudaErrorStreamCaptureImplicit, cudaStream_t, cudaSuccess, driver_check)
from cuda_pool._sim_calls cimport (
    capture_misuse, event_check, handle_misuse, query_check, sim_table, stream_resolve)
from cuda_pool._sim_device cimport devices_get, sim_device_t, sim_lock, sim_unlock, thread_is_called, thread_number
from cuda_pool._sim_drive cimport device_await, device_await_stream, device_query, device_query_stream
from cuda_pool._sim_event cimport event_create, event_destroy, event_t
from cuda_pool._sim_graph cimport (
    capture_begin, capture_end, captures_forbid_legacy, graph_launch, graph_release, graph_t,
    work_record, work_submit, work_wait)
from cuda_pool._sim_handle cimport HANDLE_EVENT, HANDLE_GRAPH, HANDLE_STREAM, handle_get
from cuda_pool._sim_log cimport *
from cuda_pool._sim_op cimport OP_FILL, OP_READ, OP_WORK, op_make, op_t, result_new, result_release, span_make
from cuda_pool._sim_stream cimport stream_create, stream_destroy, stream_t
from cuda_pool._stream cimport stream_handle

_TICKS_MAX = 1 << 40
_MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
_HANDLES_OF_DEFAULT = (0, 2)


cdef class Stream:
    """A stream of a simulated device; made by Device.stream() and Device.default_stream().

    One that Device.stream() made is destroyed when its last reference goes, as frameworks do with theirs.

    Attributes
    ----------
    device : Device
    handle : int
        The cudaStream_t. After destroy() another stream may get the same one.
    blocking : bool
        Whether the legacy default stream and this one wait for each other's work.
    """

    def __dealloc__(self):
        with nogil:
            sim_lock()
            stream_drop(self)
            sim_unlock()

    @property
    def id(self):
        """What cudaStreamGetId tells: a number that no other stream of the process ever has."""
        cdef sim_device_t* device
        cdef stream_t* stream = NULL
        cdef uint64_t id = 0
        cdef cudaError_t code
        if self.made_id != 0:
            return self.made_id
        with nogil:
            code = stream_open(self, CALL_STREAM_GET_ID, &device, &stream)
            if code == cudaSuccess:
                id = stream.id
            sim_unlock()
        check(code, "cudaStreamGetId")
        return id

    def __cuda_stream__(self):
        """Return (0, handle), CUDA's protocol for streams.

        Raises
        ------
        ValueError
            The stream is destroyed.
        """
        if self.destroyed:
            raise ValueError(f"{self!r} is destroyed")
        return 0, self.handle

    def work(self, ticks):
        """Keep the stream busy for `ticks` of virtual time."""
        cdef op_t op = op_make(OP_WORK, KERNEL_WORK, _ticks(ticks))
        check(stream_queue(self, &op, 0, 0), "work")

    def write(self, size_t ptr, size_t nbytes, int value, ticks=1):
        """Queue a kernel that sets `nbytes` bytes of device memory from `ptr` on to `value`.

        Parameters
        ----------
        ptr : int
            Address; whether there is memory is found out when the kernel runs, and then told in Device.errors.
        nbytes : int
            Bytes.
        value : int
            A byte, 0 to 255.
        ticks : int
            Virtual time that the kernel takes; the bytes change when it ends.
        """
        if not 0 <= value <= 255:
            raise ValueError(f"value is a byte, 0 to 255, got {value}")
        cdef op_t op = op_make(OP_FILL, KERNEL_WRITE, _ticks(ticks))
        op.value = value
        check(stream_queue(self, &op, ptr, nbytes), "write")

    def read(self, size_t ptr, size_t nbytes, ticks=1):
        """Queue a kernel that reads `nbytes` bytes of device memory from `ptr` on when it ends.

        Parameters
        ----------
        ptr, nbytes, ticks : int
            As for write().

        Returns
        -------
        Read
            Its `value` is what the kernel found, once it has run.
        """
        cdef op_t op = op_make(OP_READ, KERNEL_READ, _ticks(ticks))
        cdef Read made = Read.__new__(Read)
        with nogil:
            op.result = made.result = result_new(nbytes)
        if op.result is NULL:
            raise MemoryError(f"no host memory for a read of {nbytes} bytes")
        check(stream_queue(self, &op, ptr, nbytes), "read")
        return made

    def record(self):
        """Return a new event that stands for all that is queued on the stream now."""
        cdef Event made = event_new(self.device, self.number)
        made.record(self)
        return made

    def wait(self, other):
        """Make what is queued here from now on wait for an Event, or for what a Stream has queued now."""
        if isinstance(other, Stream):
            other = (<Stream>other).record()
        if not isinstance(other, Event):
            raise TypeError(f"a stream waits for an Event or a Stream of a simulated device, got {other!r}")
        cdef Event event = other
        cdef cudaError_t code
        with nogil:
            code = stream_await_event(self, event)
            sim_unlock()
        check(code, "cudaStreamWaitEvent")

    def query(self):
        """Return whether all that is queued is complete."""
        cdef cudaError_t code
        with nogil:
            code = stream_query(self)
            sim_unlock()
        return is_ready(code, "cudaStreamQuery")

    def synchronize(self):
        """Let virtual time pass until all that is queued is complete."""
        cdef cudaError_t code
        with nogil:
            code = stream_wait(self)
            sim_unlock()
        check(code, "cudaStreamSynchronize")

    def begin_capture(self, mode="global"):
        """Capture what is queued from now on; `mode` is "global", "thread_local" or "relaxed"."""
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        cdef int number = _MODES[mode]
        cdef sim_device_t* device
        cdef stream_t* stream = NULL
        cdef cudaError_t code
        with nogil:
            code = stream_open(self, CALL_BEGIN_CAPTURE, &device, &stream)
            if code == cudaSuccess:
                code = capture_begin(stream, number, thread_number())
            sim_unlock()
        check(code, "cudaStreamBeginCapture")

    def end_capture(self):
        """End the capture that began on this stream and return its Graph; CudaError if it came to nothing."""
        cdef Graph made = Graph.__new__(Graph)
        cdef cudaError_t code
        made.device = self.device
        made.number = self.number
        with nogil:
            code = stream_end_capture(self, made)
            sim_unlock()
        check(code, "cudaStreamEndCapture")
        return made

    def destroy(self):
        """Destroy the stream; what is queued on it runs all the same."""
        cdef cudaError_t code
        with nogil:
            code = stream_leave(self)
            sim_unlock()
        check(code, "cudaStreamDestroy")
        self.destroyed = True

    def __repr__(self):
        name = {0: "legacy default stream", 2: "per-thread default stream"}.get(self.handle, f"stream {self.made_id}")
        return f"<{name}, handle {self.handle:#x}, of {self.device!r}>"


cdef class Event:
    """An event of a simulated device; made by Device.event() and Stream.record(), destroyed with its last reference.

    Attributes
    ----------
    device : Device
    handle : int
        The cudaEvent_t.
    """

    def __dealloc__(self):
        cdef event_t* event
        with nogil:
            sim_lock()
            event = event_find(self)
            if event is not NULL:
                event_destroy(event)
            sim_unlock()

    def record(self, Stream stream not None):
        """Make the event stand for all that is queued on a stream now."""
        cdef cudaError_t code
        with nogil:
            code = event_record_on(self, stream)
            sim_unlock()
        check(code, "cudaEventRecord")

    def query(self):
        """Return whether all that the event stands for is complete; True if it was never recorded."""
        cdef cudaError_t code
        with nogil:
            code = event_query(self)
            sim_unlock()
        return is_ready(code, "cudaEventQuery")

    def synchronize(self):
        """Let virtual time pass until all that the event stands for is complete."""
        cdef cudaError_t code
        with nogil:
            code = event_await(self)
            sim_unlock()
        check(code, "cudaEventSynchronize")

    def destroy(self):
        """Destroy the event; what waits for it goes on waiting."""
        cdef sim_device_t* device
        cdef event_t* event = NULL
        cdef cudaError_t code
        with nogil:
            code = event_open(self, CALL_EVENT_DESTROY, &device, &event)
            if code == cudaSuccess:
                event_destroy(event)
            sim_unlock()
        check(code, "cudaEventDestroy")


cdef class Graph:
    """What was queued during a capture; made by Stream.end_capture(), released with its last reference.

    Attributes
    ----------
    device : Device
    handle : int
        The cudaGraph_t.
    nodes : int
        Number of operations.
    """

    def __dealloc__(self):
        cdef graph_t* graph
        with nogil:
            sim_lock()
            graph = graph_find(self.handle, self.id)
            if graph is not NULL:
                graph_release(graph)
            sim_unlock()

    def launch(self, stream):
        """Queue all that was captured on a stream; see Device.launch()."""
        launch(self.handle, self.id, stream)

    def release(self):
        """Forget the graph; what was launched of it runs all the same."""
        cdef graph_t* graph
        with nogil:
            sim_lock()
            graph = graph_find(self.handle, self.id)
            if graph is not NULL:
                graph_release(graph)
            sim_unlock()
        if graph is NULL:
            raise ValueError(f"graph {self.handle:#x} is not one that is captured and not yet released")


cdef class Read:
    """The outcome of Stream.read().

    In a graph it is that of the latest launch.
    """

    def __dealloc__(self):
        if self.result is not NULL:
            with nogil:
                sim_lock()
                result_release(self.result)
                sim_unlock()

    @property
    def done(self):
        """Whether the kernel has run."""
        cdef bint done
        with nogil:
            sim_lock()
            done = self.result.ready
            sim_unlock()
        return done

    @property
    def value(self):
        """The bytes that the kernel found; RuntimeError if it has not run, or its memory was not there."""
        cdef bytes data = PyBytes_FromStringAndSize(NULL, self.result.nbytes)
        cdef char* target = PyBytes_AS_STRING(data)
        cdef bint done
        with nogil:
            sim_lock()
            done = self.result.ready
            if done:
                memcpy(target, self.result.bytes, self.result.nbytes)
            sim_unlock()
        if not done:
            raise RuntimeError("the read has not run: let time pass with advance() or synchronize(); "
                               "if that does not help, see the device's errors")
        return data


def launch(handle, uint64_t id, stream):
    """Queue a graph on a stream, each named by handle; `id` 0 takes any graph that has the handle now."""
    cdef cudaStream_t on = NULL
    cdef uint64_t number = operator.index(handle)
    cdef bint found
    cdef cudaError_t code
    stream_handle(stream, &on)
    with nogil:
        sim_lock()
        code = launch_locked(number, id, <uint64_t>on, &found)
        sim_unlock()
    if not found:
        raise ValueError(f"graph {handle:#x} is not one that is captured and not yet released")
    check(code, "cudaGraphLaunch")


cdef Stream stream_new(object device, int number, bint blocking):
    cdef Stream made = Stream.__new__(Stream)
    cdef cudaError_t code
    made.device = device
    made.number = number
    made.blocking = blocking
    with nogil:
        sim_lock()
        code = stream_make(made)
        sim_unlock()
    check(code, "cudaStreamCreateWithFlags")
    return made


cdef Stream stream_default(object device, int number, bint per_thread):
    cdef Stream made = Stream.__new__(Stream)
    made.device = device
    made.number = number
    made.blocking = True
    made.handle = _HANDLES_OF_DEFAULT[per_thread]
    return made


cdef Event event_new(object device, int number):
    cdef Event made = Event.__new__(Event)
    cdef cudaError_t code
    made.device = device
    made.number = number
    with nogil:
        sim_lock()
        code = event_make(made)
        sim_unlock()
    check(code, "cudaEventCreateWithFlags")
    return made


def _ticks(ticks):
    number = operator.index(ticks)
    if not 0 <= number <= _TICKS_MAX:
        raise ValueError(f"ticks are from 0 to 2**40, got {ticks}")
    return number


cdef int check(cudaError_t code, str call) except -1:
    return driver_check(sim_table(), code, call)


cdef object is_ready(cudaError_t code, str call):
    if code != cudaErrorNotReady:
        check(code, call)
    return code == cudaSuccess


# --- with the lock. stream_open and event_open take it, whoever calls them gives it back ------------------------------

cdef cudaError_t stream_open(Stream self, int name, sim_device_t** device, stream_t** stream) noexcept nogil:
    """Take the lock and find the stream; one that was destroyed is reported even if its handle is in use again."""
    cdef cudaError_t code
    sim_lock()
    device[0] = devices_get(self.number)
    if thread_is_called():
        return cudaErrorNotPermitted
    code = stream_resolve(cudaSuccess, name, self.handle, device[0], stream)
    if code == cudaSuccess and self.made_id not in (0, stream[0].id):
        code = handle_misuse(device[0], name, self.handle, MISUSE_STREAM_GONE, 0)
    if code == cudaSuccess and stream[0].timeline is not &device[0].timeline:
        code = handle_misuse(device[0], name, self.handle, MISUSE_STREAM_GONE, 0)
    return code


cdef cudaError_t stream_open_for_work(Stream self, int name, sim_device_t** device, stream_t** stream) noexcept nogil:
    cdef cudaError_t code = stream_open(self, name, device, stream)
    if code == cudaSuccess and stream[0] is device[0].timeline.legacy and captures_forbid_legacy(&device[0].timeline):
        code = capture_misuse(device[0], name, self.handle, cudaErrorStreamCaptureImplicit)
    return code


cdef cudaError_t stream_queue(Stream self, op_t* op, size_t ptr, size_t nbytes):
    """Put an operation on the stream, with the range of device memory that it touches."""
    cdef sim_device_t* device
    cdef stream_t* stream = NULL
    cdef cudaError_t code
    with nogil:
        code = stream_open_for_work(self, op.name, &device, &stream)
        if code == cudaSuccess:
            if op.kind == OP_READ:
                op.reads = span_make(&device.memory, <void*>ptr, nbytes)
            elif op.kind == OP_FILL:
                op.writes = span_make(&device.memory, <void*>ptr, nbytes)
            code = work_submit(stream, op)
        sim_unlock()
    return code


cdef cudaError_t stream_make(Stream self) noexcept nogil:
    cdef sim_device_t* device = devices_get(self.number)
    cdef stream_t* stream
    if device is NULL or device.closed:
        return cudaErrorInvalidDevice
    stream = stream_create(&device.timeline, self.blocking, True)
    if stream is NULL:
        return cudaErrorMemoryAllocation
    self.handle = stream.handle
    self.made_id = stream.id
    return cudaSuccess


cdef cudaError_t stream_leave(Stream self) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream = NULL
    cdef cudaError_t code = stream_open(self, CALL_STREAM_DESTROY, &device, &stream)
    if code != cudaSuccess:
        return code
    if self.made_id == 0 or stream.capture is not NULL:
        return cudaErrorInvalidResourceHandle
    stream_destroy(stream)
    return cudaSuccess


cdef void stream_drop(Stream self) noexcept nogil:
    """Destroy a stream that nobody refers to, unless that was done or a capture still needs it."""
    cdef stream_t* stream
    if self.made_id == 0:
        return
    stream = <stream_t*>handle_get(HANDLE_STREAM, self.handle)
    if stream is not NULL and stream.id == self.made_id and stream.capture is NULL:
        stream_destroy(stream)


cdef cudaError_t stream_query(Stream self) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream = NULL
    cdef cudaError_t code = stream_open(self, CALL_STREAM_QUERY, &device, &stream)
    if code == cudaSuccess:
        code = query_check(device, CALL_STREAM_QUERY, self.handle, stream)
    return code if code != cudaSuccess else device_query_stream(device, stream)


cdef cudaError_t stream_wait(Stream self) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream = NULL
    cdef cudaError_t code = stream_open(self, CALL_STREAM_SYNCHRONIZE, &device, &stream)
    if code == cudaSuccess:
        code = query_check(device, CALL_STREAM_SYNCHRONIZE, self.handle, stream)
    return code if code != cudaSuccess else device_await_stream(device, stream)


cdef cudaError_t stream_await_event(Stream self, Event named) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream = NULL
    cdef event_t* event
    cdef cudaError_t code = stream_open_for_work(self, CALL_STREAM_WAIT_EVENT, &device, &stream)
    if code != cudaSuccess:
        return code
    event = event_find(named)
    if event is NULL:
        return handle_misuse(device, CALL_STREAM_WAIT_EVENT, named.handle, MISUSE_EVENT_GONE, 0)
    return work_wait(stream, event)


cdef cudaError_t stream_end_capture(Stream self, Graph made) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream = NULL
    cdef graph_t* graph = NULL
    cdef cudaError_t code = stream_open(self, CALL_END_CAPTURE, &device, &stream)
    if code == cudaSuccess:
        code = capture_end(stream, thread_number(), &graph)
    if graph is not NULL:
        made.handle = graph.handle
        made.id = graph.id
        made.nodes = graph.nodes
    return code


cdef cudaError_t event_make(Event self) noexcept nogil:
    cdef sim_device_t* device = devices_get(self.number)
    cdef event_t* event
    if device is NULL or device.closed:
        return cudaErrorInvalidDevice
    event = event_create(&device.timeline)
    if event is NULL:
        return cudaErrorMemoryAllocation
    self.handle = event.handle
    self.id = event.id
    return cudaSuccess


cdef event_t* event_find(Event self) noexcept nogil:
    cdef event_t* event = <event_t*>handle_get(HANDLE_EVENT, self.handle)
    return event if event is not NULL and event.id == self.id else NULL


cdef cudaError_t event_open(Event self, int name, sim_device_t** device, event_t** event) noexcept nogil:
    sim_lock()
    device[0] = devices_get(self.number)
    event[0] = event_find(self)
    if thread_is_called():
        return cudaErrorNotPermitted
    if device[0] is NULL or device[0].closed:
        return cudaErrorInvalidDevice
    if event[0] is NULL:
        return handle_misuse(device[0], name, self.handle, MISUSE_EVENT_GONE, 0)
    return cudaSuccess


cdef cudaError_t event_open_for_query(Event self, int name, sim_device_t** device, event_t** event) noexcept nogil:
    cdef cudaError_t code = event_open(self, name, device, event)
    return code if code != cudaSuccess else event_check(device[0], name, event[0])


cdef cudaError_t event_record_on(Event self, Stream on) noexcept nogil:
    cdef sim_device_t* device
    cdef stream_t* stream = NULL
    cdef event_t* event
    cdef cudaError_t code = stream_open_for_work(on, CALL_EVENT_RECORD, &device, &stream)
    if code != cudaSuccess:
        return code
    event = event_find(self)
    if event is NULL:
        return handle_misuse(device, CALL_EVENT_RECORD, self.handle, MISUSE_EVENT_GONE, 0)
    if event.timeline is not stream.timeline:
        return handle_misuse(device, CALL_EVENT_RECORD, self.handle, MISUSE_EVENT_DEVICE, event.timeline.device)
    return work_record(event, stream)


cdef cudaError_t event_query(Event self) noexcept nogil:
    cdef sim_device_t* device
    cdef event_t* event
    cdef cudaError_t code = event_open_for_query(self, CALL_EVENT_QUERY, &device, &event)
    return code if code != cudaSuccess else device_query(device, event.clock, event.lanes)


cdef cudaError_t event_await(Event self) noexcept nogil:
    cdef sim_device_t* device
    cdef event_t* event
    cdef cudaError_t code = event_open_for_query(self, CALL_EVENT_SYNCHRONIZE, &device, &event)
    return code if code != cudaSuccess else device_await(device, event.clock, event.lanes)


cdef graph_t* graph_find(uint64_t handle, uint64_t id) noexcept nogil:
    cdef graph_t* graph = <graph_t*>handle_get(HANDLE_GRAPH, handle)
    return graph if graph is not NULL and (id == 0 or graph.id == id) else NULL


cdef cudaError_t launch_locked(uint64_t handle, uint64_t id, uint64_t on, bint* found) noexcept nogil:
    cdef graph_t* graph = graph_find(handle, id)
    cdef sim_device_t* device
    cdef stream_t* stream
    cdef cudaError_t code
    found[0] = graph is not NULL
    if graph is NULL or thread_is_called():
        return cudaErrorNotPermitted
    device = devices_get(graph.timeline.device)
    code = stream_resolve(cudaSuccess, KERNEL_LAUNCH, on, device, &stream)
    if code != cudaSuccess:
        return code
    if stream.timeline is not graph.timeline:
        return handle_misuse(device, KERNEL_LAUNCH, on, MISUSE_STREAM_DEVICE, stream.timeline.device)
    if stream is device.timeline.legacy and captures_forbid_legacy(&device.timeline):
        return capture_misuse(device, KERNEL_LAUNCH, on, cudaErrorStreamCaptureImplicit)
    return graph_launch(graph, stream)
