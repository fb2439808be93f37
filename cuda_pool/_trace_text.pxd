"""What the parsers of line formats share."""

from cuda_pool._text cimport span_t
from cuda_pool._trace cimport TraceBuilder, builder_t, fault_t

cdef enum:
    LINE_MAX = 4096         # bytes; bounds what is carried from one piece to the next

ctypedef struct text_t

# Take a line over that is neither blank nor the header; row is its number. The fault's text is in `culprit`.
ctypedef fault_t (*line_take_t)(text_t* text, span_t line, span_t* culprit) noexcept nogil

ctypedef struct text_t:
    builder_t* builder
    void* format            # what line_take() needs beside the builder
    line_take_t line_take
    const char* header      # fields, with commas between
    span_t culprit          # the text at fault, inside the piece that was being read then

cdef class TextParser(TraceBuilder):
    cdef text_t text
    cdef bytes carry        # the beginning of a line that the pieces so far do not end
    cdef dict words         # for the reasons

    cdef int keep_culprit(self) except -1
