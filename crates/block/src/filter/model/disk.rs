//! The parameters of each kind of disk, and the computation of the time that requests take, which uses no clock.
//!
//! # Disks with platters
//! One arm serves one request at a time. *Seek*: the time is 0 on the same track. Otherwise it is `track + (average -
//! track) * sqrt(3 d)` up to a third of the stroke, where it equals the average, and then rises linearly to the time of
//! the full stroke. `d` is the distance as a share of the disk [1]. *Rotation*: the platter always turns. The wait is
//! the time in which it turns from its position at the arm's arrival to the first sector. *Transfer*: bytes move at the
//! rate of the track, which falls linearly from the outer tracks (offset 0) to the inner tracks. A read that continues
//! the last read is served from the disk's read-ahead, without seek and rotation, but no faster than the platter
//! delivers the bytes. The write cache is off, so a write ends on the platter, and a flush takes only the fixed
//! overhead. The size of the device below is the size of the disk: a small device has the same seek times as a large
//! one.
//!
//! # Disks without platters
//! Each request waits for the interface (a fixed time), then for one of several flash units (a latency), then for the
//! bus (bytes at a rate). A write ends in the memory of the disk, after the write latency. A flush takes a fixed time.
//!
//! The numbers are typical of the data sheets of such disks; no single disk has exactly these numbers.
//!
//! | | rotation | seek track / average / full | transfer outer / inner |
//! |---|---|---|---|
//! | `hdd-1999` | 7,200 a minute | 0.8 / 7.1 / 16 ms, writes 0.8 ms more | 19 / 11 MB/s |
//! | `hdd-7200` | 7,200 a minute | 0.6 / 8.5 / 18 ms, writes 0.5 ms more | 210 / 100 MB/s |
//!
//! | | interface | read / write latency | units | bus read / write | flush |
//! |---|---|---|---|---|---|
//! | `ssd-sata` | 10 us | 90 / 30 us | 32 | 540 / 510 MB/s | 1 ms |
//! | `nvme` | 1.5 us | 70 / 15 us | 64 | 3,500 / 3,000 MB/s | 100 us |
//!
//! [1] C. Ruemmler, J. Wilkes: An Introduction to Disk Drive Modeling. IEEE Computer 27(3), 1994.

use crate::error::DeviceOperation;

/// A kind of disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// A SCSI disk of 1999 at 7,200 revolutions a minute.
    Hdd1999,
    /// A large disk of today at 7,200 revolutions a minute.
    Hdd7200,
    /// A solid-state disk on SATA.
    SsdSata,
    /// A solid-state disk on PCI Express.
    Nvme,
}

impl DiskKind {
    /// All kinds of disks with their names.
    pub const ALL: [(&str, DiskKind); 4] = [
        ("hdd-1999", DiskKind::Hdd1999),
        ("hdd-7200", DiskKind::Hdd7200),
        ("ssd-sata", DiskKind::SsdSata),
        ("nvme", DiskKind::Nvme),
    ];

    /// Parses the name of a kind.
    pub fn parse(text: &str) -> Result<DiskKind, String> {
        let known = DiskKind::ALL.map(|entry| entry.0).join(", ");
        let found = DiskKind::ALL.iter().find(|entry| entry.0 == text);
        found.map(|entry| entry.1).ok_or_else(|| format!("\"{text}\" is no disk; known are {known}"))
    }

