//! Wrong bytes on donors.

use bytes::Bytes;

use super::bench::{ATTACH, MirrorBench};
use super::*;
use crate::group::*;

fn numbered(blocks: std::ops::Range<u64>) -> Vec<u8> {
    blocks.flat_map(|block| [block as u8 + 1; 16]).collect()
}

/// A device whose blocks are all written, and whose donor `out` is left.
fn without(bench: &mut MirrorBench, out: Donor) -> InPlaceMachine {
    let mut machine = bench.created();
    bench.write(&mut machine, 0, &numbered(0..16));
    bench.run(&mut machine, 3000);
    bench.is_up[out] = false;
    machine.step(bench.now_us, MachineEvent::Disconnected { donor: out });
    assert_eq!(bench.run(&mut machine, 2000), []);
    assert_eq!(machine.group().standing()[out], DonorStanding::Out);
    bench.restart(&mut machine, out);
    machine
}

/// Kills the client, and attaches another one.
fn after_a_crash(bench: &mut MirrorBench, client: u64) -> InPlaceMachine {
    let mut machine = bench.machine(client, ATTACH);
    assert_eq!(bench.run(&mut machine, 20_000), [MachineAction::Attached]);
    machine
}

/// Reads every block: it is right or lost. Returns those that are lost.
fn lost_blocks(bench: &mut MirrorBench, machine: &mut InPlaceMachine) -> Vec<u64> {
    let mut lost = Vec::new();
    for block in 0..16 {
        match bench.read(machine, block, 1) {
            Ok(data) => assert_eq!(data[..], numbered(block..block + 1)),
            Err(error) => {
                assert_eq!(error, DeviceError::Lost { block });
                lost.push(block);
            }
        }
    }
    lost
}

/// The rebuild goes on, and the wrong block stays lost for every client until it is written.
#[test]
fn wrong_rebuild_source_loses_block() {
    let mut bench = MirrorBench::new(2);
    let mut machine = without(&mut bench, 1);
    let wrong = bench.memory[0].windows(16).position(|bytes| bytes == [7; 16]).unwrap();
    bench.memory[0][wrong + 3] ^= 1;
    bench.is_up[1] = true;
    bench.run(&mut machine, 20_000);
    assert_eq!(machine.group().standing(), [DonorStanding::Trusted, DonorStanding::Rebuilding]);
    assert_eq!(machine.rebuild_progress(), Some((1, 3, 4)), "the rest is copied meanwhile");
    assert_eq!(bench.read(&mut machine, 6, 1), Err(DeviceError::Corrupt { block: 6 }));
    bench.run(&mut machine, 20_000);
    assert!(machine.is_quiet(), "{:?}", machine.group().standing());
    assert_eq!(lost_blocks(&mut bench, &mut machine), [6]);
    assert_eq!((machine.figures().lost_blocks, machine.group().figures().left), (1, 1));
    // It is lost for every client, until it is written.
    let mut machine = after_a_crash(&mut bench, 78);
    assert_eq!(lost_blocks(&mut bench, &mut machine), [6]);
    bench.write(&mut machine, 6, &numbered(6..7));
    assert!(lost_blocks(&mut bench, &mut machine).is_empty());
}

#[test]
fn source_right_in_time_loses_nothing() {
    let mut bench = MirrorBench::new(2);
    let mut machine = without(&mut bench, 1);
    bench.memory[0][5] ^= 1;
    bench.is_up[1] = true;
    bench.run(&mut machine, 20_000);
    bench.memory[0][5] ^= 1;
    bench.run(&mut machine, 2000);
    assert!(machine.is_quiet());
    assert!(lost_blocks(&mut bench, &mut machine).is_empty());
}

/// A rebuild loses the blocks of the wrong member's column and no other block.
#[test]
fn wrong_parity_member_loses_its_column() {
    for (out, damaged) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let mut bench = MirrorBench::with_parity(3);
        let mut machine = without(&mut bench, out);
        // A column of the first stripe.
        bench.memory[damaged][17] ^= 1;
        bench.is_up[out] = true;
        bench.run(&mut machine, 40_000);
        assert!(machine.is_quiet(), "{:?}", machine.group().standing());
        let lost = lost_blocks(&mut bench, &mut machine);
        let parity = usize::from(out == 2 || damaged == 2);
        assert_eq!(lost.len(), 2 - parity, "{out} {damaged}: {lost:?}");
        for at in 0..128 {
            assert_eq!(bench.memory.iter().fold(0, |sum, memory| sum ^ memory[at]), 0, "{out} {damaged}: {at}");
        }
        let mut machine = after_a_crash(&mut bench, 78);
        assert_eq!(lost_blocks(&mut bench, &mut machine), lost);
        bench.is_up[damaged] = false;
        machine.step(bench.now_us, MachineEvent::Disconnected { donor: damaged });
        assert_eq!(lost_blocks(&mut bench, &mut machine), lost);
    }
}

/// A repair does not change a block that this client has not written.
#[test]
fn repair_overwrites_only_known_blocks() {
    let mut bench = MirrorBench::new(2);
    let mut machine = bench.created();
    bench.write(&mut machine, 0, &numbered(0..16));
    machine.step(bench.now_us, MachineEvent::Detach);
    bench.run(&mut machine, 100);
    let mut machine = after_a_crash(&mut bench, 78);
    bench.write(&mut machine, 0, &numbered(0..1));
    bench.write(&mut machine, 2, &numbered(2..3));
    bench.run(&mut machine, 3000);
    // Blocks 0 and 2 are wrong on one donor. Block 1 differs, and this client does not know which copy is right.
    for at in [0, 16, 32] {
        bench.memory[0][at] ^= 1;
    }
    let unknown = bench.memory[0][16..32].to_vec();
    bench.asked.clear();
    for _ in 0..4 {
        assert!(bench.read(&mut machine, 0, 4).is_ok());
        bench.run(&mut machine, 100);
    }
    let writes = bench.asked.iter().filter_map(|(donor, body)| match body {
        DonorRequest::Write { offset, data, .. } => Some((*donor, *offset, data.len())),
        _ => None,
    });
    assert_eq!(writes.collect::<Vec<_>>(), [(0, 0, 16), (0, 32, 16)]);
    assert_eq!((&bench.memory[0][..16], &bench.memory[0][16..32]), (&numbered(0..1)[..], &unknown[..]));
    assert_eq!(bench.read(&mut machine, 2, 1), Ok(Bytes::from(numbered(2..3))));
}
