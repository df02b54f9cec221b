//! Donors of a mirror are drained to spares under a file system whose every byte is checked: one by the command, one by
//! SIGTERM.

use nectary_e2e::attach::TestFileSystem;
use nectary_e2e::mirror::{DonorRig, ProbedLoad, VerifiedFiles};
use nectary_e2e::nbd::try_run;
use nectary_e2e::ram::{AttachedRamDevice, cannot, run};

/// Both donors are removed without an error or a wrong byte.
#[test]
fn mirror_donors_drained_under_load() {
    if cannot("ram drain") {
        return;
    }
    let mut rig = DonorRig::new("ram-drain", TestFileSystem::Ext4, "mirror", 2).unwrap();
    rig.add_spare().unwrap();
    rig.add_spare().unwrap();
    let scratch = rig.scratch.clone();
    let disk = AttachedRamDevice::new(&scratch, &rig.spec()).unwrap();
    rig.make(&disk).unwrap();
    let files = VerifiedFiles::write(&disk.place, 5).unwrap();
    let load = ProbedLoad::start(&scratch, &disk.place, 7).unwrap();
    let said = run(&scratch, "nectary", &["ram", "drain", &disk.device, rig.address(0)]).unwrap();
    assert!(said.contains("has nothing of the device any more"), "{said}");
    let spare = rig.address(2).trim_end_matches(";spare").to_owned();
    let spec = format!("'ram({spare},{},{},id=disk,redundancy=mirror)'", rig.address(1), rig.address(3));
    assert!(said.lines().any(|line| line == spec), "{spec}: {said}");
    let member = ["ram", "replace", "--json", &disk.device, "1", rig.address(1)];
    let (status, text) = try_run(scratch.path(), "nectary", &member).unwrap();
    assert!(status.code() == Some(1) && text.contains("is donor 2 of the device already"), "{text}");
    assert!(text.contains("what to do: give another donor"), "{text}");
    let absent = ["ram", "replace", &disk.device, "1", "127.0.0.1:1"];
    assert_eq!(try_run(scratch.path(), "nectary", &absent).unwrap().0.code(), Some(4));
    rig.leave(0).unwrap();
    rig.leave(1).unwrap();
    rig.wait_for_trusted(2).unwrap();
    let figures = rig.figures().unwrap();
    assert_eq!((&figures["replaced"], &figures["left"]), (&2.into(), &0.into()), "it was never degraded: {figures}");
    let (status, text) = try_run(scratch.path(), "nectary", &["ram", "drain", &disk.device, "1"]).unwrap();
    assert!(status.code() == Some(1) && text.contains("no spare is left"), "{text}");
    let account = load.end().unwrap();
    assert_eq!((account.errors, account.wrong), (0, 0), "{account:?}");
    assert_eq!(files.problems(&disk.place), Vec::<String>::new());
    disk.unmount().unwrap();
    rig.check(&disk).unwrap();
    disk.detach().unwrap();
    // The SPEC still names the donors that are gone.
    assert_eq!(rig.check_donors().unwrap().0, Some(0));
}
