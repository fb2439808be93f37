"""Read a trace from CSV with the header ``event,id,size,stream``, one event a row."""

from libc.stdint cimport UINT64_MAX, uint64_t

from cuda_pool._text cimport span_is, span_number, span_split, span_t
from cuda_pool._trace cimport (
    BYTES_MAX, EVENT_ALLOC, EVENT_FREE, EVENT_LIVE, FAULT_EVENT, FAULT_FIELDS, FAULT_ID, FAULT_NONE, FAULT_SIZE,
    FAULT_STREAM, builder_find, builder_take, event_t, fault_t,
)
from cuda_pool._trace_text cimport TextParser, text_t

from cuda_pool._trace_text import words_of

HEADER = "event,id,size,stream"
cdef const char* HEADER_TEXT = b"event,id,size,stream"


cdef class CsvParser(TextParser):
    """Turn pieces of a trace CSV into a trace; see `TextParser`."""

    def __cinit__(self, *args, **kwargs):
        self.text.header = HEADER_TEXT
        self.text.line_take = csv_take
        self.words = WORDS


WORDS = {**words_of("a trace CSV", HEADER), "events": "alloc or free, or live before them",
         "streams": f"an integer from 0 to {UINT64_MAX}"}


cdef fault_t csv_take(text_t* text, span_t line, span_t* culprit) noexcept nogil:
    cdef span_t[4] fields
    cdef event_t event
    cdef uint64_t ident
    cdef fault_t fault
    if not span_split(line, fields, 4):
        return FAULT_FIELDS
    culprit[0] = fields[0]
    if not kind_read(fields[0], &event.kind):
        return FAULT_EVENT
    culprit[0] = fields[1]
    if not span_number(fields[1], UINT64_MAX, &ident):
        return FAULT_ID
    culprit[0] = fields[2]
    if not size_read(fields[2], event.kind == EVENT_FREE, &event.size):
        return FAULT_SIZE
    culprit[0] = fields[3]
    if not span_number(fields[3], UINT64_MAX, &event.stream):
        return FAULT_STREAM
    culprit[0] = fields[1]
    event.row = text.builder.row
    fault = builder_find(text.builder, ident, &event.block)
    return fault if fault != FAULT_NONE else builder_take(text.builder, &event, ident)


cdef bint kind_read(span_t field, unsigned int* kind) noexcept nogil:
    if span_is(field, b"alloc", 5):
        kind[0] = EVENT_ALLOC
    elif span_is(field, b"free", 4):
        kind[0] = EVENT_FREE
    elif span_is(field, b"live", 4):
        kind[0] = EVENT_LIVE
    else:
        return False
    return True


cdef bint size_read(span_t field, bint is_free, uint64_t* size) noexcept nogil:
    """Read a size; a free may leave it out, as the pool knows it."""
    if is_free and field.length == 0:
        size[0] = 0
        return True
    return span_number(field, BYTES_MAX, size)
