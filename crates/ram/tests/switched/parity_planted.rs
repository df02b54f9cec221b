//! The checks of devices with parity on donors detect three planted bugs: trims that are not stored, parity that does
//! not cover the headers of slots, and open groups that a filled donor does not get.

use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, open, registry, spec};
use nectary_block::{Buffer, IoContext, OpenOptions, SharedDevice, read, write};
use nectary_ram::device::owner::planted::hasten;
use nectary_ram::logged::planted::{Bug, plant};

const SIZED: &str = ",size=2M,redundancy=parity-log,patience=10s";
const BLOCK: usize = 4096;

async fn take_over(spec: &str) -> SharedDevice {
    registry().open(spec, &OpenOptions { take_over: true, ..OpenOptions::default() }).await.unwrap()
}

async fn put(device: &SharedDevice, block: usize, byte: u8) {
    write(&**device, (block * BLOCK) as u64, Buffer::copy_of(&[byte; BLOCK])).await.unwrap();
}

/// Returns the number of blocks that cannot be read, or have other bytes than expected.
async fn wrong(device: &SharedDevice, expected: &[u8]) -> usize {
    let mut wrong = 0;
    for (block, byte) in expected.iter().enumerate() {
        let found = read(&**device, (block * BLOCK) as u64, BLOCK).await;
        wrong += usize::from(!found.is_ok_and(|found| found.iter().all(|found| found == byte)));
    }
    wrong
}

/// Returns the number of wrong blocks that the next client finds without one of three donors.
async fn after_a_crash() -> usize {
    let mut donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(8 << 20)).collect();
    let sized = spec(&donors.iter().collect::<Vec<_>>(), SIZED);
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    let mut expected: Vec<u8> = (1..60).collect();
    for (block, byte) in expected.iter().enumerate() {
        put(&device, block, *byte).await;
    }
    device.flush(IoContext::default()).await.unwrap();
    device.write_zeroes(7 * BLOCK as u64, 3 * BLOCK as u64, IoContext::default()).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    expected[7..10].fill(0);
    drop(device);
    donors.remove(1).end().await;
    let device = take_over(&sized).await;
    wrong(&device, &expected).await
}

/// Returns the number of wrong blocks that the next client finds without a donor, after another donor was filled while
/// groups were open.
async fn after_a_filling() -> usize {
    let mut donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(8 << 20)).collect();
    let sized = spec(&donors.iter().collect::<Vec<_>>(), SIZED);
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    let expected = [1, 2, 3, 4, 5];
    for (block, byte) in expected.iter().enumerate() {
        put(&device, block, *byte).await;
    }
    device.flush(IoContext::default()).await.unwrap();
    for turn in 0..3 {
        let socket = donors.remove(turn).end().await;
        let until = async |name: &str, value: u64| {
            let deadline = Instant::now() + crate::support::PATIENCE;
            while device.figures()[0].get(name) != Some(value) {
                assert!(Instant::now() < deadline, "{name}: {:?}", device.figures()[0]);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        until("donors_trusted", 2).await;
        donors.insert(turn, ServingDonor::at(socket, 8 << 20));
        until("degraded", 0).await;
    }
    drop(device);
    donors.remove(0).end().await;
    let device = take_over(&sized).await;
    wrong(&device, &expected).await
}

/// There is only one test, because a planted bug affects the whole process.
#[tokio::test]
async fn planted_parity_bugs_are_caught() {
    let _turn = crate::turn(module_path!());
    hasten();
    assert_eq!(tokio::join!(after_a_crash(), after_a_filling()), (0, 0));
    for bug in [Bug::TrimUnrecorded, Bug::HeadersOutside, Bug::OpenGroupsNotRefilled] {
        plant(Some(bug));
        let found = match bug {
            Bug::OpenGroupsNotRefilled => after_a_filling().await,
            _ => after_a_crash().await,
        };
        plant(None);
        println!("{}: {found} findings", bug.name());
        assert!(found > 0, "{} is not found", bug.name());
    }
}
