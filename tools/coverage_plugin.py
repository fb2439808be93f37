"""A plugin of pytest for tools/coverage.sh: collect garbage between tests, and at no other time.

A line event makes a frame, and up to Python 3.11 a new object may start a collection there and then. In code that holds
a lock, a destructor which that runs would wait for the same lock, in the same thread, for ever.
"""

import gc


def pytest_configure(config):
    gc.disable()


def pytest_runtest_logfinish(nodeid, location):
    gc.collect()
