"""Print what a pair of allocation and free costs in the pool and in other allocators' libraries, timed in turn.

    python tools/bench_peers.py [WORKLOAD ...] [--trace FILE ...] [--include DIR ...] [--json FILE] [--no-count]

mimalloc (Debian: libmimalloc-dev) is loaded as a shared library. The virtual block of the Vulkan Memory Allocator,
which gives out offsets and knows no lock, is a header, vk_mem_alloc.h, and compiled here: --include names its folder,
and that of vulkan/vulkan.h, where the compiler does not find them by itself (Debian: libvulkan-memory-allocator-dev,
libvulkan-dev). What is not installed is left out, and said so. Blocks are aligned to 256 bytes in the pool and the
virtual block, and sizes rounded up to that: without it, the virtual block takes longer.
"""

import argparse
import ctypes.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cuda_pool import _bench_count, _bench_table

VIRTUAL_BLOCK = r"""
#define VMA_STATIC_VULKAN_FUNCTIONS 0
#define VMA_DYNAMIC_VULKAN_FUNCTIONS 0
#define VMA_IMPLEMENTATION
#include <vk_mem_alloc.h>

static VmaVirtualBlock make_block() {
    VmaVirtualBlockCreateInfo info = {};
    VmaVirtualBlock block = nullptr;
    info.size = 64ull << 30;
    return vmaCreateVirtualBlock(&info, &block) == VK_SUCCESS ? block : nullptr;
}

static struct Block {
    VmaVirtualBlock block = make_block();
    ~Block() { vmaClearVirtualBlock(block); vmaDestroyVirtualBlock(block); }
} all;

/* The handle stands for the address: a program that uses the block needs both. */
extern "C" void *virtual_alloc(size_t nbytes) {
    VmaVirtualAllocationCreateInfo info = {};
    VmaVirtualAllocation allocation;
    VkDeviceSize offset;
    info.size = (nbytes + 255) & ~(size_t)255;
    info.alignment = 256;
    return vmaVirtualAllocate(all.block, &info, &allocation, &offset) == VK_SUCCESS ? (void *)allocation : nullptr;
}

extern "C" void virtual_free(void *allocation) {
    vmaVirtualFree(all.block, (VmaVirtualAllocation)allocation);
}
"""


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        peers = find_peers(arguments.include, folder)
        whats = ["pool", "malloc", *peers.values(), "empty"]
        names = {spec: name for name, spec in peers.items()}
        workloads = arguments.workloads + arguments.trace
        counts = count(arguments, [(name, what) for name in workloads for what in whats])
        rows = [row for name in workloads for row in time_rows(name, whats, names, counts, arguments)]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"rows": rows}, indent=2) + "\n")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", default=list(_bench_table.TIERS),
                        help="of " + ", ".join(_bench_table.TIERS) + " (default: all)")
    parser.add_argument("--trace", metavar="FILE", nargs="+", default=[], help="recorded traces to play as well")
    parser.add_argument("--include", metavar="DIR", nargs="+", default=[], help="where headers are")
    parser.add_argument("--rounds", type=int, default=11, help="rounds (default: 11)")
    parser.add_argument("--no-count", action="store_true", help="count no instructions")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON too")
    arguments = parser.parse_args()
    unknown = set(arguments.workloads).difference(_bench_table.TIERS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; accepted: {', '.join(_bench_table.TIERS)}")
    return arguments


def find_peers(include, folder):
    """Return the allocators that are installed: their names, and what `_bench_table.make_loop` takes."""
    peers = {}
    mimalloc = ctypes.util.find_library("mimalloc")
    if mimalloc:
        peers["mimalloc"] = f"{mimalloc}:mi_malloc:mi_free"
    else:
        print("mimalloc: skipped, no such library is installed")
    block, reason = build_virtual_block(include, folder)
    if block:
        peers["vma"] = f"{block}:virtual_alloc:virtual_free"
    else:
        print(f"vma: skipped, {reason}")
    return peers


def build_virtual_block(include, folder):
    """Compile the virtual block to a shared library; return its path, or None and why."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None, "no C++ compiler is installed"
    source, library = Path(folder, "virtual_block.cpp"), Path(folder, "virtual_block.so")
    source.write_text(VIRTUAL_BLOCK)
    done = subprocess.run([compiler, "-std=c++17", "-O3", "-DNDEBUG", "-w", "-shared", "-fPIC",
                           *(f"-I{path}" for path in include), source, "-o", library], capture_output=True, text=True)
    if done.returncode:
        return None, next((line for line in done.stderr.splitlines() if "error" in line), "the compiler failed")
    return library, None


def count(arguments, jobs):
    counter, reason = (None, "--no-count") if arguments.no_count else _bench_count.find_counter()
    print(f"instructions: {f'by {counter}' if counter else f'not counted, {reason}'}")
    print(f"{'workload':<24}{'what':<10}{'ns':>10}{'spread':>8}{'x malloc':>10}{'instructions':>14}", flush=True)
    return _bench_count.count(jobs, counter) if counter else {}


def time_rows(name, whats, names, counts, arguments):
    """Time and print a workload's rows; return them as dicts."""
    runs = _bench_table.make_runs(name, whats)
    counted = {what: counts[name, what] for what in whats if (name, what) in counts}
    label = Path(name).name.partition(".")[0]
    rows = _bench_table.time_workload(name, runs, arguments.rounds, counted, label)
    rows = [{**row.as_dict(), "what": names.get(row.what, row.what)} for row in rows]
    for row in rows:
        counted = "-" if row["instructions"] is None else f"{row['instructions']:.1f}"
        print(f"{label:<24}{row['what']:<10}{row['ns']:>10.1f}{row['spread']:>8.1f}{row['ratio_to_malloc']:>10.3f}"
              f"{counted:>14}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
