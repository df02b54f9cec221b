//! Tests NBD with real programs: other clients on our server, our client on other servers, and TLS.

use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nectary_e2e::guard::{GuardedProcess, find_program};
use nectary_e2e::nbd::{NbdServer, PATIENCE, make_certificates, run, try_run, write_image};
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::{ScratchFolder, free_address};
use serde_json::Value;

/// An odd size for images, in bytes: it is not a multiple of the units to which servers may round sizes.
const IMAGE_BYTES: usize = (9 << 20) + 4096;

/// Returns whether programs are missing, and prints their names.
fn lacks(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().copied().filter(|name| find_program(name).is_none()).collect();
    if !missing.is_empty() {
        not_run(format!("{test}: there is no {}", missing.join(", no ")));
    }
    !missing.is_empty()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn is_same(one: &Path, other: &Path) -> bool {
    std::fs::read(one).expect("it is read") == std::fs::read(other).expect("it is read")
}

/// Libnbd reads, writes and queries the exports.
#[test]
fn libnbd_uses_our_server() {
    if lacks("nbdcopy", &["nbdcopy", "nbdinfo"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-libnbd").unwrap();
    let (folder, image, copy) = (scratch.path(), scratch.join("image"), scratch.join("copy"));
    write_image(&image, IMAGE_BYTES, 1).unwrap();
    let disk = format!("disk={}", scratch.join("disk").display());
    let size = IMAGE_BYTES.to_string();
    let server = NbdServer::nectary(folder, "export", &[&disk, "small=memory:1M", "--size", &size]).unwrap();
    run(folder, "nbdcopy", &[&text(&image), &server.url("disk")]).unwrap();
    run(folder, "nbdcopy", &["--flush", &server.url("disk"), &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy));

    let info: Value =
        serde_json::from_str(&run(folder, "nbdinfo", &["--json", &server.url("small")]).unwrap()).unwrap();
    let export = &info["exports"][0];
    assert_eq!((&info["protocol"], &info["structured"]), (&"newstyle-fixed".into(), &true.into()), "{info}");
    assert_eq!(export["export-size"], 1 << 20, "{info}");
    for what in
        ["can_flush", "can_fua", "can_trim", "can_zero", "can_df", "can_cache", "can_fast_zero", "can_multi_conn"]
    {
        assert_eq!(export[what], true, "{what}: {info}");
    }
    assert_eq!((&export["block_size_minimum"], &export["block_size_maximum"]), (&1.into(), &(32 << 20).into()));
    assert_eq!(export["contexts"][0], "base:allocation");
    let map: Value =
        serde_json::from_str(&run(folder, "nbdinfo", &["--map", "--json", &server.url("small")]).unwrap()).unwrap();
    assert_eq!((&map[0]["length"], &map[0]["type"]), (&(1 << 20).into(), &3.into()), "{map}");
    let list = run(folder, "nbdinfo", &["--list", &server.url("")]).unwrap();
    assert!(list.contains("export=\"disk\"") && list.contains("export=\"small\""), "{list}");
    assert!(!try_run(folder, "nbdinfo", &[&server.url("absent")]).unwrap().0.success());

    let (status, printed) = server.terminate().unwrap();
    assert!(status.success() && printed.contains("devices flushed"), "{printed}");
    // The file may be longer than the image.
    let stored = std::fs::read(scratch.join("disk")).unwrap();
    assert!(stored[..IMAGE_BYTES] == std::fs::read(&image).unwrap());
}

/// QEMU reads, writes, discards and zeroes.
#[test]
fn qemu_uses_our_server() {
    if lacks("qemu", &["qemu-img", "qemu-io"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-qemu").unwrap();
    let (folder, image, copy) = (scratch.path(), scratch.join("image"), scratch.join("copy"));
    write_image(&image, IMAGE_BYTES, 2).unwrap();
    let server = NbdServer::nectary(folder, "export", &[&format!("memory:{IMAGE_BYTES}")]).unwrap();
    let url = server.url("");
    run(folder, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &text(&image), &url]).unwrap();
    run(folder, "qemu-img", &["compare", "-f", "raw", "-F", "raw", &text(&image), &url]).unwrap();
    run(folder, "qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy));
    let commands = [
        "write -P 0x11 0 64k",
        "write -f -P 0x22 1000 3000",
        "flush",
        "write -z 2000 100",
        "write -z -u 8k 8k",
        "discard 16k 8k",
        "read -P 0x11 0 1000",
        "read -P 0x22 1000 1000",
        "read -P 0 2000 100",
        "read -P 0x22 2100 1900",
        "read -P 0x11 4000 4192",
        "read -P 0 8k 8k",
        "read -P 0x11 24k 40k",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&url);
    let printed = run(folder, "qemu-io", &arguments).unwrap();
    assert!(!printed.contains("failed") && !printed.contains("error"), "{printed}");
    server.terminate().unwrap();
}

/// The Python interpreter for which Debian installs its modules.
const PYTHON: &str = "/usr/bin/python3";

/// The script of nbdsh. It writes data, and then requests that half of them are zeroed, which must be fast. It prints
/// the error, if there is one, and a byte of each half.
const FAST_ZEROES: &str = "
assert h.can_fast_zero()
h.pwrite(b'x' * 131072, 0, nbd.CMD_FLAG_FUA)
try:
    h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO)
    print('zeroed')
except nbd.Error as error:
    print('refused' if error.errno in ('ENOTSUP', 'EOPNOTSUPP') else error)
print(h.pread(1, 4097, 0), h.pread(1, 65536, 0))
";

/// Our server and the servers behind it do a fast zero fast, or refuse it.
#[test]
fn fast_zeroes_done_or_refused() {
    if lacks("fast zeroes", &["nbdkit", "qemu-io"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-fast-zero").unwrap();
    let folder = scratch.path();
    // `nbdsh` runs the first Python on the search path, but the module belongs to the system's Python.
    if !try_run(folder, PYTHON, &["-c", "import nbd"]).is_ok_and(|(status, _)| status.success()) {
        return not_run("fast zeroes: there is no nbdsh (python3-libnbd)");
    }
    let zeroed = "zeroed\nbytearray(b'\\x00') bytearray(b'x')";
    let refused = "refused\nbytearray(b'x') bytearray(b'x')";
    let file = text(&scratch.join("disk"));
    let devices = ["memory=memory:1M", &format!("file={file}"), "slow=cache(memory:1M,memory=8M)", "--size", "1M"];
    let server = NbdServer::nectary(folder, "export", &devices).unwrap();
    let nbdkit = |name: &str, arguments: &[&str]| NbdServer::nbdkit(folder, name, arguments).unwrap();
    let quick = nbdkit("quick", &["memory", "1M"]);
    let slow = nbdkit("slow", &["--filter=nozero", "memory", "1M", "fastzeromode=slow"]);
    let without = nbdkit("without", &["--filter=nozero", "memory", "1M", "fastzeromode=none"]);
    let behind = [&quick, &slow, &without].map(|server| server.url(""));
    let devices: Vec<String> =
        ["quick", "slow", "without"].iter().zip(&behind).map(|(name, url)| format!("{name}={url}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let chained = NbdServer::nectary(folder, "chained", &devices).unwrap();
    for (url, wanted) in [
        (server.url("memory"), zeroed),
        (server.url("file"), zeroed),
        (server.url("slow"), refused),
        (chained.url("quick"), zeroed),
        (chained.url("slow"), refused),
        (chained.url("without"), refused),
    ] {
        let printed = run(folder, PYTHON, &["-m", "nbd", "-u", &url, "-c", FAST_ZEROES]).unwrap();
        assert_eq!(printed.trim(), wanted, "{url}");
    }
    let qemu = |export: &str| {
        let url = server.url(export);
        try_run(folder, "qemu-io", &["-f", "raw", "-c", "write -z -u -n 0 64k", "-c", "read -P 0x78 64k 4k", &url])
            .unwrap()
            .1
    };
    assert!(!qemu("memory").contains("not supported"), "{}", qemu("memory"));
    assert!(qemu("slow").contains("not supported"), "{}", qemu("slow"));
    for server in [chained, server] {
        let (status, printed) = server.terminate().unwrap();
        assert!(status.success(), "{printed}");
    }
}

/// A mount of nbdfuse, which is unmounted when this value is dropped.
struct NbdfuseMount(std::path::PathBuf);

impl Drop for NbdfuseMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn nbdfuse_reads_and_writes_export() {
    if lacks("nbdfuse", &["nbdfuse", "umount", "nbdcopy"]) {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return not_run("nbdfuse: there is no /dev/fuse");
    }
    let scratch = ScratchFolder::new("nbd-nbdfuse").unwrap();
    let (folder, image, copy) = (scratch.path(), scratch.join("image"), scratch.join("copy"));
    write_image(&image, IMAGE_BYTES, 5).unwrap();
    let server = NbdServer::nectary(folder, "export", &[&format!("memory:{IMAGE_BYTES}")]).unwrap();
    let (mount, file) = (scratch.join("mount"), scratch.join("mount/disk"));
    std::fs::create_dir(&mount).unwrap();
    let mut command = Command::new("nbdfuse");
    command.arg(&file).arg(server.url(""));
    let mut fuse = GuardedProcess::spawn("nbdfuse", command, &scratch.join("nbdfuse.log"), None).unwrap();
    let mounted = NbdfuseMount(mount);
    let deadline = Instant::now() + PATIENCE;
    while std::fs::metadata(&file).map_or(0, |file| file.len()) != IMAGE_BYTES as u64 {
        assert!(fuse.try_status().is_none() && Instant::now() < deadline, "{}", fuse.log_tail());
        std::thread::sleep(Duration::from_millis(5));
    }
    let data = std::fs::read(&image).unwrap();
    let mut opened = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    opened.write_all(&data).unwrap();
    opened.sync_all().unwrap();
    let mut found = Vec::new();
    opened.rewind().unwrap();
    opened.read_to_end(&mut found).unwrap();
    assert!(found == data);
    drop(opened);
    drop(mounted);
    assert!(fuse.wait(PATIENCE).unwrap().success(), "{}", fuse.log_tail());
    run(folder, "nbdcopy", &[&server.url(""), &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy), "what nbdfuse wrote is on the server");
    let (status, printed) = server.terminate().unwrap();
    assert!(status.success(), "{printed}");
}

/// Runs fio: it makes random writes of 4 KiB, many at a time over several connections, and verifies all of them.
fn fio(folder: &Path, url: &str) -> anyhow::Result<String> {
    let uri = format!("--uri={url}");
    run(
        folder,
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randrw",
            "--bs=4k",
            "--size=8m",
            "--iodepth=32",
            "--fsync=64",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            // Otherwise fio leaves a file in the current directory.
            "--verify_state_save=0",
            "--randseed=7",
            "--thread",
        ],
    )
}

#[test]
fn fio_verifies_our_server() {
    if lacks("fio", &["fio"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-fio").unwrap();
    if !run(scratch.path(), "fio", &["--enghelp"]).unwrap().contains("nbd") {
        return not_run("fio: this one has no engine for NBD");
    }
    let disk = format!("{}", scratch.join("disk").display());
    let server = NbdServer::nectary(scratch.path(), "export", &[&disk, "--size", "8M"]).unwrap();
    let printed = fio(scratch.path(), &server.url("")).unwrap();
    assert!(printed.contains("err= 0"), "{printed}");
    server.terminate().unwrap();
}

/// Exports another project's server again, with our client and our server: an image is written through both and read
/// back.
fn chain(test: &str, folder: &Path, behind: &NbdServer, export: &str) {
    let (image, copy) = (folder.join(format!("{test}.image")), folder.join(format!("{test}.copy")));
    write_image(&image, 8 << 20, 3).unwrap();
    let url = behind.url(export);
    let server = NbdServer::nectary(folder, &format!("chain-{test}"), &[&url]).unwrap();
    run(folder, "nbdcopy", &["--flush", &text(&image), &server.url("")])
        .unwrap_or_else(|error| panic!("{test}: {error:#}"));
    run(folder, "nbdcopy", &[&server.url(""), &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy), "{test}");
    run(folder, "nbdcopy", &[&url, &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy), "{test}: directly");
    let (status, printed) = server.terminate().unwrap();
    assert!(status.success(), "{test}: {printed}");
}

#[test]
fn client_uses_nbdkit_variants() {
    if lacks("nbdkit", &["nbdkit", "nbdcopy"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-nbdkit").unwrap();
    let folder = scratch.path();
    for (test, arguments) in [
        ("memory", &["memory", "8M"][..]),
        ("simple", &["--no-sr", "memory", "8M"][..]),
        ("old", &["--mask-handshake=0", "memory", "8M"][..]),
        (
            "blocks",
            &["--filter=blocksize-policy", "memory", "8M", "blocksize-minimum=4096", "blocksize-maximum=1M"][..],
        ),
        ("bare", &["--filter=nozero", "--filter=noextents", "memory", "8M"][..]),
    ] {
        let server = NbdServer::nbdkit(folder, test, arguments).unwrap();
        chain(test, folder, &server, "");
    }
    let server = NbdServer::nbdkit(folder, "readonly", &["-r", "memory", "8M"]).unwrap();
    let code = |arguments: &[&str]| try_run(folder, "nectary", arguments).unwrap().0.code();
    assert_eq!(code(&["nbd", "info", &server.url(""), "--can", "write"]), Some(2));
    assert_eq!(code(&["nbd", "info", &server.url(""), "--can", "multi-conn"]), Some(0));
    assert_eq!(code(&["nbd", "info", &server.url("a"), "--json"]), Some(0));
    assert_eq!(code(&["nbd", "info", "nbd+unix:///?socket=/nowhere"]), Some(4));
}

#[test]
fn client_uses_nbd_server_and_qemu() {
    if lacks("nbd-server", &["nbd-server", "qemu-nbd", "nbdcopy"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-others").unwrap();
    let folder = scratch.path();
    for name in ["reference.img", "qemu.img"] {
        std::fs::File::create(scratch.join(name)).unwrap().set_len(8 << 20).unwrap();
    }
    let (server, daemon) = NbdServer::reference(folder, &scratch.join("reference.img")).unwrap();
    chain("reference", folder, &server, "disk");
    let list = run(folder, "nectary", &["nbd", "list", &server.url(""), "--json"]).unwrap();
    assert!(list.contains("\"disk\""), "{list}");

    drop(daemon);

    let server = NbdServer::qemu(folder, &scratch.join("qemu.img")).unwrap();
    chain("qemu", folder, &server, "disk");
}

/// The status shows an export, and an export refuses a public address.
#[test]
fn export_status_and_public_refusal() {
    let scratch = ScratchFolder::new("nbd-status").unwrap();
    let folder = scratch.path();
    let server = NbdServer::nectary(folder, "export", &["a=memory:1M", "b=memory:2M", "--read-only"]).unwrap();
    let status: Value = serde_json::from_str(&run(folder, "nectary", &["status", "--json"]).unwrap()).unwrap();
    let detail = &status[0]["status"]["detail"];
    assert_eq!(status[0]["status"]["component"], "export", "{status}");
    assert_eq!((&detail["exports"][1]["name"], &detail["exports"][1]["size_bytes"]), (&"b".into(), &(2 << 20).into()));
    let info = run(folder, "nectary", &["nbd", "info", &server.url("b"), "--json"]).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["size_bytes"], &info["read_only"]), (&(2 << 20).into(), &true.into()), "{info}");
    let code = |arguments: &[&str]| try_run(folder, "nectary", arguments).unwrap().0.code();
    assert_eq!(code(&["nbd", "info", &server.url("c")]), Some(4));
    // A socket on which another process listens is not taken over. An address that other machines can reach is not
    // served.
    let taken = format!("unix:{}", server.socket.display());
    assert_eq!(code(&["export", "memory:1M", "--nbd", &taken]), Some(5));
    assert_eq!(code(&["export", "memory:1M", "--nbd", "tcp:0.0.0.0:0"]), Some(2));
    assert_eq!(code(&["export", "memory:1M", "memory:1M", "--nbd", "tcp:127.0.0.1:0"]), Some(2));
    let socket = server.socket.clone();
    assert!(server.terminate().unwrap().0.success());
    assert!(!socket.exists());
}

/// Read-only exports share a file and exclude a writer.
#[test]
fn read_only_exports_share_file() {
    let scratch = ScratchFolder::new("nbd-read-only").unwrap();
    let folder = scratch.path();
    let spec = folder.join("disk").display().to_string();
    std::fs::write(&spec, vec![7; 1 << 20]).unwrap();
    let servers = ["one", "two"].map(|name| NbdServer::nectary(folder, name, &[&spec, "--read-only"]).unwrap());
    let writer = ["export", &spec, "--nbd", "tcp:127.0.0.1:0"];
    assert_eq!(try_run(folder, "nectary", &writer).unwrap().0.code(), Some(5));
    for server in servers {
        let can = ["nbd", "info", &server.url(""), "--can", "write"];
        assert_eq!(try_run(folder, "nectary", &can).unwrap().0.code(), Some(2));
        assert!(server.terminate().unwrap().0.success());
    }
}

#[test]
fn connections_are_encrypted_and_certificates_verified() {
    if lacks("TLS", &["openssl", "nbdinfo", "nbdcopy"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-tls").unwrap();
    let folder = scratch.path();
    let (good, other) = (scratch.join("pki"), scratch.join("other"));
    make_certificates(&good).unwrap();
    make_certificates(&other).unwrap();
    let file = |name: &str| text(&good.join(name));
    let address = free_address().unwrap();
    let listen = format!("tcp:{address}");
    let (certificate, key, ca) = (file("server-cert.pem"), file("server-key.pem"), file("ca-cert.pem"));
    let server = NbdServer::nectary(
        folder,
        "tls",
        &["disk=memory:8M", "--nbd", &listen, "--tls-cert", &certificate, "--tls-key", &key, "--tls-ca", &ca],
    )
    .unwrap();
    let url = |pki: &Path| format!("nbds://localhost:{}/disk?tls-certificates={}", address.port(), pki.display());
    // Use another project's client on our server.
    let info = run(folder, "nbdinfo", &["--json", &url(&good)]).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["TLS"], &info["exports"][0]["export-size"]), (&true.into(), &(8 << 20).into()), "{info}");
    // Use our client on our server, and copy an image through both.
    let (image, copy) = (scratch.join("image"), scratch.join("copy"));
    write_image(&image, 8 << 20, 4).unwrap();
    let chained = NbdServer::nectary(folder, "chain", &[&url(&good)]).unwrap();
    run(folder, "nbdcopy", &["--flush", &text(&image), &chained.url("")]).unwrap();
    run(folder, "nbdcopy", &[&url(&good), &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy));
    chained.terminate().unwrap();
    // A client is refused without TLS, with a certificate of another authority, and without a certificate.
    let plain = format!("nbd://localhost:{}/disk", address.port());
    let (status, printed) = try_run(folder, "nectary", &["nbd", "info", &plain]).unwrap();
    assert!(status.code() == Some(1) && printed.contains("nbds://"), "{printed}");
    let (status, printed) = try_run(folder, "nectary", &["nbd", "info", &url(&other)]).unwrap();
    assert!(status.code() == Some(1) && printed.contains("TLS"), "{printed}");
    let secure = format!("nbds://localhost:{}/disk", address.port());
    let (status, printed) = try_run(folder, "nectary", &["nbd", "info", &secure, "--tls-ca", &ca]).unwrap();
    assert!(status.code() == Some(1), "{printed}");
    let known = [
        "nbd",
        "list",
        &secure,
        "--tls-ca",
        &ca,
        "--tls-cert",
        &file("client-cert.pem"),
        "--tls-key",
        &file("client-key.pem"),
    ];
    assert!(run(folder, "nectary", &known).unwrap().contains("disk"));
    let (status, printed) = server.terminate().unwrap();
    assert!(status.success(), "{printed}");
}

/// A size that is no multiple of a sector. *Units*: bytes.
const ODD_BYTES: usize = (1 << 20) + 700;

/// Files and exports of odd sizes are complete for other programs.
#[test]
fn odd_sizes_complete_for_others() {
    if lacks("odd sizes", &["nbdkit", "nbdcopy", "nbdinfo", "qemu-img"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-odd").unwrap();
    let (folder, image, copy) = (scratch.path(), scratch.join("image"), scratch.join("copy"));
    write_image(&image, ODD_BYTES, 6).unwrap();
    let disk = scratch.join("disk");
    std::fs::write(&disk, vec![0; ODD_BYTES]).unwrap();
    let server = NbdServer::nectary(folder, "odd", &[&text(&disk)]).unwrap();
    let size = |url: &str| run(folder, "nbdinfo", &["--size", url]).unwrap().trim().to_owned();
    assert_eq!(size(&server.url("")), ODD_BYTES.to_string());
    run(folder, "nbdcopy", &["--flush", &text(&image), &server.url("")]).unwrap();
    run(folder, "nbdcopy", &[&server.url(""), &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy));
    run(folder, "qemu-img", &["compare", "-f", "raw", "-F", "raw", &text(&image), &server.url("")]).unwrap();
    assert!(server.terminate().unwrap().0.success());
    assert!(is_same(&image, &disk), "the file has kept its size");
    // Through our client to another project's server, which has the same size.
    let behind = NbdServer::nbdkit(folder, "kit", &["memory", &ODD_BYTES.to_string()]).unwrap();
    let server = NbdServer::nectary(folder, "chain", &[&behind.url("")]).unwrap();
    assert_eq!(size(&server.url("")), ODD_BYTES.to_string());
    run(folder, "nbdcopy", &["--flush", &text(&image), &server.url("")]).unwrap();
    run(folder, "nbdcopy", &[&behind.url(""), &text(&copy)]).unwrap();
    assert!(is_same(&image, &copy));
    assert!(server.terminate().unwrap().0.success());
}

/// Sectors have 512 bytes, or the smallest block of the server; sizes are rounded up to sectors.
#[test]
fn attached_export_follows_server_sectors() {
    if lacks("sectors", &["nbdkit", "blockdev"]) {
        return;
    }
    if let Some(reason) = nectary_e2e::attach::missing(nectary_e2e::attach::TestFileSystem::Ext4) {
        return not_run(format!("sectors: {reason}"));
    }
    let scratch = ScratchFolder::new("nbd-sectors").unwrap();
    let folder = scratch.path();
    let _turn = nectary_e2e::attach::turns::alone();
    for (name, arguments, sector) in [
        ("small", &["memory", "1049276"][..], "512"),
        (
            "large",
            &[
                "--filter=blocksize-policy",
                "memory",
                "1M",
                "blocksize-minimum=4096",
                "blocksize-preferred=65536",
                "blocksize-maximum=1M",
            ][..],
            "4096",
        ),
    ] {
        let server = NbdServer::nbdkit(folder, name, arguments).unwrap();
        let spec = format!("\"{}\"", server.url(""));
        // There may be warnings before the path.
        let printed = run(folder, "nectary", &["attach", &spec]).unwrap();
        let device = printed.lines().last().unwrap_or_default().to_owned();
        let found = run(folder, "blockdev", &["--getss", "--getsize64", &device]);
        run(folder, "nectary", &["detach", &device]).unwrap();
        // The size is rounded up to sectors, and not down.
        let size = if sector == "512" { "1049600" } else { "1048576" };
        assert_eq!(found.unwrap().split_whitespace().collect::<Vec<_>>(), [sector, size], "{name}");
    }
}

/// A file of an odd size is used to its last byte.
#[test]
fn attached_odd_file_fully_usable() {
    if lacks("attached odd file", &["blockdev"]) {
        return;
    }
    if let Some(reason) = nectary_e2e::attach::missing(nectary_e2e::attach::TestFileSystem::Ext4) {
        return not_run(format!("attached odd file: {reason}"));
    }
    let scratch = ScratchFolder::new("attach-odd").unwrap();
    let folder = scratch.path();
    let (file, bytes) = (scratch.join("odd-file"), ODD_BYTES);
    write_image(&file, bytes, 8).unwrap();
    let mut expected = std::fs::read(&file).unwrap();
    let _turn = nectary_e2e::attach::turns::alone();
    for spec in [text(&file), format!("cache({},memory=8M)", text(&file))] {
        let printed = run(folder, "nectary", &["attach", &spec]).unwrap();
        let device = printed.lines().last().unwrap_or_default().to_owned();
        let used = (|| -> anyhow::Result<(u64, Vec<u8>)> {
            let size = run(folder, "blockdev", &["--getsize64", &device])?.trim().parse()?;
            let disk = std::fs::File::options().read(true).write(true).open(&device)?;
            let mut found = vec![1; size as usize];
            disk.read_exact_at(&mut found, 0)?;
            // The last byte, and the first one of the last sector.
            for at in [bytes - 1, bytes / 512 * 512] {
                expected[at] ^= 0x55;
                disk.write_all_at(&expected[at..=at], at as u64)?;
            }
            disk.sync_all()?;
            Ok((size, found))
        })();
        run(folder, "nectary", &["detach", &device]).unwrap();
        let (size, found) = used.unwrap_or_else(|error| panic!("{spec}: {error:#}"));
        assert_eq!(size, (bytes as u64).next_multiple_of(512), "{spec}");
        let mut before = expected.clone();
        [bytes - 1, bytes / 512 * 512].iter().for_each(|at| before[*at] ^= 0x55);
        assert!(found[..bytes] == before[..], "{spec}: other bytes");
        assert!(found[bytes..].iter().all(|byte| *byte == 0), "{spec}: the rest of the sector");
        assert!(std::fs::read(&file).unwrap() == expected, "{spec}: the file has what was written, and its size");
    }
}

#[test]
fn attached_export_survives_server_restart() {
    if lacks("restart", &["nbdkit"]) {
        return;
    }
    let scratch = ScratchFolder::new("nbd-restart").unwrap();
    let (folder, disk) = (scratch.path(), scratch.join("disk"));
    write_image(&disk, 1 << 20, 8).unwrap();
    let behind = NbdServer::nbdkit(folder, "kit", &["file", &text(&disk)]).unwrap();
    let server = NbdServer::nectary(folder, "chain", &[&behind.url("")]).unwrap();
    let copy = scratch.join("copy");
    let read = |copy: &Path| {
        let _ = std::fs::remove_file(copy);
        run(folder, "nbdcopy", &[&server.url(""), &text(copy)])
    };
    read(&copy).unwrap();
    drop(behind);
    std::fs::remove_file(scratch.join("kit.sock")).unwrap();
    let status = || -> Value {
        let (_, text) = try_run(folder, "nectary", &["status", "--json"]).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let deadline = Instant::now() + PATIENCE;
    while !status().to_string().contains("the NBD server is away") {
        assert!(Instant::now() < deadline, "{}", status());
        std::thread::sleep(Duration::from_millis(5));
    }
    // The reader waits while the server starts again.
    let reading = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&copy));
        std::thread::sleep(Duration::from_millis(200));
        let behind = NbdServer::nbdkit(folder, "kit", &["file", &text(&disk)]).unwrap();
        let read = reader.join().unwrap();
        drop(behind);
        read
    });
    reading.unwrap();
    assert!(is_same(&disk, &copy));
}
