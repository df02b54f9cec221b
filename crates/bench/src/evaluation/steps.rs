//! The experiments of a whole run, with commands that fit a machine of two cores.
//!
//! Owns: which experiments there are, their options, and how long they take about. A full run takes less than two
//! hours and a quick one less than fifteen minutes, together.

use std::path::Path;

/// An experiment of a whole run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvaluationStep {
    /// Its name, which is that of its JSON file and of its page in `docs/results/`.
    pub name: &'static str,
    /// What it shows.
    pub shows: &'static str,
    /// The arguments after `nectary bench`; `@` is a directory on the device to be measured.
    arguments: &'static str,
    /// Further arguments of a full run, and of a quick one.
    full: &'static str,
    quick: &'static str,
    /// About how long a full run takes, and a quick one. *Units*: minutes.
    minutes: (f64, f64),
}

/// All of them, in the order in which they run: first those of which the seeds have tables and figures.
pub const EVALUATION_STEPS: [EvaluationStep; 12] = [
    step(
        "store-table4",
        "the store beside file systems on disks of 1999, one thread",
        "store --seed table4",
        (17.0, 1.0),
    ),
    step("store-table5", "the same with four threads and two disks", "store --seed table5", (17.0, 1.0)),
    EvaluationStep {
        full: "--blocks 768",
        ..step("cache-dear", "programs on the live buffer cache under each policy", "cache --seed dear", (13.0, 2.0))
    },
    EvaluationStep {
        full: "--rounds 2",
        ..step("files-nrd", "small files on network RAM disks and on disks", "files --seed nrd --folder @", (18.0, 3.0))
    },
    EvaluationStep {
        full: "--passes 2 --request 4K,16K,64K,256K,1M,4M,16M",
        ..step("io-ncar", "a shared volume beside XFS, by size of request", "io @ --matrix ncar", (14.0, 1.0))
    },
    EvaluationStep {
        full: "--rounds 3 --local-names",
        ..step(
            "files-ncar",
            "creates, stats and unlinks on a shared volume",
            "files --seed ncar --folder @",
            (7.0, 1.0),
        )
    },
    EvaluationStep {
        full: "--embedded 5",
        ..step("store-bare", "the store beside file systems on this device", "store --disk bare --folder @", (3.0, 1.0))
    },
    EvaluationStep {
        full: "--rounds 5 --seconds 3 --requests 150000",
        ..step(
            "proxy",
            "caching proxies over HTTP: rates, latencies, hit rates, SIGKILL, conformance",
            "proxy --folder @",
            (15.0, 2.0),
        )
    },
    step("io", "what this device gives, by size of request", "io @", (4.0, 0.5)),
    EvaluationStep {
        quick: "--size 256M --pairs 3 --seconds 1",
        full: "--pairs 10",
        ..step("faster", "the store's reads and filling beside fio", "limits --folder @", (5.0, 1.0))
    },
    step("ram", "a donor of memory beside nbdkit", "ram", (6.0, 1.0)),
    step("files", "small files in a directory of this device", "files --folder @", (1.0, 0.5)),
];

const fn step(name: &'static str, shows: &'static str, arguments: &'static str, minutes: (f64, f64)) -> EvaluationStep {
    EvaluationStep { name, shows, arguments, full: "", quick: "--quick", minutes }
}

impl EvaluationStep {
    /// The arguments of `nectary`.
    pub fn arguments(&self, is_quick: bool, folder: &Path) -> Vec<String> {
        let place = |word: &str| if word == "@" { folder.display().to_string() } else { word.to_owned() };
        let more = if is_quick { self.quick } else { self.full };
        let words = self.arguments.split_whitespace().chain(more.split_whitespace());
        ["bench".to_owned()].into_iter().chain(words.map(place)).collect()
    }

    /// About how long it takes. *Units*: seconds.
    pub fn seconds(&self, is_quick: bool) -> u64 {
        let minutes = if is_quick { self.minutes.1 } else { self.minutes.0 };
        (minutes * 60.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_fits_its_time() {
        let sum = |is_quick| EVALUATION_STEPS.iter().map(|step| step.seconds(is_quick)).sum::<u64>();
        assert!(sum(false) <= 2 * 3600 && sum(true) <= 15 * 60, "{} {}", sum(false), sum(true));
    }

    #[test]
    fn step_commands_name_device_and_size() {
        let find = |name: &str| EVALUATION_STEPS.iter().find(|step| step.name == name).unwrap();
        let of = |name: &str, is_quick| find(name).arguments(is_quick, Path::new("/d")).join(" ");
        assert_eq!(of("store-table4", false), "bench store --seed table4");
        assert_eq!(of("io-ncar", true), "bench io /d --matrix ncar --quick");
        assert_eq!(of("proxy", true), "bench proxy --folder /d --quick");
        assert_eq!(of("proxy", false), "bench proxy --folder /d --rounds 5 --seconds 3 --requests 150000");
        assert_eq!(of("cache-dear", false), "bench cache --seed dear --blocks 768");
        assert_eq!(of("faster", true), "bench limits --folder /d --size 256M --pairs 3 --seconds 1");
    }
}
