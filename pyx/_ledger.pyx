"""The live blocks of a recorded program, in a table with linear probing (Knuth, vol. 3, 6.4, algorithms L and R)."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef enum:
    ROOM_FIRST = 1024


cdef inline uint64_t home(const ledger_t* ledger, uint64_t key) noexcept nogil:
    """Where a search for a key begins. Keys are addresses: their low bits are zeros."""
    cdef uint64_t mixed = key * <uint64_t>0x9E3779B97F4A7C15
    return (mixed ^ mixed >> 32) & (ledger.room - 1)


cdef void ledger_destroy(ledger_t* ledger) noexcept nogil:
    free(ledger.account)
    memset(ledger, 0, sizeof(ledger_t))


cdef account_t* ledger_find(const ledger_t* ledger, uint64_t key) noexcept nogil:
    cdef account_t* account
    if ledger.room == 0:
        return NULL
    account = place_of(ledger, key)
    return account if account.key == key else NULL


cdef account_t* place_of(const ledger_t* ledger, uint64_t key) noexcept nogil:
    """Where a key is, or belongs."""
    cdef uint64_t at = home(ledger, key)
    while ledger.account[at].key != 0 and ledger.account[at].key != key:
        at = (at + 1) & (ledger.room - 1)
    return &ledger.account[at]


cdef account_t* ledger_open(ledger_t* ledger, uint64_t key) noexcept nogil:
    cdef account_t* account
    if 2 * ledger.count >= ledger.room and not grow(ledger):
        return NULL
    account = place_of(ledger, key)
    account.key = key
    ledger.count += 1
    return account


cdef bint grow(ledger_t* ledger) noexcept nogil:
    cdef ledger_t larger
    cdef uint64_t at
    larger.room = max(2 * ledger.room, <uint64_t>ROOM_FIRST)
    larger.count = ledger.count
    larger.account = <account_t*>calloc(larger.room, sizeof(account_t))
    if larger.account == NULL:
        return False
    for at in range(ledger.room):
        if ledger.account[at].key != 0:
            place_of(&larger, ledger.account[at].key)[0] = ledger.account[at]
    free(ledger.account)
    ledger[0] = larger
    return True


cdef void ledger_close(ledger_t* ledger, account_t* account) noexcept nogil:
    """Move up what a search would no longer find behind the hole."""
    cdef uint64_t most = ledger.room - 1
    cdef uint64_t hole = account - ledger.account, at = hole
    while True:
        at = (at + 1) & most
        if ledger.account[at].key == 0:
            break
        if ((at - home(ledger, ledger.account[at].key)) & most) >= ((at - hole) & most):
            ledger.account[hole] = ledger.account[at]
            hole = at
    memset(&ledger.account[hole], 0, sizeof(account_t))
    ledger.count -= 1
