//! Tests a network RAM disk that logs parity, with real processes: the loss of one donor loses no data and causes no
//! error, and synced data survive the client.

use std::time::Instant;

use nectary_e2e::attach::{FileSystem, missing};
use nectary_e2e::guard::find_program;
use nectary_e2e::mirror::{Fault, round};
use nectary_e2e::ram::Namespace;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::Scratch;

/// Whether this machine cannot run the test; prints the reason.
fn cannot(test: &str) -> bool {
    let mut reason = missing(FileSystem::Ext4);
    if find_program("ip").is_none() {
        reason = Some("there is no ip".to_owned());
    }
    if reason.is_none() {
        let tried = Scratch::new("ram-namespaces").and_then(|scratch| Namespace::new(&scratch).map(drop));
        reason = tried.err().map(|error| format!("no network namespaces: {error:#}"));
    }
    if let Some(reason) = &reason {
        not_run(format!("{test}: {reason}"));
    }
    reason.is_some()
}

#[test]
fn ext4_on_parity_log_has_no_error_and_no_wrong_byte_while_one_donor_is_killed_stopped_and_cut_off() {
    if cannot("ram parity-log") {
        return;
    }
    let began = Instant::now();
    let done = round("ram-parity-log", FileSystem::Ext4, "parity-log", 3, &Fault::ALL, 1).unwrap();
    println!(
        "{} faults in {:?}: {} operations, longest gap {:?}",
        done.faults,
        began.elapsed(),
        done.account.operations,
        done.account.gap
    );
}
