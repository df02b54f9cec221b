//! Spare donors take the place of donors that are drained, leaving or lost. Devices are found again under the same SPEC.

mod support;

use std::time::{Duration, Instant};

use nectary_block::{BlockDevice, Buffer, Context, ErrorKind, read, write};
use nectary_ram::check::{Health, check};
use nectary_ram::live::{RedundantDevice, planted};
use support::{Serving, create, options};

const BYTES: usize = 6 << 20;

fn contents(version: u8) -> Vec<u8> {
    (0..BYTES).map(|at| version ^ (at / 4096 * 31) as u8 ^ (at % 251) as u8).collect()
}

/// The SPEC of a device on donors, of which the last is a spare.
fn spec(donors: &[&Serving], redundancy: &str) -> String {
    let mut names: Vec<String> = donors.iter().map(|donor| donor.name()).collect();
    let spare = names.pop().unwrap();
    names.push(format!("{};spare\"", spare.trim_end_matches('"')));
    format!("ram({},id=disk,size=6M,redundancy={redundancy})", names.join(","))
}

fn number(device: &RedundantDevice, name: &str) -> u64 {
    device.figures()[0].get(name).unwrap_or_default()
}

async fn wait(what: &str, is_it: impl Fn() -> bool) {
    let deadline = Instant::now() + support::PATIENCE;
    while !is_it() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn is_right(device: &RedundantDevice, version: u8) {
    assert!(read(device, 0, BYTES).await.unwrap()[..] == contents(version)[..]);
}

async fn made(spec: &str) -> RedundantDevice {
    create(spec).await.unwrap();
    let device = RedundantDevice::open(options(spec)).await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents(1))).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    device
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_donor_has_nothing_and_may_be_taken_away() {
    for (redundancy, count) in [("mirror", 2), ("mirror", 3), ("parity", 3), ("adaptive", 3)] {
        let donors: Vec<Serving> = (0..=count).map(|_| Serving::new(20 << 20)).collect();
        let named = spec(&donors.iter().collect::<Vec<_>>(), redundancy);
        let device = made(&named).await;
        assert!(donors[count].donor.figures().devices.is_empty(), "a spare has nothing before it is needed");
        let old = donors[0].name().trim_matches('"').to_owned();
        let spare = device.drain(&old).await.unwrap();
        assert_eq!(spare, donors[count].name().trim_matches('"'));
        assert_eq!((number(&device, "replaced"), number(&device, "left"), number(&device, "degraded")), (1, 0, 0));
        wait("the drained donor is empty", || donors[0].donor.figures().devices.is_empty()).await;
        let none = device.drain("2").await.unwrap_err();
        assert!(none.contains("no spare"), "{none}");
        device.detach().await.unwrap();
        drop(device);
        // The drained donor is gone, and the SPEC still names it.
        let mut donors = donors;
        donors.remove(0).end().await;
        let checked = check(&options(&named), &mut |_, _| {}).await.unwrap();
        assert_eq!((checked.health, checked.problem_count), (Health::Healthy, 0), "{redundancy}: {checked:?}");
        let device = RedundantDevice::open(options(&named)).await.unwrap();
        assert_eq!((number(&device, "donors_trusted"), number(&device, "degraded")), (count as u64, 0));
        is_right(&device, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_donor_that_says_that_it_leaves_is_drained_by_itself() {
    let (one, two, three) = (Serving::new(20 << 20), Serving::new(20 << 20), Serving::new(20 << 20));
    let device = made(&spec(&[&one, &two, &three], "mirror")).await;
    two.donor.leave();
    wait("the leaving donor is empty", || two.donor.figures().devices.is_empty()).await;
    wait("the spare has its place", || number(&device, "replaced") == 1).await;
    two.end().await;
    one.end().await;
    is_right(&device, 1).await;
    drop(three);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_donors_part_is_rebuilt_on_the_spare_and_what_it_still_has_is_not_believed() {
    planted::hasten();
    let (one, two, three) = (Serving::new(20 << 20), Serving::new(20 << 20), Serving::new(20 << 20));
    let named = spec(&[&one, &two, &three], "mirror");
    let device = made(&named).await;
    // The server ends, and the memory stays as it is.
    let Serving { donor, server, socket } = one;
    server.stop().await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents(2))).await.unwrap();
    wait("a spare is filled", || number(&device, "rebuilt") == 1 && number(&device, "degraded") == 0).await;
    drop(device);
    // After a crash of the client, the first donor is back with its older copy.
    let one = Serving::again(donor, socket);
    let device = RedundantDevice::open(options(&named)).await.unwrap();
    assert_eq!((number(&device, "donors_trusted"), number(&device, "degraded")), (2, 0));
    is_right(&device, 2).await;
    drop(device);
    // Without the donor that took its place, the older copy is not believed.
    let three = {
        let Serving { donor, server, socket } = three;
        server.stop().await.unwrap();
        let refused = RedundantDevice::open(options(&named)).await.map(drop).unwrap_err();
        assert!(refused.kind == ErrorKind::Absent && refused.detail.contains("is missing"), "{refused}");
        Serving::again(donor, socket)
    };
    let device = RedundantDevice::open(options(&named)).await.unwrap();
    // Now that one is the spare: the device survives the loss of another donor in the same way.
    two.end().await;
    write(&device, 0, Buffer::copy_of(&contents(3))).await.unwrap();
    wait("the former donor is filled", || number(&device, "rebuilt") == 1 && number(&device, "degraded") == 0).await;
    three.end().await;
    is_right(&device, 3).await;
    drop(one);
}

#[tokio::test]
async fn spares_come_last_and_belong_to_redundancy() {
    use nectary_block::OpenOptions;
    use nectary_ram::device::RamOptions;
    let parse =
        |spec: &str| RamOptions::parse(support::registry().arguments(spec, "ram", &OpenOptions::default()).unwrap());
    for (spec, why) in [
        ("ram(h1:7070,h2:7070;spare,h3:7070,id=a,redundancy=mirror)", "after all other donors"),
        ("ram(h1:7070,h2:7070;spare,id=a)", "redundancy"),
        ("ram(h1:7070,h2:7070;spare,id=a,redundancy=mirror)", "1 donors"),
    ] {
        let error = parse(spec).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.detail.contains(why), "{error}");
    }
    let text = "ram(h1:7070,h2:7070,h3:7070;spare,id=a,redundancy=mirror)";
    assert_eq!(parse(text).unwrap().spec(), text);
}
