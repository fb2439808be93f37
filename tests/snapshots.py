"""Small memory snapshots of PyTorch, one of each shape that versions have written."""

import functools
import pickle

from cuda_pool._pickle_window import pieces_of
from cuda_pool.readers.torch_snapshot import parse_snapshot

BASE = 0x7F0000000000
MIB = 1 << 20


def block(size, requested=None, state="active_allocated", address=None):
    """A block as a dict of a snapshot."""
    found = {"size": size, "requested_size": size if requested is None else requested, "state": state, "frames": []}
    return found if address is None else {"address": address, **found}


def segment(blocks, address=BASE, device=0, **more):
    """A segment as a dict; the addresses and sums are filled in."""
    end = address
    for each in blocks:
        each["address"] = end
        end += each["size"]
    active = [each for each in blocks if each["state"] != "inactive"]
    return {"device": device, "address": address, "total_size": end - address,
            "allocated_size": sum(each["size"] for each in active if each["state"] == "active_allocated"),
            "active_size": sum(each["size"] for each in active),
            "requested_size": sum(each["requested_size"] for each in active), "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks, **more}


def entry(action, addr, size, stream=0, **more):
    """An entry of a trace as a dict."""
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1, "frames": [], **more}


def freed(addr, size, stream=0):
    """The two entries of a free."""
    return [entry("free_requested", addr, size, stream), entry("free_completed", addr, size, stream)]


def complete():
    """Three blocks, all allocated in the trace; one is freed, and its place used again."""
    trace = [entry("segment_alloc", BASE, 20 * MIB), entry("alloc", BASE, 3 * MIB - 5),
             entry("alloc", BASE + 3 * MIB, 5 * MIB), *freed(BASE, 3 * MIB - 5), entry("alloc", BASE, 2 * MIB)]
    blocks = [block(2 * MIB), block(MIB, 77, "inactive"), block(5 * MIB), block(12 * MIB, 0, "inactive")]
    return {"segments": [segment(blocks)], "device_traces": [trace], "allocator_settings": {},
            "external_annotations": []}


def cut():
    """The beginning of the trace is missing: a block that is freed was there before, and so was one that stays."""
    trace = [*freed(BASE, MIB), entry("alloc", BASE, 600_000), entry("free_completed", BASE + 4 * MIB, 999_999)]
    blocks = [block(MIB, 600_000), block(3 * MIB, 2 * MIB + 1), block(16 * MIB, 0, "inactive")]
    return {"segments": [segment(blocks)], "device_traces": [trace]}


def oldest():
    """Blocks with a history and without an address; no times and no settings."""
    found = segment([block(MIB, MIB - 1), block(MIB, 5, "inactive")])
    for each in found["blocks"]:
        each["history"] = [{"addr": each.pop("address"), "real_size": each["requested_size"], "frames": []}]
        del each["frames"]
    for name in ("segment_pool_id", "is_expandable", "frames"):
        del found[name]
    return {"segments": [found], "device_traces": [[{"action": "free_completed", "addr": BASE + MIB, "size": 5,
                                                     "stream": 0}]]}


def bare():
    """A list of segments."""
    return [segment([block(MIB, MIB - 3), block(MIB, 0, "inactive")], device=1),
            segment([block(2 * MIB, state="active_pending_free")], BASE + 2 * MIB, 1)]


def two_devices():
    """Device 1 and 2 of three, one of them out of memory once."""
    oom = {"action": "oom", "device_free": 5, "size": 10 * MIB, "stream": 0, "time_us": 2, "frames": []}
    one = [entry("segment_map", BASE, 2 * MIB), entry("alloc", BASE, MIB), oom]
    two = [entry("segment_map", BASE, 2 * MIB), entry("alloc", BASE, 2 * MIB), *freed(BASE, 2 * MIB),
           entry("segment_unmap", BASE, 2 * MIB)]
    return {"segments": [segment([block(MIB), block(MIB, 0, "inactive")], device=1, is_expandable=True)],
            "device_traces": [[], one, two]}


SHAPES = {shape.__name__: shape for shape in (complete, cut, oldest, bare, two_devices)}


def pickled(snapshot, protocol=4):
    """The file of a snapshot."""
    return pickle.dumps(snapshot, protocol)


def parsed(text, device=None):
    """What the reader makes of a pickle in memory."""
    return parse_snapshot(functools.partial(pieces_of, text), device)
