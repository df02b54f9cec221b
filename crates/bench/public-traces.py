#!/usr/bin/env python3
"""Writes the public traces for `research cache-figures --only public --public DIR`.

usage: public-traces.py CAFFEINE CACHE-TRACE LIBCACHESIM DIR

The first three are clones of the public repositories ben-manes/caffeine (its simulator's resources),
moka-rs/cache-trace and 1a1a11a/libCacheSim. Each file's SHA-256 is checked; DIR/NAME.trace.gz then has a block number
a line. The traces are not part of this project. A clone without some files gives the others.
"""
import gzip
import hashlib
import lzma
import pathlib
import struct
import subprocess
import sys

PARSER = "simulator/src/main/resources/com/github/benmanes/caffeine/cache/simulator/parser/"


def numbers(form):
    size = struct.calcsize(">" + form)
    return lambda data: (value for (value,) in struct.iter_unpack(">" + form, data[: len(data) // size * size]))


def lines(data):
    return (int(line) for line in data.decode().split("\n") if line.strip() and not line.startswith("*"))


def second_words(data):
    return (int(line.split()[1]) for line in data.decode().split("\n") if line.strip())


def ranges(data):
    for line in data.decode().split("\n"):
        words = line.split()
        if len(words) >= 2:
            yield from range(int(words[0]), int(words[0]) + int(words[1]))


def oracle(data):
    return (struct.unpack_from("<Q", data, at + 4)[0] for at in range(0, len(data) - 23, 24))


# Name, number of the clone, file, SHA-256, reader.
TRACES = [
    ("scarab", 0, PARSER + "scarab/scarab-recs.trace.xz", "abf86a7eef62e1e5ed93afe318168bb72a575c6d552e9904426711039c05ede3", numbers("Q")),
    ("w106", 0, PARSER + "cloud_physics/w106.trace.xz", "679615d555d3f0c26771b0afd859caeee54e236908cd60105d08b547abadba21", numbers("I")),
    ("corda", 0, PARSER + "corda/trace_vaultservice.gz", "bc2c118fe0a56b877fc21d35ad2a46b19d2f28b593553b8aa36a788cc169b21c", numbers("Q")),
    ("orm-busy", 0, PARSER + "cache2k/orm-busy.trace.xz", "0b1d6593387d713c98cc20a5b8c4128eaa983f94dcd70069b032dc1af9c2ceb3", numbers("I")),
    ("orm-night", 0, PARSER + "cache2k/orm-night.trace.xz", "144cc3050f79b202c70d4fb4b69023a485126adcd0ad2758fb4f5cc1ef0573b1", numbers("I")),
    ("web07", 0, PARSER + "cache2k/web07.trace.xz", "e50bb13aa66d1cc71877c8ea92c577be0d0ab5b2b4f7a16c87046af1097bd46a", numbers("I")),
    ("web12", 0, PARSER + "cache2k/web12.trace.xz", "a76c78e129a982fe17055d0a291ebf385e7a0aa7964bd091d006bcde862bcdad", numbers("I")),
    ("2-pools", 0, PARSER + "lirs/2_pools.trace.gz", "12370af6d9e1b5a4d16642c6a5d0322565f20aed54bed8176901e74f70a4c3ee", lines),
    ("multi2", 0, PARSER + "lirs/multi2.trace.gz", "3576bc20286f4d204a3c2b6647bb691ed9dde9a923a32624e145873ed830dad5", lines),
    ("multi3", 0, PARSER + "lirs/multi3.trace.gz", "e1957bb3c49a1e3409fb651dd8fc4273eb144acdc5deb820e7671cb18583dfad", lines),
    ("adapt", 0, PARSER + "adapt_size/request.trace.xz", "92df6bf9efbc981856c1a4612de9b671d203a090f1f7cb74e94d1f2eee1675b6", second_words),
    ("oltp", 1, "arc/OLTP.lis.zst", "2a81096104b6de28aae54558b764bb32fe2ac3beb8a7dcdee1259af8798d3531", ranges),
    ("p2", 1, "arc/P2.lis.zst", "ac686282cd29e715066f7370eecf64c36060218537d51483a7834ad6cf400aed", ranges),
    ("p3", 1, "arc/P3.lis.zst", "4110048c690756400675b14f200989fae351b62147705dac9637bbcff6d29751", ranges),
    ("p6", 1, "arc/P6.lis.zst", "b29d69e47631d77e125474918fe4292d614c2139b72fbf1991fa4a1feb6617e7", ranges),
    ("p12", 1, "arc/P12.lis.zst", "4de315e55e14518618427828312fb07ae275abf301ab8d15c41e3ea1cf6aaad0", ranges),
    ("cloudphysics", 2, "data/cloudPhysicsIO.oracleGeneral.bin", "65438dd7b2d3dec7ffe8a5c9348045da92de3311f339b7b59c9a0a44e6050dea", oracle),
]


def contents(clone, file):
    """The file of a clone: of its work tree, or of its newest commit if it has none."""
    path = clone / file
    if path.exists():
        return path.read_bytes()
    shown = subprocess.run(["git", "-C", clone, "show", "HEAD:" + file], capture_output=True)
    return shown.stdout if shown.returncode == 0 else None


def unpacked(file, data):
    if file.endswith(".xz"):
        return lzma.decompress(data)
    if file.endswith(".gz"):
        return gzip.decompress(data)
    if file.endswith(".zst"):
        return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout
    return data


def main(words):
    if len(words) != 4:
        sys.exit(__doc__)
    *clones, directory = map(pathlib.Path, words)
    directory.mkdir(parents=True, exist_ok=True)
    is_whole = True
    for name, clone, file, checksum, read in TRACES:
        data = contents(clones[clone], file)
        if data is None or hashlib.sha256(data).hexdigest() != checksum:
            print(f"{name}: {'not there' if data is None else 'other contents'}: {clones[clone]}/{file}")
            is_whole = False
            continue
        with gzip.open(directory / f"{name}.trace.gz", "wt", compresslevel=1) as out:
            out.writelines(f"{block}\n" for block in read(unpacked(file, data)))
        print(f"{name}: written")
    sys.exit(0 if is_whole else 1)


main(sys.argv[1:])
