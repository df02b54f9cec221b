//! Tests network RAM disks with parity, with real processes: the loss of one donor loses no data and causes no
//! error, and synced data survive the client.

use std::time::Instant;

use nectary_e2e::attach::FileSystem;
use nectary_e2e::mirror::{Fault, round};
use nectary_e2e::ram::cannot;

/// Runs a round of faults on a device with this redundancy.
fn survives_faults(redundancy: &str) {
    if cannot(&format!("ram {redundancy}")) {
        return;
    }
    let began = Instant::now();
    let done = round(&format!("ram-{redundancy}"), FileSystem::Ext4, redundancy, 3, &Fault::ALL, 1).unwrap();
    println!(
        "{} faults in {:?}: {} operations, longest gap {:?}",
        done.faults,
        began.elapsed(),
        done.account.operations,
        done.account.gap
    );
}

#[test]
fn ext4_on_parity_log_has_no_error_and_no_wrong_byte_while_one_donor_is_killed_stopped_and_cut_off() {
    survives_faults("parity-log");
}

#[test]
fn ext4_on_parity_in_place_has_no_error_and_no_wrong_byte_while_one_donor_is_killed_stopped_and_cut_off() {
    survives_faults("parity");
}
