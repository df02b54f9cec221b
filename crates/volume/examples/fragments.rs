//! Measures what an operation costs in the metadata server's memory while free space is fragmented.
//!
//! `cargo run --release -p nectary-volume --example fragments`

use std::time::Instant;

use nectary_volume::format::{
    ExtentState, Mutation, MutationAction, SessionRecord, SessionState, SpaceRecord, TableKey, TableKind,
    VolumeIdentity, VolumeLabel, VolumeRecord,
};
use nectary_volume::journal::{SetAside, VolumeLayout};
use nectary_volume::metadata::{AppendStamp, MetadataImage, first};
use nectary_volume::protocol::{AttributeChanges, FileId, MetadataOperation, MetadataQuestion, ServerAnswer};
use nectary_volume::tables::MetadataTables;

/// The size of the volume. *Units*: blocks.
const BLOCKS: u64 = 1 << 24;
/// The first block of the fragmented range. *Units*: blocks.
const PIECES_START: u64 = 1 << 20;
/// The number of operations in one measurement.
const OPERATIONS: u64 = 500;
const SESSION: u64 = 1;
const ROOT: FileId = FileId { inode: 1, generation: 1 };

fn put(tables: &mut MetadataTables, key: &TableKey, value: Vec<u8>) {
    tables.apply(&Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(value) });
}

/// Makes a volume on which every second block of a range is used.
fn image(fragments: u64) -> MetadataImage {
    let segments = vec![SetAside { block: 2048, blocks: 2048, epoch: 1 }];
    let mut tables = MetadataTables::default();
    first(&VolumeLayout { blocks: BLOCKS, segments }, 7).iter().for_each(|mutation| tables.apply(mutation));
    let session = SessionRecord {
        incarnation: [9; 16],
        state: SessionState::Active,
        kind: 1,
        flags: 0,
        lease_ms: 1000,
        acknowledged: 0,
        machine: 0,
        boot: 0,
        created_ns: 0,
        ended_ns: 0,
        reason: 0,
        host: "h".to_owned(),
    };
    put(&mut tables, &TableKey::Session(SESSION), session.encode().expect("it is within its bounds"));
    let mut volume = VolumeRecord::decode(tables.get(&TableKey::Volume).expect("it is there")).expect("it decodes");
    volume.next_session = SESSION + 1;
    put(&mut tables, &TableKey::Volume, volume.encode());
    for index in 0..fragments {
        let space = SpaceRecord { blocks: 1, state: ExtentState::Granted, owner: SESSION, since: 0 };
        put(&mut tables, &TableKey::Space(PIECES_START + 2 * index), space.encode());
    }
    let label = VolumeLabel {
        volume: VolumeIdentity([1; 16]),
        blocks: BLOCKS,
        segment_blocks: 2048,
        first_segment: 2048,
        hash_key: [3; 16],
        created_s: 0,
        lease_ms: 1000,
        drift_per_mille: 10,
        incompat: 0,
        ro_compat: 0,
        compat: 0,
        version_min: 1,
        version_made: 1,
        name: String::new(),
    };
    MetadataImage::load(tables, &label, 1).expect("it is sound")
}

/// Returns the median time of a call. *Units*: microseconds.
fn median_us(mut call: impl FnMut(u64)) -> f64 {
    let mut times: Vec<f64> = (0..OPERATIONS)
        .map(|index| {
            let begun = Instant::now();
            call(index);
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    println!("pieces   change of a mode   grant of 8 blocks   idle background   (median, us)");
    for fragments in [0, 1_000, 30_000, 300_000] {
        let mut image = image(fragments);
        let stamp = AppendStamp { now_ns: 8, sequence: 5 };
        let changes = AttributeChanges { mode: Some(0o755), ..AttributeChanges::default() };
        let mode = median_us(|index| {
            let operation = MetadataOperation::SetAttributes { file: ROOT, changes };
            image.operate(stamp, SESSION, index + 1, &operation).0.expect("it is done");
        });
        let grant = median_us(|_| {
            let asked = image.ask(stamp, SESSION, &MetadataQuestion::Space { blocks: 8 }).expect("there is room");
            assert!(matches!(asked.answer, ServerAnswer::Space(_)));
        });
        let idle = median_us(|_| {
            assert!(image.background(stamp).expect("it is done").is_empty());
        });
        let pieces = image.tables().table(TableKind::Space).len();
        println!("{pieces:>6}   {mode:>16.1}   {grant:>17.1}   {idle:>15.1}");
    }
}
