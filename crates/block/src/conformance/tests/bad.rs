//! Deliberately bad devices, each with one mistake. A test checks for each device that the right clause catches the
//! mistake.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::conformance::{VolatileDevice, check, check_durability, check_wrapper};
use crate::filter::Filter;
use crate::{
    BlockDevice, Buffer, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, Error, IoContext, IoFuture,
    MemoryDevice, SharedDevice, WriteFlags,
};

/// The mistakes that a device can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceMistake {
    OddBlocks,
    NameIsNoSpec,
    FirstReadsAreDirty,
    ReadsStopShort,
    VectorsAtOnePlace,
    OtherBuffersBack,
    AlignmentIgnored,
    EndIgnored,
    DeadlineIgnored,
    ErrorsWithoutPlace,
    ReadsFromAStaleCopy,
    DroppedWritesLeaveRubbish,
    ZeroesForgotten,
    DiscardsReadAsRubbish,
    AllocationHasGaps,
    AllocationCallsDataUnmapped,
    GrowthForgets,
    ShrinksSilently,
    FlushLost,
    FuaIgnored,
    SecondEndFails,
    EndForgotten,
    EndFailureHidden,
}

/// The bytes that the first read of each range returned, by offset.
type Stale = Vec<(u64, Vec<u8>)>;

struct MistakenDevice {
    inner: SharedDevice,
    mistake: DeviceMistake,
    stale: Arc<Mutex<Stale>>,
    ends: AtomicUsize,
}

impl MistakenDevice {
    fn plant(inner: SharedDevice, mistake: DeviceMistake) -> SharedDevice {
        Arc::new(MistakenDevice { inner, mistake, stale: Arc::default(), ends: AtomicUsize::new(0) })
    }

    /// The range with which the device below is called instead of the requested range.
    fn bend(&self, offset: u64, length: u64) -> (u64, u64) {
        let geometry = self.inner.geometry();
        let block = u64::from(geometry.block_bytes);
        match self.mistake {
            DeviceMistake::AlignmentIgnored => (offset / block * block, length.next_multiple_of(block)),
            DeviceMistake::EndIgnored if offset.saturating_add(length) > geometry.size_bytes => (0, 0),
            _ => (offset, length),
        }
    }

    fn bend_context(&self, context: IoContext) -> IoContext {
        match self.mistake {
            DeviceMistake::DeadlineIgnored => IoContext { deadline: None, ..context },
            _ => context,
        }
    }

    fn bend_error<T: Send + 'static>(&self, operation: IoFuture<T>) -> IoFuture<T> {
        if self.mistake != DeviceMistake::ErrorsWithoutPlace {
            return operation;
        }
        Box::pin(async move { operation.await.map_err(|error| error.at(0, 0)) })
    }

    fn bend_buffers(&self, offset: u64, buffers: Vec<Buffer>) -> (u64, Vec<Buffer>) {
        let length: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let (bent, bent_length) = self.bend(offset, length);
        match (bent, bent_length) == (offset, length) {
            true => (offset, buffers),
            false => (bent, vec![Buffer::zeroed(bent_length as usize)]),
        }
    }
}

