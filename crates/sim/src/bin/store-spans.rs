//! `store-spans`: stores of several spans that are lost and return, against a model.
//!
//! Exits with 0 if no purged or replaced object reappeared, even after a span was restored from an older copy, only
//! objects of lost spans were lost, and each planted bug was caught by a seed that catches it again. With `--bug NAME
//! --replay SEED` it runs only the store of that seed with that bug planted, and exits with 0 if the bug was caught.

use std::io::Write;

use nectary_sim::arguments::Arguments;
use nectary_sim::late::in_virtual_time;
use nectary_sim::planted::{self, Case};
use nectary_sim::store::spans_run::{SpansOptions, replay_planted, run, run_planted};
use nectary_store::planted::Bug;

const ARGUMENTS: [&str; 7] = ["seed", "stores", "events", "keys", "bug", "replay", "log"];
/// A planted bug must be caught within this many stores.
const PLANTED_STORES_MAX: u64 = 4000;

fn main() -> std::process::ExitCode {
    let arguments = match Arguments::parse("store-spans", &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let names = Bug::SPANS.map(Bug::name);
    let replay = |name: &str, case: Case| replay_planted(planted::named(&Bug::SPANS, name), case.seed);
    if let Some((name, case)) = Case::of(&arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE };
    }
    let options = SpansOptions {
        seed: arguments.number("seed", 1),
        stores: arguments.number("stores", 500),
        events: arguments.number("events", 12),
        keys: arguments.number("keys", 120) as u32,
        stops_at_difference: false,
    };
    let begun = std::time::Instant::now();
    let report = in_virtual_time(run(options.clone(), |done| {
        eprint!("\r{done} of {} stores, {:.0} s", options.stores, begun.elapsed().as_secs_f64());
        let _ = std::io::stderr().flush();
    }));
    eprintln!();
    for difference in &report.differences {
        println!("DIFFERENT {difference}");
    }
    let [killed, stopped, failed] = report.ends;
    let [earlier, same] = report.put_back;
    println!(
        "seed {}: {} stores, {} operations, {} spans lost while serving, {} came back, ends: {killed} killed, {stopped} clean, {failed} \
         by a loss of power; {} opens ended by a crash, {} refused; spans put back as they were in an earlier life {earlier}, \
         in the same {same}",
        options.seed,
        options.stores,
        report.operations,
        report.losses,
        report.returns,
        report.torn_opens,
        report.refused
    );
    println!(
        "{} hits, {} misses; after a loss {} hits demanded of other spans, {} missing; differences {}",
        report.hits,
        report.misses,
        report.demanded,
        report.demanded_missing,
        report.differences.len()
    );
    let find = |name: &str| run_planted(planted::named(&Bug::SPANS, name), options.seed ^ 77, PLANTED_STORES_MAX);
    let caught = planted::catch_each("store-spans", &names, find, replay);
    let survivors = caught.iter().filter(|(.., is_good)| !is_good).count();
    let good = report.differences.is_empty()
        && survivors == 0
        && report.losses >= options.stores
        && report.returns >= options.stores
        && report.demanded >= options.stores
        && earlier + same >= options.stores / 2;
    arguments.log(&serde_json::json!({
        "check": "store-spans", "seed": options.seed, "stores": options.stores, "operations": report.operations,
        "losses": report.losses, "returns": report.returns, "ends": report.ends, "refused": report.refused,
        "put_back": report.put_back, "hits": report.hits, "misses": report.misses, "demanded": report.demanded,
        "demanded_missing": report.demanded_missing, "differences": report.differences.len(),
        "planted": caught, "planted_survived": survivors, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
