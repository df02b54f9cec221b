//! Clauses about crashes: writes that a flush covers, and forced writes, survive a crash.

use std::future::Future;
use std::pin::Pin;

use super::{Verdict, block, ensure, succeed};
use crate::buffer::Buffer;
use crate::device::{IoContext, SharedDevice, WriteFlags, read, write};

type Step = fn(SharedDevice) -> Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// The operations before a crash, and the checks after it.
pub(super) struct DurabilityClause {
    pub name: &'static str,
    pub before: Step,
    pub after: Step,
}

pub(super) const CLAUSES: &[DurabilityClause] = &[
    DurabilityClause {
        name: "flushed writes survive",
        before: |device| {
            Box::pin(async move {
                put(&device, 0, 1).await?;
                put(&device, 5, 2).await?;
                flush(&device).await
            })
        },
        after: |device| {
            Box::pin(async move {
                holds(&device, 0, &[1]).await?;
                holds(&device, 5, &[2]).await
            })
        },
    },
    DurabilityClause {
        name: "a flush covers what ended on other handles",
        before: |device| {
            Box::pin(async move {
                let other = device.clone();
                let pending = device.write_at(0, vec![filled(&device, 3)], WriteFlags::default(), IoContext::default());
                put(&other, 1, 4).await?;
                succeed(pending.await, "a write")?;
                flush(&other).await
            })
        },
        after: |device| {
            Box::pin(async move {
                holds(&device, 0, &[3]).await?;
                holds(&device, 1, &[4]).await
            })
        },
    },
    DurabilityClause {
        name: "a forced write survives without a flush",
        before: |device| {
            Box::pin(async move {
                put(&device, 2, 5).await?;
                flush(&device).await?;
                let flags = WriteFlags { fua: true };
                let buffers = vec![filled(&device, 6)];
                let offset = 2 * block(&device.geometry());
                succeed(device.write_at(offset, buffers, flags, IoContext::default()).await, "a forced write").map(drop)
            })
        },
        after: |device| Box::pin(async move { holds(&device, 2, &[6]).await }),
    },
    DurabilityClause {
        name: "writes after the last flush are there or not",
        before: |device| {
            Box::pin(async move {
                put(&device, 3, 7).await?;
                flush(&device).await?;
                put(&device, 3, 8).await?;
                put(&device, 4, 9).await
            })
        },
        after: |device| {
            Box::pin(async move {
                holds(&device, 3, &[7, 8]).await?;
                holds(&device, 4, &[0, 9]).await
            })
        },
    },
    DurabilityClause {
        name: "flushed zeroes survive",
        before: |device| {
            Box::pin(async move {
                put(&device, 6, 10).await?;
                flush(&device).await?;
                let block = block(&device.geometry());
                succeed(device.write_zeroes(6 * block, block, IoContext::default()).await, "zeroing")?;
                flush(&device).await
            })
        },
        after: |device| Box::pin(async move { holds(&device, 6, &[0]).await }),
    },
    DurabilityClause {
        name: "flushed writes survive the end of the use",
        before: |device| {
            Box::pin(async move {
                put(&device, 7, 11).await?;
                flush(&device).await?;
                succeed(device.close().await, "the end of the use")
            })
        },
        after: |device| Box::pin(async move { holds(&device, 7, &[11]).await }),
    },
];

fn filled(device: &SharedDevice, value: u8) -> Buffer {
    Buffer::copy_of(&vec![value; device.geometry().block_bytes as usize])
}

async fn put(device: &SharedDevice, index: u64, value: u8) -> Verdict {
    let offset = index * block(&device.geometry());
    succeed(write(&**device, offset, filled(device, value)).await, "a write").map(drop)
}

async fn flush(device: &SharedDevice) -> Verdict {
    succeed(device.flush(IoContext::default()).await, "a flush")
}

/// Checks that in each atomic unit of a block, all bytes have the same value, which is one of `values`.
async fn holds(device: &SharedDevice, index: u64, values: &[u8]) -> Verdict {
    let geometry = device.geometry();
    let found = succeed(read(&**device, index * block(&geometry), geometry.block_bytes as usize).await, "a read")?;
    for unit in found.chunks(geometry.atomic_bytes.min(geometry.block_bytes) as usize) {
        let fits = values.contains(&unit[0]) && unit.iter().all(|byte| byte == &unit[0]);
        ensure(fits, || format!("block {index} begins with {}, expected one of {values:?}", unit[0]))?;
    }
    Ok(())
}
