//! Clauses about contents: a read returns the bytes that were last written, zeroed or discarded, through any handle and
//! by any call.

use std::task::Poll;

use super::{ConformanceRandom, Verdict, block, ensure, succeed};
use crate::buffer::Buffer;
use crate::device::{IoContext, SharedDevice, WriteFlags, read, write};
use crate::error::DeviceErrorKind;

/// The number of operations that are compared with a model.
const MODEL_OPERATIONS: u32 = 400;

pub(super) async fn zeroes_at_first(device: SharedDevice) -> Verdict {
    let size = device.geometry().size_bytes as usize;
    let found = succeed(read(&*device, 0, size).await, "a read of everything")?;
    let wrong = found.iter().position(|&byte| byte != 0);
    ensure(wrong.is_none(), || format!("byte {} is not zero", wrong.unwrap_or_default()))
}

/// Compares a range with its expected bytes.
async fn compare(device: &SharedDevice, offset: u64, expected: &[u8], when: &str) -> Verdict {
    let found = succeed(read(&**device, offset, expected.len()).await, "a read")?;
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    ensure(wrong.is_none(), || {
        let index = wrong.unwrap_or_default();
        format!("{when}: byte {} is {:#04x}, expected {:#04x}", offset + index as u64, found[index], expected[index])
    })
}

/// Compares random operations on the device with the same operations on a vector of bytes.
pub(super) async fn model(device: SharedDevice, mut random: ConformanceRandom) -> Verdict {
    let geometry = device.geometry();
    let (size, block) = (geometry.size_bytes, block(&geometry));
    let mut model = vec![0u8; size as usize];
    for step in 0..MODEL_OPERATIONS {
        let offset = random.below(size / block) * block;
        let blocks = 1 + random.below(((size - offset) / block).min(64));
        let length = blocks * block;
        let range = offset as usize..(offset + length) as usize;
        let when = format!("step {step}, {length} bytes at {offset}");
        match random.below(8) {
            0..=3 => {
                let pieces = split(blocks, block, &mut random);
                let mut buffers: Vec<Buffer> = pieces.into_iter().map(Buffer::zeroed).collect();
                let start = random.next() as u8;
                let mut position = range.start;
                for buffer in &mut buffers {
                    for (index, byte) in buffer.iter_mut().enumerate() {
                        *byte = start.wrapping_add(((position + index) % 253) as u8);
                    }
                    model[position..position + buffer.len()].copy_from_slice(buffer);
                    position += buffer.len();
                }
                let flags = WriteFlags { fua: random.below(8) == 0 };
                succeed(device.write_at(offset, buffers, flags, IoContext::default()).await, "a write")?;
            }
            4 => {
                succeed(device.write_zeroes(offset, length, IoContext::default()).await, "zeroing")?;
                model[range].fill(0);
            }
            5 => succeed(device.flush(IoContext::default()).await, "a flush")?,
            _ => {
                let pieces = split(blocks, block, &mut random);
                // The previous contents of the buffers must not matter.
                let buffers = pieces.into_iter().map(|length| Buffer::copy_of(&vec![0xee; length])).collect();
                let found = succeed(device.read_at(offset, buffers, IoContext::default()).await, "a read")?;
                let found: Vec<u8> = found.iter().flat_map(|buffer| buffer.iter().copied()).collect();
                let wrong = found.iter().zip(&model[range]).position(|(found, expected)| found != expected);
                ensure(wrong.is_none() && found.len() as u64 == length, || format!("{when}: wrong byte at {wrong:?}"))?;
            }
        }
    }
    compare(&device, 0, &model, "at the end").await
}

/// Cuts a number of blocks into random pieces.
fn split(blocks: u64, block: u64, random: &mut ConformanceRandom) -> Vec<usize> {
    let mut pieces = Vec::new();
    let mut left = blocks;
    while left > 0 {
        let piece = 1 + random.below(left);
        pieces.push((piece * block) as usize);
        left -= piece;
    }
    pieces
}

