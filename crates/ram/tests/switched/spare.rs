//! Spare donors take the place of donors that are drained, leaving or lost. Devices are found again under the same SPEC.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, options};
use nectary_block::{
    BlockDevice, Buffer, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, Error, IoContext, IoFuture,
    WriteFlags, read, write,
};
use nectary_nbd::{
    Export, ExportRefusal, ExportSource, ExportTable, ListenEndpoint, NetworkBlockServer, ServerOptions,
};
use nectary_ram::check::{RedundancyHealth, check};
use nectary_ram::device::grow;
use nectary_ram::device::owner::{RamDevice, planted};
use nectary_ram::donor::Donor;
use nectary_ram::format::WINDOW_BYTES;
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
fn spec(donors: &[&ServingDonor], redundancy: &str) -> String {
    let mut names: Vec<String> = donors.iter().map(|donor| donor.name()).collect();
    let spare = names.pop().unwrap();
    names.push(format!("{};spare\"", spare.trim_end_matches('"')));
    format!("ram({},id=disk,size=6M,redundancy={redundancy})", names.join(","))
}

fn number(device: &RamDevice, name: &str) -> u64 {
    device.figures()[0].get(name).unwrap_or_default()
}

async fn wait(what: &str, is_it: impl Fn() -> bool) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while !is_it() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn is_right(device: &RamDevice, version: u8) {
    assert!(read(device, 0, BYTES).await.unwrap()[..] == contents(version)[..]);
}

async fn made(spec: &str) -> RamDevice {
    create(spec).await.unwrap();
    let device = RamDevice::open(options(spec)).await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents(1))).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    device
}

/// A drained donor holds nothing of the device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_donor_can_be_removed() {
    let _turn = crate::turn(module_path!());
    for (redundancy, count) in [("mirror", 2), ("mirror", 3), ("parity", 3), ("adaptive", 3)] {
        let donors: Vec<ServingDonor> = (0..=count).map(|_| ServingDonor::new(20 << 20)).collect();
        let named = spec(&donors.iter().collect::<Vec<_>>(), redundancy);
        let device = made(&named).await;
        assert!(donors[count].donor.figures().devices.is_empty(), "a spare has nothing before it is needed");
        let old = donors[0].name().trim_matches('"').to_owned();
        let spare = device.drain(&old).await.unwrap();
        assert_eq!(spare, donors[count].name().trim_matches('"'));
        assert_eq!((number(&device, "replaced"), number(&device, "left"), number(&device, "degraded")), (1, 0, 0));
        wait("the drained donor is empty", || donors[0].donor.figures().devices.is_empty()).await;
        let none = device.drain("2").await.unwrap_err();
        assert!(none.message.contains("no spare is left") && none.message.contains(&spare), "{none}");
        device.detach().await.unwrap();
        drop(device);
        // The drained donor is gone, and the SPEC still names it.
        let mut donors = donors;
        donors.remove(0).end().await;
        let checked = check(&options(&named), &mut |_, _| {}).await.unwrap();
        assert_eq!(
            (checked.health, checked.problem_count),
            (RedundancyHealth::Healthy, 0),
            "{redundancy}: {checked:?}"
        );
        let device = RamDevice::open(options(&named)).await.unwrap();
        assert_eq!((number(&device, "donors_trusted"), number(&device, "degraded")), (count as u64, 0));
        is_right(&device, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_donor_is_drained() {
    let _turn = crate::turn(module_path!());
    let (one, two, three) = (ServingDonor::new(20 << 20), ServingDonor::new(20 << 20), ServingDonor::new(20 << 20));
    let device = made(&spec(&[&one, &two, &three], "mirror")).await;
    two.donor.leave();
    wait("the leaving donor is empty", || two.donor.figures().devices.is_empty()).await;
    wait("the spare has its place", || number(&device, "replaced") == 1).await;
    two.end().await;
    one.end().await;
    is_right(&device, 1).await;
    drop(three);
}

/// The older data of the lost donor is not trusted when it returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spare_replaces_lost_donor() {
    let _turn = crate::turn(module_path!());
    planted::hasten();
    let (one, two, three) = (ServingDonor::new(20 << 20), ServingDonor::new(20 << 20), ServingDonor::new(20 << 20));
    let named = spec(&[&one, &two, &three], "mirror");
    let device = made(&named).await;
    // The server ends, and the memory stays as it is.
    let ServingDonor { donor, server, socket } = one;
    server.stop().await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents(2))).await.unwrap();
    wait("a spare is filled", || number(&device, "rebuilt") == 1 && number(&device, "degraded") == 0).await;
    drop(device);
    // After a crash of the client, the first donor is back with its older copy.
    let one = ServingDonor::again(donor, socket);
    let device = RamDevice::open(options(&named)).await.unwrap();
    assert_eq!((number(&device, "donors_trusted"), number(&device, "degraded")), (2, 0));
    is_right(&device, 2).await;
    drop(device);
    // Without the donor that took its place, the older copy is not believed.
    let three = {
        let ServingDonor { donor, server, socket } = three;
        server.stop().await.unwrap();
        let refused = RamDevice::open(options(&named)).await.map(drop).unwrap_err();
        assert!(refused.kind == DeviceErrorKind::Absent && refused.detail.contains("is missing"), "{refused}");
        ServingDonor::again(donor, socket)
    };
    let device = RamDevice::open(options(&named)).await.unwrap();
    // Now that one is the spare: the device survives the loss of another donor in the same way.
    two.end().await;
    write(&device, 0, Buffer::copy_of(&contents(3))).await.unwrap();
    wait("the former donor is filled", || number(&device, "rebuilt") == 1 && number(&device, "degraded") == 0).await;
    three.end().await;
    is_right(&device, 3).await;
    drop(one);
}

