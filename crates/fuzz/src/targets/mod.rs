//! The registry of fuzz targets.
//!
//! Owns: the definition of a target, and the list of all targets. A new decoder gets a line here, a function in the
//! file of its crate, and a folder with the target's name in `corpus/`.

mod block;
mod config;
mod fuse;
mod http;
mod http_reference;
mod nbd;
mod proxy_header;
mod ram;
mod store;
mod trace;
mod volume;

/// A decoder, and the settings for fuzzing it.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// Its name, which is also its folder in `corpus/`.
    pub name: &'static str,
    /// The function that decodes an input; it panics if a property is broken.
    pub run: fn(&[u8]),
    /// The function that makes valid inputs with the writer of the format; `fuzz seeds` adds them to the corpus.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Typical parts of the format, which the mutator inserts.
    pub words: &'static [&'static [u8]],
    /// The longest input. *Units*: bytes.
    pub input_bytes_max: usize,
    /// The largest amount of memory that a run may have at one time. *Units*: bytes.
    pub memory_bytes_max: usize,
    /// The number of mutants that the default tests run.
    pub mutants: u64,
}

const MIB: usize = 1 << 20;

const TARGET: FuzzTarget = FuzzTarget {
    name: "",
    run: |_| {},
    seeds: Vec::new,
    words: &[],
    input_bytes_max: 4096,
    memory_bytes_max: 8 * MIB,
    mutants: 20_000,
};

