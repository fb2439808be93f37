"""Tell functions of a program what happened to its pools."""

import atexit
import os
import threading

from cpython.exc cimport PyErr_WriteUnraisable
from cpython.ref cimport Py_XDECREF, PyObject

from cuda_pool._api cimport Pool
from cuda_pool._happenings cimport (
    HAPPENING_OOM, happening_t, happenings_attend, happenings_note, happenings_take, happenings_wait,
    happenings_wake)
from cuda_pool._relaxed cimport set_flag

from cuda_pool._living import Living
from cuda_pool.events import KINDS, PoolEvent
from cuda_pool.sizes import shown

cdef extern from "Python.h":
    PyObject* PyObject_CallOneArg(PyObject* function, PyObject* argument)

cdef object watched = Living()
cdef object notifier = None         # the thread that tells what threads without the GIL did
cdef object notifier_process = None
cdef bint ending = False


def register(Pool pool not None, callback, bint phases):
    """Do what ``Pool.on_event`` says."""
    if not callable(callback):
        raise TypeError(f"a callback takes an event, got {shown(callback)}")
    start_notifier()
    pool.watchers = (*pool.watchers, (callback, phases))
    watched.add(pool)
    set_flag(&pool.state.happenings.watched, True)


def unregister(Pool pool not None, callback):
    """Do what ``Pool.off_event`` says."""
    watchers = list(pool.watchers)
    for at, (other, _) in enumerate(watchers):
        if other == callback:
            del watchers[at]
            break
    else:
        raise ValueError(f"this callback is not registered: {shown(callback)}")
    pool.watchers = tuple(watchers)
    set_flag(&pool.state.happenings.watched, len(watchers) != 0)


def started(Pool pool not None, kind, nbytes):
    """Begin a call that may take long; what is to be given to `finished`."""
    tell(pool, PoolEvent(kind, pool, nbytes, "begin"))
    return -1 if calls_back() else happenings_attend(1)


def finished(Pool pool not None, kind, nbytes, before, refused):
    """End it, and tell what the thread did in it."""
    if refused:
        happenings_note(&pool.state.happenings, HAPPENING_OOM, min(nbytes, (1 << 64) - 1))
    happenings_attend(before)
    deliver(pool)
    tell(pool, PoolEvent(kind, pool, nbytes, "end"))


def deliver(Pool pool not None):
    """Tell what happened so far, but for what another thread will tell, and what happened in the parent process."""
    cdef happening_t taken
    if calls_back() or pool.state.generation != pool.state.forks[0]:
        return
    while happenings_take(&pool.state.happenings, &taken):
        tell(pool, PoolEvent(KINDS[taken.kind], pool, taken.nbytes))


cdef int tell(Pool pool, object event) except -1:
    """Call every function; what they do to the pool is not told again."""
    cdef int before
    if calls_back():
        return 0
    before = happenings_attend(-1)
    for callback, phases in pool.watchers:
        if phases or event.phase is None:
            call(callback, event)
    happenings_attend(before)
    return 0


cdef bint calls_back() noexcept:
    """Is the calling thread in a function that is told something?"""
    cdef int attends = happenings_attend(-1)
    happenings_attend(attends)
    return attends < 0


cdef void call(object callback, object event) noexcept:
    """What it raises goes to sys.unraisablehook, once and with the callback; Cython would print it before that."""
    cdef PyObject* result = PyObject_CallOneArg(<PyObject*>callback, <PyObject*>event)
    if result == NULL:
        PyErr_WriteUnraisable(callback)
    Py_XDECREF(result)


cdef int start_notifier() except -1:
    global notifier, notifier_process
    if has_notifier():
        return 0
    thread = threading.Thread(target=notify, name="cuda_pool events", daemon=True)
    if has_notifier():                          # another thread came first
        return 0
    notifier, notifier_process = thread, os.getpid()
    try:
        thread.start()
    except BaseException:
        notifier = None
        raise
    return 0


cdef bint has_notifier() except -1:
    """A forked child has no threads of its parent's."""
    return notifier is not None and notifier_process == os.getpid()


def notify():
    """Wait, without the GIL, for what threads did that do not take it."""
    while not ending:
        with nogil:
            happenings_wait()
        deliver_all()


cdef int deliver_all() except -1:
    """Not in the loop that waits: it would keep the last pool alive."""
    for pool in watched:
        deliver(pool)
    return 0


def _end():
    global ending
    ending = True
    if notifier is not None and notifier_process == os.getpid():
        happenings_wake()
        notifier.join()


atexit.register(_end)
