//! The tables and figures of the seed documents, with the values that they print.
//!
//! Owns: the list of what a report has, by number; the seeds' numbers; and where a seed contradicts itself.

use serde::Serialize;

use super::Evaluation;
use crate::io::{ncar_figure_id, ncar_titles};

/// A table or figure of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedItem {
    /// Its name in links and lists.
    pub id: String,
    /// What it shows, with its number.
    pub title: String,
    /// The experiment that reproduces it.
    pub experiment: &'static str,
    /// Where the seed contradicts itself, and which side is followed; empty if it does not.
    pub slip: &'static str,
}

/// Why the table of recovery times is not one of `bench all`.
pub const NO_RECOVERY: &str = "the seed documents name this section, but have no values of it; the restart of a store of \
    ten million objects is measured by `cargo run --release -p nectary-bench --example restart` (docs/research/restart.md)";

/// All tables and figures, by seed and number.
pub fn seed_items() -> Vec<SeedItem> {
    let item = |id: &str, title: &str, experiment, slip| SeedItem {
        id: id.to_owned(),
        title: title.to_owned(),
        experiment,
        slip,
    };
    let mut items = vec![
        item(
            "table-4",
            "Hummingbird, Table 4: beside XFS and EFS, one thread",
            "store-table4",
            "The table prints 15 GB where the text says 18 GB: 18 GB is followed.",
        ),
        item("table-5", "Hummingbird, Table 5: beside UFS, four threads, two disks", "store-table5", ""),
        item("recovery", "Hummingbird, recovery performance", "", ""),
        item("dear-figure-7", "DEAR, Figure 7: block reads and response time", "cache-dear", ""),
        item("dear-figure-8", "DEAR, Figure 8: parts of the response time", "cache-dear", ""),
        item("dear-sensitivity", "DEAR, section 4.5: cache sizes, periods, sublists", "cache-dear", ""),
        item("nrd-figure-11", "Network RamDisk, Figure 11: creating files", "files-nrd", ""),
        item("nrd-figure-12", "Network RamDisk, Figure 12: deleting files at random", "files-nrd", ""),
    ];
    items.extend((1..).zip(ncar_titles()).map(|(number, title)| SeedItem {
        id: ncar_figure_id(number),
        title: format!("NCAR, {title}"),
        experiment: "io-ncar",
        slip: match number {
            8 => "The report's list has two figures 7; the second is this one.",
            11 | 12 => "The caption says \"read\", the list of figures \"write\": the list is followed.",
            _ => "",
        },
    }));
    items
}

/// A table or figure of a seed, and whether a report has its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrawnItem {
    /// Its name.
    pub id: String,
    /// What it shows, with its number.
    pub title: String,
    /// The experiment that reproduces it; empty if none does.
    pub experiment: &'static str,
    /// Why it has no values; `None` if it has.
    pub not_drawn: Option<String>,
}

/// All tables and figures of the seeds, and which of them a report has.
pub fn drawn_items(evaluation: &Evaluation) -> Vec<DrawnItem> {
    let drawn = |item: SeedItem| {
        let not_drawn = match (item.experiment, evaluation.get(item.experiment)) {
            ("", _) => Some(NO_RECOVERY.to_owned()),
            (_, Some(_)) => None,
            (experiment, None) => Some(evaluation.why_not(experiment)),
        };
        DrawnItem { id: item.id, title: item.title, experiment: item.experiment, not_drawn }
    };
    seed_items().into_iter().map(drawn).collect()
}

/// The requests of the trace behind the seed's tables.
pub const SEED_REQUESTS: f64 = 4.8e6;

/// A row of the seed's tables, in its columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeedRow {
    /// The file system.
    pub system: &'static str,
    /// The disk's size, as printed.
    pub disk: &'static str,
    /// The memory, and how it is divided. *Units*: MB.
    pub memory: &'static str,
    /// The proxy's hit rate.
    pub hit_rate: f64,
    /// The file system's time for a read, and for a write. *Units*: milliseconds.
    pub read_ms: f64,
    /// The same for a write.
    pub write_ms: f64,
    /// The number of disk I/Os.
    pub ios: f64,
    /// The mean time of a disk I/O. *Units*: milliseconds.
    pub io_ms: f64,
    /// The run time. *Units*: seconds.
    pub run_s: f64,
    /// The group and the contender that stand for it here.
    pub here: (&'static str, &'static str),
}

