//! Tests network RAM disks with parity, with real processes: the loss of one donor loses no data and causes no
//! error, and synced data survive the client.

use std::time::Instant;

use nectary_e2e::attach::FileSystem;
use nectary_e2e::mirror::{Fault, round};
use nectary_e2e::ram::{Donor, cannot, run};
use nectary_e2e::scratch::Scratch;

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

#[test]
fn creating_parity_in_place_says_that_it_is_for_comparison_alone() {
    let scratch = Scratch::new("ram-comparison").unwrap();
    let start = |number: u32| {
        let memory = ["--memory", "24M", "--on-demand"];
        Donor::start(&scratch, &format!("donor-{number}"), None, &memory).unwrap()
    };
    let donors = [start(0), start(1), start(2)];
    let names = donors.each_ref().map(|donor| donor.address.as_str()).join(",");
    for (redundancy, is_warned) in [("parity", true), ("mirror", false), ("adaptive", false)] {
        let spec = format!("ram({names},id={redundancy},size=4M,redundancy={redundancy})");
        let said = run(&scratch, "nectary", &["ram", "create", &spec]).unwrap();
        assert_eq!(said.contains("is for comparison alone"), is_warned, "{redundancy}: {said}");
    }
}