pub(super) async fn buffers_come_back(device: SharedDevice) -> Verdict {
    let block = block(&device.geometry()) as usize;
    let buffers: Vec<Buffer> = (1..=3).map(|count| Buffer::copy_of(&vec![count as u8; count * block])).collect();
    let places = |buffers: &[Buffer]| buffers.iter().map(|buffer| (buffer.as_ptr(), buffer.len())).collect::<Vec<_>>();
    let before = places(&buffers).iter().map(|&(start, length)| (start as usize, length)).collect::<Vec<_>>();
    let same = |buffers: &[Buffer]| {
        places(buffers).iter().map(|&(start, length)| (start as usize, length)).collect::<Vec<_>>() == before
    };
    let written = device.write_at(0, buffers, WriteFlags::default(), IoContext::default()).await;
    let buffers = succeed(written, "a write")?;
    ensure(same(&buffers), || "a write gave other buffers back".to_owned())?;
    for (index, buffer) in buffers.iter().enumerate() {
        let value = index as u8 + 1;
        ensure(buffer.iter().all(|&byte| byte == value), || "a write changed its buffers".to_owned())?;
    }
    let buffers = succeed(device.read_at(0, buffers, IoContext::default()).await, "a read")?;
    ensure(same(&buffers), || "a read gave other buffers back".to_owned())
}

/// Keeps many operations in flight at a time, each on its own range, through two handles.
pub(super) async fn concurrent(device: SharedDevice, mut random: ConformanceRandom) -> Verdict {
    let geometry = device.geometry();
    let block = block(&geometry);
    let count = (geometry.size_bytes / block).min(300);
    let other = device.clone();
    for round in 0..3u64 {
        let value = |index: u64| (index * 7 + round) as u8 | 1;
        let mut writes: Vec<_> = (0..count)
            .map(|index| {
                let buffer = Buffer::copy_of(&vec![value(index); block as usize]);
                device.write_at(index * block, vec![buffer], WriteFlags::default(), IoContext::default())
            })
            .collect();
        while !writes.is_empty() {
            let write = writes.swap_remove(random.below(writes.len() as u64) as usize);
            succeed(write.await, "a write among many")?;
        }
        let reads: Vec<_> = (0..count)
            .map(|index| other.read_at(index * block, vec![Buffer::zeroed(block as usize)], IoContext::default()))
            .collect();
        for (index, read) in reads.into_iter().enumerate() {
            let found = succeed(read.await, "a read among many")?;
            let value = value(index as u64);
            let holds = found.iter().all(|buffer| buffer.iter().all(|&byte| byte == value));
            ensure(holds, || format!("round {round}: block {index} does not have what was written to it"))?;
        }
    }
    Ok(())
}