/// A way to a donor that is cut when so many bytes have gone to the donor: for ever, or only the connection.
fn cut_after(donor: &ServingDonor, bytes: u64, for_ever: bool) -> PathBuf {
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
            let left = if for_ever { left.clone() } else { Arc::new(AtomicU64::new(bytes)) };
            let (is_cut, mut cut) = (is_cut.clone(), is_cut.subscribe());
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let forward = async {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                        let take = |left: u64| left.checked_sub(count as u64);
                        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
                            is_cut.send_replace(for_ever);
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
) -> (RamDevice, PathBuf, Donor, Vec<ServingDonor>) {
    planted::hasten();
    // On a busy machine the first spare may be late before it is lost, and later ones, too.
    planted::give_up_at_most(0);
    let mut donors: Vec<ServingDonor> = (0..count + spares).map(|_| ServingDonor::new(20 << 20)).collect();
    let way = cut_after(&donors[count], 128 << 10, true);
    let name = |(number, donor): (usize, &ServingDonor)| match number {
        number if number < count => donor.name(),
        number if number == count => format!("\"nbd+unix:///?socket={};spare\"", way.display()),
        _ => format!("{};spare\"", donor.name().trim_end_matches('"')),
    };
    let names: Vec<String> = donors.iter().enumerate().map(name).collect();
    let device = made(&format!("ram({},id=disk,size=6M,redundancy={redundancy})", names.join(","))).await;
    let ServingDonor { donor, server, socket } = donors.remove(0);
    server.stop().await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents(1))).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    wait("the first spare is lost while it is filled", || !way.exists()).await;
    assert_eq!(number(&device, "rebuilt"), 0, "the spare was filled before it was lost");
    planted::give_up_at_most(1);
    (device, socket, donor, donors)
}

async fn is_filled_and_right(device: &RamDevice) {
    let filled = || number(device, "rebuilt") == 1 && number(device, "degraded") == 0;
    wait("another donor is filled", filled).await;
    is_right(device, 1).await;
}

/// Another spare takes the place of a spare that is lost while it is filled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_spare_replaces_lost_spare() {
    let _turn = crate::turn(module_path!());
    let _alone = ALONE.lock().await;
    for (redundancy, count) in [("mirror", 2), ("adaptive", 3)] {
        let (device, _, _, mut donors) = spare_lost_while_filled(redundancy, count, 2).await;
        is_filled_and_right(&device).await;
        // The second spare has everything, so another donor can be lost.
        donors.remove(0).end().await;
        is_right(&device, 1).await;
    }
}

/// A lost donor that returns is filled if its spare is lost during filling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_donor_replaces_lost_spare() {
    let _turn = crate::turn(module_path!());
    let _alone = ALONE.lock().await;
    for (redundancy, count) in [("mirror", 2), ("adaptive", 3)] {
        let (device, socket, donor, mut donors) = spare_lost_while_filled(redundancy, count, 1).await;
        let _returned = ServingDonor::again(donor, socket);
        is_filled_and_right(&device).await;
        donors.remove(0).end().await;
        is_right(&device, 1).await;
    }
}

/// A donor that answers, and fails every write of data.
struct WriteFailingDonor {
    source: Arc<dyn ExportSource>,
    exports: std::sync::Mutex<BTreeMap<String, Weak<Export>>>,
}

