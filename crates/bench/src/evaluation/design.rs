//! The list of the figures of the design pages.
//!
//! Owns: their names and targets, and which measured figures or which command each of them is about. Leaves to others:
//! the states (`targets`).

/// What measures a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FigureMeasure {
    /// Figures of experiments whose names match one of these; `*` stands for anything.
    Figures(&'static [&'static str]),
    /// Another command, which judges it.
    Elsewhere(&'static str),
    /// Nothing yet.
    Nothing,
}

/// A figure of a design page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DesignFigure {
    /// The page: `store`, `proxy`, `cache`, `ram` or `volume`.
    pub page: &'static str,
    /// Its name in the page's table.
    pub name: &'static str,
    /// What it measures.
    pub what: &'static str,
    /// The target.
    pub target: &'static str,
    /// What measures it.
    pub measure: FigureMeasure,
}

const fn by(page: &'static str, name: &'static str, texts: [&'static str; 2], measure: FigureMeasure) -> DesignFigure {
    let [what, target] = texts;
    DesignFigure { page, name, what, target, measure }
}

use FigureMeasure::{Elsewhere, Figures, Nothing};

/// All of them, in the order of the pages.
pub(super) const DESIGN_FIGURES: [DesignFigure; 58] = [
    by(
        "store",
        "table-4",
        [
            "requests/s of a proxy's workload beside file systems, on a disk of 1999",
            "4.6 times XFS at 4 GB, 3.5 times at 9 and 18 GB, 13 times the stand-in of EFS",
        ],
        Figures(&[
            "ratio.4gb.xfs.*",
            "ratio.9gb.xfs.*",
            "ratio.18gb.xfs.*",
            "ratio.4gb.ext4-dirsync.50",
            "ratio.4gb.ext4-dirsync.128",
        ]),
    ),
    by(
        "store",
        "best-of-xfs",
        ["the best ratio to XFS, as the seed's own rows have it", "7.6 times"],
        Figures(&["ratio.best.xfs"]),
    ),
    by(
        "store",
        "table-5",
        [
            "the same with four threads and two disks",
            "2.3 times the asynchronous stand-in; two disks never slower than one",
        ],
        Figures(&["ratio.*.ext4-async.50", "ratio.*.nectary-one-disk"]),
    ),
    by(
        "store",
        "bare",
        [
            "the same on a device of today",
            "2 times XFS without hints, 5 times with hints at five embedded objects a page",
        ],
        Figures(&["ratio.embedded-5.xfs.*", "ratio_hints_off.embedded-5.xfs.*"]),
    ),
    by(
        "store",
        "hit-rate",
        ["the hit rate at equal size of the disk", "at least the file systems'"],
        Figures(&["hit_rate_beyond_peers.*"]),
    ),
    by(
        "store",
        "reads",
        ["disk reads of objects that are not in memory, 32 at once", "0.9 of what fio reads"],
        Figures(&["limits.read.depth32.nectary_of_fio"]),
    ),
    by(
        "store",
        "fill",
        ["the rate of filling", "0.75 of fio's sequential writes, 0.9 of one copy and one sum"],
        Figures(&["limits.fill.nectary_of_fio", "limits.fill.nectary_of_copied"]),
    ),
    by(
        "store",
        "index",
        ["memory of the index", "10 B an object"],
        Elsewhere("cargo run --release -p nectary-bench --example memory-per-object"),
    ),
    by(
        "store",
        "restart",
        [
            "a restart after SIGKILL with ten million objects",
            "first hit and first write within 1 s; 1.5 times the time of a million; 95 % within 5 s",
        ],
        Elsewhere("cargo run --release -p nectary-bench --example restart"),
    ),
    by(
        "store",
        "written",
        ["bytes written to the device for each byte admitted", "1.25; 1.10 without re-insertion"],
        Figures(&["written_per_byte_put.*"]),
    ),
    by(
        "store",
        "foyer",
        [
            "requests/s and hit rate beside foyer",
            "more requests/s, at least its hit rate, a quarter of its index memory",
        ],
        Figures(&["ratio.embedded-5.foyer*", "hit_rate_beyond_foyer.*"]),
    ),
    by(
        "store",
        "ablations",
        [
            "hints, size of clusters, placement, re-insertion, one changed at a time",
            "in a report, whichever way they fall",
        ],
        Elsewhere("nectary bench store --seed table4 --ablations"),
    ),
    by(
        "proxy",
        "large-bodies",
        ["a body of 200 MiB and more from disk through the proxy", "0.8 of fio's sequential reads"],
        Elsewhere("make bench ARGS=large"),
    ),
    by(
        "proxy",
        "cache-tests",
        ["the suite for HTTP caches", "158 of 160 required, 100 of 105 optimal"],
        Figures(&["proxy.cache_tests.required.nectary", "proxy.cache_tests.optimal.nectary"]),
    ),
    by(
        "proxy",
        "smuggling",
        ["requests with two meanings that reach the origin as they are", "none"],
        Figures(&["proxy.smuggling.through.nectary"]),
    ),
    by(
        "proxy",
        "memory",
        ["requests/s and latency from memory beside nginx, Varnish, Squid, Traffic Server", "2 times the best of them"],
        Figures(&["proxy.memory.over_best", "proxy.memory.p99.over_best"]),
    ),
    by(
        "proxy",
        "pressure",
        ["requests/s and p99 with a working set of four times memory", "1.5 times the best of them"],
        Figures(&["proxy.pressure.over_best", "proxy.pressure.p99.over_best"]),
    ),
    by(
        "proxy",
        "pressure-modelled",
        ["the same on a modelled disk, `model(disk=ssd-sata)`", "1.5 times the best of them"],
        Nothing,
    ),
    by(
        "proxy",
        "sigkill",
        ["hit rate, requests/s and p99 after SIGKILL under load", "95 % of those before within 5 s"],
        Figures(&[
            "proxy.restart.recovered_s.nectary",
            "proxy.restart.requests_recovered_s.nectary",
            "proxy.restart.p99_recovered_s.nectary",
        ]),
    ),
    by(
        "cache",
        "anchors",
        ["misses against exact anchors from outside", "equal at every point"],
        Elsewhere("cargo run --release -p nectary-bench -- policies-outside"),
    ),
    by(
        "cache",
        "dear-misses",
        [
            "`dear` on cs, gli, cpp and ps with 768 blocks",
            "no more than the table; 27 % fewer misses than LRU on average",
        ],
        Elsewhere("cargo run --release -p nectary-bench -- cache-figures --only dear"),
    ),
    by(
        "cache",
        "adaptive-misses",
        [
            "`adaptive` against the best of LRU, ARC, S3-FIFO, LIRS and W-TinyLFU",
            "the sum 1 % above at most, any point 5 %",
        ],
        Elsewhere("cargo run --release -p nectary-bench -- cache-figures"),
    ),
    by(
        "cache",
        "public-traces",
        ["the same on twelve public traces", "the sum 1.5 % above at most, any point 5 %"],
        Elsewhere("cargo run --release -p nectary-bench -- cache-figures --only public"),
    ),
    by(
        "cache",
        "leaders",
        ["changes of `adaptive`'s leader while the pattern stays the same", "one in 20 capacities of accesses"],
        Elsewhere("cargo run --release -p nectary-bench -- cache-figures --only changes"),
    ),
    by(
        "cache",
        "memory",
        ["what is charged beside what is used", "within 3 %; tables of 120 bytes a block, 200 for `adaptive`"],
        Elsewhere("cargo run --release -p nectary-bench -- cache-memory"),
    ),
    by(
        "cache",
        "directory",
        ["a cached directory", "a million files under 1,024 descriptors; an open reader sees growth and truncation"],
        Elsewhere("cargo run --release -p nectary-e2e -- cache-files"),
    ),
    by(
        "cache",
        "three-traces",
        ["cs+cpp+ps with 1536 blocks", "9285 misses"],
        Elsewhere("cargo run --release -p nectary-bench -- cache-figures --only triple"),
    ),
    by(
        "cache",
        "simulated-cost",
        [
            "the cost of a reference in simulations",
            "10 M references/s for LRU; 50 ns for `dear`, 100 ns for `adaptive` above it",
        ],
        Elsewhere("cargo run --release -p nectary-bench -- cache-figures --only cost"),
    ),
    by(
        "cache",
        "live-cost",
        ["DEAR's bookkeeping on the live cache (the seed's Figure 8)", "0.5 us a reference; 2 us a hit"],
        Figures(&["above_lru_us.hits.dear", "above_lru_us.half_misses.dear", "hit_us.*"]),
    ),
    by(
        "cache",
        "programs",
        ["real programs alone, against LRU", "23 % fewer reads, 12 % less time"],
        Figures(&[
            "reads_saved.alone.dear",
            "reads_saved.alone.adaptive",
            "time_saved.alone.dear",
            "time_saved.alone.adaptive",
        ]),
    ),
    by(
        "cache",
        "programs-together",
        ["several programs at once, against LRU", "12 % fewer reads, 8 % less time"],
        Figures(&[
            "reads_saved.together.dear",
            "reads_saved.together.adaptive",
            "time_saved.together.dear",
            "time_saved.together.adaptive",
        ]),
    ),
    by(
        "ram",
        "one-donor",
        [
            "one donor beside nbdkit's memory, with the same client",
            "0.95 times at depth 1, 1.2 times with four jobs of depth 32",
        ],
        Figures(&["ram.*.of_nbdkit"]),
    ),
    by(
        "ram",
        "adaptive-files",
        ["`adaptive` against `none` over the same donors: creating and deleting files", "within 10 %"],
        Figures(&["*.written.unshaped.adaptive-3.over_none-2"]),
    ),
    by("ram", "adaptive-programs", ["the same with tar and a compiler", "within 10 %"], Nothing),
    by(
        "ram",
        "synchronous-files",
        ["`adaptive` against `mirror` on synchronous mounts", "1.1 times its time"],
        Figures(&["*.sync.unshaped.adaptive-3.over_mirror-2"]),
    ),
    by(
        "ram",
        "adaptive-fio",
        [
            "the same with fio: reads, fresh writes, overwrites of a full device",
            "reads within 10 %; fresh writes 0.95/(1 + 1/S)",
        ],
        Nothing,
    ),
    by(
        "ram",
        "transfers",
        ["transfers for each written block, `adaptive`, 1 to 16 streams", "1.05 x (1 + 1/S)"],
        Elsewhere("nectary ram simulate --check (docs/research/ram-transfers.md)"),
    ),
    by(
        "ram",
        "files",
        [
            "creating and deleting files, synchronous mount, beside the local disk and the disk of 1999",
            "4 times the local disk where the device allows it, 8 times the other",
        ],
        Figures(&["*.sync.unshaped.none-2.over_disk", "*.sync.unshaped.none-2.over_hdd-1999"]),
    ),
    by(
        "ram",
        "lost-donor",
        [
            "SIGKILL, SIGSTOP or a cut donor under verified requests, also while the device changes",
            "no error, no wrong byte",
        ],
        Elsewhere("cargo run --release -p nectary-e2e -- ram-donors; ram-second-failure"),
    ),
    by(
        "ram",
        "longest-wait",
        [
            "the longest wait of a request when a donor dies, freezes or is slow",
            "p99.99 20 ms above the undisturbed run, 50 ms at most",
        ],
        Nothing,
    ),
    by(
        "ram",
        "two-donors-lost",
        ["two donors lost", "errors for the lost blocks after one `patience`"],
        Elsewhere("cargo run --release -p nectary-sim -- ram-simulation"),
    ),
    by(
        "ram",
        "rebuild",
        ["the rate of a rebuild", "half of nbdcopy's; foreground requests keep half of theirs"],
        Nothing,
    ),
    by(
        "ram",
        "client-killed",
        ["SIGKILL of the client, and attaching again", "everything flushed is there, mounted within 5 s"],
        Elsewhere("cargo run --release -p nectary-e2e -- ram-donors"),
    ),
    by(
        "volume",
        "ncar-direct",
        ["the NCAR set with direct requests, from both hosts", "1.25 times the time that a bare FUSE server adds"],
        Figures(&["ncar.volume.*.added_over_bare"]),
    ),
    by(
        "volume",
        "ncar-streams",
        ["the same with two streams, beside local XFS", "0.9 of its rate"],
        Figures(&["ncar.volume.*.over_xfs"]),
    ),
    by(
        "volume",
        "library",
        ["requests by the library, without FUSE", "one I/O and no copy each; processor time for each GiB beside fio's"],
        Nothing,
    ),
    by(
        "volume",
        "watched-writer",
        [
            "a writer while another host asks for the size every 10 ms; a follower of a growing file",
            "half of its rate alone; every line, in order",
        ],
        Elsewhere("cargo test --release -p nectary-e2e --test it volume::shared"),
    ),
    by(
        "volume",
        "buffered-streams",
        ["buffered streams of four times memory", "0.9 of XFS from requests of 128 KiB on"],
        Nothing,
    ),
    by(
        "volume",
        "posix",
        ["pjdfstest on one mount, and on two in turns", "every test that ext4 passes"],
        Elsewhere("cargo run --release -p nectary-e2e -- volume-tree"),
    ),
    by(
        "volume",
        "fsx",
        ["a million operations of fsx; a writer and a verifier on two mounts", "no difference"],
        Elsewhere("cargo run --release -p nectary-e2e -- volume-tree"),
    ),
    by(
        "volume",
        "histories",
        ["histories of several mounts under SIGKILL, SIGSTOP and cut networks", "linearizable"],
        Elsewhere("cargo run --release -p nectary-e2e -- volume-takeover"),
    ),
    by(
        "volume",
        "creates",
        ["creates and unlinks a second, one thread", "0.5 of a bare FUSE server; 5,000 and 10,000 at least"],
        Figures(&["create.threads1.volume-*.over_bare", "unlink.threads1.volume-*.over_bare"]),
    ),
    by(
        "volume",
        "creates-two-hosts",
        ["creates and unlinks of two hosts in two directories", "1.8 times one"],
        Nothing,
    ),
    by(
        "volume",
        "creates-beside-juicefs",
        ["creates, stats and unlinks a second beside JuiceFS", "5 times as many"],
        Figures(&["create.threads*.over_juicefs", "stat.threads*.over_juicefs", "unlink.threads*.over_juicefs"]),
    ),
    by(
        "volume",
        "stats",
        ["stats of a tree in use, while names are fresh", "0.9 of the bare server"],
        Figures(&["stat.threads1.volume-*.over_bare"]),
    ),
    by(
        "volume",
        "stats-of-others",
        ["stats that each need an answer of the server", "0.5 of the bare server"],
        Nothing,
    ),
    by("volume", "programs", ["git, compiling, npm", "2 times the time on local XFS"], Nothing),
    by(
        "volume",
        "takeover",
        ["a server that is killed, stopped or loses its disk, with a stand-by", "3.5 s at p99; planned within 200 ms"],
        Elsewhere("cargo run --release -p nectary-e2e -- volume-takeover"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once() {
        let mut names: Vec<(&str, &str)> = DESIGN_FIGURES.iter().map(|one| (one.page, one.name)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DESIGN_FIGURES.len());
        for page in ["store", "proxy", "cache", "ram", "volume"] {
            assert!(names.iter().any(|name| name.0 == page), "{page}");
        }
    }
}
