"""Segments of a snapshot and their blocks, packed while the pickle is read: they are those of the pickle."""

import pickle
import random
import tracemalloc

import pytest

from cuda_pool._torch_entries import Entries
from cuda_pool._torch_segments import Blocks, Segments
from cuda_pool._torch_unpickle import loads
from cuda_pool._trace import TraceBuilder, TraceTable
from cuda_pool._trace_standing import take_standing
from cuda_pool.errors import TraceError
from cuda_pool.torch_format import INACTIVE, STATES, Block, Segment

from .snapshots import BASE, MIB, SHAPES, block, complete, entry, oldest, parsed, pickled, segment

FREE = "inactive"


def expected(found):
    """Segments of a snapshot as CPython's unpickler finds them."""
    return [of_dict(each) for each in (found if isinstance(found, list) else found["segments"])]


def of_dict(found):
    blocks, end = [], found["address"]
    for each in found["blocks"]:
        blocks.append(Block(end, each["size"], each.get("requested_size", each["size"]), each["state"]))
        end += each["size"]
    return Segment(found["address"], blocks, found.get("device", 0), found.get("stream", 0), found["segment_type"],
                   tuple(found.get("segment_pool_id", (0, 0))), found.get("is_expandable", False))


def many(count, blocks=3, source=None):
    """Segments side by side, in some order."""
    source = source or random.Random(count)
    made = [segment([block(source.randrange(1, MIB), 1, source.choice(STATES)) for _ in range(blocks)],
                    BASE + 8 * MIB * index, source.randrange(3), stream=source.randrange(2**64),
                    segment_pool_id=(source.randrange(2**64), index), is_expandable=source.random() < 0.5,
                    segment_type=source.choice(("small", "large")))
            for index in range(count)]
    source.shuffle(made)
    return made


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("shape", SHAPES)
def test_segments_are_those_of_the_pickle(shape, protocol):
    made = SHAPES[shape]()
    assert parsed(pickled(made, protocol)).segments == expected(made)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("count, blocks", [(1, 1), (2, 0), (40, 1), (2500, 2), (3, 4000)])
def test_they_are_packed_and_come_out_as_they_were(count, blocks, protocol):
    made = many(count, min(blocks, 7)) if blocks < 4000 else [
        segment([block(512, 1 + index % 512, STATES[index % 2]) for index in range(blocks)], BASE + 8 * MIB * index)
        for index in range(count)]
    [found] = loads(pickled({"segments": made}, protocol))["segments"]
    assert type(found) is Segments and found == expected(made)
    assert parsed(pickled({"segments": made}, protocol)).segments == expected(made)
    assert found.totals() == {device: sum(each["total_size"] for each in made if each["device"] == device)
                              for device in {each["device"] for each in made}}


def test_sequence():
    made = [Segment(BASE + MIB * index, [Block(BASE + MIB * index, 512, index, STATES[index % 3])], index, 7, "small",
                    (index, 2**64 - 1), True) for index in range(5)]
    found = Segments()
    for each in made:
        found.append(each)
    assert len(found) == 5 and found[1] == found[-4] == made[1] and found[1:3] == made[1:3]
    assert list(reversed(found)) == made[::-1] and found == made and made == found and found != made[1:] and found != 5
    other = Segments()
    other.extend(found)
    other.extend(found)
    assert other == made + made and found == made and other != found
    other.extend(other)
    assert other == made * 4
    for index in 5, -6:
        with pytest.raises(IndexError, match="there are 5 segments"):
            found[index]
    with pytest.raises(KeyError):
        found.append(Segment(BASE, segment_type="tiny"))
    with pytest.raises(KeyError):
        found.append(Segment(BASE, [Block(BASE, 1, 1, "gone")]))
    assert found == made


@pytest.mark.parametrize("seed", range(30))
def test_overlaps_against_all_pairs(seed):
    source = random.Random(seed)
    made = [Segment(source.randrange(40 * 30) << 9, [Block(0, 512 * source.randrange(1, 20), 0, FREE)],
                    source.randrange(2)) for _ in range(source.choice((2, 10, 30)))]
    found = Segments()
    for each in made:
        found.append(each)
    pairs = {(i, j) for i, one in enumerate(made) for j, other in enumerate(made)
             if i != j and one.device == other.device and one.address <= other.address < one.address + one.total_size}
    assert found.overlap() in pairs if pairs else found.overlap() is None


def changed(**values):
    """A segment of which something is not as it should be, or odd."""
    return {**segment([block(MIB), block(2 * MIB, 5, FREE)]), **values}


def without(name):
    made = changed()
    del made[name]
    return made


def with_block(**values):
    made = segment([block(MIB), block(2 * MIB, 5), block(MIB, 0, FREE)])
    made["blocks"][1].update(values)
    return made


