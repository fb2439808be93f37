"""Objects that are listed as long as they live, whatever other threads add and drop meanwhile."""

import gc

from cuda_pool._living import Living


class Thing:
    pass


def test_things_are_listed_as_long_as_they_live():
    living, things = Living(), [Thing() for _ in range(3)]
    for thing in [*things, things[0]]:
        living.add(thing)
    assert set(living) == set(things)
    living.discard(things[0])
    living.discard(Thing())
    assert set(living) == set(things[1:])
    del thing, things[1]
    gc.collect()
    assert list(living) == things[1:]


def test_going_through_while_things_come_and_go():
    living, things = Living(), [Thing() for _ in range(50)]
    for thing in things:
        living.add(thing)
    seen = []
    for thing in living:
        seen.append(thing)
        things.append(Thing())
        living.add(things[-1])
        living.discard(thing)
    assert len(seen) == 50 and set(living) == set(things[50:])
