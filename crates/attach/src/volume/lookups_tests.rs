//! Renames that begin once more: as look-ups tell the kernel, and on a mounted volume.

use std::fs;
use std::future::ready;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nectary_block::{FileDevice, OpenOptions, SharedDevice};
use nectary_fuse::FuseChannel;
use nectary_volume::client::{ClientOptions, ServerAddress};
use nectary_volume::format::VolumeIdentity;
use nectary_volume::journal::{FormatOptions, format};
use nectary_volume::metadata::first;
use nectary_volume::server::{MetadataServer, ServerOptions};

use super::super::{AttachedVolume, VolumeMountOptions, VolumeOptions};
use super::*;

const DIRECTORY: FileId = FileId { inode: 7, generation: 1 };
const FILE: FileId = FileId { inode: 20, generation: 1 };
const VOLUME: VolumeIdentity = VolumeIdentity([7; 16]);

/// Whether this machine cannot mount a volume; prints the reason.
fn is_missing(test: &str) -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let is_missing = !is_root || !Path::new("/dev/fuse").exists();
    if is_missing {
        println!("NOT RUN: {test}: it takes root and /dev/fuse");
    }
    is_missing
}

fn rename(arguments: &str) -> CallerCall {
    CallerCall::Rename(arguments.to_owned())
}

/// A second ESTALE reaches the program.
#[tokio::test]
async fn told_rename_begins_again_once() {
    if is_missing("told_rename_begins_again_once") {
        return;
    }
    let channel = FuseChannel::open(true).expect("it opens");
    let (shown, threads) = KernelCache::start(&channel).expect("it starts");
    let begins =
        async |thread, call| begins_again(&shown, (thread, call), FILE, ready(Ok(true))).await.expect("no error");
    assert!(!begins(1, CallerCall::Other).await, "a call that is no rename");
    assert!(begins(1, rename("a")).await);
    shown.note_stale(1, DIRECTORY, b"new", FILE);
    assert!(!begins(1, rename("a")).await, "it was told so before");
    assert!(begins(2, rename("a")).await, "another thread");
    assert!(begins(1, rename("b")).await, "another rename");
    assert!(begins(1, rename("a")).await, "the last one was told so");
    shown.note_stale(1, DIRECTORY, b"new", FILE);
    // The old name is gone: the call fails, and so it ends.
    shown.note_looked(1, DIRECTORY, b"old", None);
    assert!(begins(1, rename("a")).await);
    assert!(!begins_again(&shown, (3, rename("a")), FILE, ready(Ok(false))).await.expect("no error"));
    assert!(begins(3, rename("a")).await, "nothing was gone");
    shown.stop();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// A volume with its server and a mount in this process.
struct MountedRig {
    folder: PathBuf,
    server: MetadataServer,
    volume: Arc<AttachedVolume>,
}

impl MountedRig {
    async fn new(name: &str) -> MountedRig {
        let folder = std::env::temp_dir().join(format!("nectary-lookups-{}-{name}", std::process::id()));
        let directory = folder.join("mount");
        fs::create_dir_all(&directory).expect("it is made");
        let path = folder.join("disk");
        fs::File::create(&path).and_then(|file| file.set_len(512 << 20)).expect("it is made");
        let options = OpenOptions { is_shared: true, ..OpenOptions::default() };
        let device: SharedDevice = Arc::new(FileDevice::open_file(&path, &options).await.expect("it opens"));
        let options = FormatOptions {
            name: String::new(),
            segment_blocks: 2048,
            lease_ms: 5000,
            drift_per_mille: 10,
            force: false,
            volume: VOLUME,
            hash_key: [3; 16],
            created_s: 1,
        };
        format(&device, &options, |layout| first(layout, 1)).await.expect("it is formatted");
        let address = ServerAddress::Unix(folder.join("socket"));
        let options = ServerOptions {
            listen: vec![address.clone()],
            tls: None,
            number: 0,
            host: "here".to_owned(),
            previous_gone: true,
            said_gone: Vec::new(),
        };
        let server = MetadataServer::start(device.clone(), options).await.expect("it starts");
        let client = ClientOptions {
            servers: vec![address],
            tls: None,
            volume: VOLUME,
            host: "here".to_owned(),
            kind: 2,
            are_names_synced: false,
            are_names_local: false,
        };
        let options = VolumeOptions {
            device,
            directory,
            client,
            cache: None,
            allowed: VolumeMountOptions::default(),
            source: String::new(),
        };
        // Here and below, what waits for the server runs on another thread than the server.
        let volume = tokio::task::spawn_blocking(|| AttachedVolume::start(options)).await.expect("no panic");
        MountedRig { folder, server, volume: Arc::new(volume.expect("it is mounted")) }
    }

    async fn finish(self) {
        let volume = self.volume;
        let ended = tokio::task::spawn_blocking(move || volume.unmount(false).and_then(|()| volume.finish()));
        ended.await.expect("no panic").expect("it ends");
        self.server.stop().await.expect("it stops");
        fs::remove_dir_all(self.folder).expect("it is removed");
    }
}

/// Otherwise the next rename of the thread with the same arguments is not told to begin again.
#[tokio::test]
async fn rename_ends_its_repetition() {
    if is_missing("rename_ends_its_repetition") {
        return;
    }
    let rig = MountedRig::new("repetition").await;
    let volume = rig.volume.clone();
    let renamed = tokio::task::spawn_blocking(move || {
        let (shown, old, new) =
            (&volume.file_system.shown, volume.directory().join("old"), volume.directory().join("new"));
        [&old, &new].iter().for_each(|path| fs::write(path, b"").expect("it is made"));
        // SAFETY: a plain system call.
        let thread = unsafe { libc::gettid() } as u32;
        shown.note_begun_again(thread, rename("a"));
        shown.note_begun_again(thread + 1, rename("a"));
        assert!(shown.has_begun_again(thread, &rename("a"), FILE));
        fs::rename(&old, &new).expect("it is renamed");
        [thread, thread + 1].map(|thread| shown.has_begun_again(thread, &rename("a"), FILE))
    });
    let renamed = renamed.await;
    rig.finish().await;
    assert_eq!(renamed.expect("no panic"), [false, true]);
}
