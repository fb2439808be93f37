"""Objects that are listed as long as they live."""

from weakref import ref


class Living:
    """A set of objects that does not keep them.

    Threads may add and discard while another one goes through it, which sees those that were there when it began:
    unlike a ``weakref.WeakSet``, which then raises RuntimeError. For objects that are equal only to themselves.
    """

    def __init__(self):
        self._refs = set()

    def add(self, item):
        self._refs.add(ref(item, self._refs.discard))

    def discard(self, item):
        self._refs.discard(ref(item))

    def __iter__(self):
        items = (living() for living in list(self._refs))       # the list is made without letting go of the GIL
        return (item for item in items if item is not None)
