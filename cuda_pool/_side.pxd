"""Sides: sets of records, so that threads do not write in the same cache lines.

Two threads that write next to each other wait for each other, though neither reads what the other one wrote. So the
words that a thread writes without a lock, at slots and at blocks of the mid tier, come in lines that are of one side,
and a thread is given those of its own side first. With more threads than sides some share one.
"""

cdef enum:
    SIDES = 4
