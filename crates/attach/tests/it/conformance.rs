//! Checks that an attached device, opened as a disk, keeps the contract of the device below, although every request
//! passes through the kernel.

use std::sync::{Arc, Mutex};

use nectary_block::conformance::check;
use nectary_block::{FileDevice, OpenOptions, SharedDevice};

use crate::support::{AttachmentFixture, is_missing};

#[tokio::test]
async fn an_attached_device_keeps_the_contract() {
    if is_missing("attached conformance") {
        return;
    }
    let attached = &Mutex::new(Vec::new());
    let make = |size| async move {
        let device = AttachmentFixture::new(&format!("memory:{size}"), false);
        let disk = FileDevice::open_disk(device.0.path(), &OpenOptions::default()).await.expect("it opens");
        attached.lock().unwrap().push(device);
        Arc::new(disk) as SharedDevice
    };
    if let Err(failure) = check(make).await {
        panic!("{failure}");
    }
}
