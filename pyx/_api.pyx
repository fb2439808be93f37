"""The Python class Pool."""

import threading
from numbers import Real
from time import perf_counter

cimport cython
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, malloc

from cuda_pool._bits cimport log2_floor
from cuda_pool._buffer cimport Buffer, buffer_wrap
from cuda_pool._calls cimport (
    pool_alloc_as, pool_free, pool_free_async_as, pool_try_alloc_as, pool_try_free, pool_try_free_async_as)
from cuda_pool._capture cimport capture_make
from cuda_pool._defrag cimport defrag_by_hand, defrag_report_t, defrag_set, room_t
from cuda_pool._driver cimport Device, cudaErrorMemoryAllocation, cudaStream_t
from cuda_pool._gate cimport status_raise
from cuda_pool._movable cimport Movable, movable_wrap
from cuda_pool._order cimport stream_ref_t
from cuda_pool._pin cimport pin_make, pin_try_make
from cuda_pool._pool cimport (
    pool_call_name, pool_check, pool_close, pool_destroy, pool_excuse, pool_get_stats, pool_give_back, pool_init,
    pool_is_closed, pool_mem_info, pool_metadata, pool_open, pool_owns, pool_predict, pool_release, pool_set_release,
    pool_size_of, pool_stats_t, pool_trim)
from cuda_pool._pool_stream cimport pool_find_stream, pool_forget_stream, pool_hold_stream, pool_record_use_as
from cuda_pool._relaxed cimport get_flag
from cuda_pool._segment cimport TIER_BUDDY, TIER_MID, TIER_SLAB, settings_t
from cuda_pool._state cimport UPSTREAM_CALLS, UPSTREAM_MALLOC, pool_t
from cuda_pool._status cimport (
    STATUS_CUDA, STATUS_OK, STATUS_OUT_OF_MEMORY, STATUS_WOULD_WAIT, status_code)
from cuda_pool._stream cimport Streams, stream_handle
from cuda_pool._tally cimport tally_t
from cuda_pool._traced cimport is_traced, traced_drop_stack, traced_hold_stack

from cuda_pool._living import Living
from cuda_pool.defrag import DefragReport, FreeSpace
from cuda_pool.errors import OutOfMemoryError
from cuda_pool.profile import as_profile
from cuda_pool.settings import ALIGNMENT, CAPACITY_MAX, require_capacity, resolve, span_for
from cuda_pool.sizes import format_size, is_index, parse_size, shown
from cuda_pool.stats import PoolStats, TierStats

cdef extern from "Python.h":
    void clear_error "PyErr_Clear"()
    Py_ssize_t long_as_ssize "PyLong_AsSsize_t"(object) noexcept
    size_t long_as_size "PyLong_AsSize_t"(object) noexcept
    PyObject* long_from_size "PyLong_FromSize_t"(size_t)

cdef enum:
    ALIGNMENT_BYTES = 256       # settings.ALIGNMENT

# Compared by identity: CPython keeps one object for each of these ints, and any other object is converted.
cdef object DEFAULT_STREAM = 0
cdef object DEFAULT_ALIGNMENT = ALIGNMENT
cdef object DEFAULT_CAPACITY = 0.75

REUSE = ("wait", "query", "never")      # in the order of reuse_t

SUPPORTED = {"backing": ("malloc", "virtual"), "growth": ("static", "dynamic", "predictive")}

POOL_CAPSULE = "cuda_pool.pool"

cdef object live_pools = Living()
cdef object in_relief = threading.local()


