//! A client and servers that are faulty, or describe unusual exports: each script plays one server.

use std::time::{Duration, Instant};

use crate::script::{GREETING, ScriptedServer, TemporarySocketPath, against, answer, connect, request};
use nectary_block::{BlockDevice, read};
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice, NbdErrorKind as Kind, info, list};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn small_sector_size_is_reported() {
    for (blocks, sector) in [
        (None, 512),
        (Some([1, 4096, 32 << 20]), 512),
        (Some([512, 65536, 32 << 20]), 512),
        (Some([4096, 4096, 32 << 20]), 4096),
    ] {
        let place = TemporarySocketPath::new();
        let script = |mut script: ScriptedServer| async move {
            script.agree(1 << 20, 1, blocks).await;
        };
        let device = against(&place, script, connect(&place)).await.unwrap();
        assert_eq!((device.geometry().block_bytes, device.sector_bytes()), (sector, sector), "{blocks:?}");
    }
}

/// Sizes of 2 to the power of 63 and more are refused.
#[tokio::test]
async fn export_too_large_is_refused() {
    for (size, is_taken) in [(1 << 63, false), (u64::MAX, false), ((1 << 63) - 512, true)] {
        let place = TemporarySocketPath::new();
        let script = |mut script: ScriptedServer| async move {
            script.agree(size, 1, None).await;
        };
        let found = against(&place, script, connect(&place)).await;
        match found {
            Ok(device) => assert!(is_taken && device.geometry().size_bytes == size, "{size}"),
            Err(error) => assert!(!is_taken && error.message.contains("less than 8E"), "{size}: {error}"),
        }
        let place = TemporarySocketPath::new();
        let found = against(&place, script, async { info(&place.url(), &ConnectOptions::default()).await }).await;
        assert_eq!(found.is_ok(), is_taken, "{size}");
    }
}

/// How a faulty server behaves after what it has sent.
#[derive(Debug, Clone, Copy)]
enum ScriptEnding {
    Closes,
    IsSilent,
}

#[tokio::test]
async fn faulty_handshakes_are_errors_in_time() {
    let reply = |magic: u64, option: u32, reply: u32, length: u32| {
        [&magic.to_be_bytes()[..], &[option, reply, length].map(u32::to_be_bytes).concat()].concat()
    };
    let ours = 0x3_e889_0455_65a9;
    for (sent, answers, then, kind, words) in [
        (&b""[..], vec![], ScriptEnding::IsSilent, Kind::TimedOut, "does not answer within"),
        (b"", vec![], ScriptEnding::Closes, Kind::Protocol, "ended the connection in the handshake"),
        (b"NBDMAGIC", vec![], ScriptEnding::IsSilent, Kind::TimedOut, "does not answer within"),
        (b"NBDMAGIC", vec![], ScriptEnding::Closes, Kind::Protocol, "ended the connection in the handshake"),
        (b"HTTP/1.1 400 Bad Request", vec![], ScriptEnding::IsSilent, Kind::Protocol, "this is no NBD server"),
        (b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0", vec![], ScriptEnding::IsSilent, Kind::Unsupported, "old style"),
        (GREETING, vec![], ScriptEnding::IsSilent, Kind::TimedOut, "does not answer within"),
        (GREETING, vec![], ScriptEnding::Closes, Kind::Protocol, "ended the connection in the handshake"),
        (
            GREETING,
            reply(ours, 11, 1, 0)[..7].to_vec(),
            ScriptEnding::IsSilent,
            Kind::TimedOut,
            "does not answer within",
        ),
        (GREETING, reply(ours, 11, 1, 0)[..7].to_vec(), ScriptEnding::Closes, Kind::Protocol, "ended the connection"),
        (GREETING, reply(ours, 11, 1 << 31 | 1, 9), ScriptEnding::Closes, Kind::Protocol, "ended the connection"),
        (
            GREETING,
            reply(ours, 11, 1 << 31 | 1, 1 << 30),
            ScriptEnding::IsSilent,
            Kind::Protocol,
            "at most 65536 are taken",
        ),
        (GREETING, reply(ours, 7, 1, 0), ScriptEnding::IsSilent, Kind::Protocol, "an answer to option 7"),
        (GREETING, reply(7, 11, 1, 0), ScriptEnding::IsSilent, Kind::Protocol, "does not begin with its magic number"),
        (GREETING, reply(ours, 11, 5, 0), ScriptEnding::IsSilent, Kind::Protocol, "which does not fit"),
    ] {
        let script = |mut script: ScriptedServer| {
            let answers = answers.clone();
            async move {
                script.send(&[sent, &answers].concat()).await;
                let mut rest = Vec::new();
                match then {
                    // A client that has no greeting yet sends nothing.
                    ScriptEnding::Closes if sent != GREETING => {}
                    ScriptEnding::Closes => {
                        let _ = script.0.read(&mut [0; 64]).await;
                    }
                    ScriptEnding::IsSilent => drop(script.0.read_to_end(&mut rest).await),
                }
            }
        };
        let mut options = ConnectOptions::default();
        options.handshake_time = Some(Duration::from_millis(150));
        let place = TemporarySocketPath::new();
        let work = async {
            let device = NbdDevice::connect(&place.url(), options.clone()).await.map(drop).unwrap_err();
            (device, info(&place.url(), &options).await.unwrap_err())
        };
        let (device, info) = against(&place, script, work).await;
        for error in [&device, &info] {
            assert!(error.kind == kind && error.message.contains(words), "{sent:?} {then:?}: {error}");
        }
    }
}

#[tokio::test]
async fn list_without_end_is_an_error() {
    let place = TemporarySocketPath::new();
    let script = |mut script: ScriptedServer| async move {
        script.send(GREETING).await;
        let entry = [&0x3_e889_0455_65a9u64.to_be_bytes()[..], &[3u32, 2, 5, 1].map(u32::to_be_bytes).concat(), b"x"];
        while script.0.write_all(&entry.concat()).await.is_ok() {}
    };
    let found = against(&place, script, async { list(&place.url(), &ConnectOptions::default()).await }).await;
    assert!(found.unwrap_err().message.contains("more than 16384 answers"));
}

#[tokio::test]
async fn silent_further_connections_delay_little() {
    let place = TemporarySocketPath::new();
    // The server says that it takes several connections, but answers only one at a time.
    let script = |mut script: ScriptedServer| async move {
        script.agree(1 << 20, 1 | 1 << 8, None).await;
        while let Some((_, cookie, _, length)) = request(&mut script).await {
            answer(&mut script, cookie, &vec![0; length as usize]).await;
        }
    };
    let began = Instant::now();
    let work = async {
        let url = ExportUrl { connections: Some(4), ..place.url() };
        let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
        read(&device, 0, 4096).await.unwrap();
        device.connections()
    };
    assert_eq!(against(&place, script, work).await, 1);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
