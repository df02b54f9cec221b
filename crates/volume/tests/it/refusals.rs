//! A server that does not take a message fails one call, and the rest of the mount goes on.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::{ROOT, TestVolume};
use nectary_volume::client::{FileLock, NewInode, OpenAccess, ServerAddress, VolumeClient};
use nectary_volume::protocol::{HEADER_BYTES, MessageHeader, VolumeMessage};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// The offsets of fields in a frame.
const KIND_AT: usize = 4;
const CHECKSUM_AT: usize = 12;
/// Messages with these bytes are the ones that something happens to.
const MARK: &[u8] = b"poison";
/// The longest wait in a test.
const LIMIT: Duration = Duration::from_secs(60);

/// What a relay does with a marked message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayFault {
    /// The server gets it with a kind that it does not know.
    Unknown,
    /// The server gets a header that promises a body beyond the bound.
    TooLong,
    /// The server does not get it, and the connection is closed.
    Cut,
    /// The server does it, and the connection is closed before the answer.
    AnswerLost,
    /// The server does it, and its answer has a kind that the client does not know.
    AnswerUnknown,
}

fn path(address: &ServerAddress) -> PathBuf {
    match address {
        ServerAddress::Unix(path) => path.clone(),
        other => panic!("{other}"),
    }
}

/// Reads one frame. `None`: the stream has ended.
async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    stream.read_exact(&mut frame).await.ok()?;
    let body_bytes = MessageHeader::decode(&frame).ok()?.body_bytes as usize;
    frame.resize(HEADER_BYTES + body_bytes, 0);
    stream.read_exact(&mut frame[HEADER_BYTES..]).await.ok()?;
    Some(frame)
}

fn with_unknown_kind(mut frame: Vec<u8>) -> Vec<u8> {
    frame[KIND_AT..KIND_AT + 2].copy_from_slice(&999_u16.to_le_bytes());
    frame[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let checksum = crc32c::crc32c(&frame);
    frame[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    frame
}

/// Passes the messages of one connection on.
async fn pass(client: UnixStream, server: UnixStream, fault: RelayFault) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let marked = Mutex::new(BTreeSet::new());
    let forward = async {
        while let Some(mut frame) = frame(&mut from_client).await {
            let is_marked = frame.windows(MARK.len()).any(|bytes| bytes == MARK);
            match fault {
                RelayFault::Unknown if is_marked => frame = with_unknown_kind(frame),
                RelayFault::TooLong if is_marked => frame[8..12].copy_from_slice(&u32::MAX.to_le_bytes()),
                RelayFault::Cut if is_marked => return None,
                RelayFault::AnswerUnknown if is_marked => {
                    let request = MessageHeader::decode(&frame).expect("it is one").request;
                    marked.lock().expect("nothing panics").insert(request);
                }
                RelayFault::AnswerLost if is_marked => {
                    to_server.write_all(&frame).await.ok()?;
                    return Some(MessageHeader::decode(&frame).expect("it is one").request);
                }
                _ => {}
            }
            to_server.write_all(&frame).await.ok()?;
        }
        None
    };
    let mut lost = None;
    if matches!(fault, RelayFault::AnswerLost | RelayFault::AnswerUnknown) {
        let back = async {
            while let Some(mut frame) = frame(&mut from_server).await {
                let request = MessageHeader::decode(&frame).expect("it is one").request;
                if marked.lock().expect("nothing panics").contains(&request) {
                    frame = with_unknown_kind(frame);
                }
                if to_client.write_all(&frame).await.is_err() {
                    return;
                }
            }
        };
        tokio::select!(request = forward => lost = request, () = back => {});
        // The server has done it once it answers.
        while let (Some(request), Some(frame)) = (lost, frame(&mut from_server).await) {
            if VolumeMessage::decode(&frame).is_ok_and(|(header, _)| header.request == request) {
                return;
            }
        }
        return;
    }
    tokio::select!(_ = forward => {}, _ = copy(&mut from_server, &mut to_client) => {});
}

/// Relays the connections of client 1 to the socket of client 0.
fn relay(volume: &TestVolume, fault: RelayFault) -> JoinHandle<()> {
    let (listener, server) =
        (UnixListener::bind(path(&volume.socket(1))).expect("it listens"), path(&volume.socket(0)));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            if let Ok(server) = UnixStream::connect(&server).await {
                tokio::spawn(pass(client, server, fault));
            }
        }
    })
}

