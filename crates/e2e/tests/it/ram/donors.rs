//! Tests the network RAM disk with real processes: donors that other programs use, and a file system on donors in other
//! network namespaces, which stand still and die.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use nectary_e2e::attach::{TestFileSystem, missing};
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nbd::{make_certificates, try_run, write_image};
use nectary_e2e::nectary::binary;
use nectary_e2e::ram::{AttachedRamDevice, DonorProcess, NetworkNamespace, STEP_MAX, run};
use nectary_e2e::report::not_run;
use nectary_e2e::rng::SeededRng;
use nectary_e2e::scratch::ScratchFolder;
use serde_json::Value;

/// The time for which a donor stands still.
const STILL: Duration = Duration::from_secs(2);
/// The unit in which blocks change donors. *Units*: bytes.
const UNIT: u64 = 64 << 10;

fn lacks(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().copied().filter(|name| find_program(name).is_none()).collect();
    if !missing.is_empty() {
        not_run(format!("{test}: there is no {}", missing.join(", no ")));
    }
    !missing.is_empty()
}

fn code(scratch: &ScratchFolder, arguments: &[&str]) -> (Option<i32>, String) {
    let (status, text) = try_run(scratch.path(), "nectary", arguments).unwrap();
    (status.code(), text)
}

/// Other clients use a donor as memory, and the status shows them.
#[test]
fn donor_serves_other_nbd_clients() {
    if lacks("ram donate", &["nbdinfo", "nbdcopy", "qemu-io"]) {
        return;
    }
    let scratch = ScratchFolder::new("ram-donor").unwrap();
    let donor =
        DonorProcess::start(&scratch, "donor", None, &["--memory", "32M", "--quota", "16M", "--label", "rack=a"])
            .unwrap();
    let url = |export: &str| format!("nbd://{}/{export}", donor.address);
    let (image, copy) = (scratch.join("image"), scratch.join("copy"));
    write_image(&image, 16 << 20, 5).unwrap();
    run(&scratch, "nbdcopy", &["--flush", &image.display().to_string(), &url("one/16M")]).unwrap();
    run(&scratch, "nbdcopy", &[&url("one"), &copy.display().to_string()]).unwrap();
    assert!(fs::read(&image).unwrap() == fs::read(&copy).unwrap());
    let pattern = ["-f", "raw", "-c", "write -P 7 4k 8k", "-c", "read -P 7 4k 8k", "-c", "read -P 0 12k 4k"];
    run(&scratch, "qemu-io", &[&pattern[..], &[&url("two/8M")]].concat()).unwrap();
    let info: Value = serde_json::from_str(&run(&scratch, "nbdinfo", &["--json", &url("two")]).unwrap()).unwrap();
    assert_eq!(info["exports"][0]["export-size"], 8 << 20, "{info}");
    let map: Value =
        serde_json::from_str(&run(&scratch, "nbdinfo", &["--map", "--json", &url("two")]).unwrap()).unwrap();
    assert_eq!(
        (&map[0]["type"], &map[1]["length"], &map[1]["type"]),
        (&3.into(), &(8 << 10).into(), &0.into()),
        "{map}"
    );
    let list = run(&scratch, "nectary", &["nbd", "list", &url("")]).unwrap();
    assert!(list.contains("\"one\"  16M, 8M of it written") && list.contains("labels=rack=a"), "{list}");
    // One device is larger than the quota, one is larger than the free memory, and one does not exist.
    for (export, words) in [("big/17M", "--quota"), ("three/10M", "8M of 32M are free"), ("absent", "no device")] {
        let (status, text) = code(&scratch, &["nbd", "info", &url(export)]);
        assert!(status != Some(0) && text.contains(words), "{export}: {text}");
    }
    let status: Value = serde_json::from_str(&run(&scratch, "nectary", &["status", "--json"]).unwrap()).unwrap();
    let of_donor = &status[0]["status"]["detail"]["donor"];
    assert_eq!((&of_donor["free_bytes"], &of_donor["is_locked"]), (&(8 << 20).into(), &true.into()), "{status}");
    assert_eq!((&of_donor["devices"][1]["id"], &of_donor["devices"][1]["used_bytes"]), (&"two".into(), &8192.into()));
    // A trim of the whole device frees its memory.
    run(&scratch, "qemu-io", &["-f", "raw", "-c", "discard 0 16M", &url("one")]).unwrap();
    assert_eq!(code(&scratch, &["nbd", "info", &url("three/16M")]).0, Some(0));
    let DonorProcess { mut process, .. } = donor;
    process.signal(libc::SIGTERM);
    assert!(process.wait(STEP_MAX).unwrap().success());
    assert!(process.log_text().contains("ends, and with it 8K of device two"), "{}", process.log_text());
}

