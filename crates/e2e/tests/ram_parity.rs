//! Tests network RAM disks with parity, with real processes: the loss of one donor loses no data and causes no
//! error, and synced data survive the client.

use std::time::Instant;

use nectary_e2e::attach::FileSystem;
use nectary_e2e::mirror::{Fault, round};
use nectary_e2e::ram::cannot;

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

#[test]
fn ext4_on_parity_in_place_has_no_error_and_no_wrong_byte_while_one_donor_is_killed_stopped_and_cut_off() {
    if cannot("ram parity") {
        return;
    }
    let began = Instant::now();
    let done = round("ram-parity", FileSystem::Ext4, "parity", 3, &Fault::ALL, 1).unwrap();
    println!(
        "{} faults in {:?}: {} operations, longest gap {:?}",
        done.faults,
        began.elapsed(),
        done.account.operations,
        done.account.gap
    );
}
