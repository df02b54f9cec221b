//! Tests that every device and filter of this crate passes the conformance test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::conformance::{ConformanceFailure, VolatileDevice, check, check_durability, check_seeded, check_wrapper};
use crate::mounted::TestMount;
use crate::{
    DeviceRegistry, FileDevice, FileEngine, MemoryDevice, OpenOptions, Recorder, SharedDevice, SurvivalLevel, open,
};

#[track_caller]
fn passed(result: Result<usize, ConformanceFailure>) {
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[tokio::test]
async fn memory_conforms() {
    for seed in 1..=5 {
        passed(check_seeded(|size| async move { Arc::new(MemoryDevice::new(size)) as SharedDevice }, seed).await);
    }
}

#[tokio::test]
async fn filters_conform() {
    for filter in [
        "stats(memory:4M)",
        "error(memory:4M,rate=0%)",
        "corrupt(memory:4M,rate=0%)",
        "delay(memory:4M,read=1us,write=1us,flush=1us)",
        "stats(delay(error(memory:4M,when=/nowhere/at/all),read=1us))",
        "throttle(memory:4M,iops=1000000,bandwidth=10G)",
        "log(memory:4M,file=/dev/null)",
        "model(memory:4M,disk=hdd-1999,clock=virtual)",
        "model(memory:4M,disk=hdd-7200,speed=1000)",
        "model(memory:4M,disk=nvme)",
        "stripe(memory:2M,memory:3M,unit=4K)",
        "stripe(memory:1M,memory:1M,memory:1M,memory:1M)",
        "stripe(memory:4M)",
    ] {
        let make = |_| async move { open(filter, &OpenOptions::default()).await.unwrap() };
        if let Err(failure) = check(make).await {
            panic!("{filter}: {failure}");
        }
    }
    passed(check(|size| async move { Recorder::new().wrap(Arc::new(MemoryDevice::new(size))) }).await);
}

#[tokio::test]
async fn filters_conform_above_memory() {
    type Wrap = fn(SharedDevice) -> SharedDevice;
    let wraps: [(&str, Wrap); 9] = [
        ("stats", |device| Arc::new(crate::StatsFilter::new(device))),
        ("error", |device| {
            Arc::new(crate::ErrorFilter::new(device, crate::ErrorOptions { rate: 0.0, ..Default::default() }))
        }),
        ("corrupt", |device| {
            Arc::new(crate::CorruptFilter::new(device, crate::CorruptOptions { rate: 0.0, ..Default::default() }))
        }),
        ("delay", |device| {
            let delay = std::time::Duration::from_micros(1);
            let options = crate::DelayOptions { read: delay, write: delay, flush: delay, ..Default::default() };
            Arc::new(crate::DelayFilter::new(device, options))
        }),
        ("record", |device| Recorder::new().wrap(device)),
        ("throttle", |device| {
            let options = crate::ThrottleOptions { iops: Some(1_000_000), bandwidth: None };
            Arc::new(crate::ThrottleFilter::new(device, options))
        }),
        ("model", |device| Arc::new(crate::ModelFilter::new(device, crate::ModelOptions::new(crate::DiskKind::Nvme)))),
        ("log", |device| Arc::new(crate::LogFilter::new(device, "/dev/null".into()).unwrap())),
        ("stripe", |device| Arc::new(crate::StripeDevice::new(vec![device], 4096).unwrap())),
    ];
    for (name, wrap) in wraps {
        let below = std::sync::Mutex::new(VolatileDevice::new(0));
        let (made, crashed) = (&below, &below);
        let make = |size| async move {
            let device = VolatileDevice::new(size);
            *made.lock().unwrap() = device.clone();
            wrap(device)
        };
        let crash = |_| async move { wrap(crashed.lock().unwrap().crash()) };
        if let Err(failure) = check_durability(make, crash).await {
            panic!("{name}: {failure}");
        }
        if let Err(failure) = check_wrapper(|device| async move { wrap(device) }).await {
            panic!("{name}: {failure}");
        }
    }
}

/// The files of a test, which are removed at the end of the test.
struct ConformanceFiles {
    directory: PathBuf,
    count: AtomicU32,
}

impl ConformanceFiles {
    fn new(parent: &Path) -> ConformanceFiles {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nectary-conformance-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = parent.join(name);
        std::fs::create_dir_all(&directory).unwrap();
        ConformanceFiles { directory, count: AtomicU32::new(0) }
    }

    fn next(&self) -> PathBuf {
        self.directory.join(format!("{}.img", self.count.fetch_add(1, Ordering::Relaxed)))
    }

    fn last(&self) -> PathBuf {
        self.directory.join(format!("{}.img", self.count.load(Ordering::Relaxed) - 1))
    }
}

impl Drop for ConformanceFiles {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Checks files in `parent` with every engine, with and without direct I/O.
async fn files_conform(parent: &Path) {
    for (engine, direct) in
        [(FileEngine::Uring, true), (FileEngine::Posix, true), (FileEngine::Uring, false), (FileEngine::Posix, false)]
    {
        let files = &ConformanceFiles::new(parent);
        let options = |create_bytes| OpenOptions { create_bytes, engine, direct, ..OpenOptions::default() };
        let make = |size| async move {
            let device = FileDevice::open_file(files.next(), &options(Some(size))).await.unwrap();
            Arc::new(device) as SharedDevice
        };
        if let Err(failure) = check(make).await {
            panic!("{engine:?}, direct {direct}: {failure}");
        }
        // To a file, a crash of this process is the same as a close. So the test closes the file and opens it again.
        let again = |device: SharedDevice| async move {
            drop(device);
            let device = FileDevice::open_file(files.last(), &options(None)).await.unwrap();
            Arc::new(device) as SharedDevice
        };
        if let Err(failure) = check_durability(make, again).await {
            panic!("{engine:?}, direct {direct}: {failure}");
        }
    }
}

/// The type of the file system that holds a directory.
fn file_system(path: &Path) -> String {
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(path).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn files_on_a_disk_conform() {
    let parent = std::env::temp_dir();
    match file_system(&parent).as_str() {
        "tmpfs" | "" => println!("NOT RUN: {} is not on a disk", parent.display()),
        _ => files_conform(&parent).await,
    }
}

/// A file on tmpfs says that its flushed data survives only the end of the process.
#[tokio::test]
async fn files_on_tmpfs_conform() {
    let parent = Path::new("/dev/shm");
    if file_system(parent) != "tmpfs" {
        println!("NOT RUN: /dev/shm is not a tmpfs");
        return;
    }
    files_conform(parent).await;
    let files = ConformanceFiles::new(parent);
    let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
    let device = FileDevice::open_file(files.next(), &options).await.unwrap();
    assert!(!device.is_direct());
    let device: SharedDevice = Arc::new(device);
    assert_eq!(device.geometry().flush_survives, SurvivalLevel::Process);
}

/// Makes a loop device of `size` bytes. *Errors*: the reason why it cannot be made.
fn loop_device(files: &ConformanceFiles, size: u64) -> Result<PathBuf, String> {
    let path = files.next();
    let file = std::fs::File::create(&path).map_err(|error| error.to_string())?;
    file.set_len(size).map_err(|error| error.to_string())?;
    let output = Command::new("losetup").args(["--find", "--show"]).arg(&path).output();
    let output = output.map_err(|error| format!("losetup: {error}"))?;
    if !output.status.success() {
        return Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Requests that the loop device is detached when its last user closes it.
fn detach(path: &Path) {
    let status = Command::new("losetup").arg("--detach").arg(path).status();
    assert!(status.is_ok_and(|status| status.success()), "{} stays behind", path.display());
}

#[tokio::test]
async fn loop_disk_conforms_by_both_engines() {
    let files = &ConformanceFiles::new(&std::env::temp_dir());
    match loop_device(files, 1 << 20) {
        Err(reason) => {
            println!("NOT RUN: no loop device: {reason}");
            return;
        }
        Ok(path) => detach(&path),
    }
    for engine in [FileEngine::Uring, FileEngine::Posix] {
        let make = |size| async move {
            let path = loop_device(files, size).unwrap();
            let options = OpenOptions { engine, ..OpenOptions::default() };
            let device = FileDevice::open_disk(&path, &options).await;
            let busy = FileDevice::open_disk(&path, &options).await.err().unwrap();
            detach(&path);
            assert_eq!(busy.kind, crate::DeviceErrorKind::Busy, "{busy}");
            assert!(busy.detail.contains(&std::process::id().to_string()), "{busy}");
            let device: SharedDevice = Arc::new(device.unwrap());
            assert_eq!(device.geometry().flush_survives, SurvivalLevel::Power);
            device
        };
        if let Err(failure) = check(make).await {
            panic!("{engine:?}: {failure}");
        }
    }
}

/// On ramfs, which has no direct I/O, a file is opened without it.
#[tokio::test]
async fn files_without_direct_io_conform() {
    let files = ConformanceFiles::new(&std::env::temp_dir());
    let place = files.directory.join("ramfs");
    let mount = match TestMount::new("ramfs", place.clone(), "rw") {
        Ok(mount) => mount,
        Err(why) => return println!("NOT RUN: no ramfs: {why}"),
    };
    let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
    let device = FileDevice::open_file(place.join("a.img"), &options).await.map(|device| device.is_direct());
    mount.unmount().unwrap();
    assert_eq!(device.ok(), Some(false));
}

#[tokio::test]
async fn every_registered_name_is_covered_here() {
    // This test fails if a new device or filter has no check in this file.
    let names = [
        "corrupt", "delay", "disk", "error", "file", "log", "memory", "model", "record", "stats", "stripe", "throttle",
    ];
    assert_eq!(DeviceRegistry::with_builtins().names(), names);
}