WRONG = {
    "no address": (without("address"), "segments[0]"),
    "no blocks": (without("blocks"), "segments[0]"),
    "no type": (without("segment_type"), "segments[0]"),
    "no total": (without("total_size"), "segments[0]"),
    "address": (changed(address=BASE + 1), "segments[0].blocks[0].address"),
    "address negative": (changed(address=-1), "segments[0].address"),
    "device": (changed(device=1024), "segments[0].device"),
    "device true": (changed(device=True), "segments[0].device"),
    "stream": (changed(stream=2**64), "segments[0].stream"),
    "type": (changed(segment_type="medium"), "segments[0].segment_type"),
    "type no text": (changed(segment_type=1), "segments[0].segment_type"),
    "pool of three": (changed(segment_pool_id=(0, 0, 0)), "segments[0].segment_pool_id"),
    "pool negative": (changed(segment_pool_id=(0, -1)), "segments[0].segment_pool_id"),
    "pool huge": (changed(segment_pool_id=(0, 2**64)), "segments[0].segment_pool_id"),
    "pool of text": (changed(segment_pool_id=("0", "1")), "segments[0].segment_pool_id"),
    "total": (changed(total_size=3 * MIB - 1), "segments[0].total_size"),
    "total true": (changed(total_size=True), "segments[0].total_size"),
    "allocated": (changed(allocated_size=0), "segments[0].allocated_size"),
    "active": (changed(active_size=3 * MIB), "segments[0].active_size"),
    "blocks none": (changed(blocks=None), "segments[0].blocks"),
    "blocks in themselves": (changed(blocks=[[]]), "segments[0].blocks[0]"),
    "an entry": (changed(blocks=[entry("alloc", BASE, 1)]), "segments[0].blocks[0]"),
    "a segment": (changed(blocks=[changed()]), "segments[0].blocks[0]"),
    "block elsewhere": (with_block(address=BASE), "segments[0].blocks[1].address"),
    "block with a gap": (with_block(address=BASE + MIB + 512), "segments[0].blocks[1].address"),
    "block address": (with_block(address=2**64), "segments[0].blocks[1].address"),
    "block size": (with_block(size=2**63), "segments[0].blocks[1].size"),
    "block size 0": (with_block(size=0, requested_size=0), "segments[0].blocks[1].size"),
    "block size text": (with_block(size="1"), "segments[0].blocks[1].size"),
    "block longer": (with_block(size=3 * MIB), "segments[0].blocks[2].address"),
    "block requested": (with_block(requested_size=2 * MIB + 1), "segments[0].blocks[1].requested_size"),
    "block requested text": (with_block(requested_size="1"), "segments[0].blocks[1].requested_size"),
    "block state": (with_block(state="idle"), "segments[0].blocks[1].state"),
    "block state list": (with_block(state=[]), "segments[0].blocks[1].state"),
    "ends beyond all": (segment([block(MIB), block(MIB)], 2**64 - MIB), "segments[0].blocks[1].address"),
    "more than all": (segment([block(2**62), block(2**62)], 512), "segments[0].total_size"),
}


@pytest.mark.parametrize("before", [0, 1, 1001])
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_segment_is_named(kind, before):
    wrong, place = WRONG[kind]
    made = many(before) + [wrong] + many(2)
    with pytest.raises(TraceError) as caught:
        parsed(pickled({"segments": made}))
    assert caught.value.place == place.replace("segments[0]", f"segments[{before}]")


def test_odd_segments_that_are_right():
    shared = [block(MIB, 1), block(MIB, 0, FREE)]
    odd = [segment([block(MIB)], 2**64 - MIB), segment([], BASE - MIB), segment([], BASE - MIB),
           {**segment(shared), "blocks": tuple(shared)}, segment([block(MIB, requested=2**62, state=FREE)], BASE * 2),
           segment([block(2**63 - 1)], 512, 5),
           segment([block(MIB)], 2**63, action="alloc", addr=1, size=1, state=FREE)]
    for each in shared:
        del each["address"]
    twice = [segment([], BASE + MIB * index, total_size=2 * MIB) for index in (100, 200)]
    for each in twice:
        each.update(blocks=shared, allocated_size=MIB, active_size=MIB)
    for made in odd, twice, odd + many(3) + twice + many(0), [*odd, odd[0]][::-1][1:]:
        assert parsed(pickled({"segments": made})).segments == expected({"segments": made})
    one = segment([block(MIB)])
    with pytest.raises(TraceError, match=r"overlaps with segments\[0\]"):
        parsed(pickled({"segments": [one, one]}))


def test_blocks_with_and_without_an_address():
    for named in (0,), (1,), (0, 2), (2,), (0, 1, 2):
        made = oldest()["segments"][0]
        made["blocks"] = [{"size": 512, "state": STATES[0]} for _ in range(3)]
        for index in named:
            made["blocks"][index]["address"] = BASE + 512 * index
        made.update(total_size=1536, allocated_size=1536, active_size=1536)
        assert parsed(pickled([made])).segments == expected([made])
        made["blocks"][named[-1]]["address"] += 1
        with pytest.raises(TraceError) as caught:
            parsed(pickled([made]))
        assert caught.value.place == f"segments[0].blocks[{named[-1]}].address"