const STORE: FuzzTarget = FuzzTarget { words: store::WORDS, mutants: 4000, ..TARGET };
const TEXT: FuzzTarget = FuzzTarget { words: http::WORDS, input_bytes_max: 2048, ..TARGET };
const NBD: FuzzTarget = FuzzTarget { words: nbd::WORDS, mutants: 10_000, ..TARGET };
const TRACE: FuzzTarget = FuzzTarget { memory_bytes_max: 160 * MIB, mutants: 4000, ..TARGET };

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "store-superblock", run: store::superblock, seeds: store::superblock_seeds, ..STORE },
    FuzzTarget { name: "store-state", run: store::state, seeds: store::state_seeds, mutants: 1000, ..STORE },
    FuzzTarget { name: "store-append", run: store::append, seeds: store::append_seeds, ..STORE },
    FuzzTarget { name: "store-record", run: store::record, seeds: store::record_seeds, ..STORE },
    FuzzTarget { name: "store-segment", run: store::segment, seeds: store::segment_seeds, mutants: 500, ..STORE },
    FuzzTarget {
        name: "store-checkpoint",
        run: store::checkpoint,
        seeds: store::checkpoint_seeds,
        mutants: 1000,
        ..STORE
    },
    FuzzTarget { name: "store-hot-list", run: store::hot_list, seeds: store::hot_list_seeds, mutants: 500, ..STORE },
    FuzzTarget { name: "store-purge-log", run: store::purge_log, seeds: store::purge_log_seeds, mutants: 500, ..STORE },
    FuzzTarget {
        name: "store-image",
        run: store::image,
        seeds: store::image_seeds,
        memory_bytes_max: 64 * MIB,
        mutants: 100,
        ..STORE
    },
    FuzzTarget { name: "http-metadata", run: http::metadata, seeds: http::metadata_seeds, ..TEXT },
    FuzzTarget { name: "http-requests", run: http::requests, seeds: http::request_seeds, ..TEXT },
    FuzzTarget { name: "http-responses", run: http::responses, seeds: http::response_seeds, ..TEXT },
    FuzzTarget { name: "http-rules", run: http::rules, seeds: http::rule_seeds, mutants: 10_000, ..TEXT },
    FuzzTarget { name: "http-dates", run: http::dates, seeds: http::date_seeds, ..TEXT },
    FuzzTarget { name: "http-urls", run: http::urls, seeds: http::url_seeds, ..TEXT },
    FuzzTarget {
        name: "proxy-header",
        run: proxy_header::header,
        seeds: proxy_header::header_seeds,
        words: proxy_header::WORDS,
        input_bytes_max: 512,
        ..TARGET
    },
    FuzzTarget { name: "block-recording", run: block::recording, seeds: block::recording_seeds, ..TARGET },
    FuzzTarget { name: "block-spec", run: block::spec, seeds: block::spec_seeds, words: block::WORDS, ..TARGET },
    FuzzTarget { name: "block-sizes", run: block::sizes, seeds: block::size_seeds, words: block::WORDS, ..TARGET },
    FuzzTarget {
        name: "config-file",
        run: config::file,
        seeds: config::file_seeds,
        words: config::WORDS,
        memory_bytes_max: 32 * MIB,
        mutants: 3000,
        ..TARGET
    },
    FuzzTarget { name: "fuse-request", run: fuse::request, seeds: fuse::request_seeds, words: fuse::WORDS, ..TARGET },
    FuzzTarget { name: "nbd-server", run: nbd::server, seeds: nbd::server_seeds, ..NBD },
    FuzzTarget { name: "nbd-client", run: nbd::client, seeds: nbd::client_seeds, ..NBD },
    FuzzTarget { name: "nbd-replies", run: nbd::replies, seeds: nbd::reply_seeds, ..NBD },
    FuzzTarget { name: "nbd-url", run: nbd::url, seeds: nbd::url_seeds, words: nbd::URL_WORDS, ..NBD },
    FuzzTarget { name: "ram-slots", run: ram::slots, seeds: ram::slot_seeds, words: ram::WORDS, ..TARGET },
    FuzzTarget { name: "trace-text", run: trace::text, seeds: trace::text_seeds, words: trace::WORDS, ..TRACE },
    FuzzTarget {
        name: "trace-arc",
        run: trace::arc,
        seeds: trace::arc_seeds,
        words: trace::WORDS,
        mutants: 400,
        ..TRACE
    },
    FuzzTarget { name: "trace-csv", run: trace::csv, seeds: trace::csv_seeds, words: trace::WORDS, ..TRACE },
    FuzzTarget { name: "trace-vscsi", run: trace::vscsi, seeds: trace::vscsi_seeds, ..TRACE },
    FuzzTarget {
        name: "trace-oracle-general",
        run: trace::oracle_general,
        seeds: trace::oracle_general_seeds,
        ..TRACE
    },
    FuzzTarget {
        name: "trace-access-log",
        run: trace::access_log,
        seeds: trace::access_log_seeds,
        words: trace::LOG_WORDS,
        ..TRACE
    },
    FuzzTarget { name: "trace-nectary", run: trace::nectary, seeds: trace::nectary_seeds, ..TRACE },
    FuzzTarget { name: "volume-frame", run: volume::frame, seeds: volume::frame_seeds, words: volume::WORDS, ..TARGET },
    FuzzTarget { name: "volume-value", run: volume::value, seeds: volume::value_seeds, words: volume::WORDS, ..TARGET },
    FuzzTarget {
        name: "volume-message",
        run: volume::message,
        seeds: volume::message_seeds,
        words: volume::WORDS,
        ..TARGET
    },
    FuzzTarget {
        name: "trace-compressed",
        run: trace::compressed,
        seeds: trace::compressed_seeds,
        mutants: 4000,
        ..TRACE
    },
];

/// Finds a target by its name.
pub fn by_name(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Splits an input into its first byte, whose bits choose among the variants of a run, and the rest.
fn choices(input: &[u8]) -> (u8, &[u8]) {
    input.split_first().map_or((0, input), |(&choices, rest)| (choices, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_unique_names_bounded_seeds() {
        let names: std::collections::BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names.len(), TARGETS.len());
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for seed in seeds {
                assert!(seed.len() <= target.input_bytes_max, "{}: {} bytes", target.name, seed.len());
            }
        }
    }
}
