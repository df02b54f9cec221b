"""Counts misses with libcachesim, a program that has nothing to do with this one.

Standard input: a line for each run, POLICY SIZE FILE; a file has one id a line. Standard output: a number a line.
"""

import sys

import libcachesim

CACHES = {
    "fifo": libcachesim.FIFO,
    "lru": libcachesim.LRU,
    "lfu": libcachesim.LFU,
    "clock": libcachesim.Clock,
    "sieve": libcachesim.Sieve,
    "arc": libcachesim.ARC,
    "s3fifo": libcachesim.S3FIFO,
    "2q": libcachesim.TwoQ,
    "min": libcachesim.Belady,
}
NEVER = 2**62


def load(path):
    """The ids of a trace, each with the position of the next reference to it."""
    with open(path, encoding="ascii") as file:
        ids = [int(line) for line in file]
    following, nexts = {}, [NEVER] * len(ids)
    for position in range(len(ids) - 1, -1, -1):
        nexts[position] = following.get(ids[position], NEVER)
        following[ids[position]] = position
    return list(zip(ids, nexts))


def misses(policy, size, trace):
    cache = CACHES[policy](size, hashpower=14)
    request = libcachesim.Request()
    request.obj_size = 1
    count = 0
    for time, (block, following) in enumerate(trace):
        request.obj_id = block + 1
        request.clock_time = time
        request.next_access_vtime = following
        count += not cache.get(request)
    return count


def main():
    path, trace = None, None
    for line in sys.stdin:
        policy, size, wanted = line.rstrip("\n").split(" ", 2)
        if wanted != path:
            path, trace = wanted, load(wanted)
        print(misses(policy, int(size), trace), flush=True)


main()