@pytest.mark.parametrize("place, made", [
    ("device_traces[0][1]", {"segments": [], "device_traces": [[entry("alloc", BASE, 1), block(MIB)]]}),
    ("device_traces[0][0]", {"segments": [], "device_traces": [many(2)]}),
    ("device_traces[0]", {"segments": [], "device_traces": many(2)}),
    ("device_traces[0]", {"segments": [], "device_traces": [block(MIB), block(MIB)]}),
    ("segments[0]", {"segments": [block(MIB), block(MIB)]}),
    ("segments[2]", {"segments": [*many(2), entry("alloc", BASE, 1)]}),
    ("segments[2]", {"segments": [*many(2), block(MIB), *many(1)]}),
    ("segments[0].blocks[2]", {"segments": [changed(blocks=[*changed()["blocks"], *many(1)])]}),
])
def test_at_odd_places(place, made):
    with pytest.raises(TraceError, match="expected a |missing") as caught:
        parsed(pickled(made))
    assert caught.value.place == place


def test_blocks_come_out_as_dicts():
    made = [{**each, "address": BASE + MIB * index} for index, each in enumerate([block(MIB), block(MIB, 7, FREE)])]
    [found] = loads(pickle.dumps(made))
    assert type(found) is Blocks and len(found) == 2
    assert list(found) == [{"address": BASE, "size": MIB, "requested_size": MIB, "state": STATES[0]},
                           {"size": MIB, "requested_size": 7, "state": FREE}]


def test_memory_of_segments():
    """Blocks take 24 bytes and segments 64; room for them comes in powers of two."""
    made = complete()
    alone = [segment([block(512)], MIB * index) for index in range(1, 5000)]
    made["segments"] = [segment([block(512, 17) for _ in range(50_000)]), *alone]
    text = pickle.dumps(made, 2)
    tracemalloc.start()
    try:
        found = parsed(text).segments
        taken = tracemalloc.get_traced_memory()[0]
        assert len(found) == 5000 and taken < 65_536 * 24 + 8192 * 64 + 50_000 < 0.9 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_are_live_all_the_time(seed):
    source = random.Random(seed)
    segments, entries = Segments(), Entries()
    made = [of_dict(each) for each in many(source.choice((0, 1, 30)), source.choice((0, 1, 20)), source)]
    for each in made:
        segments.append(each)
    addresses = [(each.device, one.address) for each in made for one in each.blocks] or [(0, BASE)]
    touched = source.sample(addresses, len(addresses) // 3) if seed % 4 else []
    for index, (_, address) in enumerate(touched):
        entries.append(("alloc", "free_requested", "free_completed", "segment_alloc")[index % 4], address, 1, 0)
    gone = {address for index, (_, address) in enumerate(touched) if index % 4 != 3}
    builder = TraceBuilder()
    take_standing(segments, 1, entries, builder)
    live = TraceTable(builder).live
    assert [(size, stream, row) for size, stream, row, *_ in live.tolist()] == [
        (one.requested_size, each.stream, 0) for each in made if each.device == 1 for one in each.blocks
        if one.state != INACTIVE and one.address not in gone]


@pytest.mark.parametrize("most", [5, 6])
def test_too_many_blocks(most):
    segments = Segments()
    segments.append(Segment(BASE, [Block(BASE + 512 * index, 512, 512) for index in range(6)]))
    if most == 6:
        take_standing(segments, 0, Entries(), TraceBuilder(most))
    else:
        with pytest.raises(TraceError, match="more than 5 events"):
            take_standing(segments, 0, Entries(), TraceBuilder(most))
    assert len(segments) == 0 and list(segments) == []


def test_long_arrays_in_strips():
    """Two strips of segments, and of blocks in one segment."""
    one = [Block(BASE + index, 1, 1, STATES[index % 3]) for index in range(300_000)]
    segments = Segments()
    segments.append(Segment(BASE, one))
    for index in range(1, 140_000):
        segments.append(Segment(BASE + MIB * index, [Block(BASE + MIB * index, 1 + index, index)], index % 2))
    other = Segments()
    other.extend(segments)
    assert other.totals() == {0: 300_000 + sum(range(3, 140_001, 2)), 1: sum(range(2, 140_001, 2))}
    assert other.overlap() is None and other[0].blocks == one and other[131_072].blocks[0].size == 131_073
    segments.append(Segment(BASE + 139_999 * MIB + 139_999, [Block(0, 1, 1)], 1))
    assert segments.overlap() == (139_999, 140_000)
    builder = TraceBuilder()
    take_standing(other, 0, Entries(), builder)
    assert len(other) == 0
    live = TraceTable(builder).live
    assert live["size"].tolist() == [1] * 200_000 + list(range(2, 140_000, 2))


@pytest.mark.parametrize("between", [b"e](", b"N"], ids=["lists", "none"])
def test_memory_of_blocks_that_are_alone(between):
    keys = b"\x8c\x05state\x94\x8c\x08inactive\x94\x8c\x04size\x94000"
    text = b"\x80\x04" + keys + b"](](" + (b"}(h\x00h\x01h\x02K\x01u" + between) * 500_000 + b"ee."
    tracemalloc.start()
    try:
        with pytest.raises(TraceError):
            parsed(text)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * ((64 << 20) + 24 * len(text))
    finally:
        tracemalloc.stop()