    /// The name of the kind.
    pub fn as_str(self) -> &'static str {
        DiskKind::ALL.iter().find(|entry| entry.1 == self).map_or("", |entry| entry.0)
    }

    /// The initial state of a disk of this kind.
    pub(super) fn mechanics(self) -> DiskMechanics {
        match self {
            DiskKind::Hdd1999 => DiskMechanics::Platters(PlatterDisk::new(PlatterOptions {
                rotation_ns: 60_000_000_000 / 7_200,
                track_ns: 800_000,
                average_ns: 7_100_000,
                full_ns: 16_000_000,
                settle_ns: 800_000,
                overhead_ns: 300_000,
                outer_bytes: 19_000_000,
                inner_bytes: 11_000_000,
            })),
            DiskKind::Hdd7200 => DiskMechanics::Platters(PlatterDisk::new(PlatterOptions {
                rotation_ns: 60_000_000_000 / 7_200,
                track_ns: 600_000,
                average_ns: 8_500_000,
                full_ns: 18_000_000,
                settle_ns: 500_000,
                overhead_ns: 100_000,
                outer_bytes: 210_000_000,
                inner_bytes: 100_000_000,
            })),
            DiskKind::SsdSata => DiskMechanics::Flash(FlashDisk::new(FlashOptions {
                interface_ns: 10_000,
                read_ns: 90_000,
                write_ns: 30_000,
                flush_ns: 1_000_000,
                units: 32,
                read_bytes: 540_000_000,
                write_bytes: 510_000_000,
            })),
            DiskKind::Nvme => DiskMechanics::Flash(FlashDisk::new(FlashOptions {
                interface_ns: 1_500,
                read_ns: 70_000,
                write_ns: 15_000,
                flush_ns: 100_000,
                units: 64,
                read_bytes: 3_500_000_000,
                write_bytes: 3_000_000_000,
            })),
        }
    }
}

/// A request to a disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskRequest {
    pub operation: DeviceOperation,
    pub offset: u64,
    pub length: u64,
    /// The size of the device. *Units*: bytes.
    pub size_bytes: u64,
}

/// The parts of a request's service time. *Units*: nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ServiceTimes {
    pub seek: u64,
    pub rotation: u64,
    pub transfer: u64,
    pub other: u64,
}

impl ServiceTimes {
    pub fn sum(&self) -> u64 {
        self.seek + self.rotation + self.transfer + self.other
    }

    fn positioning(&self) -> u64 {
        self.seek + self.rotation
    }
}

/// A disk and its current state.
#[derive(Debug)]
pub(super) enum DiskMechanics {
    Platters(PlatterDisk),
    Flash(FlashDisk),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PlatterOptions {
    rotation_ns: u64,
    track_ns: u64,
    average_ns: u64,
    full_ns: u64,
    settle_ns: u64,
    overhead_ns: u64,
    outer_bytes: u64,
    inner_bytes: u64,
}

#[derive(Debug)]
pub(super) struct PlatterDisk {
    options: PlatterOptions,
    /// The position of the arm, as an offset on the disk. *Units*: bytes.
    position: u64,
    /// The offset and the time at which the last read ended, for the read-ahead.
    last_read: Option<(u64, u64)>,
}

impl PlatterDisk {
    fn new(options: PlatterOptions) -> PlatterDisk {
        PlatterDisk { options, position: 0, last_read: None }
    }

    /// The rate of the track at the request's offset. *Units*: bytes per second.
    fn rate(&self, work: &DiskRequest) -> f64 {
        let PlatterOptions { outer_bytes, inner_bytes, .. } = self.options;
        let share = work.offset as f64 / work.size_bytes.max(1) as f64;
        outer_bytes as f64 - (outer_bytes - inner_bytes) as f64 * share
    }

    /// The time that `work` takes if it begins at `start`. *Units*: nanoseconds of the disk's own time.
    pub fn times(&self, work: &DiskRequest, start: u64) -> ServiceTimes {
        let options = &self.options;
        if !matches!(work.operation, DeviceOperation::Read | DeviceOperation::Write | DeviceOperation::WriteZeroes) {
            return ServiceTimes { other: options.overhead_ns, ..ServiceTimes::default() };
        }
        let rate = self.rate(work);
        let transfer = nanoseconds(work.length, rate);
        if let (DeviceOperation::Read, Some((end, ended))) = (work.operation, self.last_read)
            && end == work.offset
        {
            // The disk has continued to read ahead, so the bytes that passed under the head since then are in the
            // disk's memory.
            let delivered = start.saturating_sub(ended).min(transfer);
            return ServiceTimes {
                transfer: transfer - delivered,
                other: options.overhead_ns,
                ..ServiceTimes::default()
            };
        }
        let track_bytes = rate * options.rotation_ns as f64 / 1e9;
        let distance = work.offset.abs_diff(self.position) as f64;
        let settle = if work.operation == DeviceOperation::Read { 0 } else { options.settle_ns };
        let seek =
            if distance < track_bytes { 0 } else { self.seek(distance / work.size_bytes.max(1) as f64) + settle };
        let arrived = start + options.overhead_ns + seek;
        let angle = (work.offset as f64 / track_bytes).fract();
        let now = (arrived % options.rotation_ns) as f64 / options.rotation_ns as f64;
        let rotation = ((angle - now).rem_euclid(1.0) * options.rotation_ns as f64) as u64;
        ServiceTimes { seek, rotation, transfer, other: options.overhead_ns }
    }

