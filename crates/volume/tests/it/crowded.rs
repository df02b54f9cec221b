//! A server that has as many connections as it may have says so, and those that it has are not disturbed.

use std::time::Duration;

use crate::common::{ROOT, TestVolume};
use nectary_volume::client::Error;
use nectary_volume::protocol::RefusalCode;

/// Connections at an address that say nothing.
async fn silent(volume: &TestVolume, client: u32, count: usize) -> Vec<tokio::net::UnixStream> {
    let nectary_volume::client::ServerAddress::Unix(path) = volume.socket(client) else { panic!("a socket") };
    let mut silent = Vec::new();
    for _ in 0..count {
        silent.push(tokio::net::UnixStream::connect(&path).await.expect("it connects"));
    }
    silent
}

#[tokio::test]
async fn silent_connections_keep_no_mount_out() {
    let volume = TestVolume::new("silent").await;
    let server = volume.serve_for(&[0, 1], 4).await;
    let kept = silent(&volume, 0, 40).await;
    // At the other address, too.
    let (first, second) = (volume.connect(1).await, volume.connect(0).await);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for client in [&first, &second] {
        client.attributes(ROOT).await.expect("its session has both connections");
    }
    drop(kept);
    for client in [first, second] {
        client.close().await.expect("it ends");
    }
    server.stop().await.expect("it ends");
}

#[tokio::test]
async fn clients_beyond_the_limit_are_told() {
    let volume = TestVolume::new("crowded").await;
    // Two sessions, over two addresses.
    let server = volume.serve_for(&[0, 1], 5).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    for client in [0, 1, 0] {
        let Err(Error::Refused(failure)) = volume.try_connect(client).await else { panic!("there is no place") };
        assert_eq!(failure.code, RefusalCode::Limit);
        assert!(failure.words.contains("2 mounts, which is its limit"), "{failure}");
    }
    // Longer than the lease.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for client in [&first, &second] {
        client.attributes(ROOT).await.expect("its session goes on");
    }
    first.close().await.expect("it ends");
    let third = loop {
        match volume.try_connect(0).await {
            Ok(client) => break client,
            Err(Error::Refused(failure)) if failure.code == RefusalCode::Limit => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    third.attributes(ROOT).await.expect("it has a place");
    for client in [second, third] {
        client.close().await.expect("it ends");
    }
    server.stop().await.expect("it ends");
}
