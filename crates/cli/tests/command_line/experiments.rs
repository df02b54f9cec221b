//! `nectary bench`: the list of experiments, and refusals before anything runs.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::CommandScratch;

#[test]
fn experiments_list_purpose_and_duration() {
    let scratch = CommandScratch::new("bench-list");
    let listed = scratch.run("bench --list").exits(0);
    let text = String::from_utf8_lossy(&listed.output).into_owned();
    for command in [
        "bench store --seed table4 --quick",
        "bench store --disk bare",
        "bench cache --seed dear",
        "bench limits",
        "bench io",
        "bench files --seed nrd",
        "bench files --seed ncar",
        "bench ram",
        "bench proxy --folder DIR",
        "bench all --report DIR --quick",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(command) && line.contains("minute") || line.contains("hour")),
            "{text}"
        );
    }
}

#[test]
fn unknown_contender_error_lists_known() {
    let scratch = CommandScratch::new("bench-only");
    let refused = scratch.run("bench store --seed table4 --quick --only zfs").exits(2);
    refused.says("no contender has \"zfs\" in its name").says("xfs.50");
    scratch.run("bench store --seed table4 --queue-depth 0").exits(2).says("1 request deep at least");
    scratch.run("bench store --seed table4 --dirty 0").exits(2);
}

#[test]
fn unknown_program_error_lists_known() {
    let scratch = CommandScratch::new("bench-cache-only");
    let refused = scratch.run("bench cache --seed dear --only emacs").exits(2);
    refused.says("there is no program \"emacs\"").says("cscope+sort");
    scratch.run("bench cache --seed dear --executions 0").exits(2).says("1 at least");
    scratch.run("bench cache --seed dear --speed 0").exits(2);
    scratch.run("bench cache --seed dear --blocks 768,100").exits(2).says("512 at least");
    scratch.run("bench cache --seed dear --only scan --blocks 768").exits(2).says("caches of 65536 blocks");
    scratch.run("bench cache --seed dear --anyway").exits(2).says("--write");
    let nowhere = scratch.run_after("export GIT_DIR=/nowhere", "bench cache --seed dear --only sort --write kept");
    nowhere.exits(1).says("the commit is unknown").says("--anyway");
    scratch.run("bench cache").exits(2);
}

/// The JSON of an experiment with one figure.
fn made_up(scratch: &CommandScratch, folder: &str, value: f64) {
    std::fs::create_dir_all(scratch.file(folder)).unwrap();
    let text = format!(
        "{{\"experiment\": \"store-table4\", \"setting\": {{\"quick\": false, \"requests\": 150000}}, \"rows\": [], \"figures\": \
         [{{\"name\": \"ratio.4gb.xfs.50\", \"unit\": \"x\", \"value\": {value}, \"low\": {}, \"high\": {}, \"target\": 4.6, \
         \"is_at_most\": false, \"is_judged\": true}}]}}",
        value - 0.1,
        value + 0.1
    );
    std::fs::write(scratch.file(&format!("{folder}/store-table4.json")), text).unwrap();
}