impl Filter for MistakenDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        match self.mistake {
            DeviceMistake::NameIsNoSpec => "bad(".to_owned(),
            _ => self.inner.spec(),
        }
    }

    fn geometry(&self) -> DeviceGeometry {
        match self.mistake {
            DeviceMistake::OddBlocks => DeviceGeometry { block_bytes: 520, ..self.inner.geometry() },
            _ => self.inner.geometry(),
        }
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let (at, buffers) = self.bend_buffers(offset, buffers);
        let read = self.bend_error(self.inner.read_at(at, buffers, self.bend_context(context)));
        let (mistake, stale) = (self.mistake, self.stale.clone());
        Box::pin(async move {
            let mut buffers = read.await?;
            let Some(last) = buffers.last_mut().filter(|buffer| !buffer.is_empty()) else { return Ok(buffers) };
            match mistake {
                DeviceMistake::FirstReadsAreDirty => last[0] |= 1,
                DeviceMistake::ReadsStopShort => {
                    let length = last.len();
                    last[length - 512..].fill(0);
                }
                DeviceMistake::ReadsFromAStaleCopy => {
                    let mut stale = stale.lock().unwrap();
                    match stale.iter().find(|(place, data)| *place == at && data.len() == last.len()) {
                        Some((_, data)) => last.copy_from_slice(data),
                        None => stale.push((at, last.to_vec())),
                    }
                }
                _ => {}
            }
            Ok(buffers)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let (at, mut buffers) = self.bend_buffers(offset, buffers);
        let context = self.bend_context(context);
        match self.mistake {
            DeviceMistake::VectorsAtOnePlace if buffers.len() > 1 => {
                let (first, length) = (buffers[0].to_vec(), buffers[0].len());
                for buffer in &mut buffers {
                    let count = length.min(buffer.len());
                    buffer[..count].copy_from_slice(&first[..count]);
                }
            }
            DeviceMistake::DroppedWritesLeaveRubbish if buffers.iter().all(|buffer| buffer.len() % 4096 == 0) => {
                let (inner, length) = (self.inner.clone(), buffers.iter().map(|buffer| buffer.len()).sum());
                let mixed: Vec<u8> = (0..length).map(|index| index as u8).collect();
                let before = inner.write_at(at, vec![Buffer::copy_of(&mixed)], flags, context);
                return Box::pin(async move {
                    before.await?;
                    inner.write_at(at, buffers, flags, context).await
                });
            }
            _ => {}
        }
        let flags = match self.mistake {
            DeviceMistake::FuaIgnored => WriteFlags { fua: false },
            _ => flags,
        };
        let written = self.bend_error(self.inner.write_at(at, buffers, flags, context));
        if self.mistake != DeviceMistake::OtherBuffersBack {
            return written;
        }
        Box::pin(async move { Ok(written.await?.iter().map(|buffer| Buffer::copy_of(buffer)).collect()) })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        match self.mistake {
            DeviceMistake::FlushLost => Box::pin(async { Ok(()) }),
            _ => self.inner.flush(self.bend_context(context)),
        }
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let (at, count) = self.bend(offset, length);
        if self.mistake == DeviceMistake::DiscardsReadAsRubbish && count > 0 {
            let (inner, discarded) = (self.inner.clone(), self.inner.discard(at, count, context));
            return Box::pin(async move {
                discarded.await?;
                let rubbish = vec![Buffer::copy_of(&vec![0x99; count as usize])];
                inner.write_at(at, rubbish, WriteFlags::default(), context).await.map(drop)
            });
        }
        self.bend_error(self.inner.discard(at, count, self.bend_context(context)))
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let (at, count) = self.bend(offset, length);
        match self.mistake {
            DeviceMistake::ZeroesForgotten => self.inner.write_zeroes(at, count.min(4096), context),
            _ => self.bend_error(self.inner.write_zeroes(at, count, self.bend_context(context))),
        }
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        let (at, count) = self.bend(offset, length);
        let found = self.bend_error(self.inner.allocation(at, count, self.bend_context(context)));
        let mistake = self.mistake;
        Box::pin(async move {
            let mut extents = found.await?;
            match mistake {
                DeviceMistake::AllocationHasGaps => extents.retain(|extent| extent.mapped),
                DeviceMistake::AllocationCallsDataUnmapped => {
                    extents.iter_mut().for_each(|extent| extent.mapped = false)
                }
                _ => {}
            }
            Ok(extents)
        })
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let (inner, mistake) = (self.inner.clone(), self.mistake);
        Box::pin(async move {
            let result = inner.grow(size_bytes).await;
            match mistake {
                DeviceMistake::GrowthForgets => inner.write_zeroes(0, 4096, IoContext::default()).await?,
                DeviceMistake::ShrinksSilently
                    if result.as_ref().is_err_and(|error| error.kind == DeviceErrorKind::Invalid) =>
                {
                    return Ok(());
                }
                _ => {}
            }
            result
        })
    }

    fn close(&self) -> IoFuture<()> {
        let ends = self.ends.fetch_add(1, Ordering::Relaxed);
        match self.mistake {
            DeviceMistake::EndForgotten => Box::pin(async { Ok(()) }),
            DeviceMistake::SecondEndFails if ends > 0 => {
                let error =
                    Error::new(DeviceErrorKind::Latched, &self.inner.spec(), DeviceOperation::Close, "it has ended");
                Box::pin(async move { Err(error) })
            }
            DeviceMistake::EndFailureHidden => {
                let ended = self.inner.close();
                Box::pin(async move {
                    let _ = ended.await;
                    Ok(())
                })
            }
            _ => self.inner.close(),
        }
    }
}

/// Each planted mistake is caught by the clause that is meant for it.
#[tokio::test]
async fn conformance_catches_planted_mistakes() {
    for (mistake, clause) in [
        (DeviceMistake::OddBlocks, "geometry is sound"),
        (DeviceMistake::NameIsNoSpec, "the name is a SPEC"),
        (DeviceMistake::FirstReadsAreDirty, "a new device reads as zeroes"),
        (DeviceMistake::ReadsStopShort, "reads give what was written"),
        (DeviceMistake::VectorsAtOnePlace, "reads give what was written"),
        (DeviceMistake::OtherBuffersBack, "buffers come back"),
        (DeviceMistake::AlignmentIgnored, "misaligned requests are refused"),
        (DeviceMistake::EndIgnored, "requests outside the device are refused"),
        (DeviceMistake::DeadlineIgnored, "a passed deadline is a time-out"),
        (DeviceMistake::ErrorsWithoutPlace, "misaligned requests are refused"),
        (DeviceMistake::ReadsFromAStaleCopy, "completed operations are seen by later ones"),
        (DeviceMistake::DroppedWritesLeaveRubbish, "dropped futures do no harm"),
        (DeviceMistake::ZeroesForgotten, "reads give what was written"),
        (DeviceMistake::DiscardsReadAsRubbish, "discarded ranges read as before or as zeroes"),
        (DeviceMistake::AllocationHasGaps, "allocation covers the range"),
        (DeviceMistake::AllocationCallsDataUnmapped, "allocation covers the range"),
        (DeviceMistake::GrowthForgets, "growth keeps and adds"),
        (DeviceMistake::ShrinksSilently, "growth keeps and adds"),
        (DeviceMistake::SecondEndFails, "the use ends once, and may end again"),
    ] {
        let make = |size| async move { MistakenDevice::plant(Arc::new(MemoryDevice::new(size)), mistake) };
        match check(make).await {
            Ok(count) => panic!("{mistake:?} passed all {count} clauses"),
            Err(failure) => assert_eq!(failure.clause, clause, "{mistake:?}: {failure}"),
        }
    }
}

#[tokio::test]
async fn crash_clauses_catch_planted_losses() {
    for (mistake, clause) in [
        (DeviceMistake::FlushLost, "flushed writes survive"),
        (DeviceMistake::FuaIgnored, "a forced write survives without a flush"),
    ] {
        let below = Mutex::new(VolatileDevice::new(0));
        let (made, crashed) = (&below, &below);
        let make = |size| async move {
            let device = VolatileDevice::new(size);
            *made.lock().unwrap() = device.clone();
            MistakenDevice::plant(device, mistake)
        };
        let crash =
            |_: Arc<dyn BlockDevice>| async move { MistakenDevice::plant(crashed.lock().unwrap().crash(), mistake) };
        match check_durability(make, crash).await {
            Ok(count) => panic!("{mistake:?} passed all {count} clauses"),
            Err(failure) => assert_eq!(failure.clause, clause, "{mistake:?}: {failure}"),
        }
    }
}

/// A wrapper that does not close the device below, or hides that closing failed, is caught.
#[tokio::test]
async fn wrapper_without_close_is_caught() {
    for (mistake, clause) in [
        (DeviceMistake::EndForgotten, "the end of the use reaches the device below"),
        (DeviceMistake::EndFailureHidden, "a failed end is reported"),
    ] {
        match check_wrapper(|device| async move { MistakenDevice::plant(device, mistake) }).await {
            Ok(count) => panic!("{mistake:?} passed all {count} clauses"),
            Err(failure) => assert_eq!(failure.clause, clause, "{mistake:?}: {failure}"),
        }
    }
}
