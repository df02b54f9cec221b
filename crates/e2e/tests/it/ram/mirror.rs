//! Tests a mirrored network RAM disk with real processes: the loss of one donor loses no data and causes no error, and
//! a client whose device was taken over writes nothing more.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

use nectary_e2e::attach::{TestFileSystem, turns};
use nectary_e2e::mirror::{DonorFault, DonorRig, round};
use nectary_e2e::nbd::try_run;
use nectary_e2e::ram::{AttachedRamDevice, cannot};
use nectary_e2e::scratch::ScratchFolder;

/// Ext4 has no error and no wrong byte while one donor is killed, stopped and cut off.
#[test]
fn mirror_survives_donor_faults() {
    if cannot("ram mirror") {
        return;
    }
    let began = Instant::now();
    let done = round("ram-mirror", TestFileSystem::Ext4, "mirror", 2, &DonorFault::ALL, 1).unwrap();
    println!(
        "{} faults in {:?}: {} operations, longest gap {:?}",
        done.faults,
        began.elapsed(),
        done.account.operations,
        done.account.gap
    );
}

/// Writes or reads the first block without the page cache; returns its first byte.
fn block(device: &str, write: Option<u8>) -> std::io::Result<u8> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(device)?;
    let mut memory = vec![write.unwrap_or_default(); 8192];
    let start = memory.as_ptr().align_offset(4096);
    let memory = &mut memory[start..start + 4096];
    match write {
        Some(_) => file.write_all_at(memory, 0)?,
        None => file.read_exact_at(memory, 0)?,
    }
    Ok(memory[0])
}

/// Late writes of the first client change nothing.
#[test]
fn second_client_refused_or_takes_over() {
    if cannot("ram take-over") {
        return;
    }
    let rig = DonorRig::new("ram-taken", TestFileSystem::Ext4, "mirror", 2).unwrap();
    let spec = rig.spec();
    let (one, two) = (ScratchFolder::new("ram-one").unwrap(), ScratchFolder::new("ram-two").unwrap());
    let mut first = AttachedRamDevice::new(&one, &spec).unwrap();
    block(&first.device, Some(1)).unwrap();
    let turn = turns::beside();
    let (status, text) = try_run(two.path(), "nectary", &["attach", &spec]).unwrap();
    drop(turn);
    assert!(status.code() == Some(5) && text.contains("--take-over"), "{text}");
    // The first client stands still while a program writes to its device.
    first.stop().unwrap();
    let late = {
        let device = first.device.clone();
        std::thread::spawn(move || block(&device, Some(9)))
    };
    let second = AttachedRamDevice::with(&two, &spec, &["--take-over"]).unwrap();
    assert_eq!(block(&second.device, None).unwrap(), 1);
    block(&second.device, Some(2)).unwrap();
    first.go_on();
    assert!(late.join().unwrap().is_err(), "a write of a client that was taken over has to fail");
    assert!(block(&first.device, Some(9)).is_err());
    assert_eq!(block(&second.device, None).unwrap(), 2);
    let (status, text) = try_run(one.path(), "nectary", &["status"]).unwrap();
    assert!(status.code() == Some(1) && text.contains("another client has taken the device over"), "{text}");
    // It is detached, and its last flush failed.
    let (status, text) = try_run(one.path(), "nectary", &["detach", "--force", &first.device]).unwrap();
    assert!(status.code() == Some(3) && text.contains("it is detached"), "{text}");
    first.detach().unwrap();
    second.detach().unwrap();
}
