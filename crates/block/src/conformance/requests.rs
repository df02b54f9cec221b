//! Clauses about requests: units, bounds, limits, deadlines, and the text of errors.

use std::time::{Duration, Instant};

use super::{Verdict, block, ensure, succeed};
use crate::buffer::Buffer;
use crate::device::{IoContext, SharedDevice, WriteFlags, read, write};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::request::BUFFERS_MAX;
use crate::spec::DeviceSpec;

pub(super) async fn geometry(device: SharedDevice) -> Verdict {
    let geometry = device.geometry();
    let block = geometry.block_bytes;
    ensure(block.is_power_of_two() && (512..=4096).contains(&block), || format!("blocks of {block} bytes"))?;
    ensure(geometry.size_bytes > 0 && geometry.size_bytes.is_multiple_of(u64::from(block)), || {
        format!("{} bytes in blocks of {block}", geometry.size_bytes)
    })?;
    ensure(geometry.atomic_bytes.is_power_of_two() && geometry.atomic_bytes >= 512, || {
        format!("an atomic unit of {} bytes", geometry.atomic_bytes)
    })?;
    for preferred in [geometry.read_bytes_preferred, geometry.write_bytes_preferred] {
        ensure(preferred >= block && preferred.is_multiple_of(block), || format!("{preferred} bytes are preferred"))?;
    }
    ensure(geometry.flush_survives >= geometry.write_survives, || "a flush promises less than a write".to_owned())
}

pub(super) async fn name(device: SharedDevice) -> Verdict {
    let spec = device.spec();
    let parsed = DeviceSpec::parse(&spec).map_err(|error| format!("\"{spec}\" is no SPEC: {error}"))?;
    ensure(parsed.to_string() == spec, || format!("\"{spec}\" reads as \"{parsed}\""))
}

pub(super) async fn empty(device: SharedDevice) -> Verdict {
    let (context, end) = (IoContext::default(), device.geometry().size_bytes);
    let buffers = succeed(device.read_at(end, Vec::new(), context).await, "a read without buffers")?;
    ensure(buffers.is_empty(), || "a read without buffers gave some".to_owned())?;
    let buffers = succeed(device.read_at(0, vec![Buffer::zeroed(0)], context).await, "a read into an empty buffer")?;
    ensure(buffers.len() == 1, || "an empty buffer did not come back".to_owned())?;
    let flags = WriteFlags { fua: true };
    succeed(device.write_at(0, Vec::new(), flags, context).await, "a write without buffers")?;
    succeed(device.discard(0, 0, context).await, "a discard of nothing")?;
    succeed(device.write_zeroes(end, 0, context).await, "zeroing nothing")?;
    succeed(device.zero_quickly(end, 0, context).await, "zeroing nothing quickly")?;
    let extents = succeed(device.allocation(0, 0, context).await, "the allocation of nothing")?;
    ensure(extents.is_empty(), || format!("nothing is mapped as {extents:?}"))
}

/// Tries every kind of operation on a range, and checks that each operation is refused with an error of kind `kind`.
async fn refused(
    device: &SharedDevice,
    offset: u64,
    length: u64,
    context: IoContext,
    kind: DeviceErrorKind,
) -> Verdict {
    let length_in_memory = length.min(1 << 20) as usize;
    let buffer = || vec![Buffer::copy_of(&vec![0xee; length_in_memory])];
    let flags = WriteFlags::default();
    let is_whole = length_in_memory as u64 == length;
    if is_whole {
        let result = device.read_at(offset, buffer(), context).await;
        look(device, result.map(drop), DeviceOperation::Read, offset, length, kind)?;
        let result = device.write_at(offset, buffer(), flags, context).await;
        look(device, result.map(drop), DeviceOperation::Write, offset, length, kind)?;
    }
    look(device, device.discard(offset, length, context).await, DeviceOperation::Discard, offset, length, kind)?;
    look(
        device,
        device.write_zeroes(offset, length, context).await,
        DeviceOperation::WriteZeroes,
        offset,
        length,
        kind,
    )?;
    look(
        device,
        device.zero_quickly(offset, length, context).await,
        DeviceOperation::WriteZeroes,
        offset,
        length,
        kind,
    )?;
    let result = device.allocation(offset, length, context).await;
    look(device, result.map(drop), DeviceOperation::Allocation, offset, length, kind)
}

fn look(
    device: &SharedDevice,
    result: Result<(), Error>,
    operation: DeviceOperation,
    offset: u64,
    length: u64,
    kind: DeviceErrorKind,
) -> Verdict {
    let what = format!("{} of {length} bytes at {offset}", operation.as_str());
    let Err(error) = result else { return Err(format!("{what} was taken")) };
    ensure(error.kind == kind, || format!("{what} failed as {:?}, not as {kind:?}: {error}", error.kind))?;
    ensure(error.operation == operation, || format!("{what} failed as another operation: {error}"))?;
    ensure((error.offset, error.length) == (offset, length), || format!("{what} failed at another place: {error}"))?;
    // A filter may let the device below refuse the request; the error then has the name of that device.
    ensure(device.spec().contains(&error.device), || format!("{what} failed on {}, not here", error.device))
}

