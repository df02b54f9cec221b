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
    # The line-oriented interface: a digit chooses the query, q ends.
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


# What nothing is tuned on: recorded once, to judge.


def text_files(random, files, lines, folder="text"):
    for file in range(files):
        write(f"{folder}/d{file % 12}/t{file}", "".join(f"{' '.join(names(random, 5))}\n" for _ in range(lines)))


def grep(record):
    """Six searches through one tree, two of them through a part of it."""
    text_files(Random(22), 300, 90)
    record(["sh", "-c", "grep -r 77 text; grep -rc abc text; grep -r zz text/d1 text/d2 text/d3; grep -rl 12345 text;"
            " grep -r yy text/d1 text/d2; grep -rc 99 text; true"])


def archive(record):
    """tar of a tree, gzip of the archive, a listing, a comparison with the tree."""
    text_files(Random(23), 220, 150)
    record(["sh", "-c", "tar cf a.tar text; gzip -k a.tar; tar tf a.tar; tar df a.tar; gzip -dc a.tar.gz | tar df -; true"])


def build(record):
    """make: 50 files compiled, 12 of them again after a change of a header, and linked each time."""
    c_sources(Random(24), 50, 12, header_lines=60)
    write("main.c", "int f0_0(int);\nint main(void) { return f0_0(1); }\n")
    objects = " ".join(f"s{file}.o" for file in range(50))
    write("Makefile", f"all: {objects} main.o\n\tld -r -o all.o {objects} main.o\n%.o: source/%.c\n\tcc -O0 -Iinclude -c $< -o $@\n")
    touch = " ".join(f"source/s{file}.c" for file in range(0, 48, 4))
    record(["sh", "-c", f"make -s all; sleep 1.1; touch {touch}; make -s all; make -s all"])


def compare(record):
    """diff and cmp of two trees that differ in a few files."""
    text_files(Random(25), 180, 120, "one")
    text_files(Random(25), 180, 120, "two")
    for file in range(0, 180, 17):
        write(f"two/d{file % 12}/t{file}", "another\n" * 400)
    record(["sh", "-c", "diff -rq one two; diff -r one two; for d in 1 2 3 4; do diff -rq one/d$d two/d$d; done; diff -rq one two; true"])


def awk(record):
    """A join by awk: a small table for each of eight passes over a large one."""
    random = Random(26)
    write("large", "".join(f"{n} {random.below(4000)} {' '.join(names(random, 4))}\n" for n in range(30000)))
    for part in range(8):
        write(f"small{part}", "".join(f"{random.below(4000)} name{n}\n" for n in range(6000)))
    record(["sh", "-c", "for p in 0 1 2 3 4 5 6 7; do awk 'NR==FNR {n[$1]=$2; next} $2 in n {c++} END {print c}' small$p large; done"])


def index(record):
    """SQLite: 900 lookups by an index, most of them of few keys, with updates between them, and a small cache."""
    random = Random(27)
    rows = ",\n".join(f"({p}, '{names(random, 1)[0]}', {random.below(20000)}, '{' '.join(names(random, 6))}')" for p in range(30000))
    write("fill.sql", f"create table t (id integer primary key, name text, k integer, note text);\ninsert into t values {rows};\n"
          "create index i on t (k);\n")
    with open("fill.sql") as fill:
        run(["sqlite3", "data"], stdin=fill)
    query = ["pragma cache_size = 20;"]
    for step in range(900):
        key = int(20000 ** (random.below(10**6) / 10**6))
        query.append(f"select count(note) from t where k between {key} and {key + 1};")
        if step % 60 == 0:
            query.append(f"update t set k = k + 1 where id = {random.below(30000)};")
        if step % 300 == 299:
            query.append("select sum(length(note)) from t;")
    record(["sqlite3", "data"], input="\n".join(query) + "\n")


