//! Tests of the promises that stripes make beyond the contract: the places of bytes on the devices, and the mistakes
//! that a stripe refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::filter::Filter;
use crate::{MemoryDevice, OpenOptions, open, read, write};

fn pair(size_bytes: u64, unit_bytes: u64) -> (Arc<MemoryDevice>, Arc<MemoryDevice>, StripeDevice) {
    let (a, b) = (Arc::new(MemoryDevice::new(size_bytes)), Arc::new(MemoryDevice::new(size_bytes)));
    let stripe = StripeDevice::new(vec![a.clone(), b.clone()], unit_bytes).unwrap();
    (a, b, stripe)
}

#[tokio::test]
async fn stripe_units_alternate_devices() {
    let (a, b, stripe) = pair(64 << 10, 8192);
    let data: Vec<u8> = (0..40960u32).map(|byte| (byte / 4096 + 1) as u8).collect();
    write(&stripe, 4096, Buffer::copy_of(&data)).await.unwrap();
    assert_eq!(&*read(&stripe, 4096, 40960).await.unwrap(), &data[..]);
    let blocks = |image: Vec<u8>| image.chunks(4096).map(|block| block[0]).take(7).collect::<Vec<_>>();
    assert_eq!(blocks(a.image()), [0, 1, 4, 5, 8, 9, 0]);
    assert_eq!(blocks(b.image()), [2, 3, 6, 7, 10, 0, 0]);
}

#[tokio::test]
async fn stripe_parts_cover_range() {
    let map = StripeMap { devices: 3, unit_bytes: 4 };
    for offset in 0..40 {
        for length in 0..40 {
            let parts = map.parts(offset, length);
            assert_eq!(parts.iter().map(|part| part.length).sum::<u64>(), length, "{offset} {length}");
            for position in offset..offset + length {
                let (device, place, _) = map.locate(position);
                let part = parts.iter().find(|part| part.device == device).unwrap();
                assert!((part.offset..part.offset + part.length).contains(&place), "{offset} {length} {position}");
            }
        }
    }
}

#[tokio::test]
async fn stripe_allocation_matches_devices() {
    let (_, _, stripe) = pair(4 << 20, 64 << 10);
    for (offset, length) in [(0, 4096), (192 << 10, 65536), (1 << 20, 512 << 10), (3 << 20, 4096)] {
        write(&stripe, offset, Buffer::zeroed(length)).await.unwrap();
    }
    for (offset, length) in [(0u64, 8u64 << 20), (4096, 1 << 20), (200 << 10, 2 << 20)] {
        let extents = stripe.allocation(offset, length, IoContext::default()).await.unwrap();
        let mut position = offset;
        for extent in &extents {
            assert_eq!(extent.offset, position);
            position += extent.length;
            let mut block = extent.offset;
            while block < extent.offset + extent.length {
                let alone = stripe.allocation(block, 4096, IoContext::default()).await.unwrap();
                assert_eq!((alone.len(), alone[0].mapped), (1, extent.mapped), "{block}");
                block += 4096;
            }
        }
        assert_eq!(position, offset + length);
    }
}

#[tokio::test]
async fn vast_empty_stripe_is_one_extent() {
    let stripe = open("stripe(memory:1P,memory:1P,memory:2P)", &OpenOptions::default()).await.unwrap();
    let size = stripe.geometry().size_bytes;
    assert_eq!((size, stripe.spec().as_str()), (3 << 50, "stripe(memory:1P,memory:1P,memory:2P)"));
    let extents = stripe.allocation(4096, size - 4096, IoContext::default()).await.unwrap();
    assert_eq!(extents, [DeviceExtent { offset: 4096, length: size - 4096, mapped: false }]);
}

#[tokio::test]
async fn mistakes_are_refused_with_the_place() {
    for (spec, words) in [
        ("stripe()", "needs a device"),
        ("stripe(unit=64K)", "needs a device"),
        ("stripe(memory:1M,memory:1M,unit=1000)", "not a multiple"),
        ("stripe(memory:1M,memory:1M,unit=0)", "not a multiple"),
        ("stripe(memory:1M,memory:4K)", "smaller than a unit"),
        ("stripe(memory:1M,units=4K)", "known are unit"),
    ] {
        let error = open(spec, &OpenOptions::default()).await.err().unwrap_or_else(|| panic!("{spec} was taken"));
        assert!(error.kind == DeviceErrorKind::Invalid && error.to_string().contains(words), "{spec}: {error}");
    }
}

/// The error names the stripe, the failed device, and the range in the stripe.
#[tokio::test]
async fn stripe_error_names_failed_device() {
    let stripe = open("stripe(memory:1M,error(memory:1M,on=write))", &OpenOptions::default()).await.unwrap();
    write(&*stripe, 0, Buffer::zeroed(65536)).await.unwrap();
    let error = write(&*stripe, 65536, Buffer::zeroed(131072)).await.unwrap_err();
    assert_eq!((error.kind, error.offset, error.length), (DeviceErrorKind::Io, 65536, 131072));
    assert!(error.device.starts_with("stripe(") && error.detail.contains("error(memory:1M"), "{error}");
}

/// Memory whose use cannot be ended while `fails` is set; counts the attempts.
struct CloseFailingDevice {
    memory: SharedDevice,
    fails: bool,
    ends: AtomicUsize,
}

impl Filter for CloseFailingDevice {
    fn inner(&self) -> &SharedDevice {
        &self.memory
    }

    fn spec(&self) -> String {
        self.memory.spec()
    }

    fn close(&self) -> IoFuture<()> {
        self.ends.fetch_add(1, Ordering::Relaxed);
        let failed = || Err(Error::new(DeviceErrorKind::TimedOut, "memory", DeviceOperation::Close, "it is away"));
        ready(if self.fails { failed() } else { Ok(()) })
    }
}

/// The other devices of a stripe are closed even if closing one of them fails.
#[tokio::test]
async fn close_reaches_all_stripe_devices() {
    let device = |fails| {
        let memory = Arc::new(MemoryDevice::new(1 << 20));
        Arc::new(CloseFailingDevice { memory, fails, ends: AtomicUsize::new(0) })
    };
    let devices = [device(false), device(true), device(false)];
    let shared = devices.iter().map(|device| device.clone() as SharedDevice).collect();
    let stripe = StripeDevice::new(shared, 4096).unwrap();
    let error = stripe.close().await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::TimedOut && error.detail.contains("it is away"), "{error}");
    assert!(devices.iter().all(|device| device.ends.load(Ordering::Relaxed) == 1));
}
