"""Bit arithmetic that compiles to one instruction."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from * nogil:
    int ctz32 "__builtin_ctz"(uint32_t)
    int ctz64 "__builtin_ctzll"(uint64_t)
    int clz64 "__builtin_clzll"(uint64_t)
    int popcount64 "__builtin_popcountll"(uint64_t)


cdef inline int log2_floor(uint64_t n) noexcept nogil:
    """Index of the highest set bit; n > 0."""
    return 63 ^ clz64(n)            # which is what the instruction gives


cdef inline int log2_ceil(uint64_t n) noexcept nogil:
    """Smallest k with n <= 1 << k; n > 0."""
    return 0 if n == 1 else 64 - clz64(n - 1)


cdef inline size_t round_up(size_t n, size_t power) noexcept nogil:
    return (n + power - 1) & ~(power - 1)


cdef inline size_t round_down(size_t n, size_t power) noexcept nogil:
    return n & ~(power - 1)


cdef inline bint is_power_of_two(size_t n) noexcept nogil:
    return n != 0 and n & (n - 1) == 0
