#!/usr/bin/env python3
"""Makes the recorded traces of this folder again: python3 make.py NECTARY [NAME...]

NECTARY is the program to record with. Inputs are made here, always the same, in a new temporary folder; the programs are the
system's. A program that is not installed is passed over. What is recorded depends on the programs' versions, so the counts
in ../recorded.rs may have to be changed with the traces.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))


class Random:
    """Numbers that are the same everywhere (xorshift64)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state ^= self.state << 13 & (1 << 64) - 1
        self.state ^= self.state >> 7
        self.state ^= self.state << 17 & (1 << 64) - 1
        return self.state % bound


def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def c_sources(random, files, functions, header_lines=120):
    """C files whose functions call each other, over a tree of headers with comments."""
    for header in range(60):
        lines = [f"#ifndef H{header}", f"#define H{header}"]
        lines += [f'#include "h{random.below(header)}.h"' for _ in range(3) if header]
        for line in range(header_lines):
            lines.append(f"/* {' '.join(f'word{random.below(5000)}' for _ in range(9))} */")
            lines.append(f"#define M{header}_{line}(x) ((x) * {random.below(1000)} + {line})")
            lines.append(f"extern int f{random.below(files)}_{random.below(functions)}(int);")
        write(f"include/h{header}.h", "\n".join(lines + ["#endif", ""]))
    for file in range(files):
        lines = [f'#include "h{min(random.below(60), random.below(60))}.h"' for _ in range(6)]
        lines.append(f"int table{file}[500] = {{ {', '.join(str(random.below(100000)) for _ in range(500))} }};")
        for function in range(functions):
            calls = [(random.below(files), random.below(functions)) for _ in range(4)]
            lines += [f"extern int f{a}_{b}(int);" for a, b in calls]
            lines.append(f"int f{file}_{function}(int x)\n{{\n    int y = table{file}[x & 255];")
            lines += [f"    if (x > {random.below(900)})\n        y += f{a}_{b}(x - 1);" for a, b in calls]
            lines.append("    return y;\n}")
        write(f"source/s{file}.c", "\n".join(lines + [""]))


def names(random, count):
    return [f"{'/'.join('abcdefghij'[random.below(10)] for _ in range(3))}{random.below(10**9)}" for _ in range(count)]


def run(words, **options):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, **options)


def cscope(record):
    """Literal queries over one cross-reference: a loop over cscope.out for each."""
    c_sources(Random(11), 200, 24)
    write("cscope.files", "".join(f"source/s{file}.c\n" for file in range(200)))
    run(["cscope", "-b", "-c"])
    # The line-oriented interface: a digit says what is asked for, q ends.
    queries = "".join(f"{kind}f{number * 7}_{number}\n" for number, kind in enumerate("0123016"))
    record(["cscope", "-d", "-c", "-l"], input=queries + "q\n")


def sort(record):
    """An external merge sort: runs are written, read and merged."""
    random = Random(12)
    write("in", "".join(f"{random.below(10**9):09} {' '.join(names(random, 4))}\n" for _ in range(70000)))
    record(["sort", "-S", "512K", "--parallel=1", "--batch-size=8", "-T", ".", "-o", "out", "in"])


def ld(record):
    """One program of many objects."""
    c_sources(Random(13), 120, 30)
    write("main.c", "int f0_0(int);\nint main(void) { return f0_0(1); }\n")
    for file in range(120):
        run(["cc", "-O0", "-g", "-Iinclude", "-c", f"source/s{file}.c", "-o", f"s{file}.o"])
    run(["cc", "-c", "main.c", "-o", "main.o"])
    record(["ld", "-r", "-o", "all.o", "main.o"] + [f"s{file}.o" for file in range(120)])


def cpp(record):
    """The preprocessor over many files that include the same headers."""
    c_sources(Random(14), 90, 20, header_lines=320)
    script = "for file in source/s*.c; do cpp -Iinclude -o out.i $file; done"
    record(["sh", "-c", script])


SQL = """
create table maker (id integer primary key, name text, note text);
create table part (id integer primary key, maker integer, price integer, note text);
"""