#[test]
fn reports_are_drawn_from_json() {
    let scratch = CommandScratch::new("bench-report");
    made_up(&scratch, "old", 4.0);
    made_up(&scratch, "new", 3.0);
    // Everything but Table 4 is missing.
    let text = scratch.run("bench report old").exits(1).text();
    assert!(text.starts_with("1 of 28 tables and figures of the seeds; old/report.html\n"), "{text}");
    assert!(text.contains("NOT RUN: NCAR, Figure 20"), "{text}");
    let page = std::fs::read_to_string(scratch.file("old/report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("ratio.4gb.xfs.50"));
    let items: Value = serde_json::from_slice(&scratch.run("bench report old --json").exits(1).output).unwrap();
    assert_eq!((items.as_array().unwrap().len(), items[0]["not_drawn"].is_null()), (28, true));
    let worse = scratch.run("bench compare old new").exits(1).text();
    assert!(worse.starts_with("1 figures: 1 worse, 0 better"), "{worse}");
    scratch.run("bench compare new old").exits(0);
    let same = scratch.run("bench compare old/store-table4.json old --json").exits(0);
    let same: Value = serde_json::from_slice(&same.output).unwrap();
    assert_eq!(same[0]["comparison"], "not-apart");
    let judged: Value = serde_json::from_slice(&scratch.run("bench claims old --json").exits(1).output).unwrap();
    let verdict =
        |name: &str| judged.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap()["verdict"].clone();
    assert_eq!((verdict("throughput-4"), verdict("nrd-creates")), ("reproduced".into(), "not-measured".into()));
    let stated: Value = serde_json::from_slice(&scratch.run("bench figures old --json").exits(0).output).unwrap();
    let figure = stated.as_array().unwrap().iter().find(|one| one["name"] == "store.table-4").unwrap();
    assert_eq!((&figure["state"], &figure["page"]), (&"not-reached".into(), &"store-table4.json".into()));
    scratch.run("bench figures").exits(0);
    let mut left: Vec<_> =
        std::fs::read_dir(scratch.file("old")).unwrap().map(|one| one.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["report.html", "store-table4.json"]);
}

#[test]
fn reports_of_nothing_are_refused() {
    let scratch = CommandScratch::new("bench-report-nothing");
    for line in ["report no", "claims no", "compare no no", "figures no", "report ."] {
        scratch.run(&format!("bench {line}")).exits(4);
    }
    std::fs::write(scratch.file("x.json"), "[]").unwrap();
    scratch.run("bench report .").exits(2).says("x.json").says("remove it");
    scratch.run("bench all").exits(2).says("--report");
    scratch.run("bench all --report r --only tape").exits(2).says("no experiment has \"tape\"").says("io-ncar");
    scratch.run("bench all --report r --folder no").exits(2).says("no such directory");
    assert!(!scratch.file("r").exists());
}

/// Files as the programs of an experiment leave them after SIGKILL.
const INTERRUPTED: [&str; 2] = [".files.json.part", ".report.html.part"];

#[test]
fn whole_runs_go_on_after_sigkill() {
    let scratch = CommandScratch::new("bench-all");
    let mut first = scratch.command("bench all --report r --quick --only io").spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    let has_begun = || {
        let entries = std::fs::read_dir(scratch.file("r")).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("nectary-bench-all-"))
    };
    while !has_begun() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    for name in INTERRUPTED {
        std::fs::write(scratch.file(&format!("r/{name}")), "{").unwrap();
    }
    // The sweep of the device needs nothing that may be missing.
    let text = scratch.run("bench all --report r --quick --only io").exits(0).text();
    assert!(text.ends_with("1 of 1 experiments ran; r/report.html\n"), "{text}");
    let before = std::fs::read(scratch.file("r/io.json")).unwrap();
    scratch.run("bench all --report r --quick --only io").exits(0);
    assert!(before == std::fs::read(scratch.file("r/io.json")).unwrap(), "a finished experiment stays");
    scratch.run("bench all --report r --only io").exits(2).says("quick");
    // The guardian of the killed run may still be at work.
    while has_begun() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut left: Vec<String> = std::fs::read_dir(scratch.file("r"))
        .unwrap()
        .map(|one| one.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["io.json", "report.html"]);
}

/// A short run of `bench io`.
const SMALL: &str = "--mode buffered --request 64K,1M --size 4M --passes 1";

/// The benchmark leaves no file.
#[test]
fn bench_io_counts_requests_once() {
    let scratch = CommandScratch::new("bench-io");
    let line = format!(
        "bench io . {SMALL} --op read,write,mixed --depth 1,2 --engine threads --timestamps r.csv \
         --svg i.svg --json i.json"
    );
    let text = scratch.run(&line).exits(0).text();
    assert!(text.contains("Bytes_Xfered") && text.contains("ceilings, MiB/s:"), "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(scratch.file("i.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    // The rows are for three operations, two depths and two sizes; each has the stream, all streams, and the mean.
    assert_eq!(rows.len(), 3 * 2 * 2 * 3);
    for row in rows {
        let ops = if row["request_bytes"] == 65536 { 64 } else { 4 };
        assert_eq!((row["ops"].as_u64(), row["bytes"].as_u64()), (Some(ops), Some(4 << 20)), "{row}");
    }
    let requests = std::fs::read_to_string(scratch.file("r.csv")).unwrap();
    assert_eq!(requests.lines().count(), 1 + 3 * 2 * (64 + 4));
    assert!(requests.starts_with("cell,pass,target,op,request,location_bytes"), "{requests}");
    let picture = std::fs::read_to_string(scratch.file("i.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    let mut left: Vec<_> =
        std::fs::read_dir(scratch.file(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["i.json", "i.svg", "r.csv"]);
}

/// A path that cannot be overwritten is an error that says so.
#[test]
fn bench_overwrites_no_foreign_file() {
    let scratch = CommandScratch::new("bench-io-foreign");
    let before = vec![7; 8 << 20];
    std::fs::write(scratch.file("foreign"), &before).unwrap();
    let run = |line: &str| scratch.run(&format!("bench io {line}"));
    run(&format!("foreign {SMALL}")).exits(2).says("--overwrite");
    run("foreign --check-fio --size 4M").exits(2).says("--overwrite");
    run(&format!("foreign {SMALL} --op read")).exits(0);
    assert!(std::fs::read(scratch.file("foreign")).unwrap() == before);
    run(&format!("foreign {SMALL} --op read --streams 3")).exits(2).says("it has 8M");
    run(&format!("foreign {SMALL} --overwrite")).exits(0);
    run(&format!("foreign {SMALL}")).exits(0);
    run("no --op read").exits(2).says("name a directory, an existing file, or a block device");
    run(". --request 5000").exits(2).says("multiples of 4096");
    run(". --size 1E").exits(2);
    run(". --size 1000000G --request 16M").exits(2);
    run("foreign --matrix ncar --dry-run --quick").exits(0);
    run(". --matrix ncar --op read").exits(2);
}

#[test]
fn dry_runs_print_xdds_command_lines() {
    let scratch = CommandScratch::new("bench-io-dry");
    let sweep =
        scratch.run("bench io . --op read --mode direct --request 64K --streams 2 --depth 4 --dry-run").exits(0).text();
    assert_eq!(
        sweep,
        "xdd -targets 2 ./stream-0 ./stream-1 -op read -blocksize 1024 -reqsize 64 -mbytes 256 -passes 3 -queuedepth 4 \
         -dio -ts detailed -verbose\n"
    );
    let matrix = scratch.run("bench io . --matrix ncar --dry-run").exits(0).text();
    for part in ["nectary volume mount disk:/dev/DEVICE", "nectary bench bare-fuse", "-reqsize 16384"] {
        assert!(matrix.contains(part), "{part}: {matrix}");
    }
    let one =
        scratch.run("bench io . --matrix ncar --dry-run --quick --only volume.server.read.direct").exits(0).text();
    assert_eq!(one.lines().filter(|line| line.starts_with("xdd ")).count(), 2 * 3, "{one}");
    scratch.run("bench io . --matrix ncar --dry-run --only nfs").exits(2).says("no series has \"nfs\"");
    scratch.run("bench io . --only volume").exits(2);
}

/// Whether a run on two hosts can be made here; says what is missing otherwise.
fn has_two_hosts() -> bool {
    let has = ["/dev/fuse", "/dev/loop-control"].iter().all(|path| Path::new(path).exists());
    let has = has && ["mkfs.xfs", "ip", "nsenter"].iter().all(|program| is_program(program));
    let groups = std::fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    let has_groups = Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() || groups.contains("memory");
    let is_permitted = has && has_groups && said("ip", &["netns".as_ref(), "list".as_ref()]).is_ok() && is_root();
    if !is_permitted {
        println!("NOT RUN: two hosts need root, /dev/fuse, loop devices, memory groups, mkfs.xfs, ip and nsenter");
    }
    is_permitted
}

fn is_program(name: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|folder| Path::new(folder).join(name).is_file())
}

fn is_root() -> bool {
    said("id", &["-u".as_ref()]).is_ok_and(|id| id.trim() == "0")
}

/// The directories of runs on two hosts whose process has ended.
fn left_behind() -> Vec<String> {
    let folder = std::env::temp_dir();
    let names = std::fs::read_dir(folder).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_left = |name: &String| {
        let process = name.strip_prefix("nectary-bench-hosts-");
        process.is_some_and(|process| !Path::new("/proc").join(process).exists())
    };
    names.filter(is_left).collect()
}

/// The volume is measured beside the other file systems, and nothing is left.
#[test]
fn volume_bench_measures_both_hosts() {
    if !has_two_hosts() {
        return;
    }
    let scratch = CommandScratch::new("bench-ncar");
    let before = left_behind();
    let series = "--only read.direct.streams2 --only write.buffered.streams1";
    let line = format!("bench io . --matrix ncar --quick --size 8M --request 1M {series} --json n.json --svg n.svg");
    let text = scratch.run(&line).exits(0).text();
    let report: Value = serde_json::from_slice(&std::fs::read(scratch.file("n.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for system in ["raw", "bare", "xfs", "volume"] {
        for host in ["client", "server"] {
            for what in ["read.direct.streams2", "write.buffered.streams1"] {
                let name = format!("{system}.{host}.{what}");
                let row = rows.iter().find(|row| row["series"] == *name).unwrap_or_else(|| panic!("{name}: {text}"));
                assert!(row["mib_s"][0].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
            }
        }
    }
    assert_eq!(rows.len(), 4 * 2 * 2);
    assert!(text.contains("volume.client.read.direct.streams2 / bare"), "{text}");
    let mut left: Vec<_> =
        std::fs::read_dir(scratch.file(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["n.json", "n.svg"]);
    // A run that another test kills is cleaned up a moment later.
    wait_until("a directory is left", || left_behind().iter().all(|name| before.contains(name)));
}

/// Waits until something is so, for half a minute.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed().as_secs() < 30, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Whether a file of some process, as `environ`, or of some loop device has these bytes.
fn is_named_in(folder: &str, file: &str, bytes: &[u8]) -> bool {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let has = |text: Vec<u8>| text.windows(bytes.len()).any(|window| window == bytes);
    entries.filter_map(|entry| std::fs::read(entry.path().join(file)).ok()).any(has)
}

#[test]
fn killed_two_host_run_leaves_nothing() {
    if !has_two_hosts() {
        return;
    }
    let scratch = CommandScratch::new("bench-ncar-killed");
    let line = "bench io . --matrix ncar --quick --size 64M --request 4K --only volume.client.write.direct";
    let mut command = scratch.command(line);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let name = format!("nectary-bench-hosts-{}", run.id());
    let of_hosts = std::env::temp_dir().join(&name);
    let image = scratch.file(&format!("nectary-bench-io-{}", run.id()));
    wait_until("a volume is mounted", || of_hosts.join("volume-mount-client.said").exists());
    assert!(is_named_in("/proc", "environ", name.as_bytes()) && image.exists());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_until("directories are removed", || !of_hosts.exists() && !image.exists());
    wait_until("processes have ended", || !is_named_in("/proc", "environ", name.as_bytes()));
    let image = image.to_str().unwrap().as_bytes().to_vec();
    wait_until("loop devices are released", || !is_named_in("/sys/block", "loop/backing_file", &image));
}

/// The calls are creates, stats and unlinks.
#[test]
fn volume_metadata_bench_includes_peers() {
    if !has_two_hosts() {
        return;
    }
    let scratch = CommandScratch::new("bench-files-ncar");
    // Stands for JuiceFS: any file system that is mounted by a program that stays.
    let program = "#!/bin/sh\nif [ \"$1\" = format ]; then exit 0; fi\n\
                   for last; do :; done\nmount -t tmpfs bench \"$last\" || exit 1\n\
                   while grep -q \"^bench $last \" /proc/self/mounts; do sleep 0.02; done\n";
    let peer = scratch.file("juicefs");
    std::fs::write(&peer, program).unwrap();
    std::fs::set_permissions(&peer, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let only = "--only volume-client --only juicefs --only xfs";
    let line = format!("bench files --seed ncar --quick --rounds 1 --files 8 {only} --json f.json --juicefs");
    let text = scratch.run(&format!("{line} {}", peer.display())).exits(0).text();
    let report: Value = serde_json::from_slice(&std::fs::read(scratch.file("f.json")).unwrap()).unwrap();
    let names: Vec<&str> =
        report["rows"].as_array().unwrap().iter().filter_map(|row| row["contender"].as_str()).collect();
    for name in ["volume-client", "juicefs", "xfs", "xfs-flushed"] {
        assert_eq!(names.iter().filter(|found| **found == name).count(), 2, "{name}: {text}");
    }
    for row in report["rows"].as_array().unwrap() {
        for step in ["create_per_s", "stat_per_s", "unlink_per_s"] {
            assert!(row[step][0].as_f64().is_some_and(|rate| rate > 0.0 && rate.is_finite()), "{row}");
        }
    }
    let without = scratch.run("bench files --seed ncar --rounds 1 --files 2 --only juicefs --juicefs ./no").exits(4);
    without.says("juicefs: NOT RUN: ./no: there is no such program");
    scratch.run("bench files --seed ncar --link 10").exits(2).says("--link is not an option of this experiment");
    scratch.run("bench files --seed nrd --files 10").exits(2).says("--files is not an option of this experiment");
    let failed = "#!/bin/sh\nif [ \"$1\" = format ]; then exit 0; fi\necho no metadata here >&2; exit 1\n";
    std::fs::write(&peer, failed).unwrap();
    let line = format!("bench files --seed ncar --rounds 1 --files 2 --only juicefs --juicefs {}", peer.display());
    scratch.run(&line).exits(1).says("no metadata here");
}

/// A file system that is mounted from a loop device; it is unmounted when this is dropped.
struct MountedLoop {
    device: String,
    place: std::path::PathBuf,
}

impl MountedLoop {
    fn new(scratch: &CommandScratch) -> Result<MountedLoop, String> {
        let (image, place) = (scratch.file("image"), scratch.file("mounted"));
        std::fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).map_err(|error| error.to_string())?;
        std::fs::create_dir(&place).map_err(|error| error.to_string())?;
        said("mkfs.ext4", &["-q".as_ref(), &image])?;
        let device = said("losetup", &["-f".as_ref(), "--show".as_ref(), &image])?.trim().to_owned();
        let mounted = MountedLoop { device, place };
        said("mount", &[mounted.device.as_ref(), &mounted.place])?;
        Ok(mounted)
    }
}

impl Drop for MountedLoop {
    fn drop(&mut self) {
        let _ = said("umount", &[&self.place]);
        let _ = said("losetup", &["-d".as_ref(), self.device.as_ref()]);
    }
}

/// Returns the output of a program, or the reason why it failed.
fn said(program: &str, words: &[&Path]) -> Result<String, String> {
    let output = Command::new(program).args(words).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// A device that is not mounted is overwritten only with the option that allows it.
#[test]
fn mounted_device_is_refused() {
    let scratch = CommandScratch::new("bench-io-mounted");
    let mounted = match MountedLoop::new(&scratch) {
        Ok(mounted) => mounted,
        Err(reason) => return println!("NOT RUN: no file system can be mounted here: {reason}"),
    };
    let device = mounted.device.clone();
    let refused = scratch.run(&format!("bench io {device} {SMALL} --overwrite")).exits(5);
    refused.says("mounted on");
    scratch.run(&format!("bench io {device} {SMALL} --op read")).exits(5);
    let place = mounted.place.clone();
    said("umount", &[&place]).unwrap();
    scratch.run(&format!("bench io {device} {SMALL}")).exits(2).says("a device is not overwritten");
    scratch.run(&format!("bench io {device} {SMALL} --streams 2 --overwrite")).exits(0);
}