impl ExportSource for WriteFailingDonor {
    fn find(&self, name: &str) -> Result<Arc<Export>, ExportRefusal> {
        let mut exports = self.exports.lock().unwrap();
        let export = self.source.find(name)?;
        if !name.contains(".metadata") {
            return Ok(export);
        }
        if let Some(export) = exports.get(name).and_then(Weak::upgrade) {
            return Ok(export);
        }
        let (name, about) = (name.to_owned(), export.description().to_owned());
        let export = Arc::new(Export::new(&name, &about, Arc::new(FailingDevice(export)), false).unwrap());
        exports.insert(name, Arc::downgrade(&export));
        Ok(export)
    }

    fn list(&self) -> Vec<(String, String)> {
        self.source.list()
    }
}

struct FailingDevice(Arc<Export>);

impl BlockDevice for FailingDevice {
    fn spec(&self) -> String {
        self.0.device().spec()
    }

    fn geometry(&self) -> DeviceGeometry {
        self.0.device().geometry()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        self.0.device().read_at(offset, buffers, context)
    }

    fn write_at(&self, offset: u64, data: Vec<Buffer>, flags: WriteFlags, context: IoContext) -> IoFuture<Vec<Buffer>> {
        if offset >= self.geometry().size_bytes - WINDOW_BYTES as u64 {
            return self.0.device().write_at(offset, data, flags, context);
        }
        let error =
            Error::new(DeviceErrorKind::Full, &self.spec(), DeviceOperation::Write, "there is no memory".to_owned());
        Box::pin(std::future::ready(Err(error)))
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        self.0.device().flush(context)
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.0.device().discard(offset, length, context)
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.0.device().write_zeroes(offset, length, context)
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        self.0.device().allocation(offset, length, context)
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        self.0.device().grow(size_bytes)
    }

    fn close(&self) -> IoFuture<()> {
        self.0.device().close()
    }
}

/// Makes a donor's server fail every write of data.
async fn failing(donor: ServingDonor) -> ServingDonor {
    let ServingDonor { donor, server, socket } = donor;
    server.stop().await.unwrap();
    let source = Arc::new(WriteFailingDonor { source: donor.source(), exports: Default::default() });
    let listen = [ListenEndpoint::Unix(socket.clone())];
    let server = NetworkBlockServer::start(&listen, ExportTable::of(source), ServerOptions::default()).unwrap();
    ServingDonor { donor, server, socket }
}

/// Loses a donor of a device whose first spare cannot be filled: it fails every write, or each connection to it is cut.
async fn spare_that_cannot_be_filled(redundancy: &str, count: usize, spares: usize, fails: bool) {
    planted::hasten();
    planted::give_up_at_most(u64::MAX);
    let mut donors: Vec<ServingDonor> = (0..count + spares).map(|_| ServingDonor::new(20 << 20)).collect();
    let mut names: Vec<String> = donors.iter().map(|donor| donor.name()).collect();
    if fails {
        let donor = donors.remove(count);
        donors.insert(count, failing(donor).await);
    } else {
        names[count] = format!("\"nbd+unix:///?socket={}\"", cut_after(&donors[count], 128 << 10, false).display());
    }
    for name in &mut names[count..] {
        *name = format!("{};spare\"", name.trim_end_matches('"'));
    }
    let device = made(&format!("ram({},id=disk,size=6M,redundancy={redundancy})", names.join(","))).await;
    let ServingDonor { donor, server, socket } = donors.remove(0);
    server.stop().await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents(1))).await.unwrap();
    let bad = &donors[count - 1].donor;
    wait("the first spare gets a place", || !bad.figures().devices.is_empty()).await;
    // With no other spare, the lost donor has its place again.
    let _returned = (spares == 1).then(|| ServingDonor::again(donor, socket));
    is_filled_and_right(&device).await;
    wait("the spare that was given up is empty", || bad.figures().devices.is_empty()).await;
    donors.remove(0).end().await;
    is_right(&device, 1).await;
}

/// A spare that fails every write is given up and emptied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spare_failing_writes_is_given_up() {
    let _turn = crate::turn(module_path!());
    let _alone = ALONE.lock().await;
    for (redundancy, count, spares) in [("mirror", 2, 2), ("mirror", 2, 1), ("parity", 3, 2), ("adaptive", 3, 2)] {
        spare_that_cannot_be_filled(redundancy, count, spares, true).await;
    }
}

/// A spare whose connections break before it gets any data is given up and emptied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnecting_spare_is_given_up() {
    let _turn = crate::turn(module_path!());
    let _alone = ALONE.lock().await;
    spare_that_cannot_be_filled("mirror", 2, 2, false).await;
}

