//! A donor is replaced under a file system whose every byte is checked.

use nectary_e2e::attach::TestFileSystem;
use nectary_e2e::mirror::{DonorFault, DonorRig, ProbedLoad, VerifiedFiles};
use nectary_e2e::nbd::try_run;
use nectary_e2e::ram::{AttachedRamDevice, cannot, run};

fn replaced(redundancy: &str, donors: u32) {
    let mut rig =
        DonorRig::new(&format!("ram-replace-{redundancy}"), TestFileSystem::Ext4, redundancy, donors).unwrap();
    let scratch = rig.scratch.clone();
    let disk = AttachedRamDevice::new(&scratch, &rig.spec()).unwrap();
    rig.make(&disk).unwrap();
    let files = VerifiedFiles::write(&disk.place, 5).unwrap();
    let load = ProbedLoad::start(&scratch, &disk.place, 7).unwrap();
    let before = load.done();
    rig.replace(&disk, 0).unwrap();
    let (_, status) = try_run(scratch.path(), "nectary", &["status", "--json"]).unwrap();
    assert!(status.contains(&rig.spec()), "the SPEC names the donor that took the place: {status}");
    rig.wait_for_trusted(u64::from(donors)).unwrap();
    let figures = rig.figures().unwrap();
    assert_eq!((&figures["replaced"], &figures["left"]), (&1.into(), &0.into()), "it was never degraded: {figures}");
    let meanwhile = load.done() - before;
    let account = load.end().unwrap();
    println!("{redundancy}: replaced under {meanwhile} operations of the prober, longest gap {:?}", account.gap);
    assert_eq!((account.errors, account.wrong), (0, 0), "{account:?}");
    // The new donor has all data of the former one, so another donor can be lost now.
    rig.break_donor(1, DonorFault::Kill).unwrap();
    rig.wait_for_trusted(u64::from(donors) - 1).unwrap();
    assert_eq!(files.problems(&disk.place), Vec::<String>::new());
    for (arguments, code, words) in
        [(["1", "127.0.0.1:1"], Some(1), "is not whole"), (["9", "127.0.0.1:1"], Some(2), rig.address(0))]
    {
        let command = [&["ram", "replace", &disk.device][..], &arguments].concat();
        let (status, text) = try_run(scratch.path(), "nectary", &command).unwrap();
        assert!(status.code() == code && text.contains(words), "{text}");
    }
    disk.unmount().unwrap();
    rig.check(&disk).unwrap();
    // It is known by the present SPEC, too.
    run(&scratch, "nectary", &["detach", &rig.spec()]).unwrap();
    disk.detach().unwrap();
}

/// There is no error and no wrong byte.
#[test]
fn mirror_donor_replaced_under_ext4() {
    if cannot("ram replace mirror") {
        return;
    }
    replaced("mirror", 2);
}

/// There is no error and no wrong byte.
#[test]
fn parity_donor_replaced_under_ext4() {
    if cannot("ram replace adaptive") {
        return;
    }
    replaced("adaptive", 3);
}