@cython.no_gc_clear             # the destructor still needs the device when a cycle is collected
cdef class Pool:
    """A region of device memory, and the blocks that are handed out of it.

    Every method may be called from any thread.

    Parameters
    ----------
    capacity : float, int or str, default 0.75
        Bytes; text such as ``"8GiB"``; or, as a float from 0 to 1, the share of the device's free memory. What a
        pool that grows begins with. Where it is left out and a profile is given, the pool begins with what the profile
        needs and `headroom` more.
    device : int or Device, default 0
        CUDA ordinal, or a ``cuda_pool.sim.Device``. There is no silent fallback to the simulator.
    backing : {"malloc", "virtual"}
        Where the memory comes from: regions from cudaMalloc; or pages that are mapped where they are needed, so that
        free memory is never in the wrong place. The latter needs a device with virtual memory, and takes whole pages
        (2 MiB on most devices): a capacity in bytes is rounded up to them.
    growth : {"static", "dynamic", "predictive"}
        The whole capacity is taken at once, and kept; or further regions, or pages, are taken when they are needed, and
        can be given back. A predictive pool grows like a dynamic one, and learns, period after period, how many slots
        of each size class are in use at the same time: it keeps and prepares slabs for that.
    max_capacity : float, int or str, optional
        What a pool that grows may hold at most, given like `capacity`; by default all memory of the device.
    slab_max, mid_max, min_block : int or str, optional
        Largest request served from slabs, largest request that goes to the mid tier first (larger ones go to the
        buddy tier), and unit of the buddy tier. See ``cuda_pool.settings``. ``mid_max="1MiB"`` is the textbook pool.
    size_classes : int, str or iterable, optional
        Smallest slot of the usual classes (64, 128 or 256 bytes), or every class by hand; one class makes a pool of
        fixed-size blocks.
    headroom : float, default 0.15
        What a predictive pool takes above the peak of its profile, as a share of that: from 0 to 1. From 0.1 to 0.2 is
        enough for most programs.
    profile : Profile, str or os.PathLike, optional
        For predictive growth: what an earlier run needed (``save_profile``), or the path of it.
    trace : str or os.PathLike, optional
        Record what is allocated and freed, until the pool is closed, as ``cuda_pool.record`` does: a trace CSV.
    stacks : bool or int, default False
        As for ``cuda_pool.record``, where there is a `trace`.
    reuse : {"wait", "query", "never"}
        When memory that was freed asynchronously goes to another stream, in a shortage: behind a wait that is put on
        that stream; once its work is seen to be over; or when nothing else is left.
    release_threshold : int or str, optional
        Let a pool that grows give whole regions back by itself while more bytes than that are free outside slabs; by
        default only ``trim`` and a request that needs their memory in another place do so.
    debug : bool, default False
        Refuse a region from the driver that overlaps a live one, and colour the slots of slabs.
    scrub : bool, default False
        Overwrite freed blocks with zeros; costs a driver call for each free.
    defrag_threshold, defrag_interval : int, optional
        Let an allocation move movable blocks together first: when there are more free blocks than the one number, or
        after so many allocations as the other. Neither looks at allocations that a slab serves.

    Raises
    ------
    OutOfMemoryError
        The device does not have the capacity; where a profile asks for it, the message says how much is lacking.
    ProfileError
        The file at `profile` is damaged, or no profile.
    DeviceUnavailableError
        There is no usable device of that ordinal.
    ValueError
        A setting is not accepted; the message says what is.
    TypeError
        A setting is of a type that is not accepted.
    CudaError
        Another driver call failed.
    OSError
        The file of `trace` cannot be written, or another recording has it (BlockingIOError).
    """

    def __cinit__(self, *args, **kwargs):
        self.state = <pool_t*>calloc(1, sizeof(pool_t))
        if self.state == NULL:
            raise MemoryError("the host has no memory left for a pool")
        pool_init(self.state)
        self.streams = Streams.__new__(Streams)
        self.streams.pool = self.state
        self.callbacks = self.watchers = ()

    def __init__(self, capacity=DEFAULT_CAPACITY, device=0, backing="malloc", growth="static", max_capacity=None,
                 slab_max=None, mid_max=None, min_block=None, size_classes=None, headroom=0.15, profile=None,
                 debug=False, scrub=False, trace=None, *, reuse="wait", release_threshold=None, defrag_threshold=None,
                 defrag_interval=None, stacks=False):
        if self.initialised:
            raise RuntimeError("a pool is initialised once; make another one instead")
        self.initialised = True                 # at once: opening releases the GIL
        try:
            threshold = _count("defrag_threshold", defrag_threshold)
            interval = _count("defrag_interval", defrag_interval)
            path, depth = _recording(trace, stacks)
            self.open(capacity, device, backing, growth, max_capacity, slab_max, mid_max, min_block, size_classes,
                      headroom, profile, debug, scrub, reuse, release_threshold)
            defrag_set(self.state, threshold, interval)
            if path is not None:
                self.record(path, depth)
        except BaseException:
            self.initialised = not pool_is_closed(self.state)
            raise

    cdef int open(self, capacity, device, backing, growth, max_capacity, slab_max, mid_max, min_block, size_classes,
                  headroom, profile, debug, scrub, reuse, release_threshold) except -1:
        _require_supported(backing=backing, growth=growth)
        _require_share("headroom", headroom)
        profile = _profile(profile, growth)
        if not isinstance(reuse, str) or reuse not in REUSE:
            raise ValueError(f"reuse is one of {', '.join(map(repr, REUSE))}, got {shown(reuse)}")
        chosen = _device(device)
        page = _page(chosen) if backing == "virtual" else 0
        if profile is not None and capacity is DEFAULT_CAPACITY:
            nbytes = _needed(profile, headroom, max_capacity, chosen, page)
        else:
            nbytes = _capacity(capacity, chosen, page)
        limit = _limit(growth, max_capacity, nbytes, chosen, page)
        threshold = _threshold(growth, release_threshold)
        settings = resolve(nbytes, slab_max, mid_max, min_block, size_classes, limit, page=page)
        self.debug = debug
        self.device = chosen
        self.settings = settings
        open_region(self, chosen, nbytes, limit, page, settings, scrub, REUSE.index(reuse))
        if growth == "predictive":
            try:
                predict(self, [] if profile is None else profile.slots_for(settings.size_classes))
            except BaseException:
                self.close()
                raise
        if threshold is not None:
            pool_set_release(self.state, threshold)
        live_pools.add(self)
        self.legacy = pool_find_stream(self.state, NULL)
        return 0

    cdef int record(self, object path, int depth) except -1:
        from cuda_pool._tracing import tracing_begin    # which needs this module
        try:
            self.recording = tracing_begin(self, path, depth)
        except BaseException:
            self.close()
            raise
        return 0

    @cython.binding(False)
    @cython.embedsignature(True)
    @cython.embedsignature.format("clinic")
    def alloc(self, nbytes, stream=0, *, alignment=256):
        """Return the address of a block of at least `nbytes` bytes.

        Parameters
        ----------
        nbytes : int or str
            Bytes, or text such as ``"512KiB"``. 0 gives address 0, which every free accepts.
        stream : int or object with __cuda_stream__, default 0
            Stream on which the block is used first.
        alignment : int, default 256
            Power of two that the address is a multiple of.

        Returns
        -------
        int
            The address.

        Raises
        ------
        OutOfMemoryError
            There is no free block of that size; the pool is as it was before.
        ValueError
            The size is negative or no size, the alignment is no power of two, or the pool is closed.
        TypeError
            An argument is of a type that is not accepted.
        CudaError
            A driver call failed; nothing was allocated.
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        """
        cdef void* ptr
        cdef size_t size
        cdef size_t align = ALIGNMENT_BYTES
        cdef stream_ref_t on = self.legacy
        cdef int status
        if not (PyLong_CheckExact(nbytes) and small_size(nbytes, &size)):
            size = any_size(nbytes)
        if stream is not DEFAULT_STREAM:
            self.streams.find(stream, &on)
        if alignment is not DEFAULT_ALIGNMENT:
            align = any_alignment(alignment)
        status = pool_try_alloc_as(self.state, size, align, &on, &ptr)
        if status != STATUS_OK:
            self.acquire_slowly(status, nbytes, size, align, &on, &ptr)
        return hand_out(self, ptr)

    @cython.binding(False)
    @cython.embedsignature(True)
    @cython.embedsignature.format("clinic")
    def free(self, ptr):
        """Return a block whose memory no queued work uses any more; anyone may reuse it at once.

        Parameters
        ----------
        ptr : int
            What ``alloc`` returned. 0 does nothing.

        Raises
        ------
        InvalidPointerError
            `ptr` is not a live block's address; the message says why. The pool is unharmed.
        ValueError
            The pool overwrites what is freed (`scrub`), and a capture is under way that forbids it; the block is still
            live.
        """
        cdef size_t address = any_address(ptr)
        cdef int status = pool_try_free(self.state, <void*>address)
        if status != STATUS_OK:
            if status == STATUS_WOULD_WAIT:
                with nogil:
                    status = pool_free(self.state, <void*>address)
            status_raise(self.state, status, 0, address)
        elif get_flag(&self.state.release_due):
            release(self)

    @cython.binding(False)
    @cython.embedsignature(True)
    @cython.embedsignature.format("clinic")
    def free_async(self, ptr, stream=0):
        """Return a block in the order of `stream`.

        Later work on `stream` may reuse the block at once, other streams when the work queued on `stream` is done, or
        behind a wait for it (see `reuse`). An object that stands for the stream is kept while frees on it are pending.

        Parameters
        ----------
        ptr : int
            What ``alloc`` returned. 0 does nothing.
        stream : int or object with __cuda_stream__, default 0
            Stream whose queued work may still use the block.

        Raises
        ------
        InvalidPointerError
            As for ``free``.
        CudaError
            The driver was asked which stream a plain handle names now, and failed; the block is still live.
        ValueError
            As for ``free``, where the capture forbids to queue that on `stream`.
        """
        cdef size_t address = any_address(ptr)
        cdef stream_ref_t on = self.legacy
        cdef int status
        if stream is not DEFAULT_STREAM:
            self.streams.find(stream, &on)
        status = pool_try_free_async_as(self.state, <void*>address, &on)
        if status != STATUS_OK:
            if status == STATUS_WOULD_WAIT:
                with nogil:
                    status = pool_free_async_as(self.state, <void*>address, &on)
            status_raise(self.state, status, 0, address)
        elif get_flag(&self.state.release_due):
            release(self)

    def record_use(self, ptr, stream):
        """Let the asynchronous free of a block wait for the work of one more stream, up to that free.

        Parameters
        ----------
        ptr : int
            What ``alloc`` returned. 0 does nothing.
        stream : int or object with __cuda_stream__
            Stream on which the block is used too; it has to exist until the block is freed, or be forgotten.

        Raises
        ------
        InvalidPointerError
            As for ``free``.
        CudaError
            The driver was asked which stream a plain handle names, and failed.
        RuntimeError
            More streams have pending frees than a pool keeps apart, or the pool belongs to the parent process.
        """
        cdef size_t address = any_address(ptr)
        cdef stream_ref_t on
        cdef int status
        self.streams.find(stream, &on)
        with nogil:
            status = pool_record_use_as(self.state, <void*>address, &on)
        status_raise(self.state, status, 0, address)

    def hold_stream(self, stream):
        """Promise that `stream` exists until ``forget_stream``.

        Without it, a plain handle may name another stream each time it is used: the driver is asked before memory that
        is pending on it is used again. With it no question is needed, and the pool may record events on the stream in
        any later call.

        Parameters
        ----------
        stream : int or object with __cuda_stream__

        Raises
        ------
        CudaError
            The driver does not know the stream.
        TypeError, ValueError
            `stream` is no stream, or the pool is closed (ValueError).
        RuntimeError
            As for ``record_use``.
        """
        cdef cudaStream_t handle
        cdef int status
        stream_handle(stream, &handle)
        with nogil:
            status = pool_hold_stream(self.state, handle)
        status_raise(self.state, status, 0, 0)

    def forget_stream(self, stream):
        """Settle what was freed on `stream`; call it before the stream is destroyed.

        Waits for the stream, without the GIL, if frees on it are pending or a block's use on it was recorded. The pool
        makes no further call on the stream.

        Parameters
        ----------
        stream : int or object with __cuda_stream__
            The stream, which still exists.

        Raises
        ------
        CudaError
            Waiting failed; the frees are still pending.
        TypeError, ValueError
            `stream` is no stream, or the pool is closed (ValueError).
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        """
        cdef cudaStream_t handle
        cdef int status
        stream_handle(stream, &handle)
        with nogil:
            status = pool_forget_stream(self.state, handle)
        status_raise(self.state, status, 0, 0)
        self.streams.forget(handle)

    def capture(self, stream):
        """Return a ``Capture``: a context in which the memory of `stream`'s graph is kept for that graph.

        Enter it before the stream's capture begins and leave it after the capture has ended.
        """
        return capture_make(self, self.state, stream)

    @cython.binding(False)
    @cython.embedsignature(True)
    @cython.embedsignature.format("clinic")
    def buffer(self, nbytes, stream=0):
        """Return a ``Buffer`` that owns a block of `nbytes` bytes; arguments and errors are those of ``alloc``."""
        cdef stream_ref_t on = self.legacy
        cdef size_t size
        cdef void* ptr
        cdef int status
        size = any_size(nbytes)
        if stream is not DEFAULT_STREAM:
            self.streams.find(stream, &on)
        # The object first: nothing that can fail comes after the allocation.
        cdef Buffer buffer = buffer_wrap(self, self.state, &on)
        status = pool_try_alloc_as(self.state, size, ALIGNMENT_BYTES, &on, &ptr)
        if status != STATUS_OK:
            self.acquire_slowly(status, nbytes, size, ALIGNMENT_BYTES, &on, &ptr)
        buffer.address = ptr
        buffer.nbytes = size
        if stream is not DEFAULT_STREAM:
            buffer.stream_object = stream
        return buffer

    def movable(self, nbytes, stream=0, *, alignment=256):
        """Return a ``Movable`` that owns a block of `nbytes` bytes, which has an address only while it is pinned.

        Parameters
        ----------
        nbytes : int or str
            As for ``alloc``. The block takes at least a granule of the pool: 16 KiB in a large one.
        stream : int or object with __cuda_stream__, default 0
            The block's home: its moves and its free are queued there. It has to exist until the block is freed, or be
            forgotten before it is destroyed.
        alignment : int, default 256
            Power of two that the address is a multiple of, wherever the block is.

        Raises
        ------
        OutOfMemoryError, ValueError
            As for ``alloc``; the stream is being captured (ValueError).
        CudaError
            The driver was asked which stream a plain handle names, and failed.
        RuntimeError
            As for ``record_use``.
        """
        cdef stream_ref_t on = self.legacy
        cdef size_t size, align = ALIGNMENT_BYTES
        cdef int status
        if stream is not DEFAULT_STREAM:
            self.streams.find(stream, &on)
        size = any_size(nbytes)
        if alignment is not DEFAULT_ALIGNMENT:
            align = any_alignment(alignment)
        cdef Movable movable = movable_wrap(self, self.state, self.streams, size, stream)
        status = pin_try_make(self.state, size, align, &on, &movable.record)
        if status != STATUS_OK:
            with _watched(self, "alloc", nbytes):
                self.make_slowly(status, nbytes, align, &on, movable)
        movable.freed = False
        return movable

    def defragment(self):
        """Bring free memory together: settle what is pending, return empty slabs, and move pages or movable blocks.

        Waits, without the GIL, for work behind which something was freed, and for the moves. Other threads go on
        meanwhile, and wait for one move, or for 64 pages, at most; a movable block may be pinned at any time. A pass
        that another thread has begun is waited for first. While a capture is under way nothing is waited for and
        nothing moved.

        Returns
        -------
        DefragReport
            What was free before and after, and what was moved.

        Raises
        ------
        CudaError
            A driver call failed. What was moved until then stays there, and every block is where its handle says.
        ValueError
            The pool is closed, perhaps meanwhile.
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        """
        cdef defrag_report_t report
        cdef int status
        started = perf_counter()
        self.streams.ask()
        with _watched(self, "defragment", 0):
            with nogil:
                status = defrag_by_hand(self.state, &report)
        self.streams.distrust()
        status_raise(self.state, status, 0, 0)
        return DefragReport(
            before=free_space(&report.before), after=free_space(&report.after), moved_bytes=report.moved_bytes,
            moved_blocks=report.moved_blocks, kept_blocks=report.kept_blocks, pages_moved=report.moved_pages,
            seconds=perf_counter() - started, completed=report.completed)

    def size_of(self, ptr):
        """Return the bytes that were asked for when the block at `ptr` was allocated.

        Raises
        ------
        InvalidPointerError
            As for ``free``.
        """
        cdef size_t address = any_address(ptr), requested = 0, used = 0
        status_raise(self.state, pool_size_of(self.state, <void*>address, &requested, &used), 0, address)
        return requested

    def owns(self, ptr):
        """Return whether `ptr` is the address of a live block of this pool: whether ``free`` would accept it.

        A closed pool owns nothing.

        Raises
        ------
        TypeError
            `ptr` is no int.
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        """
        cdef size_t address = any_address(ptr)
        cdef bint owns
        status_raise(self.state, pool_owns(self.state, <void*>address, &owns), 0, address)
        return owns

    def stats(self):
        """Return the pool's statistics as a ``PoolStats``; asks the driver for the device's free memory."""
        cdef pool_stats_t now
        cdef size_t device_free = 0, device_total = 0
        cdef int status
        with nogil:
            status = pool_mem_info(self.state, &device_free, &device_total)
        status_raise(self.state, status, 0, 0)
        status_raise(self.state, pool_get_stats(self.state, &now), 0, 0)
        calls = {pool_call_name(call).decode(): now.upstream[call]
                 for call in range(UPSTREAM_MALLOC, UPSTREAM_CALLS) if now.upstream[call]}
        return PoolStats(
            capacity=now.capacity, reserved=now.reserved, reserved_high=now.reserved_high,
            used=now.used, used_high=now.used_high, requested=now.requested, requested_high=now.requested_high,
            pending=now.pending, free=now.free, largest_free=now.largest_free,
            alloc_count=now.alloc_count, free_count=now.free_count, oom_count=now.oom_count,
            grow_count=now.grow_count, trim_count=now.trim_count, defrag_count=now.defrag_count,
            device_free=device_free, device_total=device_total, upstream_calls=calls,
            slab=tier_stats(now.tier[TIER_SLAB]),
            mid=tier_stats(now.tier[TIER_MID]), buddy=tier_stats(now.tier[TIER_BUDDY]))

    def snapshot(self):
        """Return what the pool's memory is divided into now, as a ``Snapshot``.

        Takes time in proportion to the number of blocks, and holds the pool's lock meanwhile: other threads wait.
        ``Snapshot.save`` writes it for ``cuda-pool map``.

        Raises
        ------
        ValueError
            The pool is closed.
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        MemoryError
            The host has no memory for it.
        """
        from cuda_pool._snapshot import snapshot_of     # which needs this module
        return snapshot_of(self)

    def leaks(self):
        """Return the blocks that are live now, by where they were allocated, as ``Leaks``.

        While the pool is recorded (``cuda_pool.record``), each has its age; with ``stacks=True`` its stack as well, and
        blocks with the same stack are one group. ``print(pool.leaks())`` shows them.

        Takes time in proportion to the number of blocks, and holds the pool's lock for part of it.

        Raises
        ------
        ValueError
            The pool is closed.
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        MemoryError
            The host has no memory for it.
        """
        from cuda_pool._leaks import leaks_of           # which needs this module
        return leaks_of(self)

    def save_profile(self, path):
        """Write what the pool has needed so far, for the pool of a later run to start with (`profile`).

        Parameters
        ----------
        path : str or os.PathLike
            JSON; with a name that ends in ``.gz`` it is compressed. What had the name before stays until the new file
            is whole.

        Raises
        ------
        OSError
            The file cannot be written.
        ValueError
            The pool is closed.
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        """
        from cuda_pool._profile import profile_of       # which needs this module
        profile_of(self).save(path)

    def trim(self, keep=0):
        """Give regions back to the driver that are wholly free.

        Completes first what is known to be done: frees whose work is over, and slabs without a used slot. A region with
        pending work stays; trim does not wait for it, though cudaFree, where it is called, waits for the device by
        itself. A static pool keeps its region. During a capture nothing is given back.

        Parameters
        ----------
        keep : int or str, default 0
            Bytes that stay reserved, at least.

        Returns
        -------
        int
            Bytes that were given back.

        Raises
        ------
        CudaError
            The driver failed, or did not take a region back: the pool still has it.
        TypeError, ValueError
            `keep` is no size, or the pool is closed (ValueError).
        RuntimeError
            The pool was made before the process forked, and belongs to the parent.
        """
        cdef size_t least = any_size(keep), returned = 0
        cdef int status
        self.streams.ask()
        with _watched(self, "trim", least):
            with nogil:
                status = pool_trim(self.state, least, &returned)
        self.streams.distrust()
        status_raise(self.state, status, 0, 0)
        return returned

    def on_pressure(self, callback):
        """Let a function be called before an allocation of this pool fails, so that it can free something.

        Where neither the pool nor other pools of the device have the memory, every registered function is called with
        the number of bytes, in the order of registration, by the thread that allocates, without any lock of the pool;
        then the allocation is tried once more. A function may use the pool. An allocation that fails inside it fails
        at once. What it raises is raised by the allocation. ``pool_alloc`` of the Cython interface calls none.

        Parameters
        ----------
        callback : callable
            Takes the bytes that are asked for. What it returns does not matter.

        Returns
        -------
        callable
            `callback`, so that this can be a decorator.

        Raises
        ------
        TypeError
            `callback` cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"a callback takes a number of bytes, got {shown(callback)}")
        self.callbacks = (*self.callbacks, callback)
        return callback

    def off_pressure(self, callback):
        """Take back one ``on_pressure`` of a function.

        Raises
        ------
        ValueError
            The function is not registered.
        """
        callbacks = list(self.callbacks)
        if callback not in callbacks:
            raise ValueError(f"this callback is not registered: {shown(callback)}")
        callbacks.remove(callback)
        self.callbacks = tuple(callbacks)

    def on_event(self, callback, *, phases=False):
        """Let a function be called when something happens to the pool that is worth knowing.

        That is when it grows, gives memory back, cannot serve an allocation, or is defragmented. The function is called
        without any lock of the pool, and may use it; what it does to the pool itself is not told again. What it raises
        goes to ``sys.unraisablehook``. After a method of Python it is called by the same thread, before the method
        returns. What C code does, which takes no GIL, and what a free does by itself, is told by a thread of the
        package soon after. Up to 64 events are kept for that.

        Parameters
        ----------
        callback : callable
            Takes a ``PoolEvent``. What it returns does not matter.
        phases : bool, default False
            Also call it at the begin and the end of methods of Python that take long: an allocation that a free block
            in reach did not serve, ``trim`` and ``defragment``; in the thread that does it.

        Returns
        -------
        callable
            `callback`, so that this can be a decorator.

        Raises
        ------
        TypeError
            `callback` cannot be called.
        """
        from cuda_pool._events import register          # which needs this module
        register(self, callback, phases)
        return callback

    def off_event(self, callback):
        """Take back one ``on_event`` of a function.

        Raises
        ------
        ValueError
            The function is not registered.
        """
        from cuda_pool._events import unregister        # which needs this module
        unregister(self, callback)

    def check(self):
        """Assert every invariant of the pool.

        Takes time in proportion to the pool's size, and holds its lock meanwhile: other threads wait.

        Raises
        ------
        AssertionError
            An invariant is broken; the message names it.
        """
        cdef const char* broken
        with nogil:
            broken = pool_check(self.state)
        if broken != NULL:
            raise AssertionError(broken.decode())

    def close(self):
        """Return the region to the driver, live blocks included. A second call does nothing.

        Raises
        ------
        CudaError
            The driver did not take the region back; the pool is closed all the same.
        OSError
            What was recorded could not be written; the pool is closed all the same.
        """
        cdef int status
        try:
            if is_traced(self.state):
                self.end_recording()
        finally:
            with nogil:
                status = pool_close(self.state)
            self.streams.distrust()
            status_raise(self.state, status, 0, 0)

    @property
    def tracing(self):
        """The recording of this pool that is under way, or else that of ``Pool(trace=path)``, or None."""
        from cuda_pool._tracing import tracing_of       # which needs this module
        return tracing_of(self) or self.recording

    @property
    def closed(self):
        """Whether ``close`` was called."""
        return pool_is_closed(self.state)

    @property
    def handle(self):
        """The address of the pool as an int, for C: a ``cuda_pool_t*``.

        It is valid as long as this object exists, the pool closed or not: after ``close`` every function of the C
        interface answers ``CUDA_POOL_ERROR_CLOSED``.
        """
        return <size_t>self.state

    @property
    def capsule(self):
        """A PyCapsule ``"cuda_pool.pool"`` with the pool's address, which keeps the pool as long as it exists.

        It does not keep the pool open: after ``close`` every function of the C interface answers
        ``CUDA_POOL_ERROR_CLOSED``.
        """
        capsule = PyCapsule_New(self.state, POOL_CAPSULE, let_go)
        PyCapsule_SetContext(capsule, <void*>self)
        Py_INCREF(self)
        return capsule

    @property
    def metadata_bytes(self):
        """Host address space set aside for bookkeeping, in bytes; only what is touched takes host memory."""
        return pool_metadata(self.state)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        if pool_is_closed(self.state):
            return "<cuda_pool.Pool closed>"
        return f"<cuda_pool.Pool of {self.state.capacity} bytes on {self.device!r}>"

    def __del__(self):
        if self.state != NULL and is_traced(self.state):
            self.end_recording()

    def __dealloc__(self):
        if self.state != NULL:
            with nogil:
                pool_close(self.state)
            if pool_is_closed(self.state):         # a child process leaves what its parent may have been changing
                pool_destroy(self.state)
            free(self.state)

    cdef int end_recording(self) except -1:
        tracing = self.tracing
        if tracing is not None:
            tracing.close()
        return 0

    cdef int acquire_slowly(self, int status, object nbytes, size_t size, size_t alignment, const stream_ref_t* stream,
                            void** ptr) except -1:
        """The rest of an allocation where the fast path did not end in a block."""
        if not self.watchers:
            return self.acquire(status, nbytes, size, alignment, stream, ptr)
        with _watched(self, "alloc", nbytes):
            return self.acquire(status, nbytes, size, alignment, stream, ptr)

    cdef int acquire(self, int status, object nbytes, size_t size, size_t alignment, const stream_ref_t* stream,
                     void** ptr) except -1:
        if status == STATUS_WOULD_WAIT:
            self.streams.ask()
            status = self.alloc_waiting(size, alignment, stream, ptr)
            self.streams.distrust()
        if status == STATUS_OUT_OF_MEMORY and self.relieve(size):
            pool_excuse(self.state)            # the second try counts for both
            status = self.alloc_waiting(size, alignment, stream, ptr)
        if status != STATUS_OK:
            self.refuse(status, parse_size(nbytes))
        return 0

    cdef int refuse(self, int status, object nbytes) except -1:
        """Raise what came of an allocation; a recording adds what it knows of the live blocks."""
        try:
            status_raise(self.state, status, nbytes, 0)
        except OutOfMemoryError as error:
            if is_traced(self.state) and error.moment is not None:
                error.evidence = evidence_now(self, error.moment)
            raise
        return 0

    cdef int alloc_waiting(self, size_t size, size_t alignment, const stream_ref_t* stream, void** ptr) noexcept:
        cdef int status
        traced_hold_stack(self.state)
        with nogil:
            status = pool_alloc_as(self.state, size, alignment, stream, ptr)
        traced_drop_stack()
        return status

    cdef int make_slowly(self, int status, object nbytes, size_t alignment, const stream_ref_t* stream,
                         Movable movable) except -1:
        """The same for a movable block."""
        cdef size_t size = movable.nbytes
        if status == STATUS_WOULD_WAIT:
            self.streams.ask()
            traced_hold_stack(self.state)
            with nogil:
                status = pin_make(self.state, size, alignment, stream, &movable.record)
            traced_drop_stack()
            self.streams.distrust()
        if status == STATUS_OUT_OF_MEMORY and self.relieve(size):
            pool_excuse(self.state)
            with nogil:
                status = pin_make(self.state, size, alignment, stream, &movable.record)
        if status != STATUS_OK:
            self.refuse(status, parse_size(nbytes))
        return 0

    cdef bint relieve(self, size_t nbytes) except -1:
        """Let whoever can free something do so; whether it is worth another try."""
        cdef bint grows = self.state.grows and nbytes <= self.state.capacity
        cdef tuple callbacks = self.callbacks           # one of them may take itself back
        if not (grows or callbacks) or getattr(in_relief, "busy", False):
            return False
        in_relief.busy = True
        try:
            returned = _release(nbytes, self.device, self) if grows else 0
            for callback in callbacks:
                callback(nbytes)
        finally:
            in_relief.busy = False
        return returned != 0 or len(callbacks) != 0


class _watched:
    """A call that may take long: whoever watches the pool is told of it, and of what it did."""

    def __init__(self, pool, kind, nbytes):
        self.pool = pool if (<Pool>pool).watchers else None
        self.kind = kind
        self.nbytes = nbytes

    def __enter__(self):
        if self.pool is not None:
            from cuda_pool._events import started       # which needs this module
            self.nbytes = parse_size(self.nbytes)
            self.before = started(self.pool, self.kind, self.nbytes)

    def __exit__(self, kind, error, traceback):
        if self.pool is not None:
            from cuda_pool._events import finished
            finished(self.pool, self.kind, self.nbytes, self.before, isinstance(error, OutOfMemoryError))


cdef object evidence_now(Pool pool, dict moment):
    """Return what a recording tells of the live blocks, or None where that cannot be found out any more."""
    from cuda_pool.evidence import evidence_of_leaks            # which needs numpy
    try:
        tracing = pool.tracing
        return None if tracing is None else evidence_of_leaks(pool.leaks(), tracing.events, moment)
    except (MemoryError, RuntimeError, ValueError):             # closed meanwhile, or no host memory
        return None


cdef void let_go(object capsule) noexcept:
    Py_XDECREF(<PyObject*>PyCapsule_GetContext(capsule))


cdef object hand_out(Pool pool, void* ptr):
    """Return an address as an int; if the host has no memory for that, the block goes back."""
    cdef PyObject* address = long_from_size(<size_t>ptr)
    if address == NULL:
        clear_error()
        with nogil:
            pool_free(pool.state, ptr)
        raise MemoryError("the host has no memory left for an address")
    number = <object>address
    Py_DECREF(number)
    return number


# Arguments

cdef inline bint small_size(object nbytes, size_t* size) noexcept:
    """Convert the sizes that occur; False for what needs a closer look."""
    cdef Py_ssize_t number = long_as_ssize(nbytes)
    if number < 0:
        clear_error()
        return False
    size[0] = number
    return True


cdef size_t any_size(object nbytes) except? 0:
    """Convert any size; one that no size_t holds becomes one that no device has."""
    cdef size_t size
    if PyLong_CheckExact(nbytes) and small_size(nbytes, &size):
        return size
    return min(parse_size(nbytes), 1 << 63)


cdef size_t any_alignment(object alignment) except? 0:
    """Convert an alignment; one that no size_t holds becomes one that no pool has."""
    number = parse_size(alignment)
    if number == 0 or number & (number - 1):
        raise ValueError(f"alignment is a power of two of at least 1 byte, got {shown(alignment)}")
    return min(number, 1 << 63)


cdef size_t any_address(object ptr) except? 0:
    cdef size_t address
    if PyLong_CheckExact(ptr):
        address = long_as_size(ptr)
        if address != <size_t>-1:
            return address
        clear_error()
        return <size_t>-1           # in no pool
    if not is_index(ptr):
        raise TypeError(f"an address is an int, got {shown(ptr)}")
    return any_address(int(ptr.__index__()))


def _device(device):
    """Return the Device of an ordinal, or the Device itself."""
    if isinstance(device, Device):
        return device
    if not is_index(device):
        raise TypeError(f"a device is a CUDA ordinal or a cuda_pool.sim.Device, got {shown(device)}")
    from cuda_pool._cuda import device as cuda_device      # cuda-python is loaded when a real device is asked for
    return cuda_device(device.__index__())


def _page(device):
    """Return the bytes of a page of a device that has virtual memory."""
    page = device.granularity
    if page == 0:
        raise ValueError(f"{device!r} has no virtual memory, or its driver lacks a call for it: backing='virtual' "
                         "needs that; backing='malloc' does not")
    return page


def _capacity(capacity, device, page):
    """Return bytes for the capacity argument of Pool: whole pages if there are any."""
    if isinstance(capacity, float) or (hasattr(capacity, "__float__") and not hasattr(capacity, "__index__")):
        if not 0 < capacity <= 1:
            raise ValueError("as a float, capacity is a share of the free memory from 0 (excluded) to 1, "
                             f"got {capacity}")
        nbytes = int(float(capacity) * device.mem_info()[0])
        if page and nbytes >= page:
            nbytes -= nbytes % page
    else:
        nbytes = parse_size(capacity)
    require_capacity(nbytes, capacity)
    return -(-nbytes // page) * page if page else nbytes


def _profile(profile, growth):
    """Return the Profile for the profile argument of Pool, or None."""
    if profile is None:
        return None
    if growth != "predictive":
        raise ValueError(f"profile is for growth='predictive', got growth={shown(growth)}")
    return as_profile(profile)


def _needed(profile, headroom, max_capacity, device, page):
    """Return the bytes that a profile asks for, if the pool may hold them and the device has them."""
    nbytes = profile.capacity(headroom)
    require_capacity(nbytes)
    nbytes = -(-nbytes // page) * page if page else nbytes
    needs = f"the profile's peak of {format_size(profile.peak_used)} and headroom {headroom:g} of it are"
    limit = nbytes if max_capacity is None else _capacity(max_capacity, device, page)
    if nbytes > limit:
        raise ValueError(f"{needs} {format_size(nbytes - limit)} more than max_capacity: let the pool hold "
                         f"{nbytes} bytes, or give it a capacity or less headroom")
    available = device.mem_info()[0]
    if nbytes > available:
        raise OutOfMemoryError(nbytes, available, available, 0, nbytes, hint=(
            f"{needs} {format_size(nbytes - available)} more than the device has free: give the pool a smaller "
            "capacity or less headroom, or free memory of the device"))
    return nbytes


def _limit(growth, max_capacity, nbytes, device, page):
    """Return what a pool may grow to, in whole pages if there are any, or None if it does not."""
    if growth == "static":
        if max_capacity is not None:
            raise ValueError("max_capacity is for a pool that grows: with growth='static' give None, as its capacity "
                             f"is the limit; got {shown(max_capacity)}")
        return None
    if max_capacity is None:
        limit = min(device.mem_info()[1], CAPACITY_MAX)
        return max(nbytes, limit - limit % page if page else limit)
    limit = _capacity(max_capacity, device, page)
    if limit < nbytes:
        raise ValueError(f"max_capacity is at least the capacity that the pool begins with, {nbytes} bytes, "
                         f"got {limit} bytes")
    return limit


def _threshold(growth, release_threshold):
    if release_threshold is None:
        return None
    if growth == "static":
        raise ValueError("release_threshold is for a pool that grows: a static one keeps its region, so give None; "
                         f"got {shown(release_threshold)}")
    return min(parse_size(release_threshold), CAPACITY_MAX)


def _recording(trace, stacks):
    """Return the path and the depth of stacks that are asked for."""
    if trace is None and stacks is False:
        return None, 0
    from cuda_pool._tracing import tracing_arguments        # which needs this module
    return tracing_arguments(trace, stacks)


def _require_supported(**arguments):
    for name, value in arguments.items():
        # The type first: an array that is compared has no truth value.
        if not any(isinstance(value, type(one)) and value == one for one in SUPPORTED[name]):
            accepted = " or ".join(map(repr, SUPPORTED[name]))
            raise ValueError(f"{name}={shown(value)} is not supported: this version accepts {accepted}")


def _count(name, value):
    """Return a number of blocks or calls, 0 for None."""
    if value is None:
        return 0
    if not is_index(value):
        raise TypeError(f"{name} is an int of at least 1, or None, got {shown(value)}")
    if not 1 <= value < 1 << 63:
        raise ValueError(f"{name} is an int of at least 1, or None, got {shown(value)}")
    return value.__index__()


def _require_share(name, value):
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} is a number from 0 to 1, got {shown(value)}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a number from 0 to 1, got {shown(value)}")


# Giving memory back

cdef int release(Pool pool) except -1:
    with nogil:
        pool_release(pool.state)
    return 0


def release_memory(nbytes=None, device=None):
    """Let the pools of this process give idle memory back to the driver, for another part of it to use.

    Only regions that are wholly free go, see ``Pool.trim``; the pools are asked in no particular order. Pass it on to
    whatever calls a function when it is out of memory; for pools of this process that is done without.

    Parameters
    ----------
    nbytes : int or str, optional
        Bytes that are wanted; by default whatever is idle.
    device : int or Device, optional
        CUDA ordinal, or a ``cuda_pool.sim.Device``: only its pools are asked; by default all are.

    Returns
    -------
    int
        Bytes that were given back: as many as were wanted or more, or all that was idle.

    Raises
    ------
    CudaError
        A driver call failed.
    """
    wanted = 1 << 63 if nbytes is None else any_size(nbytes)
    return _release(wanted, None if device is None else _device(device), None)


def _release(size_t wanted, Device device, Pool but):
    cdef Pool pool
    cdef size_t returned = 0, total = 0
    cdef int status
    for pool in live_pools:
        if total >= wanted:
            break
        if pool is but or not pool.state.grows or pool_is_closed(pool.state):
            continue
        if device is not None and (pool.device.driver != device.driver or pool.device.number != device.number):
            continue
        with nogil:
            status = pool_give_back(pool.state, wanted - total, &returned)
        total += returned
        if pool.watchers:
            from cuda_pool._events import deliver       # which needs this module
            deliver(pool)
        if status & 0xFF == STATUS_CUDA:
            status_raise(pool.state, status, 0, 0)
    return total


# Opening and closing

cdef int open_region(Pool pool, Device device, size_t nbytes, object limit, size_t page, object settings, bint scrub,
                     int reuse) except -1:
    cdef settings_t plain
    cdef int status, index
    cdef size_t most = limit or nbytes
    cdef size_t* sizes = <size_t*>malloc((len(settings.size_classes) + 1) * sizeof(size_t))
    if sizes == NULL:
        raise MemoryError("the host has no memory left for a pool")
    try:
        for index, size in enumerate(settings.size_classes):
            sizes[index] = size
        plain.span = span_for(limit) if limit and not page else 0
        plain.mid_max = settings.mid_max
        plain.min_block = settings.min_block
        plain.growth_step = settings.growth_step
        plain.granule = settings.granule
        plain.size_classes = sizes
        plain.classes = len(settings.size_classes)
        plain.colouring = pool.debug
        plain.good_fit = settings.good_fit
        plain.page_shift = log2_floor(page) if page else 0
        plain.pages_most = <uint32_t>(most >> plain.page_shift) if page else 0
        plain.pages_first = <uint32_t>(nbytes >> plain.page_shift) if page else 0
        with nogil:
            status = pool_open(pool.state, device.driver, device.number, nbytes, most, &plain, scrub, reuse)
    finally:
        free(sizes)
    if status & 0xFF == STATUS_CUDA and status_code(status) == cudaErrorMemoryAllocation:
        available = device.mem_info()[0]
        # A driver that has the bytes and refuses them has them in no single piece: what it would give is not known.
        raise OutOfMemoryError(nbytes, available, available if available < nbytes else 0, 0, most)
    status_raise(pool.state, status, nbytes, 0)
    return 0


cdef int predict(Pool pool, list streams) except -1:
    """Let the pool learn, from a plan on: slots by stream and size class."""
    cdef int classes = len(pool.settings.size_classes), status, at = 0
    cdef size_t* plan = <size_t*>malloc((len(streams) * classes + 1) * sizeof(size_t))
    if plan == NULL:
        raise MemoryError("the host has no memory left for a plan")
    try:
        for slots in streams:
            for count in slots:
                plan[at] = count
                at += 1
        with nogil:
            status = pool_predict(pool.state, plan, at // max(classes, 1), classes)
    finally:
        free(plan)
    status_raise(pool.state, status, 0, 0)
    return 0


cdef object free_space(const room_t* room):
    return FreeSpace(free=room.free, largest_free=room.largest_free, free_blocks=room.free_blocks)


cdef object tier_stats(tally_t tier):
    return TierStats(blocks=tier.allocs - tier.frees, used=tier.used, requested=tier.requested)
