//! A server and a client of different builds report that their versions differ, instead of misreading each other's
//! messages.

use crate::common::TestVolume;
use nectary_volume::client::{Error, ServerAddress, VolumeClient};
use nectary_volume::protocol::{HEADER_BYTES, MessageHeader, RefusalCode, VERSIONS, VolumeMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// The offset of the checksum in a frame.
const CHECKSUM_AT: usize = 12;

fn path(address: &ServerAddress) -> std::path::PathBuf {
    match address {
        ServerAddress::Unix(path) => path.clone(),
        other => panic!("{other}"),
    }
}

/// Reads one frame.
async fn frame(stream: &mut UnixStream) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    stream.read_exact(&mut frame).await.expect("there is a header");
    let body_bytes = MessageHeader::decode(&frame).expect("it is one").body_bytes as usize;
    frame.resize(HEADER_BYTES + body_bytes, 0);
    stream.read_exact(&mut frame[HEADER_BYTES..]).await.expect("there is a body");
    frame
}

/// Returns the frame with another version at the start of its body.
fn with_version(mut frame: Vec<u8>, version: u16) -> Vec<u8> {
    frame[HEADER_BYTES..HEADER_BYTES + 2].copy_from_slice(&version.to_le_bytes());
    frame[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let checksum = crc32c::crc32c(&frame);
    frame[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    frame
}

/// The refusal names both versions, and the next client is served.
#[tokio::test]
async fn other_client_version_is_refused() {
    let volume = TestVolume::new("versions").await;
    let server = volume.serve(&[0]).await;
    for (least, most) in [(1, 1), (*VERSIONS.end() + 1, *VERSIONS.end() + 2)] {
        let mut stream = UnixStream::connect(path(&volume.socket(0))).await.expect("it connects");
        // Of a greeting of another version, only the versions can be decoded.
        let hello = VolumeMessage::OtherVersion { least, most }.encode(7, 0);
        stream.write_all(&hello).await.expect("it is sent");
        let (header, answer) = VolumeMessage::decode(&frame(&mut stream).await).expect("it is understood");
        let VolumeMessage::Failure(failure) = answer else { panic!("{answer:?}") };
        assert_eq!((header.request, failure.code), (7, RefusalCode::Version));
        for named in [format!("version {} ", VERSIONS.end()), format!("{most}"), "the same release".to_owned()] {
            assert!(failure.words.contains(&named), "{}", failure.words);
        }
        assert_eq!(stream.read(&mut [0]).await.expect("it ends"), 0);
    }
    let client = volume.connect(0).await;
    client.close().await.expect("it ends");
    server.stop().await.expect("it stops");
}

/// Returns the error of a client whose server sends this answer to the greeting and then closes the connection.
async fn refused(answer: impl Fn(Vec<u8>) -> Vec<u8>) -> String {
    let volume = TestVolume::new("versions-client").await;
    let listener = UnixListener::bind(path(&volume.socket(0))).expect("it listens");
    let server = async {
        let (mut stream, _) = listener.accept().await.expect("a client comes");
        let hello = frame(&mut stream).await;
        stream.write_all(&answer(hello)).await.expect("it is sent");
    };
    let (connected, ()) = tokio::join!(volume.try_connect(0), server);
    match connected.map(|client: VolumeClient| client.stop()) {
        Err(error @ Error::Server { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(()) => panic!("it connected"),
    }
}

/// The error of the client says what to do.
#[tokio::test]
async fn other_server_version_is_explained() {
    let welcome = VolumeMessage::Welcome { session: 1, lease_ms: 1000, server_ns: 1 }.encode(0, 1);
    let other = VERSIONS.end() + 7;
    let error = refused(|_| with_version(welcome.clone(), other)).await;
    for named in [format!("version {other} "), format!("version {}:", VERSIONS.end()), "the same release".to_owned()] {
        assert!(error.contains(&named), "{error}");
    }
    // Servers of version 1 answer nothing.
    let error = refused(|_| Vec::new()).await;
    assert!(error.contains("closed the connection") && error.contains("an older nectary"), "{error}");
}
