//! Damage in the memory of a donor's process is found and repaired while the device is attached.

use nectary_e2e::attach::TestFileSystem;
use nectary_e2e::mirror::{DonorRig, VerifiedFiles};
use nectary_e2e::nbd::try_run;
use nectary_e2e::ram::{AttachedRamDevice, cannot};

/// Damage in a donor is repaired.
#[test]
fn mirror_scrub_repairs_under_ext4() {
    if cannot("ram scrub") {
        return;
    }
    let rig = DonorRig::new("ram-scrub", TestFileSystem::Ext4, "mirror", 2).unwrap();
    let scratch = rig.scratch.clone();
    let disk = AttachedRamDevice::new(&scratch, &rig.spec()).unwrap();
    rig.make(&disk).unwrap();
    let files = VerifiedFiles::write(&disk.place, 5).unwrap();
    let pattern: Vec<u8> = (0..64u8).map(|at| at.wrapping_mul(37) ^ 0xc5).collect();
    let path = disk.place.join("pattern");
    std::fs::write(&path, pattern.repeat(64)).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let scrub = || try_run(scratch.path(), "nectary", &["ram", "scrub", &disk.device]).unwrap();
    let (status, text) = scrub();
    assert!(status.code() == Some(0) && text.contains("nothing is damaged"), "{text}");
    assert!(rig.flip(1, &pattern).unwrap() > 0);
    let (status, text) = scrub();
    assert!(status.code() == Some(3) && text.contains("1 damaged copies were repaired"), "{text}");
    let (_, text) = try_run(scratch.path(), "nectary", &["status"]).unwrap();
    assert!(text.contains("1 damaged copies were found and repaired"), "{text}");
    assert_eq!(files.problems(&disk.place), Vec::<String>::new());
    disk.unmount().unwrap();
    rig.check(&disk).unwrap();
    disk.detach().unwrap();
    assert_eq!(rig.check_donors().unwrap().0, Some(0));
}
