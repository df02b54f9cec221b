//! An attached device for a test, which is detached whether the test passes or fails.
#![allow(dead_code)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nectary_attach::{AttachOptions, Attachment, Error};
use nectary_block::DeviceRegistry;

/// Whether this machine cannot attach devices; prints the reason.
pub fn is_missing(test: &str) -> bool {
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0);
    let places = ["/dev/fuse", "/dev/loop-control"];
    let reason = match places.iter().find(|place| !Path::new(place).exists()) {
        Some(place) => format!("there is no {place}"),
        None if !root => "it takes root".to_owned(),
        None => return false,
    };
    println!("NOT RUN: {test}: {reason}");
    true
}

/// An attached device; dropping this detaches it.
pub struct AttachmentFixture(pub Attachment);

impl AttachmentFixture {
    pub fn new(spec: &str, read_only: bool) -> AttachmentFixture {
        let options = AttachOptions { read_only, ..AttachOptions::default() };
        AttachmentFixture(Attachment::start(DeviceRegistry::with_builtins(), spec, options).expect("it attaches"))
    }

    pub fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.0.path()).expect("it opens")
    }

    /// Opens the block device with direct I/O, so that reads reach the device and not the page cache.
    pub fn open_direct(&self) -> File {
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(self.0.path()).expect("it opens")
    }

    pub fn detach(&self) -> Result<(), Error> {
        self.0.release()?;
        self.0.finish()
    }
}

impl Drop for AttachmentFixture {
    fn drop(&mut self) {
        let _ = self.0.release_when_unused();
    }
}