/// Checks that a refused write changed nothing.
async fn untouched(device: &SharedDevice) -> Verdict {
    let size = device.geometry().size_bytes;
    let found = succeed(read(&**device, 0, size as usize).await, "a read of everything")?;
    let touched = found.iter().position(|&byte| byte != 0);
    ensure(touched.is_none(), || format!("a refused request changed byte {}", touched.unwrap_or_default()))
}

pub(super) async fn misaligned(device: SharedDevice) -> Verdict {
    let block = block(&device.geometry());
    for (offset, length) in [(1, block), (block / 2, block), (0, block - 1), (0, block + 1), (block, block / 2)] {
        refused(&device, offset, length, IoContext::default(), DeviceErrorKind::Invalid).await?;
    }
    // The total length is aligned, but the lengths of the single buffers are not.
    let half = (block / 2) as usize;
    let buffers = || vec![Buffer::copy_of(&vec![0xee; half]), Buffer::copy_of(&vec![0xee; half])];
    let result = device.read_at(0, buffers(), IoContext::default()).await;
    look(&device, result.map(drop), DeviceOperation::Read, 0, block, DeviceErrorKind::Invalid)?;
    let result = device.write_at(0, buffers(), WriteFlags::default(), IoContext::default()).await;
    look(&device, result.map(drop), DeviceOperation::Write, 0, block, DeviceErrorKind::Invalid)?;
    untouched(&device).await
}

pub(super) async fn outside(device: SharedDevice) -> Verdict {
    let geometry = device.geometry();
    let (block, size) = (block(&geometry), geometry.size_bytes);
    let last = u64::MAX - u64::MAX % block;
    for (offset, length) in
        [(size, block), (size - block, 2 * block), (last, block), (block, last), (1 << 62, block), (0, size + block)]
    {
        refused(&device, offset, length, IoContext::default(), DeviceErrorKind::Invalid).await?;
    }
    untouched(&device).await
}

pub(super) async fn too_many_buffers(device: SharedDevice) -> Verdict {
    let geometry = device.geometry();
    let block = block(&geometry);
    let buffers = |count| (0..count).map(|_| Buffer::zeroed(block as usize)).collect::<Vec<_>>();
    let count = BUFFERS_MAX.min((geometry.size_bytes / block) as usize);
    let back = succeed(device.read_at(0, buffers(count), IoContext::default()).await, "the largest vector")?;
    ensure(back.len() == count, || format!("{} of {count} buffers came back", back.len()))?;
    let empty = (0..=BUFFERS_MAX).map(|_| Buffer::zeroed(0)).collect();
    let result = device.read_at(0, empty, IoContext::default()).await;
    look(&device, result.map(drop), DeviceOperation::Read, 0, 0, DeviceErrorKind::Invalid)
}

pub(super) async fn deadline(device: SharedDevice) -> Verdict {
    let block = block(&device.geometry());
    let passed = IoContext { deadline: Some(Instant::now()), ..IoContext::default() };
    refused(&device, 0, block, passed, DeviceErrorKind::TimedOut).await?;
    look(&device, device.flush(passed).await, DeviceOperation::Flush, 0, 0, DeviceErrorKind::TimedOut)?;
    let far = IoContext { deadline: Some(Instant::now() + Duration::from_secs(3600)), ..IoContext::default() };
    succeed(device.read_at(0, vec![Buffer::zeroed(block as usize)], far).await, "a read with an hour to go")?;
    succeed(device.flush(far).await, "a flush with an hour to go")?;
    untouched(&device).await
}

pub(super) async fn allocation(device: SharedDevice) -> Verdict {
    let geometry = device.geometry();
    let (size, block) = (geometry.size_bytes, block(&geometry));
    let places = [0, size / 2, size - block];
    for place in places {
        succeed(write(&*device, place, Buffer::copy_of(&vec![7; block as usize])).await, "a write")?;
    }
    succeed(device.flush(IoContext::default()).await, "a flush")?;
    for (offset, length) in [(0, size), (block, size - 2 * block), (size / 2, block)] {
        let extents = succeed(device.allocation(offset, length, IoContext::default()).await, "allocation")?;
        let mut position = offset;
        for extent in &extents {
            ensure(extent.offset == position && extent.length > 0, || {
                format!("expected an extent at {position}, found {extent:?}")
            })?;
            position += extent.length;
            for place in places {
                let inside = (extent.offset..position).contains(&place);
                ensure(extent.mapped || !inside, || format!("{place} was written and {extent:?} says it is unmapped"))?;
            }
            if !extent.mapped {
                let found = succeed(read(&*device, extent.offset, extent.length as usize).await, "a read")?;
                ensure(found.iter().all(|&byte| byte == 0), || format!("{extent:?} does not read as zeroes"))?;
            }
        }
        ensure(position == offset + length, || format!("the extents end at {position}, not {}", offset + length))?;
    }
    Ok(())
}

pub(super) async fn closed(device: SharedDevice) -> Verdict {
    let block = block(&device.geometry()) as usize;
    succeed(write(&*device, 0, Buffer::copy_of(&vec![7; block])).await, "a write")?;
    succeed(device.flush(IoContext::default()).await, "a flush")?;
    succeed(device.close().await, "the end of the use")?;
    succeed(device.close().await, "a second end")
}
