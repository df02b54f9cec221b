//! Runs `nectary ram check` on real donors: it reports a device without damage as healthy, and finds a flipped byte, an
//! emptied donor, and both together.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nectary_e2e::attach::TestFileSystem;
use nectary_e2e::mirror::{DonorFault, DonorRig};
use nectary_e2e::nbd::NbdServer;
use nectary_e2e::ram::{AttachedRamDevice, cannot};
use serde_json::Value;

/// The offset of the pattern on the device. *Units*: bytes.
const PATTERN_AT: u64 = 5 << 20;
const BLOCK: usize = 4096;

/// The pattern to find in the memory of donors. It is computed, so that no program contains it.
fn pattern() -> Vec<u8> {
    (0..64u8).map(|at| at.wrapping_mul(37) ^ 0xc5).collect()
}

/// Writes 8 MiB without the page cache; one of the blocks begins with the pattern.
fn fill(disk: &AttachedRamDevice<'_>) {
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(&disk.device).unwrap();
    let mut memory = vec![0u8; (1 << 20) + BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    for part in 0..8u64 {
        let bytes = &mut memory[start..start + (1 << 20)];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (part as usize + at / BLOCK + at % 251) as u8;
        }
        if part == PATTERN_AT >> 20 {
            bytes[..64].copy_from_slice(&pattern());
        }
        file.write_all_at(bytes, part << 20).unwrap();
    }
    file.sync_all().unwrap();
}

/// Returns the problem of kind `what` in the block at [`PATTERN_AT`].
fn problem(checked: &Value, what: &str) -> Option<Value> {
    let problems = checked["problems"].as_array().cloned().unwrap_or_default();
    problems.into_iter().find(|problem| problem["what"] == what && problem["offset_bytes"] == PATTERN_AT)
}

fn has(checked: &Value, what: &str) -> bool {
    problem(checked, what).is_some()
}

/// Without a client a mirror is healthy; an emptied donor and a flipped byte are found.
#[test]
fn mirror_check_finds_planted_damage() {
    if cannot("ram check mirror") {
        return;
    }
    let mut rig = DonorRig::new("ram-check-mirror", TestFileSystem::Ext4, "mirror", 2).unwrap();
    let (spec, scratch) = (rig.spec(), rig.scratch.clone());
    let disk = AttachedRamDevice::new(&scratch, &spec).unwrap();
    fill(&disk);
    let (code, checked) = rig.check_donors().unwrap();
    assert_eq!(code, Some(5), "a client has it: {checked}");
    disk.detach().unwrap();
    let (code, checked) = rig.check_donors().unwrap();
    assert_eq!((code, &checked["health"]), (Some(0), &"healthy".into()), "{checked}");
    assert_eq!(checked["counts"]["compared_stripes"], 64, "{checked}");
    rig.break_donor(1, DonorFault::Kill).unwrap();
    rig.mend_donor(1, DonorFault::Kill).unwrap();
    let (code, checked) = rig.check_donors().unwrap();
    assert_eq!((code, &checked["counts"]["single_stripes"]), (Some(3), &64.into()), "{checked}");
    assert!(checked.to_string().contains("donor-missing"), "{checked}");
    // The next client fills the emptied donor. It trusts the remaining one of two donors only if the user says so.
    let disk = AttachedRamDevice::with(&scratch, &spec, &["--trust-remaining"]).unwrap();
    rig.wait_for_trusted(2).unwrap();
    let said = disk.detach().unwrap();
    assert!(said.contains("has nothing of this device (it was started again"), "{said}");
    let (code, checked) = rig.check_donors().unwrap();
    assert_eq!((code, &checked["is_detached"]), (Some(0), &true.into()), "{checked}");
    // The end of an export tells the donors as the end of an attachment does; before it, a client has the device.
    let export = NbdServer::nectary(scratch.path(), "export", &[&spec]).unwrap();
    assert_eq!(rig.check_donors().unwrap().0, Some(5));
    let (status, text) = export.terminate().unwrap();
    assert!(status.success(), "{text}");
    let (code, checked) = rig.check_donors().unwrap();
    assert_eq!((code, &checked["is_detached"]), (Some(0), &true.into()), "{checked}");
    assert!(rig.flip(0, &pattern()).unwrap() > 0, "the pattern is on every donor");
    let (code, checked) = rig.check_donors().unwrap();
    assert!(code == Some(1) && checked["counts"]["doubtful_blocks"] == 1, "{checked}");
    assert!(has(&checked, "copies-differ"), "{checked}");
}

/// Without a client parity is healthy; a flipped byte and an emptied donor are found.
#[test]
fn parity_check_finds_planted_damage() {
    if cannot("ram check parity") {
        return;
    }
    let mut rig = DonorRig::new("ram-check-parity", TestFileSystem::Ext4, "adaptive", 3).unwrap();
    let (spec, scratch) = (rig.spec(), rig.scratch.clone());
    let disk = AttachedRamDevice::new(&scratch, &spec).unwrap();
    fill(&disk);
    disk.detach().unwrap();
    let (code, checked) = rig.check_donors().unwrap();
    assert_eq!((code, &checked["health"]), (Some(0), &"healthy".into()), "{checked}");
    let counts = &checked["counts"];
    assert!(counts["mapped_blocks"] == 2048 && counts["compared_groups"].as_u64() >= Some(1000), "{checked}");
    // A client that is killed loses no data.
    let disk = AttachedRamDevice::new(&scratch, &spec).unwrap();
    fill(&disk);
    disk.kill().unwrap();
    let (code, checked) = rig.check_donors().unwrap();
    assert!(matches!(code, Some(0 | 3)) && checked["counts"]["lost_blocks"] == 0, "{code:?}: {checked}");
    // One donor has the data with the pattern; the others have at most their parity.
    let flipped: Vec<usize> = (0..3).filter(|donor| rig.flip(*donor, &pattern()).unwrap() > 0).collect();
    let (code, checked) = rig.check_donors().unwrap();
    assert!(code == Some(3) && checked["counts"]["lost_blocks"] == 0, "{code:?}: {checked}");
    // Other donors may have older copies of the block, with the same pattern.
    let damaged = problem(&checked, "slot-damaged").unwrap_or_else(|| panic!("flipped on {flipped:?}: {checked}"));
    let other = damaged["donor"].as_u64().expect("a donor has the slot") as usize % 3;
    rig.break_donor(other, DonorFault::Kill).unwrap();
    rig.mend_donor(other, DonorFault::Kill).unwrap();
    let (code, checked) = rig.check_donors().unwrap();
    // The block, and the other one of its group, if the emptied donor had that. If it had the group's summary, the
    // group counts as open, and what is read there is not known.
    let count = |name: &str| checked["counts"][name].as_u64().unwrap_or_default();
    let bad = count("lost_blocks") + count("doubtful_blocks");
    assert!(code == Some(1) && matches!(bad, 1 | 2), "{code:?}: {checked}");
    assert!(has(&checked, "block-lost") || has(&checked, "block-doubtful"), "{checked}");
}
