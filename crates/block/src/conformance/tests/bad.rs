//! Deliberately bad devices, each with one mistake. A test checks for each device that the right clause catches the
//! mistake.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::conformance::{VolatileDevice, check, check_durability, check_wrapper};
use crate::filter::Filter;
use crate::{
    BlockDevice, Buffer, Context, Error, ErrorKind, Extent, Geometry, IoFuture, MemoryDevice, Operation, SharedDevice,
    WriteFlags,
};

/// The mistakes that a device can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
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

struct Bad {
    inner: SharedDevice,
    mistake: Mistake,
    stale: Arc<Mutex<Stale>>,
    ends: AtomicUsize,
}

impl Bad {
    fn plant(inner: SharedDevice, mistake: Mistake) -> SharedDevice {
        Arc::new(Bad { inner, mistake, stale: Arc::default(), ends: AtomicUsize::new(0) })
    }

    /// The range with which the device below is called instead of the requested range.
    fn bend(&self, offset: u64, length: u64) -> (u64, u64) {
        let geometry = self.inner.geometry();
        let block = u64::from(geometry.block_bytes);
        match self.mistake {
            Mistake::AlignmentIgnored => (offset / block * block, length.next_multiple_of(block)),
            Mistake::EndIgnored if offset.saturating_add(length) > geometry.size_bytes => (0, 0),
            _ => (offset, length),
        }
    }

    fn bend_context(&self, context: Context) -> Context {
        match self.mistake {
            Mistake::DeadlineIgnored => Context { deadline: None, ..context },
            _ => context,
        }
    }

