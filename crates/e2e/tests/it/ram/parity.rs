//! Tests network RAM disks with parity, with real processes: the loss of one donor loses no data and causes no
//! error, and synced data survive the client.

use std::time::Instant;

use nectary_e2e::attach::TestFileSystem;
use nectary_e2e::mirror::{DonorFault, round};
use nectary_e2e::ram::{DonorProcess, cannot, run};
use nectary_e2e::scratch::ScratchFolder;

/// Runs a round of faults on a device with this redundancy.
fn survives_faults(redundancy: &str) {
    if cannot(&format!("ram {redundancy}")) {
        return;
    }
    let began = Instant::now();
    let done = round(&format!("ram-{redundancy}"), TestFileSystem::Ext4, redundancy, 3, &DonorFault::ALL, 1).unwrap();
    println!(
        "{} faults in {:?}: {} operations, longest gap {:?}",
        done.faults,
        began.elapsed(),
        done.account.operations,
        done.account.gap
    );
}

/// Ext4 has no error and no wrong byte while one donor is killed, stopped and cut off.
#[test]
fn parity_log_survives_donor_faults() {
    survives_faults("parity-log");
}

/// Ext4 has no error and no wrong byte while one donor is killed, stopped and cut off.
#[test]
fn in_place_parity_survives_donor_faults() {
    survives_faults("parity");
}

/// The warning says that in-place parity is for comparison only.
#[test]
fn in_place_parity_creation_warns() {
    let scratch = ScratchFolder::new("ram-comparison").unwrap();
    let start = |number: u32| {
        let memory = ["--memory", "24M", "--on-demand"];
        DonorProcess::start(&scratch, &format!("donor-{number}"), None, &memory).unwrap()
    };
    let donors = [start(0), start(1), start(2)];
    let names = donors.each_ref().map(|donor| donor.address.as_str()).join(",");
    for (redundancy, is_warned) in [("parity", true), ("mirror", false), ("adaptive", false)] {
        let spec = format!("ram({names},id={redundancy},size=4M,redundancy={redundancy})");
        let said = run(&scratch, "nectary", &["ram", "create", &spec]).unwrap();
        assert_eq!(said.contains("is for comparison alone"), is_warned, "{redundancy}: {said}");
    }
}