type Printed = (&'static str, &'static str, &'static str, [f64; 6], (&'static str, &'static str));

const fn row(printed: Printed) -> SeedRow {
    let (system, disk, memory, [hit_rate, read_ms, write_ms, ios, io_ms, run_s], here) = printed;
    SeedRow { system, disk, memory, hit_rate, read_ms, write_ms, ios, io_ms, run_s, here }
}

/// The seed's Table 4.
pub const TABLE4: [SeedRow; 11] = [
    row(("Hum", "4 GB", "256", [0.62, 2.82, 0.20, 922_871.0, 9.85, 9926.0], ("4gb", "nectary"))),
    row(("EFS", "4 GB", "50+206", [0.62, 14.79, 46.38, 10_784_969.0, 10.99, 128_878.0], ("4gb", "ext4-dirsync.50"))),
    row(("XFS", "4 GB", "50+206", [0.62, 14.97, 16.56, 10_870_353.0, 6.67, 75_565.0], ("4gb", "xfs.50"))),
    row(("EFS", "4 GB", "128+128", [0.62, 14.08, 48.33, 10_540_778.0, 11.37, 130_359.0], ("4gb", "ext4-dirsync.128"))),
    row(("XFS", "4 GB", "128+128", [0.62, 14.90, 13.95, 10_115_369.0, 6.72, 70_746.0], ("4gb", "xfs.128"))),
    row(("Hum", "9 GB", "256", [0.66, 3.30, 0.21, 1_028_922.0, 10.77, 11_861.0], ("9gb", "nectary"))),
    row(("XFS", "9 GB", "50+206", [0.66, 15.47, 12.39, 9_558_954.0, 7.02, 69_929.0], ("9gb", "xfs.50"))),
    row(("XFS", "9 GB", "128+128", [0.66, 15.65, 8.80, 8_737_878.0, 7.12, 64_726.0], ("9gb", "xfs.128"))),
    row(("Hum", "15 GB", "256", [0.67, 3.71, 0.21, 1_049_121.0, 11.92, 13_313.0], ("18gb", "nectary"))),
    row(("XFS", "15 GB", "50+206", [0.67, 16.71, 5.73, 8_103_576.0, 7.60, 63_371.0], ("18gb", "xfs.50"))),
    row(("XFS", "15 GB", "128+128", [0.67, 15.91, 5.79, 7_841_184.0, 7.55, 60_943.0], ("18gb", "xfs.128"))),
];

/// The seed's Table 5.
pub const TABLE5: [SeedRow; 8] = [
    row(("Hummingbird", "4 GB", "256", [0.64, 4.86, 1.34, 1_478_005.0, 11.68, 11_743.0], ("4gb", "nectary"))),
    row(("UFS-async", "4 GB", "256", [0.66, 5.92, 6.39, 5_638_201.0, 10.72, 30_427.0], ("4gb", "ext4-async.50"))),
    row(("UFS-soft", "4 GB", "256", [0.66, 3.25, 20.42, 9_405_301.0, 9.76, 45_655.0], ("4gb", "ext4.50"))),
    row(("UFS", "4 GB", "256", [0.66, 6.71, 15.86, 10_771_201.0, 9.05, 48_577.0], ("4gb", "ext4-dirsync.50"))),
    row(("Hummingbird", "8 GB", "256", [0.67, 6.12, 1.40, 1_556_169.0, 14.08, 12_997.0], ("8gb", "nectary"))),
    row(("UFS-async", "8 GB", "256", [0.67, 6.19, 5.18, 5_466_061.0, 10.67, 29_354.0], ("8gb", "ext4-async.50"))),
    row(("UFS-soft", "8 GB", "256", [0.67, 6.04, 14.67, 8_678_761.0, 10.52, 44_622.0], ("8gb", "ext4.50"))),
    row(("UFS", "8 GB", "256", [0.67, 6.78, 9.73, 8_903_641.0, 8.74, 38_464.0], ("8gb", "ext4-dirsync.50"))),
];

/// What the paper on DEAR saves against LRU, in percent: the figure here, the paper's mean, and its greatest value.
pub const DEAR_SAVED: [(&str, f64, f64); 4] = [
    ("reads_saved.alone.dear", 23.0, 51.0),
    ("time_saved.alone.dear", 12.0, 35.0),
    ("reads_saved.together.dear", 12.0, 20.0),
    ("time_saved.together.dear", 8.0, 18.0),
];

/// The paper's response times by cache size, DEAR and LRU in seconds, at 2, 4, 6 and 8 MB.
pub const DEAR_BY_SIZE: [(&str, [(f64, f64); 4]); 4] = [
    ("cscope", [(16.99, 19.79), (14.90, 19.79), (12.87, 19.77), (11.17, 19.77)]),
    ("glimpse", [(39.12, 40.70), (35.68, 39.72), (33.73, 39.55), (32.87, 37.49)]),
    ("sort", [(18.16, 18.50), (15.54, 17.45), (13.60, 16.59), (12.10, 14.68)]),
    ("cpp", [(132.94, 159.59), (94.42, 97.94), (91.61, 93.39), (91.36, 91.82)]),
];

/// The times that the Network RamDisk's paper prints for creating 16,384 files over ATM, in milliseconds a file: the
/// contender here, its name there, and the time.
pub const NRD_CREATE_MS: [(&str, &str, f64); 2] =
    [("hdd-1999", "magnetic disk", 12.629), ("none-2-cached", "unreliable, block caching", 7.601)];
/// The number of these files, and the link that stands for ATM.
pub const NRD_FILES: u64 = 16_384;
pub const NRD_LINK: &str = "155mbit";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_names_and_experiments() {
        let items = seed_items();
        assert_eq!(items.len(), 8 + 20);
        let mut ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 28);
        let known: Vec<&str> = super::super::EVALUATION_STEPS.iter().map(|step| step.name).collect();
        assert!(items.iter().all(|item| item.experiment.is_empty() || known.contains(&item.experiment)));
        assert_eq!(items.iter().filter(|item| !item.slip.is_empty()).count(), 4);
    }

    #[test]
    fn seed_ratios_match_paper_text() {
        // "2-4 times greater than for UFS, UFS-async, and UFS-soft"
        let of = |rows: &[SeedRow], group: &str| {
            rows.iter().filter(|row| row.here.0 == group).map(|row| row.run_s).collect::<Vec<_>>()
        };
        for group in ["4gb", "8gb"] {
            let times = of(&TABLE5, group);
            assert!(times[1..].iter().all(|time| (2.0..4.2).contains(&(time / times[0]))), "{times:?}");
        }
        assert!(TABLE4.iter().all(|row| row.here.1.starts_with("nectary") == (row.system == "Hum")));
    }
}