def dbm(record):
    """Python: a hash file of 20,000 keys filled, read by skewed keys, and read through."""
    script = """
import dbm.dumb, random
random.seed(28)
with dbm.dumb.open('hash', 'n') as db:
    for k in range(4000):
        db[str(k)] = 'x' * random.randrange(200, 900)
with dbm.dumb.open('hash', 'r') as db:
    for _ in range(9000):
        db[str(int(4000 ** random.random()))]
    for k in range(4000):
        db[str(k)]
    for _ in range(4000):
        db[str(int(4000 ** random.random()))]
"""
    write("hash.py", script)
    record(["python3", "hash.py"])


def merge(record):
    """GNU sort: four files sorted with little memory, then merged, then checked, twice."""
    random = Random(29)
    for part in range(4):
        write(f"in{part}", "".join(f"{random.below(10**9):09} {' '.join(names(random, 2))}\n" for _ in range(12000)))
    script = "for p in 0 1 2 3; do sort -S 256K --parallel=1 --batch-size=4 -T . -o s$p in$p; done; sort -m -o all s0 s1 s2 s3;"
    record(["sh", "-c", script + "sort -c all; uniq -c all > u; sort -c all; join s0 s1 > j; comm s2 s3 > c; true"])


def perl(record):
    """Perl: random reads by offset from a file of records, in two phases of other places, with a scan between them."""
    random = Random(30)
    write("records", "".join(f"{n:08} {' '.join(names(random, 8))}".ljust(255)[:255] + "\n" for n in range(24000)))
    script = """
my $s = 31; sub r { $s = ($s * 1103515245 + 12345) & 0x7fffffff; return ($s >> 8) % $_[0]; }
open(my $f, '<', 'records') or die; my $b;
sub at { sysseek($f, $_[0] * 256, 0); sysread($f, $b, 256); }
for (1..7000) { at(int(6000 * (r(1000) / 1000) ** 3)); }
sysseek($f, 0, 0); while (sysread($f, $b, 8192)) {}
for (1..7000) { at(16000 + int(6000 * (r(1000) / 1000) ** 2)); }
for (1..3000) { at(int(6000 * (r(1000) / 1000) ** 3)); at(16000 + $_ * 2); }
"""
    write("at.pl", script)
    record(["perl", "at.pl"])


def checksums(record):
    """md5sum of a tree, the sums checked twice, then the words of a part of it counted again and again."""
    text_files(Random(32), 260, 100)
    script = "find text -type f | sort | xargs md5sum > sums; md5sum -c sums; for d in 1 2 3 1 2 4 1 2 5; do cat text/d$d/* | wc; done; md5sum -c sums; true"
    record(["sh", "-c", script])


def xz(record):
    """xz of a file in blocks, tested, and parts of it taken out of the archive, while a log is written."""
    random = Random(33)
    write("data", "".join(f"{' '.join(names(random, 6))}\n" for _ in range(40000)))
    record(["sh", "-c", "xz -0 -k --block-size=256KiB data; xz -t data.xz; for n in 1 2 3; do xz -dc data.xz | head -n 9000 >> log; done;"
            " cmp data data; tail -n 2000 log; xz -t data.xz; true"])


HELD_OUT = {
    "grep": (grep, ["grep"]),
    "archive": (archive, ["tar", "gzip"]),
    "build": (build, ["make", "cc", "ld"]),
    "compare": (compare, ["diff"]),
    "awk": (awk, ["awk"]),
    "index": (index, ["sqlite3"]),
    "dbm": (dbm, ["python3"]),
    "merge": (merge, ["sort", "join"]),
    "perl": (perl, ["perl"]),
    "checksums": (checksums, ["md5sum", "find"]),
    "xz": (xz, ["xz"]),
}
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
    for name in sys.argv[2:] or [*TRACES, *HELD_OUT]:
        make, programs = {**TRACES, **HELD_OUT}[name]
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
            folder_out = os.path.join(FOLDER, "held_out" if name in HELD_OUT else "")
            os.makedirs(folder_out, exist_ok=True)
            shutil.copyfile(trace, os.path.join(folder_out, trace))
        finally:
            os.chdir("/")
            shutil.rmtree(folder)


main()
