"""Fields of a line of text, as spans of bytes that are not copied."""

from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp

ctypedef struct span_t:
    const char* text
    size_t length


cdef inline bint is_blank(char letter) noexcept nogil:
    return letter == b" " or letter == b"\t" or letter == b"\r"


cdef inline void span_trim(span_t* span) noexcept nogil:
    while span.length and is_blank(span.text[0]):
        span.text += 1
        span.length -= 1
    while span.length and is_blank(span.text[span.length - 1]):
        span.length -= 1


cdef inline bint span_is(span_t span, const char* word, size_t length) noexcept nogil:
    return span.length == length and memcmp(span.text, word, length) == 0


cdef inline bint span_split(span_t line, span_t* fields, int count) noexcept nogil:
    """Cut a line at its commas and trim the fields; False unless there are exactly `count`."""
    cdef const char* end = line.text + line.length
    cdef const char* comma
    cdef int i
    for i in range(count):
        comma = <const char*>memchr(line.text, b",", end - line.text)
        if (comma == NULL) != (i == count - 1):
            return False
        if comma == NULL:
            comma = end
        fields[i] = span_t(line.text, comma - line.text)
        span_trim(&fields[i])
        line.text = comma + 1
    return True


cdef inline bint span_number(span_t span, uint64_t limit, uint64_t* number) noexcept nogil:
    """Read a span of decimal digits; False when it holds anything else or exceeds the limit."""
    cdef uint64_t value = 0
    cdef unsigned int digit
    cdef size_t i
    for i in range(span.length):
        digit = <unsigned int>(<unsigned char>span.text[i]) - c"0"
        if digit > 9 or value > (limit - digit) // 10:
            return False
        value = value * 10 + digit
    number[0] = value
    return span.length > 0


cdef inline bint span_hex(span_t span, uint64_t* number) noexcept nogil:
    """Read a span of 1 to 16 hexadecimal digits, ``0x`` before them or not."""
    cdef uint64_t value = 0
    cdef unsigned int digit
    cdef size_t i
    if span.length > 2 and span.text[0] == c"0" and (span.text[1] | 0x20) == c"x":
        span.text += 2
        span.length -= 2
    for i in range(span.length):
        digit = hex_digit(<unsigned char>span.text[i])
        if digit > 15:
            return False
        value = value << 4 | digit
    number[0] = value
    return 0 < span.length <= 16


cdef inline unsigned int hex_digit(unsigned char letter) noexcept nogil:
    if c"0" <= letter <= c"9":
        return letter - c"0"
    letter |= 0x20
    return letter - c"a" + 10 if c"a" <= letter <= c"f" else 16