/// Drops the futures of operations before and after they were polled.
pub(super) async fn dropped(device: SharedDevice, mut random: ConformanceRandom) -> Verdict {
    let geometry = device.geometry();
    let (block, atomic) = (block(&geometry), geometry.atomic_bytes.min(geometry.block_bytes) as usize);
    let (blocks, context) = ((geometry.size_bytes / block / 2).min(64), IoContext::default());
    for round in 0..20u8 {
        let offset = random.below(blocks) * block;
        let buffer = vec![Buffer::copy_of(&vec![round + 1; block as usize])];
        let mut write = device.write_at(offset, buffer, WriteFlags::default(), context);
        let mut read = device.read_at(offset, vec![Buffer::zeroed(block as usize)], context);
        if random.below(2) == 0 {
            std::future::poll_fn(|context| {
                let _ = write.as_mut().poll(context);
                let _ = read.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
        }
        drop((write, read));
    }
    // A dropped operation may still happen, so only the other half of the device has known contents.
    let base = geometry.size_bytes / 2 / block * block;
    let data = vec![0x5a; block as usize];
    succeed(write(&*device, base, Buffer::copy_of(&data)).await, "a write after dropped ones")?;
    succeed(device.flush(context).await, "a flush after dropped writes")?;
    compare(&device, base, &data, "after dropped futures").await?;
    for index in 0..blocks {
        let found = succeed(read(&*device, index * block, block as usize).await, "a read")?;
        for unit in found.chunks(atomic) {
            let uniform = unit.iter().all(|byte| byte == &unit[0]) && unit[0] <= 20;
            ensure(uniform, || format!("block {index} has what nobody wrote"))?;
        }
    }
    Ok(())
}

/// Fills the device with bytes of one value.
async fn fill(device: &SharedDevice, value: u8) -> Result<Vec<u8>, String> {
    let size = device.geometry().size_bytes as usize;
    let model = vec![value; size];
    succeed(write(&**device, 0, Buffer::copy_of(&model)).await, "a write of everything")?;
    Ok(model)
}

pub(super) async fn zeroed(device: SharedDevice) -> Verdict {
    let mut model = fill(&device, 0xab).await?;
    let block = block(&device.geometry());
    let size = model.len() as u64;
    for (offset, length) in [(0, block), (3 * block, 40 * block), (size / 2, size / 4), (size - block, block)] {
        succeed(device.write_zeroes(offset, length, IoContext::default()).await, "zeroing")?;
        model[offset as usize..(offset + length) as usize].fill(0);
        compare(&device, 0, &model, &format!("after zeroing {length} bytes at {offset}")).await?;
    }
    Ok(())
}

pub(super) async fn zeroed_quickly(device: SharedDevice) -> Verdict {
    let mut model = fill(&device, 0xba).await?;
    let block = block(&device.geometry());
    let size = model.len() as u64;
    for (offset, length) in [(0, block), (3 * block, 40 * block), (size / 2, size / 4), (size - block, block)] {
        match device.zero_quickly(offset, length, IoContext::default()).await {
            Ok(()) => model[offset as usize..(offset + length) as usize].fill(0),
            Err(error) if error.kind == DeviceErrorKind::Unsupported => {}
            Err(error) => return Err(format!("zeroing quickly failed: {error}")),
        }
        compare(&device, 0, &model, &format!("after zeroing {length} bytes at {offset} quickly")).await?;
    }
    Ok(())
}

pub(super) async fn discarded(device: SharedDevice) -> Verdict {
    let model = fill(&device, 0xcd).await?;
    let block = block(&device.geometry());
    let (offset, length) = (5 * block, (model.len() as u64 / 2) / block * block);
    succeed(device.discard(offset, length, IoContext::default()).await, "a discard")?;
    let found = succeed(read(&*device, 0, model.len()).await, "a read")?;
    for (index, &byte) in found.iter().enumerate() {
        let inside = (offset..offset + length).contains(&(index as u64));
        ensure(byte == 0xcd || (inside && byte == 0), || format!("byte {index} is {byte:#04x} after a discard"))?;
    }
    let data = vec![0x77; length as usize];
    succeed(write(&*device, offset, Buffer::copy_of(&data)).await, "a write to a discarded range")?;
    compare(&device, offset, &data, "after writing to a discarded range").await
}

pub(super) async fn growth(device: SharedDevice) -> Verdict {
    let model = fill(&device, 0x3c).await?;
    let block = block(&device.geometry());
    let (old, new) = (model.len() as u64, model.len() as u64 * 2);
    succeed(device.grow(old).await, "growth to the size it has")?;
    let refused = device.grow(old - block).await.err().map(|error| error.kind);
    ensure(refused == Some(DeviceErrorKind::Invalid), || format!("shrinking gave {refused:?}"))?;
    match device.grow(new).await {
        Err(error) if error.kind == DeviceErrorKind::Unsupported => return Ok(()),
        grown => succeed(grown, "growth")?,
    }
    ensure(device.geometry().size_bytes == new, || format!("it has {} bytes", device.geometry().size_bytes))?;
    compare(&device, 0, &model, "after growth").await?;
    compare(&device, old, &vec![0; old as usize], "the added half").await?;
    let data = vec![0x44; (2 * block) as usize];
    succeed(write(&*device, old - block, Buffer::copy_of(&data)).await, "a write over the old end")?;
    compare(&device, old - block, &data, "over the old end").await
}
