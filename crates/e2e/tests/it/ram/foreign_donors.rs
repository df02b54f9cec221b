//! NBD servers of other projects as donors of a network RAM disk.

use std::path::Path;

use nectary_e2e::guard::find_program;
use nectary_e2e::nbd::{NbdServer, run, try_run, write_image};
use nectary_e2e::ram::DonorProcess;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::ScratchFolder;

/// The size of the device, and of each donor of another project. *Units*: bytes.
const DEVICE_BYTES: usize = 24 << 20;
const DONOR_BYTES: u64 = 8 << 20;

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Nbdkit, nbd-server, QEMU and our donor lend memory to one device.
#[test]
fn foreign_donors_serve_one_device() {
    let programs = ["nbdkit", "nbd-server", "qemu-nbd", "nbdcopy"];
    let missing: Vec<&str> = programs.into_iter().filter(|name| find_program(name).is_none()).collect();
    if !missing.is_empty() {
        return not_run(format!("foreign donors: there is no {}", missing.join(", no ")));
    }
    let scratch = ScratchFolder::new("ram-foreign").unwrap();
    let folder = scratch.path();
    for name in ["reference.img", "qemu.img"] {
        std::fs::File::create(scratch.join(name)).unwrap().set_len(DONOR_BYTES).unwrap();
    }
    let nbdkit = NbdServer::nbdkit(folder, "nbdkit", &["memory", &DONOR_BYTES.to_string()]).unwrap();
    let (reference, _daemon) = NbdServer::reference(folder, &scratch.join("reference.img")).unwrap();
    let qemu = NbdServer::qemu(folder, &scratch.join("qemu.img")).unwrap();
    let ours = DonorProcess::start(&scratch, "donor", None, &["--memory", "16M"]).unwrap();
    let spec = format!(
        "ram(\"{}\",\"{}\",\"{}\",{},id=disk,size={DEVICE_BYTES},patience=5s)",
        nbdkit.url(""),
        reference.url("disk"),
        qemu.url("disk"),
        ours.address
    );
    run(folder, "nectary", &["ram", "create", &spec]).unwrap();
    let (image, copy) = (scratch.join("image"), scratch.join("copy"));
    write_image(&image, DEVICE_BYTES, 9).unwrap();
    let export = NbdServer::nectary(folder, "first", &[&format!("disk={spec}")]).unwrap();
    run(folder, "nbdcopy", &["--flush", &text(&image), &export.url("disk")]).unwrap();
    assert!(export.terminate().unwrap().0.success());

    // The next client finds the contents on all four donors.
    let export = NbdServer::nectary(folder, "second", &[&format!("disk={spec}")]).unwrap();
    run(folder, "nbdcopy", &[&export.url("disk"), &text(&copy)]).unwrap();
    assert!(std::fs::read(&image).unwrap() == std::fs::read(&copy).unwrap(), "other bytes came back");

    // One donor ends: its blocks cause errors, and the next opening names this donor.
    assert!(qemu.terminate().is_ok());
    let (status, printed) = try_run(folder, "nbdcopy", &[&export.url("disk"), &text(&copy)]).unwrap();
    assert!(!status.success(), "{printed}");
    drop(export);
    let (status, printed) = try_run(folder, "nectary", &["export", &spec, "--nbd", "tcp:127.0.0.1:0"]).unwrap();
    assert!(!status.success() && printed.contains("qemu.sock"), "{printed}");
}