fn file() -> NewInode {
    NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() }
}

async fn make_many(client: &VolumeClient, group: u32) {
    let names = (0..20).map(|index| format!("{group}-{index}"));
    let made = futures_util::future::join_all(names.map(|name| async move {
        client.create(ROOT, name.as_bytes(), file()).await.expect("it is made");
    }));
    made.await;
}

/// Makes a marked file among others while the client waits for a lock, and checks what became of all of them.
async fn one_call_fails(fault: RelayFault) {
    let is_lost = fault == RelayFault::AnswerLost;
    let is_made = matches!(fault, RelayFault::AnswerLost | RelayFault::AnswerUnknown);
    let volume = TestVolume::new(&format!("refusals-{fault:?}")).await;
    let server = volume.serve(&[0]).await;
    let relay = relay(&volume, fault);
    let (near, far) = (volume.connect(0).await, volume.connect(1).await);
    let locked = near.create(ROOT, b"locked", file()).await.expect("it is made").id();
    let holder = near.open(locked, OpenAccess::Both, false).await.expect("it opens");
    let waiter = far.open(locked, OpenAccess::Both, false).await.expect("it opens");
    let lock = FileLock { owner: 1, process: 1, is_flock: true, is_exclusive: true, start: 0, last: u64::MAX };
    holder.lock(lock, None::<std::future::Pending<()>>).await.expect("it locks");
    let waiting = waiter.lock(lock, Some(std::future::pending()));
    let rest = async {
        let (_, made, ()) = tokio::join!(make_many(&far, 0), far.create(ROOT, b"poison", file()), make_many(&far, 1));
        match is_lost {
            true => drop(made.expect("it is made once, and the caller gets to know")),
            false => assert_eq!(made.expect_err("it is refused").errno(), libc::EIO),
        }
        make_many(&far, 2).await;
        if !is_lost {
            // This is the name in a question.
            assert_eq!(far.look_up(ROOT, b"poison").await.expect_err("it is refused").errno(), libc::EIO);
        }
        make_many(&far, 3).await;
        holder.unlock(lock).await.expect("it is unlocked");
    };
    let (granted, ()) = tokio::time::timeout(LIMIT, async { tokio::join!(waiting, rest) }).await.expect("it ends");
    granted.expect("a lock is granted");
    assert_eq!(near.look_up(ROOT, b"poison").await.is_ok(), is_made);
    let figures = far.figures();
    let refused = if is_lost { 1 } else { 2 };
    assert_eq!((figures.refused, figures.trouble, figures.ended), (refused, None, None), "{fault:?}");
    assert!(figures.refusal.is_some() && figures.reconnections < 14, "{} reconnections", figures.reconnections);
    waiter.close().await;
    holder.close().await;
    far.close().await.expect("it ends");
    near.close().await.expect("it ends");
    relay.abort();
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

/// The other calls of the mount go on.
#[tokio::test]
async fn unknown_message_fails_alone() {
    one_call_fails(RelayFault::Unknown).await;
}

#[tokio::test]
async fn oversized_message_fails_alone() {
    one_call_fails(RelayFault::TooLong).await;
}

#[tokio::test]
async fn message_breaking_connections_fails_alone() {
    one_call_fails(RelayFault::Cut).await;
}

#[tokio::test]
async fn done_call_survives_lost_answers() {
    one_call_fails(RelayFault::AnswerLost).await;
}

#[tokio::test]
async fn unreadable_answer_fails_one_call() {
    one_call_fails(RelayFault::AnswerUnknown).await;
}

#[tokio::test]
async fn invalid_message_is_not_sent() {
    let volume = TestVolume::new("refusals-unsent").await;
    let server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    // Names have 255 bytes at most, and messages 1 MiB.
    for (bytes, errno) in [(256, libc::EIO), (2 << 20, libc::E2BIG)] {
        let name = vec![b'x'; bytes];
        assert_eq!(client.look_up(ROOT, &name).await.expect_err("it is not sent").errno(), errno);
        assert_eq!(client.create(ROOT, &name, file()).await.expect_err("it is not sent").errno(), errno);
        make_many(&client, bytes as u32).await;
    }
    let figures = client.figures();
    assert_eq!((figures.refused, figures.reconnections, figures.operations), (0, 0, 40));
    client.close().await.expect("it ends");
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}