#[test]
fn donor_mistakes_name_remedy() {
    let scratch = ScratchFolder::new("ram-mistakes").unwrap();
    let donor = DonorProcess::start(&scratch, "donor", None, &["--memory", "8M", "--on-demand"]).unwrap();
    let spec = format!("ram({},id=disk,size=4M)", donor.address);
    let (status, text) = code(&scratch, &["export", &spec, "--nbd", "tcp:127.0.0.1:0"]);
    assert!(status == Some(4) && text.contains("none of the donors (1)") && text.contains("ram create"), "{text}");
    run(&scratch, "nectary", &["ram", "create", &spec]).unwrap();
    let (status, text) = code(&scratch, &["ram", "create", &spec]);
    assert!(status == Some(5) && text.contains("holds device \"disk\" already"), "{text}");
    let two = format!("ram({},127.0.0.1:1,id=disk)", donor.address);
    let (status, text) = code(&scratch, &["export", &two, "--nbd", "tcp:127.0.0.1:0"]);
    assert!(status == Some(4) && text.contains("127.0.0.1:1: "), "{text}");
    let (status, text) =
        code(&scratch, &["export", &format!("ram({},id=dsik)", donor.address), "--nbd", "tcp:127.0.0.1:0"]);
    assert!(status == Some(4) && text.contains("no device \"dsik\"") || text.contains("device \"dsik\""), "{text}");
    // A SPEC of other donors deletes nothing, and a part that a device may need is not freed by mistake.
    let (status, text) = code(&scratch, &["ram", "delete", &two]);
    assert!(status == Some(2) && text.contains("the device has 1 donors, 2 are named: name all"), "{text}");
    let (status, text) = code(&scratch, &["ram", "delete", "--part", &spec]);
    assert!(status == Some(5) && text.contains("--force"), "{text}");
    run(&scratch, "nectary", &["ram", "delete", "--part", "--force", &spec]).unwrap();
    run(&scratch, "nectary", &["ram", "create", &spec]).unwrap();
    run(&scratch, "nectary", &["ram", "delete", &spec]).unwrap();
    assert_eq!(code(&scratch, &["ram", "delete", &spec]).0, Some(4));
    // A donor does not by mistake lend memory to every client that can reach it.
    let (status, text) = code(&scratch, &["ram", "donate", "--listen", "0.0.0.0:0", "--memory", "8M"]);
    assert!(status == Some(2) && text.contains("--tls-client-ca"), "{text}");
    let (status, text) = code(&scratch, &["ram", "donate", "--listen", "127.0.0.1:0", "--memory", "1M"]);
    assert!(status == Some(2) && text.contains("--memory 2M"), "{text}");
}

/// Memory that may not be locked is an error.
#[test]
fn unlockable_memory_error_names_remedy() {
    if lacks("RLIMIT_MEMLOCK", &["setpriv", "prlimit"]) {
        return;
    }
    let scratch = ScratchFolder::new("ram-locked").unwrap();
    let program = binary().unwrap();
    let mut command = Command::new("prlimit");
    command.args(["--memlock=65536", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(&program).args(["ram", "donate", "--listen", "127.0.0.1:0", "--memory", "8M"]);
    let (status, text) = guard::run("donate", command, &scratch.join("locked.log"), STEP_MAX).unwrap();
    if text.contains("failed to execute")
        || text.contains("must be superuser")
        || text.contains("not permitted: setresuid")
    {
        return not_run(format!("RLIMIT_MEMLOCK: {text}"));
    }
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("64K") && text.contains("--on-demand"), "{text}");
}

#[test]
fn tls_donor_requires_client_certificate() {
    if lacks("ram TLS", &["openssl"]) {
        return;
    }
    let scratch = ScratchFolder::new("ram-tls").unwrap();
    let pki = scratch.join("pki");
    make_certificates(&pki).unwrap();
    let file = |name: &str| pki.join(name).display().to_string();
    let (certificate, key, ca) = (file("server-cert.pem"), file("server-key.pem"), file("ca-cert.pem"));
    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &ca];
    let donor = DonorProcess::start(&scratch, "donor", None, &[&["--memory", "8M"][..], &tls].concat()).unwrap();
    let port = donor.address.rsplit(':').next().unwrap();
    let spec = |more: &str| format!("ram(\"nbds://localhost:{port}/{more}\",id=disk,size=4M)");
    let with = spec(&format!("?tls-certificates={}", pki.display()));
    run(&scratch, "nectary", &["ram", "create", &with]).unwrap();
    run(&scratch, "nectary", &["ram", "delete", &with]).unwrap();
    // Three cases fail: a client without a certificate, a client without TLS, and a donor that would not check
    // certificates.
    std::fs::remove_file(pki.join("client-cert.pem")).unwrap();
    let (status, text) = code(&scratch, &["ram", "create", &with]);
    assert!(status != Some(0) && text.contains(port), "{text}");
    let (status, text) = code(&scratch, &["ram", "create", &format!("ram({},id=disk,size=4M)", donor.address)]);
    assert!(status != Some(0) && text.contains("nbds://"), "{text}");
    let public =
        ["ram", "donate", "--listen", "0.0.0.0:0", "--memory", "8M", "--tls-cert", &certificate, "--tls-key", &key];
    let (status, text) = code(&scratch, &public);
    assert!(status == Some(2) && text.contains("--tls-client-ca"), "{text}");
}

