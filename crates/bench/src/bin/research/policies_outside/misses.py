"""Counts misses with libcachesim, a program that has nothing to do with this one.

Standard input: a line for each run, POLICY SIZE FILE. A file has one id a line; one that ends in .csv has a header and
objects with the columns time, key, which is text, and size, and SIZE is in bytes. The file of one that ends in .own.csv is
read by libcachesim itself, as far as it can. Standard output: a line for each run, with the misses and their bytes.
"""

import csv
import heapq
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
# The policies that need nothing but what a file says.
OWN = ("fifo", "lru", "lfu", "clock", "sieve")
NEVER = 2**62


def load(path):
    """The ids and sizes of a trace, each with the position of the next reference to it."""
    with open(path, encoding="utf-8", newline="") as file:
        if path.endswith(".csv"):
            numbers, ids, sizes = {}, [], []
            for row in csv.DictReader(file):
                ids.append(numbers.setdefault(row["key"], len(numbers)))
                sizes.append(int(row["size"]))
        else:
            ids = [int(line) for line in file]
            sizes = [1] * len(ids)
    following, nexts = {}, [NEVER] * len(ids)
    for position in range(len(ids) - 1, -1, -1):
        nexts[position] = following.get(ids[position], NEVER)
        following[ids[position]] = position
    return list(zip(ids, sizes, nexts))


def gdsf(size, trace):
    """GDSF as its paper describes it; the victims of the GDSF of libcachesim do not always have the lowest worth."""
    age, used, count, missed, residents, heap = 0.0, 0, 0, 0, {}, []
    for time, (block, bytes_, _) in enumerate(trace):
        frequency = residents[block][0] + 1 if block in residents else 1
        if frequency == 1:
            count += 1
            missed += bytes_
            if bytes_ > size:
                continue
            while used + bytes_ > size:
                worth, at, victim = heapq.heappop(heap)
                # Older worths of an object are still in the heap.
                if victim in residents and residents[victim][1] == at:
                    used -= residents.pop(victim)[2]
                    age = worth
            used += bytes_
        residents[block] = (frequency, time, bytes_)
        heapq.heappush(heap, (age + frequency * 1e6 / bytes_, time, block))
    return f"{count} {missed}"


def own(policy, size, path, trace):
    """The misses of a file that libcachesim reads; it says only the shares of requests and bytes."""
    form = libcachesim.ReaderInitParam(has_header=True, delimiter=",", obj_id_is_num=False)
    form.has_header_set = form.obj_id_is_num_set = True
    form.time_field, form.obj_id_field, form.obj_size_field = 1, 2, 3
    reader = libcachesim.TraceReader(path, libcachesim.TraceType.CSV_TRACE, form)
    requests, sizes = CACHES[policy](size, hashpower=14).process_trace(reader)
    return f"{round(requests * len(trace))} {round(sizes * sum(bytes_ for _, bytes_, _ in trace))}"


def misses(policy, size, trace):
    if policy == "gdsf":
        return gdsf(size, trace)
    cache = CACHES[policy](size, hashpower=14)
    request = libcachesim.Request()
    count, missed = 0, 0
    for time, (block, bytes_, following) in enumerate(trace):
        request.obj_id = block + 1
        request.obj_size = bytes_
        request.clock_time = time
        request.next_access_vtime = following
        if not cache.get(request):
            count += 1
            missed += bytes_
    return f"{count} {missed}"


def main():
    path, trace = None, None
    for line in sys.stdin:
        policy, size, wanted = line.rstrip("\n").split(" ", 2)
        if wanted != path:
            path, trace = wanted, load(wanted)
        if path.endswith(".own.csv") and policy in OWN:
            print(own(policy, int(size), path, trace), flush=True)
        else:
            print(misses(policy, int(size), trace), flush=True)


main()
