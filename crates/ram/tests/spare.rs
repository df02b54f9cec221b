//! Spare donors take the place of donors that are drained, leaving or lost. Devices are found again under the same SPEC.

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nectary_block::{BlockDevice, Buffer, Context, ErrorKind, read, write};
use nectary_ram::check::{Health, check};
use nectary_ram::donor::Donor;
use nectary_ram::live::{RedundantDevice, planted};
use support::{Serving, create, options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, watch};

const BYTES: usize = 6 << 20;

/// Tests that say how many spares are given up, one at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

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

/// A way to a donor that is cut for ever when so many bytes have gone to the donor.
fn cut_after(donor: &Serving, bytes: u64) -> PathBuf {
    let (to, path) = (donor.socket.clone(), donor.socket.with_extension("cut"));
    let listener = UnixListener::bind(&path).unwrap();
    let (left, is_cut) = (Arc::new(AtomicU64::new(bytes)), watch::Sender::new(false));
    let removed = path.clone();
    tokio::spawn(async move {
        let mut cut = is_cut.subscribe();
        loop {
            let (client, _) = tokio::select! {
                accepted = listener.accept() => accepted.unwrap(),
                _ = cut.wait_for(|is_cut| *is_cut) => break,
            };
            let server = UnixStream::connect(&to).await.unwrap();
            let (left, is_cut, mut cut) = (left.clone(), is_cut.clone(), is_cut.subscribe());
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let forward = async {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                        let take = |left: u64| left.checked_sub(count as u64);
                        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
                            is_cut.send_replace(true);
                            break;
                        }
                        if to_server.write_all(&buffer[..count]).await.is_err() {
                            break;
                        }
                    }
                };
                tokio::select! {
                    () = forward => {}
                    _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
                    _ = cut.wait_for(|is_cut| *is_cut) => {}
                }
            });
        }
        std::fs::remove_file(removed).unwrap();
    });
    path
}

/// Makes a device of which one donor is lost, and the first spare too while it is filled. Returns the device, the socket
/// and the memory of the lost donor, and the others.
async fn spare_lost_while_filled(
    redundancy: &str,
    count: usize,
    spares: usize,
) -> (RedundantDevice, PathBuf, Donor, Vec<Serving>) {
    planted::hasten();
    // On a busy machine the first spare may be late before it is lost, and later ones, too.
    planted::give_up_at_most(0);
    let mut donors: Vec<Serving> = (0..count + spares).map(|_| Serving::new(20 << 20)).collect();
    let way = cut_after(&donors[count], 128 << 10);
    let name = |(number, donor): (usize, &Serving)| match number {
        number if number < count => donor.name(),
        number if number == count => format!("\"nbd+unix:///?socket={};spare\"", way.display()),
        _ => format!("{};spare\"", donor.name().trim_end_matches('"')),
    };
    let names: Vec<String> = donors.iter().enumerate().map(name).collect();
    let device = made(&format!("ram({},id=disk,size=6M,redundancy={redundancy})", names.join(","))).await;
    let Serving { donor, server, socket } = donors.remove(0);
    server.stop().await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents(1))).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    wait("the first spare is lost while it is filled", || !way.exists()).await;
    assert_eq!(number(&device, "rebuilt"), 0, "the spare was filled before it was lost");
    planted::give_up_at_most(1);
    (device, socket, donor, donors)
}

async fn is_filled_and_right(device: &RedundantDevice) {
    let filled = || number(device, "rebuilt") == 1 && number(device, "degraded") == 0;
    wait("another donor is filled", filled).await;
    is_right(device, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_spare_takes_the_place_of_one_that_is_lost_while_it_is_filled() {
    let _alone = ALONE.lock().await;
    for (redundancy, count) in [("mirror", 2), ("adaptive", 3)] {
        let (device, _, _, mut donors) = spare_lost_while_filled(redundancy, count, 2).await;
        is_filled_and_right(&device).await;
        // The second spare has everything, so another donor can be lost.
        donors.remove(0).end().await;
        is_right(&device, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_donor_that_returns_is_filled_if_its_spare_is_lost_while_it_is_filled() {
    let _alone = ALONE.lock().await;
    for (redundancy, count) in [("mirror", 2), ("adaptive", 3)] {
        let (device, socket, donor, mut donors) = spare_lost_while_filled(redundancy, count, 1).await;
        let _returned = Serving::again(donor, socket);
        is_filled_and_right(&device).await;
        donors.remove(0).end().await;
        is_right(&device, 1).await;
    }
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
