//! Making stores and opening them.
//!
//! Owns: the assembly of a span from its parts. Each part gets its share of memory, and handles to the other parts that
//! it uses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use nectary_block::{Buffer, SharedDevice, write};
use nectary_cache::Gdsf;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::store::{Store, StoreInner, WriterHandle};
use crate::api::options::{CreateOptions, OpenOptions};
use crate::background::BackgroundRuntime;
use crate::checkpoint::CheckpointSources;
use crate::checkpoint::warm::WarmSources;
use crate::disk::health::DeviceHealth;
use crate::disk::overlay::OverlayDevice;
use crate::disk::span::SpanDisk;
use crate::disk::watched::MonitoredDevice;
use crate::error::{Error, StoreErrorKind};
use crate::format::BLOCK_BYTES;
use crate::format::layout::{SpanLayout, SpanMember};
use crate::get::lookup::ObjectLookup;
use crate::get::read_ahead;
use crate::get::reads::RunningReads;
use crate::index::ShardPresence;
use crate::index::held_names::SpanNames;
use crate::index::referenced::ReferencedBits;
use crate::intake::SpanIntake;
use crate::intake::admission::Admission;
use crate::intake::queue::WriteQueue;
use crate::locality::clusters::ClusterChoice;
use crate::locality::groups::SpanGroups;
use crate::locality::hints::PendingHints;
use crate::memory::tier::MemoryTier;
use crate::memory::warm_list::WarmList;
use crate::planted::{Bug, planted};
use crate::purge::log::PurgeLog;
use crate::purge::rules::rules_max;
use crate::put::commit::PutCommitter;
use crate::put::fill::table::FillTable;
use crate::random::random_u64s;
use crate::recover::{self, IndexReadLimits, PendingRepair, SpanPurges};
use crate::rewrite::ObjectRewriter;
use crate::rewrite::views::RunningViews;
use crate::state::{SpanProgress, SpanState, StateTables};
use crate::write::budget::MemoryBudget;
use crate::write::{SpanWriter, WriterStart};

/// Why a store that is opened only for reading takes no writes.
const READ_ONLY: &str = "it is opened only for reading";
/// The largest number of commands in the writer's queue. Further callers wait until the queue has room.
const COMMANDS_MAX: usize = 1024;

impl Store {
    /// Makes an empty store on a device.
    ///
    /// *Errors*: `Invalid` if the size is out of bounds. If `force` is not set: `Busy` if a store is on the device,
    /// `Corrupt` if other data are on it. *Durability*: when this returns, the empty store is flushed.
    pub async fn create(device: SharedDevice, options: &CreateOptions) -> Result<(), Error> {
        Store::create_span(device, options, SpanMember::SOLE).await
    }

    /// Makes an empty span of a store on a device, like [`create`](Store::create).
    pub(crate) async fn create_span(
        device: SharedDevice,
        options: &CreateOptions,
        member: SpanMember,
    ) -> Result<(), Error> {
        let spec = device.spec();
        if !options.force && Store::probe(&device).await? {
            return Err(Error::new(
                StoreErrorKind::Busy,
                format!("{spec}: there is a store already; open it, or force its replacement"),
            ));
        }
        let device_bytes = device.geometry().size_bytes;
        let size = if options.size_bytes == 0 { device_bytes } else { options.size_bytes };
        if size > device_bytes {
            device.grow(size).await?;
        }
        let mut random = random_u64s(options.seed);
        let identity = u128::from(random()) << 64 | u128::from(random());
        let created_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        let hash_seed = member.hash_seed().unwrap_or_else(&mut random);
        let planned = SpanLayout::plan(size, options.segment_bytes, identity, hash_seed, created_s)
            .map_err(|error| error.at(&spec))?;
        let layout = SpanLayout { member, ..planned };
        // The old superblocks are cleared first, so that a half-made store does not look like the old one.
        for address in [0, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES] {
            write(&*device, address, Buffer::zeroed(BLOCK_BYTES as usize)).await?;
        }
        for address in layout.checkpoint_offset {
            write(&*device, address, Buffer::zeroed(BLOCK_BYTES as usize)).await?;
        }
        PurgeLog::create(&device, &layout).await?;
        device.flush(Default::default()).await?;
        for address in [BLOCK_BYTES, 0] {
            write(&*device, address, layout.encode(address)).await?;
        }
        device.flush(Default::default()).await?;
        Ok(())
    }

