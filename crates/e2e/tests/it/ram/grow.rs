//! A device with a file system grows, and then the file system: every file stays, and the new space is used.

use std::fs;

use nectary_e2e::attach::TestFileSystem;
use nectary_e2e::mirror::{DonorRig, VerifiedFiles};
use nectary_e2e::ram::{AttachedRamDevice, cannot, run};

fn grown(redundancy: &str, donors: u32) {
    let rig = DonorRig::new(&format!("ram-grow-{redundancy}"), TestFileSystem::Ext4, redundancy, donors).unwrap();
    let scratch = rig.scratch.clone();
    let disk = AttachedRamDevice::new(&scratch, &rig.spec()).unwrap();
    rig.make(&disk).unwrap();
    let files = VerifiedFiles::write(&disk.place, 5).unwrap();
    disk.unmount().unwrap();
    disk.detach().unwrap();
    let small = run(&scratch, "nectary", &["ram", "grow", &rig.spec(), "--size", "40G"]).unwrap_err().to_string();
    assert!(small.contains("are needed") && small.contains(rig.address(0)), "{small}");
    let said = run(&scratch, "nectary", &["ram", "grow", &rig.spec(), "--size", "72M"]).unwrap();
    assert!(said.contains("of 72M has grown"), "{said}");
    let disk = AttachedRamDevice::new(&scratch, &rig.spec()).unwrap();
    rig.check(&disk).unwrap();
    // Without a check after the last mount, resize2fs refuses.
    run(&scratch, "fsck.ext4", &["-f", "-p", &disk.device]).unwrap();
    run(&scratch, "resize2fs", &[&disk.device]).unwrap();
    disk.mount().unwrap();
    assert_eq!(files.problems(&disk.place), Vec::<String>::new());
    // The file system is full only with what is in the new part.
    let filling = vec![7; 1 << 20];
    let place = disk.place.join("filling");
    fs::create_dir(&place).unwrap();
    let count = (0..).take_while(|number| fs::write(place.join(number.to_string()), &filling).is_ok()).count();
    assert!(count > 0);
    for number in 0..count {
        assert!(fs::read(place.join(number.to_string())).unwrap() == filling, "{number}");
    }
    assert_eq!(files.problems(&disk.place), Vec::<String>::new());
    disk.unmount().unwrap();
    rig.check(&disk).unwrap();
    disk.detach().unwrap();
    assert_eq!(rig.check_donors().unwrap().0, Some(0));
}

#[test]
fn a_mirror_with_ext4_grows() {
    if cannot("ram grow mirror") {
        return;
    }
    grown("mirror", 2);
}

/// The device grows with ext4 on it.
#[test]
fn parity_in_place_grows() {
    if cannot("ram grow parity") {
        return;
    }
    grown("parity", 3);
}

/// The device grows with ext4 on it.
#[test]
fn logged_parity_device_grows() {
    if cannot("ram grow adaptive") {
        return;
    }
    grown("adaptive", 3);
}
