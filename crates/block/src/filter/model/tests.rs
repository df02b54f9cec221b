//! Tests of the time that a modelled disk takes, on a paused clock and on a virtual clock.

use std::sync::Arc;

use super::*;
use crate::filter::mix;
use crate::{BlockDevice, Buffer, IoContext, MemoryDevice, OpenOptions, open, read, write};

fn modelled(options: ModelOptions) -> ModelFilter {
    ModelFilter::new(Arc::new(MemoryDevice::new(1 << 30)), options)
}

fn scatter(index: u64) -> u64 {
    mix(index) % (1 << 18) * 4096
}

#[tokio::test]
async fn virtual_clock_counts_without_waiting() {
    let options = ModelOptions { clock: ModelClock::Virtual, ..ModelOptions::new(DiskKind::Hdd1999) };
    let device = modelled(options);
    let began = std::time::Instant::now();
    for index in 0..1000 {
        read(&device, scatter(index), 4096).await.unwrap();
    }
    let (stats, elapsed) = (device.snapshot(), began.elapsed());
    assert_eq!((stats.operations, stats.waited), (1000, Duration::ZERO));
    assert!(stats.busy > Duration::from_secs(10) && stats.busy < Duration::from_secs(14), "{stats:?}");
    assert!(stats.clock >= stats.busy && stats.clock < stats.busy + elapsed + Duration::from_secs(1), "{stats:?}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    assert_eq!(stats.busy, stats.seek + stats.rotation + stats.transfer + Duration::from_micros(300) * 1000);
}

#[tokio::test(start_paused = true)]
async fn real_clock_waits_service_time() {
    let device = modelled(ModelOptions::new(DiskKind::Hdd7200));
    let began = Instant::now();
    for index in 0..200 {
        read(&device, scatter(index), 4096).await.unwrap();
    }
    let (elapsed, stats) = (began.elapsed(), device.snapshot());
    // The last part of each wait does not advance tokio's paused clock, so the next wait makes up for it.
    assert!(elapsed + Duration::from_millis(3) > stats.busy && elapsed < stats.busy * 2, "{elapsed:?} {stats:?}");
}

/// A disk that serves requests in their order gains nothing from a deeper queue.
#[tokio::test(start_paused = true)]
async fn deeper_queue_is_served_faster() {
    let real = ModelOptions::new(DiskKind::Hdd7200);
    for options in [real, ModelOptions { clock: ModelClock::Virtual, ..real }] {
        let busy = busy_by_depth(options).await;
        assert!(busy[1] * 3 < busy[0] * 2, "{busy:?}");
    }
    // A disk that serves requests in order is not faster if more requests wait.
    let busy = busy_by_depth(ModelOptions { clock: ModelClock::Virtual, queue_depth: 1, ..real }).await;
    assert!(busy[1] * 10 > busy[0] * 9 && busy[1] * 9 < busy[0] * 10, "{busy:?}");
}

/// The time for which a disk is busy with 256 reads, first one by one, then 32 at a time.
async fn busy_by_depth(options: ModelOptions) -> Vec<Duration> {
    let mut busy = Vec::new();
    for depth in [1, 32] {
        let device = modelled(options);
        for batch in 0..256 / depth {
            let reads: Vec<_> = (0..depth)
                .map(|index| {
                    let buffers = vec![Buffer::zeroed(4096)];
                    BlockDevice::read_at(&device, scatter(batch * depth + index), buffers, IoContext::default())
                })
                .collect();
            for read in reads {
                read.await.unwrap();
            }
        }
        let stats = device.snapshot();
        assert_eq!(stats.operations, 256);
        busy.push(stats.busy);
    }
    busy
}

#[tokio::test(start_paused = true)]
async fn dropped_requests_leave_disk_queue() {
    let device = modelled(ModelOptions::new(DiskKind::Hdd1999));
    let begin = |index| BlockDevice::read_at(&device, scatter(index), vec![Buffer::zeroed(4096)], IoContext::default());
    let mut pending: Vec<_> = (0..8).map(begin).collect();
    // The dropped requests are the last one, one in the middle, and the one in service.
    drop(pending.remove(7));
    drop(pending.remove(3));
    drop(pending.remove(0));
    for read in pending {
        read.await.unwrap();
    }
    let stats = device.snapshot();
    assert_eq!(stats.operations, 6, "{stats:?}");
}

#[tokio::test]
async fn fast_disk_waits_below_millisecond() {
    let device = modelled(ModelOptions::new(DiskKind::Nvme));
    let began = std::time::Instant::now();
    for index in 0..200 {
        read(&device, scatter(index), 4096).await.unwrap();
    }
    // 200 reads of 73 us each take about 15 ms; if each wait were rounded up to milliseconds, they would take 200 or
    // 400 ms.
    let elapsed = began.elapsed();
    assert!(elapsed >= Duration::from_millis(14), "{elapsed:?}");
    println!("200 reads of 73 us took {elapsed:?}");
}

#[tokio::test]
async fn speed_divides_the_time() {
    let device = open("model(memory:1G,disk=hdd-1999,speed=1000)", &OpenOptions::default()).await.unwrap();
    assert_eq!(device.spec(), "model(memory:1G,disk=hdd-1999,speed=1000)");
    let began = std::time::Instant::now();
    for index in 0..500 {
        write(&*device, scatter(index), Buffer::zeroed(4096)).await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let figures = device.figures();
    assert_eq!((figures[0].device, figures[0].get("operations")), ("model", Some(500)));
    assert!(figures[0].get("busy_us") > Some(4_000_000), "{figures:?}");
}

#[tokio::test]
async fn mistakes_in_the_options_are_refused() {
    for (spec, words) in [
        ("model(memory:1M)", "needs a disk"),
        ("model(memory:1M,disk=floppy)", "known are hdd-1999"),
        ("model(memory:1M,disk=nvme,clock=fast)", "real or virtual"),
        ("model(memory:1M,disk=nvme,speed=0)", "above 0"),
        ("model(memory:1M,disk=nvme,queue-depth=0)", "1 or more"),
    ] {
        let error = open(spec, &OpenOptions::default()).await.err().unwrap();
        assert!(error.to_string().contains(words), "{spec}: {error}");
    }
}

/// A wait ends although the runtime that used the timer before does not run.
#[test]
fn each_runtime_has_own_timers() {
    let device = modelled(ModelOptions::new(DiskKind::SsdSata));
    let runtimes: Vec<_> =
        (0..2).map(|_| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()).collect();
    for runtime in runtimes.iter().chain(&runtimes) {
        // The other runtime does not run in the meantime. If it watched the timer, no task would see the timer fire.
        let limit = Duration::from_secs(10);
        runtime.block_on(async { tokio::time::timeout(limit, read(&device, 0, 4096)).await }).unwrap().unwrap();
    }
}