def sqlite(record):
    """Joins with a small cache: a scan of one table, lookups by key in the other, and a hash-like temporary index."""
    random = Random(15)
    makers = ",\n".join(f"({m}, 'maker {m}', '{' '.join(names(random, 6))}')" for m in range(1, 12001))
    parts = ",\n".join(
        f"({p}, {min(random.below(12000), random.below(12000)) + 1}, {random.below(1000)}, '{' '.join(names(random, 5))}')"
        for p in range(1, 40001)
    )
    write("fill.sql", SQL + f"insert into maker values {makers};\ninsert into part values {parts};\n")
    with open("fill.sql") as fill:
        run(["sqlite3", "data"], stdin=fill)
    query = """
    pragma cache_size = 40;
    select sum(length(maker.note)) from part cross join maker on maker.id = part.maker where part.price < 100;
    select count(*) from part where note like '%77%';
    select maker.name, sum(part.price) from maker cross join part on part.maker = maker.id group by 1 order by 2 limit 3;
    """
    record(["sqlite3", "data"], input=query)


def postgres(record):
    """Joins by a single backend with the smallest buffer: nested loop by index, hash, merge."""
    # A server does not run as root.
    user = []
    if os.getuid() == 0:
        entry = pwd.getpwnam("nobody")
        shutil.chown(".", entry.pw_uid, entry.pw_gid)
        user = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    run(user + ["initdb", "-D", "data", "-U", "owner", "--locale=C", "-E", "SQL_ASCII", "-A", "trust", "--no-sync"])
    random = Random(16)
    makers = ", ".join(f"({m}, 'maker {m}', '{' '.join(names(random, 6))}')" for m in range(1, 12001))
    parts = ", ".join(
        f"({p}, {random.below(12000) + 1}, {random.below(1000)}, '{' '.join(names(random, 6))}')" for p in range(1, 40001)
    )
    fill = " ".join(SQL.split()) + f" insert into maker values {makers}; insert into part values {parts}; vacuum analyze;"
    single = ["postgres", "--single", "-j", "-D", "data", "-c", "shared_buffers=128kB", "-c", "work_mem=64kB"]
    single += ["-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap", "-c", "max_parallel_workers_per_gather=0"]
    queries = [
        "set enable_hashjoin = off; set enable_mergejoin = off;"
        " select sum(length(maker.note)) from part join maker on maker.id = part.maker where part.price < 60;",
        "set enable_hashjoin = on; select sum(length(maker.note)) from part join maker on maker.id = part.maker;",
        "select maker, sum(price) from part group by 1 order by 2 desc limit 3;",
    ]
    for statement in [SQL.strip(), *fill.split("; ")[2:]]:
        run(user + single + ["postgres"], input=" ".join(statement.split()).rstrip(";") + ";\n\n", text=True)
    record(single + ["postgres"], input="".join(query + "\n\n" for query in queries), user=user)


TRACES = {
    "cscope": (cscope, ["cscope"]),
    "sort": (sort, ["sort"]),
    "ld": (ld, ["ld", "cc"]),
    "cpp": (cpp, ["cpp"]),
    "sqlite": (sqlite, ["sqlite3"]),
    "postgres": (postgres, ["postgres", "initdb"]),
}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    nectary = os.path.abspath(sys.argv[1])
    environment = {"PATH": os.environ["PATH"] + ":/usr/lib/postgresql/15/bin", "LC_ALL": "C", "TMPDIR": "."}
    os.environ.clear()
    os.environ.update(environment)
    for name in sys.argv[2:] or TRACES:
        make, programs = TRACES[name]
        missing = [program for program in programs if not shutil.which(program)]
        if missing:
            print(f"{name}: passed over, {missing[0]} is not installed")
            continue
        folder = tempfile.mkdtemp(prefix="nectary-data-", dir="/tmp")
        os.chmod(folder, 0o755)
        os.chdir(folder)
        trace = f"{name}.nectrace.gz"

        def record(words, input=None, user=()):
            subprocess.run(
                [*user, nectary, "trace", "record", "-o", trace, "--", *words],
                input=input, text=True, stdout=subprocess.DEVNULL, check=True,
            )

        try:
            make(record)
            shutil.copyfile(trace, os.path.join(FOLDER, trace))
        finally:
            os.chdir("/")
            shutil.rmtree(folder)


main()
