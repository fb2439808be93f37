"""The live blocks of a recorded program, by key: which number each has in the trace, and where it came from."""

from libc.stdint cimport uint32_t, uint64_t

ctypedef struct account_t:
    uint64_t key                # 0: no block
    uint64_t id                 # in the trace
    uint64_t size               # bytes that were asked for
    uint64_t stream
    uint64_t born               # events before its own
    uint32_t stack              # number of one, or 0

# Open addressing with linear probing; what is removed leaves no mark, as those behind it move up.
# Invariants, asserted by tests/test_ledger.py:
#   room is 0 or a power of two;  count == accounts with a key <= room / 2
#   no place from the one of a key's hash up to that key's own is empty
ctypedef struct ledger_t:
    account_t* account
    uint64_t room
    uint64_t count

cdef void ledger_destroy(ledger_t* ledger) noexcept nogil
# The account of a key, or NULL.
cdef account_t* ledger_find(const ledger_t* ledger, uint64_t key) noexcept nogil
# A new account for a key that has none, zeroed but for the key; NULL when the host has no memory.
cdef account_t* ledger_open(ledger_t* ledger, uint64_t key) noexcept nogil
cdef void ledger_close(ledger_t* ledger, account_t* account) noexcept nogil
