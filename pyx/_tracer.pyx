"""The writer of a tracer: from notes to rows of a trace, in the order of their tickets."""

from libc.errno cimport EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cuda_pool._ledger cimport account_t, ledger_close, ledger_destroy, ledger_find, ledger_open
from cuda_pool._lock cimport lock_acquire, lock_release
from cuda_pool._relaxed cimport set_u64
from cuda_pool._ring cimport (
    NOTE_ALLOC, NOTE_FREE, NOTE_OPEN, RING_NOTES, note_settle, note_state, note_t, put_u32, put_u64,
    ring_destroy, ring_give_credits, ring_init, ring_wait, see_i64, see_u32, see_u64, sem_post)

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <signal.h>
    #include <time.h>
    #include <unistd.h>
    /* Signals are for the program's own threads: one that came here would not interrupt what it is meant to. */
    static int cuda_pool_thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
        sigset_t all, before;
        int fault;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        fault = pthread_create(thread, 0, run, argument);
        pthread_sigmask(SIG_SETMASK, &before, 0);
        return fault;
    }
    static void cuda_pool_doze(long microseconds) {
        struct timespec time = {0, microseconds * 1000};
        nanosleep(&time, 0);
    }
    """
    int thread_start "cuda_pool_thread_start"(pthread_t*, void* (*)(void*) noexcept nogil, void*)
    void doze "cuda_pool_doze"(long microseconds)
    int pthread_join(pthread_t, void**)
    ssize_t write(int, const void*, size_t)
    int ftruncate(int, long)

cdef enum:
    TURN_NOTES = 512            # read with the ledger's lock held
    ROW_MOST = 80               # bytes; a note makes at most two rows
    TEXT_BYTES = 1 << 17
    TEXT_ENOUGH = TEXT_BYTES - 2 * TURN_NOTES * ROW_MOST
    IDLE_MS = 50                # so old are rows at most that wait for more
    BRIEF_MS = 1
    DOZE_US = 100

cdef const char* HEADER = b"event,id,size,stream\n"
cdef const char* ALLOC = b"alloc"
cdef const char* FREE = b"free"
cdef const char* LIVE = b"live"


cdef tracer_t* tracer_make() noexcept nogil:
    cdef tracer_t* tracer = <tracer_t*>calloc(1, sizeof(tracer_t))
    if tracer == NULL:
        return NULL
    tracer.text = <char*>malloc(TEXT_BYTES)
    if tracer.text == NULL or not ring_init(&tracer.ring):
        tracer_destroy(tracer)
        return NULL
    return tracer


cdef void tracer_destroy(tracer_t* tracer) noexcept nogil:
    if tracer == NULL:
        return
    ring_destroy(&tracer.ring)
    ledger_destroy(&tracer.ledger)
    free(tracer.text)
    free(tracer)


cdef void tracer_reset(tracer_t* tracer, int file) noexcept nogil:
    """The ring stays as it is: empty, but a thread that is late may be about to find out that it is closed."""
    lock_acquire(&tracer.guard)
    ledger_destroy(&tracer.ledger)
    lock_release(&tracer.guard)
    tracer.file = file
    tracer.stopping = tracer.hurried = 0
    tracer.waits = tracer.events = tracer.lost = tracer.unknown = tracer.named = tracer.length = 0
    tracer.error = 0
    tracer.text_length = 0
    add_bytes(tracer, HEADER, 21)


cdef void tracer_add_live(tracer_t* tracer, uint64_t key, uint64_t size, uint64_t stream) noexcept nogil:
    cdef account_t* account = ledger_open(&tracer.ledger, key)
    if account == NULL:
        lack_memory(tracer)
        tracer.lost += 1
        return
    account.id, account.size, account.stream = tracer.named, size, stream
    tracer.named += 1
    tracer.lost += tracer.error != 0
    add_row(tracer, LIVE, 4, account, stream)
    if tracer.text_length >= TEXT_ENOUGH:
        write_text(tracer)


cdef int tracer_start(tracer_t* tracer) noexcept nogil:
    cdef int fault
    write_text(tracer)                          # no ticket stands for what there is before the first one
    fault = thread_start(&tracer.thread, tracer_run, tracer)
    tracer.is_running = fault == 0
    return fault


cdef void tracer_flush(tracer_t* tracer) noexcept nogil:
    cdef uint64_t wanted = see_u64(&tracer.ring.head)
    while <int64_t>(see_u64(&tracer.written) - wanted) < 0:
        put_u32(&tracer.hurried, 1)
        sem_post(&tracer.ring.filled)
        doze(DOZE_US)


cdef void tracer_stop(tracer_t* tracer) noexcept nogil:
    put_u32(&tracer.open, 0)
    if not tracer.is_running:
        return
    while see_i64(&tracer.ring.credits) != RING_NOTES:
        sem_post(&tracer.ring.filled)
        doze(DOZE_US)
    put_u32(&tracer.stopping, 1)
    sem_post(&tracer.ring.filled)
    pthread_join(tracer.thread, NULL)
    tracer.is_running = 0


cdef void tracer_discard(tracer_t* tracer) noexcept nogil:
    put_u32(&tracer.error, EINTR)              # nothing is written any more
    while take_turn(tracer) or see_i64(&tracer.ring.credits) != RING_NOTES:
        doze(DOZE_US)


# The writer

cdef void* tracer_run(void* argument) noexcept nogil:
    cdef tracer_t* tracer = <tracer_t*>argument
    cdef uint32_t stopping
    while True:
        stopping = see_u32(&tracer.stopping)    # before it looks: then nothing comes after
        if take_turn(tracer):
            if tracer.text_length >= TEXT_ENOUGH or see_u32(&tracer.hurried):
                write_text(tracer)
        elif tracer.ring.tail != see_u64(&tracer.ring.head):
            write_text(tracer)
            ring_wait(&tracer.ring, BRIEF_MS)   # a note is being written
        else:
            put_u32(&tracer.hurried, 0)
            write_text(tracer)
            if stopping:
                return NULL
            ring_wait(&tracer.ring, IDLE_MS)


cdef bint take_turn(tracer_t* tracer) noexcept nogil:
    """Read some notes; False if there was none."""
    cdef note_t* note
    cdef int count
    lock_acquire(&tracer.guard)
    for count in range(TURN_NOTES):
        note = &tracer.ring.note[tracer.ring.tail % RING_NOTES]
        if note_state(&note.kind) == NOTE_OPEN:
            break
        take_note(tracer, note)
        note_settle(&note.kind, NOTE_OPEN)
        tracer.ring.tail += 1
    else:
        count = TURN_NOTES
    lock_release(&tracer.guard)
    if count != 0:
        ring_give_credits(&tracer.ring, count)
    return count != 0


cdef void take_note(tracer_t* tracer, const note_t* note) noexcept nogil:
    if note.kind == NOTE_ALLOC:
        take_alloc(tracer, note)
    elif note.kind == NOTE_FREE:
        take_free(tracer, note)


cdef void take_alloc(tracer_t* tracer, const note_t* note) noexcept nogil:
    """A block whose address is live has lost its free: that was under way when the recording began."""
    cdef account_t* account = ledger_find(&tracer.ledger, note.key)
    if account != NULL:
        free_row(tracer, account, account.stream)
    account = ledger_open(&tracer.ledger, note.key)
    if account == NULL:
        lack_memory(tracer)
        count_event(tracer)
        return
    account.id, account.size, account.stream = tracer.named, note.size, note.stream
    account.born, account.stack = tracer.events, note.stack
    tracer.named += 1
    add_row(tracer, ALLOC, 5, account, note.stream)
    count_event(tracer)


cdef void take_free(tracer_t* tracer, const note_t* note) noexcept nogil:
    cdef account_t* account = ledger_find(&tracer.ledger, note.key)
    if account == NULL:
        set_u64(&tracer.unknown, tracer.unknown + 1)
    else:
        free_row(tracer, account, account.stream if note.stream == STREAM_OF_BLOCK else note.stream)


cdef void free_row(tracer_t* tracer, account_t* account, uint64_t stream) noexcept nogil:
    add_row(tracer, FREE, 4, account, stream)
    count_event(tracer)
    ledger_close(&tracer.ledger, account)


cdef inline void count_event(tracer_t* tracer) noexcept nogil:
    set_u64(&tracer.events, tracer.events + 1)
    if tracer.error != 0:
        set_u64(&tracer.lost, tracer.lost + 1)


# Text

cdef void add_row(tracer_t* tracer, const char* event, size_t length, const account_t* account,
                  uint64_t stream) noexcept nogil:
    if tracer.error != 0:
        return
    add_bytes(tracer, event, length)
    add_number(tracer, b",", account.id)
    add_number(tracer, b",", account.size)
    add_number(tracer, b",", stream)
    add_bytes(tracer, b"\n", 1)


cdef inline void add_bytes(tracer_t* tracer, const char* text, size_t length) noexcept nogil:
    memcpy(tracer.text + tracer.text_length, text, length)
    tracer.text_length += length


cdef inline void add_number(tracer_t* tracer, const char* before, uint64_t number) noexcept nogil:
    cdef char[20] digits
    cdef int first = 20
    while True:
        first -= 1
        digits[first] = <char>(48 + number % 10)
        number //= 10
        if number == 0:
            break
    add_bytes(tracer, before, 1)
    add_bytes(tracer, &digits[first], 20 - first)


cdef void write_text(tracer_t* tracer) noexcept nogil:
    cdef size_t done = 0
    cdef ssize_t count
    while done < tracer.text_length and tracer.error == 0:
        count = write(tracer.file, tracer.text + done, tracer.text_length - done)
        if count >= 0:
            done += count
        elif errno != EINTR:
            end_file(tracer, done, errno)
    if tracer.error == 0:
        tracer.length += tracer.text_length
    tracer.text_length = 0
    put_u64(&tracer.written, tracer.ring.tail)


cdef void end_file(tracer_t* tracer, size_t done, int error) noexcept nogil:
    """End the file with the last row that is whole; those behind it, and all to come, are lost."""
    cdef size_t kept = done, at
    cdef uint64_t lost = tracer.lost
    while kept != 0 and tracer.text[kept - 1] != b"\n":
        kept -= 1
    for at in range(kept, tracer.text_length):
        lost += tracer.text[at] == b"\n"
    tracer.length += kept
    lost -= tracer.length == 0                  # the header
    set_u64(&tracer.lost, lost)
    put_u32(&tracer.error, error)
    ftruncate(tracer.file, <long>tracer.length)


cdef void lack_memory(tracer_t* tracer) noexcept nogil:
    """The host has none for the ledger: what comes now could not be told apart."""
    write_text(tracer)
    if tracer.error == 0:
        put_u32(&tracer.error, ENOMEM)