    fn seek(&self, share: f64) -> u64 {
        let PlatterOptions { track_ns, average_ns, full_ns, .. } = self.options;
        let third = 1.0 / 3.0;
        let seek = match share <= third {
            true => track_ns as f64 + (average_ns - track_ns) as f64 * (3.0 * share).sqrt(),
            false => average_ns as f64 + (full_ns - average_ns) as f64 * (share - third) / (1.0 - third),
        };
        seek as u64
    }

    /// Moves the arm to its position after `work`.
    pub fn serve(&mut self, work: &DiskRequest, end: u64) {
        if !matches!(work.operation, DeviceOperation::Read | DeviceOperation::Write | DeviceOperation::WriteZeroes) {
            return;
        }
        self.position = work.offset + work.length;
        self.last_read = (work.operation == DeviceOperation::Read).then_some((self.position, end));
    }

    /// Chooses the next request to serve among several: the one whose data reach the head first. *Returns* its index.
    pub fn next<'a>(&self, waiting: impl Iterator<Item = &'a DiskRequest>, start: u64) -> Option<usize> {
        let positioned = waiting.map(|work| self.times(work, start).positioning());
        positioned.enumerate().min_by_key(|&(_, time)| time).map(|(index, _)| index)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FlashOptions {
    interface_ns: u64,
    read_ns: u64,
    write_ns: u64,
    flush_ns: u64,
    units: usize,
    read_bytes: u64,
    write_bytes: u64,
}

#[derive(Debug)]
pub(super) struct FlashDisk {
    options: FlashOptions,
    interface_free: u64,
    bus_free: u64,
    units_free: Vec<u64>,
}

impl FlashDisk {
    fn new(options: FlashOptions) -> FlashDisk {
        FlashDisk { options, interface_free: 0, bus_free: 0, units_free: vec![0; options.units] }
    }

    /// Serves a request that arrives at `now`. *Returns* the time at which the request ends, and its service times
    /// without waits.
    pub fn serve(&mut self, work: &DiskRequest, now: u64) -> (u64, ServiceTimes) {
        let options = self.options;
        let accepted = self.interface_free.max(now) + options.interface_ns;
        self.interface_free = accepted;
        let (latency, rate) = match work.operation {
            DeviceOperation::Read => (options.read_ns, options.read_bytes),
            DeviceOperation::Flush => (options.flush_ns, 0),
            _ => (options.write_ns, options.write_bytes),
        };
        let unit = self.units_free.iter_mut().min().expect("there is at least one unit");
        let ready = accepted.max(*unit) + latency;
        *unit = ready;
        let moves = matches!(work.operation, DeviceOperation::Read | DeviceOperation::Write);
        let transfer = if moves { nanoseconds(work.length, rate as f64) } else { 0 };
        let end = if moves { ready.max(self.bus_free) + transfer } else { ready };
        if moves {
            self.bus_free = end;
        }
        (end, ServiceTimes { transfer, other: options.interface_ns + latency, ..ServiceTimes::default() })
    }
}

fn nanoseconds(bytes: u64, rate: f64) -> u64 {
    (bytes as f64 * 1e9 / rate) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::mix;

    const SIZE: u64 = 9 << 30;

    fn work(operation: DeviceOperation, offset: u64, length: u64) -> DiskRequest {
        DiskRequest { operation, offset, length, size_bytes: SIZE }
    }

    fn platters(disk: DiskKind) -> PlatterDisk {
        match disk.mechanics() {
            DiskMechanics::Platters(platters) => platters,
            DiskMechanics::Flash(_) => panic!("{disk:?} has no platters"),
        }
    }

    /// Offsets that look random.
    fn scatter(index: u64) -> u64 {
        mix(index) % (SIZE / 4096) * 4096
    }

    #[test]
    fn random_reads_match_data_sheet() {
        for (disk, expected_ms) in
            [(DiskKind::Hdd1999, 7.1 + 4.17 + 0.27 + 0.3), (DiskKind::Hdd7200, 8.5 + 4.17 + 0.03 + 0.1)]
        {
            let (mut platters, mut now) = (platters(disk), 0);
            for index in 0..10_000 {
                let work = work(DeviceOperation::Read, scatter(index), 4096);
                now += platters.times(&work, now).sum();
                platters.serve(&work, now);
            }
            let mean_ms = now as f64 / 1e6 / 10_000.0;
            assert!((mean_ms / expected_ms - 1.0).abs() < 0.08, "{disk:?}: {mean_ms} ms, expected {expected_ms}");
        }
    }

    #[test]
    fn sequential_reads_match_platter_rate() {
        let (mut platters, mut now) = (platters(DiskKind::Hdd1999), 0);
        for index in 0..1000 {
            let work = work(DeviceOperation::Read, index * 65536, 65536);
            now += platters.times(&work, now).sum();
            platters.serve(&work, now);
        }
        let rate = 65536.0 * 1000.0 / (now as f64 / 1e9);
        assert!((17e6..=19e6).contains(&rate), "{rate}");
    }

    #[test]
    fn small_sequential_writes_miss_revolutions() {
        let (mut platters, mut now) = (platters(DiskKind::Hdd1999), 0);
        for index in 0..100 {
            let work = work(DeviceOperation::Write, index * 4096, 4096);
            now += platters.times(&work, now).sum();
            platters.serve(&work, now);
        }
        let mean_ms = now as f64 / 1e6 / 100.0;
        assert!((8.0..9.5).contains(&mean_ms), "{mean_ms}");
    }

    #[test]
    fn the_nearest_of_several_goes_first() {
        let mut platters = platters(DiskKind::Hdd7200);
        platters.serve(&work(DeviceOperation::Read, SIZE / 2, 4096), 0);
        let waiting = [work(DeviceOperation::Read, 0, 4096), work(DeviceOperation::Read, SIZE / 2 + 4096, 4096)];
        assert_eq!(platters.next(waiting.iter(), 0), Some(1));
    }

    #[test]
    fn flash_is_limited_by_interface_and_bus() {
        let DiskMechanics::Flash(mut flash) = DiskKind::SsdSata.mechanics() else { panic!() };
        assert_eq!(flash.serve(&work(DeviceOperation::Read, 0, 4096), 0).0, 10_000 + 90_000 + 7_585);
        let last = (0..10_000).map(|_| flash.serve(&work(DeviceOperation::Read, 0, 4096), 0).0).max().unwrap();
        let rate = 10_000.0 / (last as f64 / 1e9);
        assert!((90_000.0..100_001.0).contains(&rate), "{rate}");
        let DiskMechanics::Flash(mut flash) = DiskKind::SsdSata.mechanics() else { panic!() };
        let last = (0..100).map(|_| flash.serve(&work(DeviceOperation::Write, 0, 1 << 20), 0).0).max().unwrap();
        let rate = 100.0 * 1048576.0 / (last as f64 / 1e9);
        assert!((500e6..511e6).contains(&rate), "{rate}");
    }

    #[test]
    fn names_are_read_back() {
        for (name, disk) in DiskKind::ALL {
            assert_eq!((DiskKind::parse(name), disk.as_str()), (Ok(disk), name));
        }
        assert!(DiskKind::parse("floppy").unwrap_err().contains("hdd-1999"));
    }
}