    fn bend_error<T: Send + 'static>(&self, operation: IoFuture<T>) -> IoFuture<T> {
        if self.mistake != Mistake::ErrorsWithoutPlace {
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

impl Filter for Bad {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        match self.mistake {
            Mistake::NameIsNoSpec => "bad(".to_owned(),
            _ => self.inner.spec(),
        }
    }

    fn geometry(&self) -> Geometry {
        match self.mistake {
            Mistake::OddBlocks => Geometry { block_bytes: 520, ..self.inner.geometry() },
            _ => self.inner.geometry(),
        }
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: Context) -> IoFuture<Vec<Buffer>> {
        let (at, buffers) = self.bend_buffers(offset, buffers);
        let read = self.bend_error(self.inner.read_at(at, buffers, self.bend_context(context)));
        let (mistake, stale) = (self.mistake, self.stale.clone());
        Box::pin(async move {
            let mut buffers = read.await?;
            let Some(last) = buffers.last_mut().filter(|buffer| !buffer.is_empty()) else { return Ok(buffers) };
            match mistake {
                Mistake::FirstReadsAreDirty => last[0] |= 1,
                Mistake::ReadsStopShort => {
                    let length = last.len();
                    last[length - 512..].fill(0);
                }
                Mistake::ReadsFromAStaleCopy => {
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
        context: Context,
    ) -> IoFuture<Vec<Buffer>> {
        let (at, mut buffers) = self.bend_buffers(offset, buffers);
        let context = self.bend_context(context);
        match self.mistake {
            Mistake::VectorsAtOnePlace if buffers.len() > 1 => {
                let (first, length) = (buffers[0].to_vec(), buffers[0].len());
                for buffer in &mut buffers {
                    let count = length.min(buffer.len());
                    buffer[..count].copy_from_slice(&first[..count]);
                }
            }
            Mistake::DroppedWritesLeaveRubbish if buffers.iter().all(|buffer| buffer.len() % 4096 == 0) => {
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
            Mistake::FuaIgnored => WriteFlags { fua: false },
            _ => flags,
        };
        let written = self.bend_error(self.inner.write_at(at, buffers, flags, context));
        if self.mistake != Mistake::OtherBuffersBack {
            return written;
        }
        Box::pin(async move { Ok(written.await?.iter().map(|buffer| Buffer::copy_of(buffer)).collect()) })
    }

    fn flush(&self, context: Context) -> IoFuture<()> {
        match self.mistake {
            Mistake::FlushLost => Box::pin(async { Ok(()) }),
            _ => self.inner.flush(self.bend_context(context)),
        }
    }

    fn discard(&self, offset: u64, length: u64, context: Context) -> IoFuture<()> {
        let (at, count) = self.bend(offset, length);
        if self.mistake == Mistake::DiscardsReadAsRubbish && count > 0 {
            let (inner, discarded) = (self.inner.clone(), self.inner.discard(at, count, context));
            return Box::pin(async move {
                discarded.await?;
                let rubbish = vec![Buffer::copy_of(&vec![0x99; count as usize])];
                inner.write_at(at, rubbish, WriteFlags::default(), context).await.map(drop)
            });
        }
        self.bend_error(self.inner.discard(at, count, self.bend_context(context)))
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: Context) -> IoFuture<()> {
        let (at, count) = self.bend(offset, length);
        match self.mistake {
            Mistake::ZeroesForgotten => self.inner.write_zeroes(at, count.min(4096), context),
            _ => self.bend_error(self.inner.write_zeroes(at, count, self.bend_context(context))),
        }
    }

    fn allocation(&self, offset: u64, length: u64, context: Context) -> IoFuture<Vec<Extent>> {
        let (at, count) = self.bend(offset, length);
        let found = self.bend_error(self.inner.allocation(at, count, self.bend_context(context)));
        let mistake = self.mistake;
        Box::pin(async move {
            let mut extents = found.await?;
            match mistake {
                Mistake::AllocationHasGaps => extents.retain(|extent| extent.mapped),
                Mistake::AllocationCallsDataUnmapped => extents.iter_mut().for_each(|extent| extent.mapped = false),
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
                Mistake::GrowthForgets => inner.write_zeroes(0, 4096, Context::default()).await?,
                Mistake::ShrinksSilently if result.as_ref().is_err_and(|error| error.kind == ErrorKind::Invalid) => {
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
            Mistake::EndForgotten => Box::pin(async { Ok(()) }),
            Mistake::SecondEndFails if ends > 0 => {
                let error = Error::new(ErrorKind::Latched, &self.inner.spec(), Operation::Close, "it has ended");
                Box::pin(async move { Err(error) })
            }
            Mistake::EndFailureHidden => {
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

#[tokio::test]
async fn planted_mistakes_are_caught_by_their_clause() {
    for (mistake, clause) in [
        (Mistake::OddBlocks, "geometry is sound"),
        (Mistake::NameIsNoSpec, "the name is a SPEC"),
        (Mistake::FirstReadsAreDirty, "a new device reads as zeroes"),
        (Mistake::ReadsStopShort, "reads give what was written"),
        (Mistake::VectorsAtOnePlace, "reads give what was written"),
        (Mistake::OtherBuffersBack, "buffers come back"),
        (Mistake::AlignmentIgnored, "misaligned requests are refused"),
        (Mistake::EndIgnored, "requests outside the device are refused"),
        (Mistake::DeadlineIgnored, "a passed deadline is a time-out"),
        (Mistake::ErrorsWithoutPlace, "misaligned requests are refused"),
        (Mistake::ReadsFromAStaleCopy, "completed operations are seen by later ones"),
        (Mistake::DroppedWritesLeaveRubbish, "dropped futures do no harm"),
        (Mistake::ZeroesForgotten, "reads give what was written"),
        (Mistake::DiscardsReadAsRubbish, "discarded ranges read as before or as zeroes"),
        (Mistake::AllocationHasGaps, "allocation covers the range"),
        (Mistake::AllocationCallsDataUnmapped, "allocation covers the range"),
        (Mistake::GrowthForgets, "growth keeps and adds"),
        (Mistake::ShrinksSilently, "growth keeps and adds"),
        (Mistake::SecondEndFails, "the use ends once, and may end again"),
    ] {
        let make = |size| async move { Bad::plant(Arc::new(MemoryDevice::new(size)), mistake) };
        match check(make).await {
            Ok(count) => panic!("{mistake:?} passed all {count} clauses"),
            Err(failure) => assert_eq!(failure.clause, clause, "{mistake:?}: {failure}"),
        }
    }
}

#[tokio::test]
async fn planted_losses_are_caught_by_a_crash() {
    for (mistake, clause) in [
        (Mistake::FlushLost, "flushed writes survive"),
        (Mistake::FuaIgnored, "a forced write survives without a flush"),
    ] {
        let below = Mutex::new(VolatileDevice::new(0));
        let (made, crashed) = (&below, &below);
        let make = |size| async move {
            let device = VolatileDevice::new(size);
            *made.lock().unwrap() = device.clone();
            Bad::plant(device, mistake)
        };
        let crash = |_: Arc<dyn BlockDevice>| async move { Bad::plant(crashed.lock().unwrap().crash(), mistake) };
        match check_durability(make, crash).await {
            Ok(count) => panic!("{mistake:?} passed all {count} clauses"),
            Err(failure) => assert_eq!(failure.clause, clause, "{mistake:?}: {failure}"),
        }
    }
}

#[tokio::test]
async fn an_end_that_is_not_passed_on_is_caught() {
    for (mistake, clause) in [
        (Mistake::EndForgotten, "the end of the use reaches the device below"),
        (Mistake::EndFailureHidden, "a failed end is reported"),
    ] {
        match check_wrapper(|device| async move { Bad::plant(device, mistake) }).await {
            Ok(count) => panic!("{mistake:?} passed all {count} clauses"),
            Err(failure) => assert_eq!(failure.clause, clause, "{mistake:?}: {failure}"),
        }
    }
}
