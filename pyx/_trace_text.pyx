"""Read a format of one event a line, piece by piece, without the GIL.

Blanks around a field, carriage returns and empty lines are tolerated.
"""

from libc.string cimport memchr, memcmp, strlen

from cuda_pool._text cimport span_trim
from cuda_pool._trace cimport FAULT_HEADER, FAULT_LINE, FAULT_NONE, builder_t, fault_raise

from cuda_pool.errors import TraceError


cdef class TextParser(TraceBuilder):
    """Turn pieces of text into a trace: `CsvParser` and `RmmParser` know the formats.

    Feed it every piece in order, then give it to `TraceTable`, which takes the events over. It belongs to one thread.

    Parameters
    ----------
    max_events : int
        From 0 to 2**63 - 1; the row of one event more is refused.

    Raises
    ------
    ValueError, TypeError
        `max_events` is no such integer.
    """

    def __cinit__(self, *args, **kwargs):
        self.carry = b""
        self.text.builder = &self.builder

    @property
    def row(self):
        """Number of the row that is read next, counted from 1."""
        return self.builder.row + 1

    def feed(self, bytes piece not None):
        """Read the next piece of text.

        Parameters
        ----------
        piece : bytes
            Any length; its last line may go on in the next piece.

        Raises
        ------
        TraceError
            A row is malformed, or allocates an id for the second time. The parser is of no further use: whatever is
            asked of it raises the same error again.
        MemoryError
            The host has no memory for the events; the same holds then.
        """
        cdef bytes text = self.carry + piece
        cdef const char* start = text
        cdef size_t length = len(text), taken
        self.refuse_fault()
        with nogil:
            taken = lines_take(&self.text, start, length)
        self.keep_culprit()
        self.refuse_fault()
        self.carry = text[taken:]
        if len(self.carry) > LINE_MAX:
            self.builder.row += 1
            self.builder.fault = FAULT_LINE
            self.refuse_fault()

    cdef int finish(self) except -1:
        """Read the last line, ended or not, and settle what depends on the whole trace."""
        if self.builder.row == 0 and not self.carry:
            raise TraceError(1, f"the file is empty: {self.words['header']}")
        self.feed(b"\n")
        self.carry = b""
        return TraceBuilder.finish(self)

    cdef int refuse_fault(self) except -1:
        return fault_raise(&self.builder, self.culprit, self.words) if self.builder.fault != FAULT_NONE else 0

    cdef int keep_culprit(self) except -1:
        """Copy the text at fault: the piece does not stay."""
        if self.builder.fault != FAULT_NONE:
            self.culprit = self.text.culprit.text[:self.text.culprit.length]
        return 0


def words_of(name, header):
    """Return what the reasons of a format say in its own words."""
    return {"names": header, "header": f"the first line must be {header}", "line": LINE_MAX,
            "count": ("four", "six")[header.count(",") > 3], "lines": f"the ASCII lines of {name}"}


cdef size_t lines_take(text_t* text, const char* piece, size_t length) noexcept nogil:
    """Read every line that ends in the piece; return the bytes they take. Stops at the first fault."""
    cdef size_t taken = 0
    cdef const char* end
    while text.builder.fault == FAULT_NONE:
        end = <const char*>memchr(piece + taken, b"\n", length - taken)
        if end == NULL:
            break
        text.builder.row += 1
        line_read(text, span_t(piece + taken, end - (piece + taken)))
        taken = end + 1 - piece
    return taken


cdef void line_read(text_t* text, span_t line) noexcept nogil:
    cdef builder_t* builder = text.builder
    text.culprit = line
    if line.length > LINE_MAX:
        builder.fault = FAULT_LINE
        return
    span_trim(&line)
    text.culprit = line
    if builder.row == 1:
        if not header_is_right(line, text.header):
            builder.fault = FAULT_HEADER
    elif line.length:
        builder.fault = text.line_take(text, line, &text.culprit)


cdef bint header_is_right(span_t line, const char* header) noexcept nogil:
    """Compare the fields of the first line with those of the header."""
    cdef const char* end
    cdef const char* stop
    cdef span_t field
    while True:
        stop = <const char*>memchr(header, b",", strlen(header))
        end = <const char*>memchr(line.text, b",", line.length)
        field = span_t(line.text, line.length if end == NULL else end - line.text)
        span_trim(&field)
        if field.length != (strlen(header) if stop == NULL else stop - header):
            return False
        if memcmp(field.text, header, field.length) != 0 or (stop == NULL) != (end == NULL):
            return False
        if stop == NULL:
            return True
        line = span_t(end + 1, line.text + line.length - (end + 1))
        header = stop + 1
