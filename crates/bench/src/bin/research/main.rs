//! `research`: the programs that measure the figures in `docs/research`, one subcommand each.
//!
//! Owns: the list of subcommands. Leaves to others: their options, output and exit codes, one folder each.

mod cache_figures;
mod cache_memory;
mod memory_tier;
mod mounted_files;
mod page;
mod policies_outside;

use std::process::ExitCode;

/// A subcommand: its name, its description, and the function that runs it with the arguments after its name.
type Subcommand = (&'static str, &'static str, fn(&[String]) -> ExitCode);

const SUBCOMMANDS: [Subcommand; 5] = [
    ("cache-figures", "the figures that `dear` and `adaptive` have to reach", cache_figures::main),
    ("cache-memory", "the memory that policies and caches are charged with, and that they use", cache_memory::main),
    ("memory-tier", "the hit rates of a web cache's memory tier under each policy", memory_tier::main),
    ("mounted-files", "what a directory costs and saves that is mounted through the cache", mounted_files::main),
    ("policies-outside", "the policies' misses against those of libcachesim", policies_outside::main),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = words.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    if let Some((.., run)) = SUBCOMMANDS.iter().find(|subcommand| subcommand.0 == name) {
        return run(rest);
    }
    if ["list", "--help", "-h"].contains(&name) {
        SUBCOMMANDS.iter().for_each(|(name, about, _)| println!("{name:<20} {about}"));
        return ExitCode::SUCCESS;
    }
    eprintln!("research: usage: research list, or one of");
    SUBCOMMANDS.iter().for_each(|(name, about, _)| eprintln!("  {name:<20} {about}"));
    ExitCode::from(2)
}