/// What a lost spare still has is overwritten, even if the device has grown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remnants_on_spare_are_overwritten() {
    let _turn = crate::turn(module_path!());
    let _alone = ALONE.lock().await;
    for (redundancy, count, is_lost) in
        [("mirror", 2, false), ("mirror", 2, true), ("parity", 3, false), ("adaptive", 3, false), ("adaptive", 3, true)]
    {
        let (device, socket, donor, mut donors) = spare_lost_while_filled(redundancy, count, 1).await;
        donors.insert(0, ServingDonor::again(donor, socket));
        is_filled_and_right(&device).await;
        device.detach().await.unwrap();
        drop(device);
        let remnant = donors.pop().unwrap();
        assert!(!remnant.donor.figures().devices.is_empty(), "it is cut off, and was not emptied");
        let named = crate::support::spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy={redundancy}"));
        grow(&options(&named), 9 << 20).await.unwrap();
        let device = RamDevice::open(options(&named)).await.unwrap();
        let name = |donor: &ServingDonor| donor.name().trim_matches('"').to_owned();
        // The remnant is of the first place.
        let old = donors.remove(usize::from(is_lost));
        let before = old.donor.clone();
        if is_lost {
            old.server.stop().await.unwrap();
            write(&device, 0, Buffer::copy_of(&contents(1))).await.unwrap();
            wait("a donor is left", || number(&device, "left") == 1).await;
            device.replace("2", &name(&remnant)).await.unwrap();
        } else {
            device.replace(&name(&old), &name(&remnant)).await.unwrap();
            wait("the former donor is empty", || before.figures().devices.is_empty()).await;
        }
        assert_eq!((number(&device, "donors_trusted"), number(&device, "degraded")), (count as u64, 0));
        donors.remove(0).end().await;
        is_right(&device, 1).await;
        assert!(read(&device, BYTES as u64, 3 << 20).await.unwrap().iter().all(|byte| *byte == 0));
    }
}

/// A device of another user with the same name is not overwritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replace_keeps_foreign_device() {
    let _turn = crate::turn(module_path!());
    let donors: Vec<ServingDonor> = (0..4).map(|_| ServingDonor::new(20 << 20)).collect();
    let sized = |donors: [&ServingDonor; 2], size: &str| {
        crate::support::spec(&donors, &format!(",size={size},redundancy=mirror"))
    };
    for size in ["4M", "6M", "8M"] {
        let theirs = sized([&donors[2], &donors[3]], size);
        create(&theirs).await.unwrap();
        let device = RamDevice::open(options(&theirs)).await.unwrap();
        write(&device, 0, Buffer::copy_of(&[7; 4 << 20])).await.unwrap();
        device.detach().await.unwrap();
        drop(device);
        let mine = sized([&donors[0], &donors[1]], "6M");
        let device =
            if size == "4M" { made(&mine).await } else { RamDevice::open(options(&mine)).await.unwrap() };
        let refused = device.replace("1", donors[2].name().trim_matches('"')).await.unwrap_err();
        assert!(refused.message.contains("has a device of this name already"), "{refused}");
        device.detach().await.unwrap();
        drop(device);
        let device = RamDevice::open(options(&theirs)).await.unwrap();
        assert_eq!((number(&device, "donors_trusted"), number(&device, "degraded")), (2, 0));
        assert!(read(&device, 0, 4 << 20).await.unwrap().iter().all(|byte| *byte == 7));
        device.detach().await.unwrap();
        drop(device);
        nectary_ram::device::delete(&options(&theirs)).await.unwrap();
    }
}

/// Spares are named after all other donors, and need a device with redundancy.
#[tokio::test]
async fn spec_restricts_spares() {
    let _turn = crate::turn(module_path!());
    use nectary_block::OpenOptions;
    use nectary_ram::device::RamOptions;
    let parse = |spec: &str| {
        RamOptions::parse(crate::support::registry().arguments(spec, "ram", &OpenOptions::default()).unwrap())
    };
    for (spec, why) in [
        ("ram(h1:7070,h2:7070;spare,h3:7070,id=a,redundancy=mirror)", "after all other donors"),
        ("ram(h1:7070,h2:7070;spare,id=a)", "redundancy"),
        ("ram(h1:7070,h2:7070;spare,id=a,redundancy=mirror)", "1 donors"),
    ] {
        let error = parse(spec).unwrap_err();
        assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains(why), "{error}");
    }
    let text = "ram(h1:7070,h2:7070,h3:7070;spare,id=a,redundancy=mirror)";
    assert_eq!(parse(text).unwrap().spec(), text);
}