    /// Opens a store and recovers it from its newest index checkpoint and the records written since; without a
    /// checkpoint, all segments are scanned.
    ///
    /// *Errors*: `Corrupt` if there is no store of a version that this program knows; `Invalid` for a budget that is
    /// too small; `Io`. With [`OpenOptions::is_read_only`] nothing is written to the device. Damage outside the superblock is no error: only the damaged objects are lost. *Cost*: reads the
    /// appends since the checkpoint, not the objects; while a large checkpoint is loaded, a get waits only until the
    /// index shard of its key is loaded, and `stat` reports the checkpoint's number of entries.
    pub async fn open(device: SharedDevice, options: OpenOptions) -> Result<Store, Error> {
        let device = if options.is_read_only { OverlayDevice::over(device) } else { device };
        let layout = recover::read_superblock(&device).await?;
        let SpanMember { number, count, .. } = layout.member;
        if count != 1 {
            let spec = device.spec();
            return Err(Error::invalid(format!(
                "{spec}: this is span {number} of a store of {count}, counted from 0; name all its spans"
            )));
        }
        Store::open_span(device, layout, options, SpanPurges::default()).await
    }

    /// Opens one span of a store.
    pub(crate) async fn open_span(
        device: SharedDevice,
        layout: SpanLayout,
        options: OpenOptions,
        purges: SpanPurges,
    ) -> Result<Store, Error> {
        let spec = device.spec();
        options.check().map_err(|error| error.at(&spec))?;
        let health = Arc::new(DeviceHealth::new(spec.clone(), options.device_deadline));
        let bare = Arc::clone(&device);
        let device = MonitoredDevice::over(device, &health);
        let mut repairs = Vec::new();
        let device_bytes = device.geometry().size_bytes;
        if device_bytes < layout.span_bytes {
            // The file was truncated. It gets its former size again: the part that was cut off reads as zeroes, and its
            // objects are lost.
            device.grow(layout.span_bytes).await.map_err(|error| {
                Error::new(
                    StoreErrorKind::Corrupt,
                    format!(
                        "{spec}: the store has {} bytes, the device only {}, and it cannot grow: {error}",
                        layout.span_bytes, device_bytes
                    ),
                )
            })?;
            repairs.push(PendingRepair::of_damage(format!(
                "it was truncated: the store has {} bytes, the device {device_bytes}; it gets its size back, and what was \
                 cut off is lost",
                layout.span_bytes
            )));
        }
        let recovered = recover::recover(
            &device,
            &layout,
            options.memory_bytes / 2,
            IndexReadLimits::of(options.background, options.index_loading),
            purges,
        )
        .await?;
        repairs.extend(recovered.repairs);
        let layout = layout.with_tags(&device).await?;
        let bits_memory_bytes = if options.reinsert_percent == 0 { 0 } else { options.memory_bytes };
        let referenced = ReferencedBits::new(layout.segment_count * layout.segment_bytes, bits_memory_bytes);
        let hints = PendingHints::new(options.memory_bytes);
        let groups = SpanGroups::new(layout.segment_count, options.memory_bytes);
        let regroups = options.rewrite_percent > 0 && options.cluster_bytes > 0;
        let admission = Admission::new(&options.admission, options.memory_bytes);
        let index_bytes = recovered.checkpoint.map_or(0, |header| header.index_bytes()).max(recovered.index.bytes());
        let names = Arc::new(SpanNames::new(&layout, recovered.position.epoch, options.memory_bytes));
        let purge_rules_max = recovered.purge_log.live_records_max().min(rules_max(options.memory_bytes));
        let fixed = index_bytes
            + referenced.bytes()
            + hints.bytes()
            + admission.bytes()
            + names.bytes()
            + recovered.purges.bytes();
        let budget = MemoryBudget::of(options.memory_bytes, fixed, &layout, options.reinsert_percent > 0)
            .with_objects_bytes_max(options.objects_bytes_max);
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        let span = Arc::new(SpanDisk::new(device, bare, &health, layout, recovered.position.epoch));
        let tables = StateTables {
            index: recovered.index,
            presence: ShardPresence::new(recovered.rest.loading.as_ref().map(|loading| loading.wanted())),
            memory: MemoryTier::new(Box::new(Gdsf::new(budget.tier_bytes))),
            purges: recovered.purges,
            names: Arc::clone(&names),
            referenced,
        };
        let (since, order) = (recovered.membership.since, recovered.purge_log.order());
        let progress = SpanProgress::new(recovered.clock, recovered.recovered_sequence, since, order);
        if planted(Bug::CutStatedAsFlushed) {
            // The clock is above everything that was found.
            progress.flushed.store(recovered.clock, Ordering::Release);
        }
        let state = Arc::new(SpanState::new(&span, tables, progress));
        let wake_bytes = budget.append_bytes.min(budget.unwritten_bytes / 2);
        let queue = WriteQueue::new(budget.unwritten_bytes, wake_bytes, recovered.recovered_sequence, names);
        let intake = Arc::new(SpanIntake {
            span: Arc::clone(&span),
            state: Arc::clone(&state),
            queue: Arc::new(queue),
            admission,
        });
        if options.is_read_only {
            intake.stop(READ_ONLY);
        }
        let rewriting = Arc::new(ObjectRewriter {
            span: Arc::clone(&span),
            state: Arc::clone(&state),
            intake: Arc::clone(&intake),
            hints,
            views: RunningViews::new(options.memory_bytes, regroups),
            percent: options.rewrite_percent,
            reinsert_percent: options.reinsert_percent,
            harvested: AtomicU64::new(0),
        });
        let lookup = Arc::new(ObjectLookup {
            span: Arc::clone(&span),
            state: Arc::clone(&state),
            intake: Arc::clone(&intake),
            rewriting: Arc::clone(&rewriting),
            reads: RunningReads::new(),
            groups,
            clusters: ClusterChoice::new(options.cluster_read, options.cluster_bytes),
            read_ahead: read_ahead::permits(budget.tier_bytes, layout.fragment_bytes),
        });
        let puts = Arc::new(PutCommitter {
            span,
            state: Arc::clone(&state),
            intake,
            rewriting,
            lookup,
            fills: FillTable::new(budget.fill_bytes),
            purge_rules_max: purge_rules_max as u64,
            purges_waiting: AtomicU64::new(0),
        });
        let warm_list = Arc::new(WarmList::default());
        let checkpoints =
            CheckpointSources { state, warm_list: Arc::clone(&warm_list), background: options.background };
        let checkpoint_entries = recovered.checkpoint.map_or(0, |header| header.entries());
        let recovery = recovered.recovery;
        let writer = SpanWriter::new(
            &puts,
            checkpoints,
            receiver,
            WriterStart {
                position: recovered.position,
                checkpoint_number: recovered.checkpoint_number,
                open_count: recovered.open_count,
                membership: recovered.membership,
                logged_sequence: recovered.logged_sequence,
                is_cut: recovered.is_cut,
                opening: IndexReadLimits::of(options.background, options.index_loading),
                memory_bytes: options.memory_bytes,
                objects_bytes_max: options.objects_bytes_max,
                append_bytes: budget.append_bytes,
                buffers_bytes: budget.append_buffers_bytes,
                purge_log: recovered.purge_log,
                rest: recovered.rest,
                warm: WarmSources { is_wanted: options.warm_up, checkpoint: recovered.checkpoint, newest: Vec::new() },
                replayed: recovered.recovery,
                write_delay: options.write_delay,
                flush_interval: options.flush_interval,
            },
        );
        let handle = match options.background {
            BackgroundRuntime::Caller => WriterHandle::Task(AbortOnDropHandle::new(tokio::spawn(writer.run()))),
            BackgroundRuntime::Threads => {
                let (running, ended) = std::sync::mpsc::channel();
                let thread = writer_thread(writer, running).map_err(|error| {
                    Error::new(StoreErrorKind::Io, format!("{spec}: cannot start the writer's thread: {error}"))
                })?;
                WriterHandle::Thread(thread, ended)
            }
        };
        let inner = StoreInner {
            puts,
            warm_list,
            checkpoint_entries,
            recovery,
            repairs,
            is_read_only: options.is_read_only,
            commands: Some(sender),
            writer: Mutex::new(Some(handle)),
        };
        Ok(Store { inner: Arc::new(inner) })
    }
}

/// Runs the writer on its own thread and runtime. `running` is dropped when it ends.
fn writer_thread(
    writer: SpanWriter,
    running: std::sync::mpsc::Sender<()>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("nectary-store".into()).spawn(move || {
        let _running = running;
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(writer.run()),
            Err(error) => writer.cannot_run(&error),
        }
    })
}