/// The bytes of a file by its number.
fn content(number: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(number + 1);
    let length = 1 + rng.below(512 << 10) as usize;
    (0..length.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(length).collect()
}

/// Reads one block without the page cache.
fn read_block(device: &str, offset: u64) -> std::io::Result<()> {
    let file = fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(device)?;
    let mut memory = vec![0u8; 8192];
    let start = memory.as_ptr().align_offset(4096);
    file.read_exact_at(&mut memory[start..start + 4096], offset)
}

/// A donor that stands still delays ext4; one that dies causes I/O errors.
#[test]
fn ext4_survives_stopped_donor_only() {
    if let Some(reason) = missing(TestFileSystem::Ext4) {
        return not_run(format!("ram ext4: {reason}"));
    }
    if lacks("ram ext4", &["ip"]) {
        return;
    }
    let scratch = ScratchFolder::new("ram-ext4").unwrap();
    let namespaces: Result<Vec<NetworkNamespace>, _> = (0..2).map(|_| NetworkNamespace::new(&scratch)).collect();
    let namespaces = match namespaces {
        Ok(namespaces) => namespaces,
        Err(error) => return not_run(format!("ram ext4: no network namespaces: {error:#}")),
    };
    let start = |number: usize| {
        let name = format!("donor-{number}");
        DonorProcess::start(&scratch, &name, Some(&namespaces[number]), &["--memory", "48M"]).unwrap()
    };
    let mut donors = [start(0), start(1)];
    let spec = format!("ram({},{},id=disk,size=80M,patience=5s)", donors[0].address, donors[1].address);
    run(&scratch, "nectary", &["ram", "create", &spec]).unwrap();

    let disk = AttachedRamDevice::new(&scratch, &spec).unwrap();
    run(&scratch, "mkfs.ext4", &["-q", "-F", &disk.device]).unwrap();
    disk.mount().unwrap();
    for number in 0..32 {
        fs::write(disk.place.join(format!("file-{number}")), content(number)).unwrap();
    }
    disk.unmount().unwrap();
    println!("{}", disk.detach().unwrap());

    // Another attachment finds the file system on the donors.
    let disk = AttachedRamDevice::new(&scratch, &spec).unwrap();
    run(&scratch, "fsck.ext4", &["-f", "-n", &disk.device]).unwrap();
    disk.mount().unwrap();
    for number in 0..32 {
        let mut found = Vec::new();
        fs::File::open(disk.place.join(format!("file-{number}"))).unwrap().read_to_end(&mut found).unwrap();
        assert!(found == content(number), "file-{number} has other bytes");
    }
    let status: Value = serde_json::from_str(&run(&scratch, "nectary", &["status", "--json"]).unwrap()).unwrap();
    let text = status.to_string();
    assert!(text.contains("\"donors_up\":2") && text.contains("\"sessions\""), "{text}");

    // One donor stands still: a write takes longer by this time, and does not fail.
    donors[0].process.signal(libc::SIGSTOP);
    let (began, path) = (Instant::now(), disk.place.join("late"));
    let writer = std::thread::spawn(move || {
        let file = fs::File::create(path)?;
        file.write_all_at(&vec![7; 4 << 20], 0)?;
        file.sync_all()?;
        Ok::<_, std::io::Error>(began.elapsed())
    });
    std::thread::sleep(STILL);
    donors[0].process.signal(libc::SIGCONT);
    let took = writer.join().unwrap().expect("no error");
    println!("a donor that stood still for {STILL:?}: writing 4 MiB took {took:?}");
    assert!((STILL..STILL + Duration::from_secs(8)).contains(&took), "{took:?}");

    // One donor dies: reads of its blocks fail within a bounded time, reads of other blocks succeed, and the device can
    // be detached.
    donors[1].process.kill();
    let began = Instant::now();
    let results: Vec<bool> = (0..8).map(|unit| read_block(&disk.device, unit * UNIT).is_ok()).collect();
    let took = began.elapsed();
    println!("a donor that died: 8 reads took {took:?}, {results:?}");
    assert_eq!(results, [true, false].repeat(4), "units are on the donors in turn");
    assert!(took < Duration::from_secs(20), "{took:?}");
    let (_, text) = code(&scratch, &["status", "--json"]);
    assert!(text.contains("\"donors_up\": 1") && text.contains("1 of 2 donors do not answer"), "{text}");
    let began = Instant::now();
    let _ = disk.unmount();
    // A detach does not give up data unless the user forces it.
    let (is_detached, text) = disk.try_detach().unwrap();
    assert!(!is_detached && text.contains("--force"), "{text}");
    disk.detach().unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let loops = Command::new("losetup").arg("-a").output().unwrap();
    assert!(!String::from_utf8_lossy(&loops.stdout).contains(&scratch.path().display().to_string()));
}
