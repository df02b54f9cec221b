//! A client and servers that end connections, return, or fail flushes: what is sent again, and what is never claimed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::script::{ScriptedServer, TemporarySocketPath, against, answer, connect, refuse, request};
use nectary_block::{BlockDevice, Buffer, DeviceErrorKind, IoContext, read, write};
use nectary_nbd::limits::REQUESTS_MAX;
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice};
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

/// A range that extended headers can carry would be cut to 32 bits on a connection without them.
#[tokio::test]
async fn reconnect_without_extended_headers_is_refused() {
    let place = TemporarySocketPath::new();
    let connections = AtomicU32::new(0);
    let script = |mut script: ScriptedServer| {
        let is_extended = connections.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            script.agree_on(64 << 30, 1 | 1 << 5 | 1 << 6, None, is_extended).await;
            let mut first = [0; 32];
            if is_extended {
                let _ = script.0.read_exact(&mut first).await;
                return;
            }
            while let Some((command, cookie, _, length)) = request(&mut script).await {
                // A client that does not use the connection says goodbye.
                if command == 2 {
                    return;
                }
                assert!(length > 0, "command {command} lost its length");
                answer(&mut script, cookie, &vec![0; if command == 0 { length as usize } else { 0 }]).await;
            }
        }
    };
    let work = async {
        let url = ExportUrl { patience: Some(Duration::from_millis(300)), ..place.url() };
        let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
        let read = read(&device, 0, 4096).await.map(drop);
        let zeroed = device.write_zeroes(0, 16 << 30, IoContext::default()).await;
        [read, zeroed].map(|result| result.map_err(|error| error.detail))
    };
    for result in against(&place, script, work).await {
        assert!(result.as_ref().is_err_and(|detail| detail.contains("is not what it was")), "{result:?}");
    }
}

#[tokio::test]
async fn connection_to_other_export_is_unused() {
    for (size, is_extended) in [(1 << 30, false), (1 << 29, true)] {
        let place = TemporarySocketPath::new();
        let kept = Mutex::new(Vec::new());
        let script = |mut script: ScriptedServer| {
            let kept = &kept;
            async move {
                let is_first = kept.lock().unwrap().is_empty();
                let (size, is_extended) = if is_first { (1 << 30, true) } else { (size, is_extended) };
                script.agree_on(size, 1 | 1 << 8, None, is_extended).await;
                kept.lock().unwrap().push(script);
            }
        };
        let url = ExportUrl { connections: Some(4), ..place.url() };
        let device = against(&place, script, NbdDevice::connect(&url, ConnectOptions::default())).await.unwrap();
        assert_eq!(device.connections(), 1);
    }
}

#[tokio::test]
async fn connections_ended_at_once_cost_patience() {
    let place = TemporarySocketPath::new();
    let connections = AtomicU32::new(0);
    let script = |mut script: ScriptedServer| {
        connections.fetch_add(1, Ordering::Relaxed);
        async move {
            script.agree(1 << 20, 1 | 4, None).await;
        }
    };
    let began = Instant::now();
    let work = async {
        let url = ExportUrl { patience: Some(Duration::from_millis(200)), ..place.url() };
        let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
        read(&device, 0, 4096).await.map(drop).unwrap_err();
        write(&device, 0, Buffer::zeroed(4096)).await.map(drop).unwrap_err();
    };
    against(&place, script, work).await;
    let (elapsed, count) = (began.elapsed(), connections.load(Ordering::Relaxed));
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    assert!(u128::from(count) <= 4 + elapsed.as_millis() / 25, "{count} connections in {elapsed:?}");
}

/// A flush that waits until it can be sent reaches a server that may have lost the writes before it.
#[tokio::test]
async fn flush_waiting_during_loss_fails() {
    let place = TemporarySocketPath::new();
    let (connections, ends, reads) = (AtomicU32::new(0), Notify::new(), Notify::new());
    let script = |mut script: ScriptedServer| {
        let (is_first, ends, reads) = (connections.fetch_add(1, Ordering::Relaxed) == 0, &ends, &reads);
        async move {
            script.agree(1 << 20, 1 | 4, None).await;
            let mut unanswered = 0;
            while let Some((command, cookie, _, length)) = request(&mut script).await {
                if command == 1 {
                    let mut data = vec![0; length as usize];
                    script.0.read_exact(&mut data).await.unwrap();
                }
                if is_first && command == 0 {
                    unanswered += 1;
                    if unanswered == REQUESTS_MAX {
                        reads.notify_one();
                        return ends.notified().await;
                    }
                    continue;
                }
                answer(&mut script, cookie, &vec![0; if command == 0 { length as usize } else { 0 }]).await;
            }
        }
    };
    let work = async {
        let device = connect(&place).await.unwrap();
        write(&device, 0, Buffer::zeroed(4096)).await.unwrap();
        let context = IoContext::default();
        let in_flight: Vec<_> =
            (0..REQUESTS_MAX).map(|_| device.read_at(0, vec![Buffer::zeroed(512)], context)).collect();
        reads.notified().await;
        let mut flush = device.flush(context);
        assert!(tokio::time::timeout(Duration::from_millis(10), &mut flush).await.is_err(), "it waits");
        drop(in_flight);
        ends.notify_one();
        flush.await.map_err(|error| error.kind)
    };
    assert_eq!(against(&place, script, work).await, Err(DeviceErrorKind::Latched));
}

/// A server's kernel reports a lost write to one of two flushes.
#[tokio::test]
async fn flush_beside_a_failed_one_fails() {
    let place = TemporarySocketPath::new();
    let script = |mut script: ScriptedServer| async move {
        script.agree(1 << 20, 1 | 4, None).await;
        let mut flushes = Vec::new();
        while let Some((command, cookie, _, length)) = request(&mut script).await {
            match command {
                1 => {
                    let mut data = vec![0; length as usize];
                    script.0.read_exact(&mut data).await.unwrap();
                    answer(&mut script, cookie, &[]).await;
                }
                _ => flushes.push(cookie),
            }
            if let [first, second] = flushes[..] {
                refuse(&mut script, first, 5).await;
                answer(&mut script, second, &[]).await;
            }
        }
    };
    let work = async {
        let device = connect(&place).await.unwrap();
        write(&device, 0, Buffer::zeroed(4096)).await.unwrap();
        let (first, second) = tokio::join!(device.flush(IoContext::default()), device.flush(IoContext::default()));
        [first, second].map(|result| result.map_err(|error| error.kind))
    };
    assert_eq!(against(&place, script, work).await, [Err(DeviceErrorKind::Io), Err(DeviceErrorKind::Latched)]);
}

#[tokio::test]
async fn cut_reads_are_sent_again() {
    let place = TemporarySocketPath::new();
    let connections = AtomicU32::new(0);
    // The first connection ends in the middle of the answer, the second one before it, and the third one answers.
    let script = |mut script: ScriptedServer| {
        let number = connections.fetch_add(1, Ordering::Relaxed);
        async move {
            script.agree(1 << 20, 1, None).await;
            while let Some((_, cookie, offset, length)) = request(&mut script).await {
                match number {
                    0 => return answer(&mut script, cookie, &vec![1; length as usize / 2]).await,
                    1 => return,
                    _ => answer(&mut script, cookie, &vec![(offset / 4096) as u8; length as usize]).await,
                }
            }
        }
    };
    let work = async {
        let device = connect(&place).await.unwrap();
        assert!(read(&device, 7 * 4096, 8192).await.unwrap().iter().all(|&byte| byte == 7));
        device.figures()[0].get("reconnects")
    };
    assert_eq!(against(&place, script, work).await, Some(2));
}

/// A request fails when the server has cut its connection eight times.
#[tokio::test]
async fn server_cutting_every_request_fails() {
    let place = TemporarySocketPath::new();
    let script = |mut script: ScriptedServer| async move {
        script.agree(1 << 20, 1, None).await;
        request(&mut script).await;
    };
    let work = async { read(&connect(&place).await.unwrap(), 0, 4096).await.map(drop).unwrap_err() };
    let error = against(&place, script, work).await;
    assert!(error.kind == DeviceErrorKind::Io && error.detail.contains("8 times"), "{error}");
}

#[tokio::test]
async fn cut_write_is_never_sent_again() {
    let place = TemporarySocketPath::new();
    let writes = AtomicU32::new(0);
    let script = |mut script: ScriptedServer| {
        let writes = &writes;
        async move {
            script.agree(1 << 20, 1 | 4, None).await;
            while let Some((command, cookie, _, length)) = request(&mut script).await {
                if command == 1 {
                    writes.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                answer(&mut script, cookie, &vec![0; if command == 0 { length as usize } else { 0 }]).await;
            }
        }
    };
    let work = async {
        let device = connect(&place).await.unwrap();
        // Nothing is at stake before the first write, so that a flush is answered also after a reconnection.
        device.flush(IoContext::default()).await.unwrap();
        write(&device, 0, Buffer::zeroed(4096)).await.map(drop).unwrap_err();
        read(&device, 0, 4096).await.unwrap();
        let later = [write(&device, 0, Buffer::zeroed(4096)).await.map(drop), device.flush(IoContext::default()).await];
        later.map(|result| result.unwrap_err().kind)
    };
    assert_eq!(against(&place, script, work).await, [DeviceErrorKind::Latched; 2]);
    assert_eq!(writes.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn flush_that_fails_unheard_latches() {
    let place = TemporarySocketPath::new();
    let fails = Notify::new();
    let script = |mut script: ScriptedServer| {
        let fails = &fails;
        async move {
            script.agree(1 << 20, 1 | 4, None).await;
            let mut flushes = 0;
            while let Some((command, cookie, _, length)) = request(&mut script).await {
                flushes += u32::from(command == 3);
                if command == 3 && flushes == 1 {
                    fails.notified().await;
                    refuse(&mut script, cookie, 5).await;
                    continue;
                }
                answer(&mut script, cookie, &vec![0; if command == 0 { length as usize } else { 0 }]).await;
            }
        }
    };
    let work = async {
        let device = connect(&place).await.unwrap();
        let flush = device.flush(IoContext::default());
        assert!(tokio::time::timeout(Duration::from_millis(10), flush).await.is_err(), "it waits");
        fails.notify_one();
        read(&device, 0, 4096).await.unwrap();
        device.flush(IoContext::default()).await.map_err(|error| error.kind)
    };
    assert_eq!(against(&place, script, work).await, Err(DeviceErrorKind::Latched));
}

#[tokio::test]
async fn lost_zeroes_and_discards_stop_writes() {
    for is_discard in [false, true] {
        let place = TemporarySocketPath::new();
        let connections = AtomicU32::new(0);
        let script = |mut script: ScriptedServer| {
            let is_first = connections.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                script.agree(1 << 20, 1 | 4 | 1 << 5 | 1 << 6, None).await;
                while let Some((command, cookie, _, length)) = request(&mut script).await {
                    if is_first && command == 0 {
                        return;
                    }
                    answer(&mut script, cookie, &vec![0; if command == 0 { length as usize } else { 0 }]).await;
                }
            }
        };
        let work = async {
            let (device, context) = (connect(&place).await.unwrap(), IoContext::default());
            match is_discard {
                true => device.discard(0, 4096, context).await.unwrap(),
                false => device.write_zeroes(0, 4096, context).await.unwrap(),
            }
            read(&device, 0, 4096).await.unwrap();
            device.flush(context).await.map_err(|error| error.kind)
        };
        assert_eq!(against(&place, script, work).await, Err(DeviceErrorKind::Latched), "discard: {is_discard}");
    }
}

/// A server that forces a write by a flush of everything may have been told of an earlier write that is lost.
#[tokio::test]
async fn failed_forced_write_latches() {
    let place = TemporarySocketPath::new();
    let script = |mut script: ScriptedServer| async move {
        script.agree(1 << 20, 1 | 4 | 8, None).await;
        let mut writes = 0;
        while let Some((command, cookie, _, length)) = request(&mut script).await {
            if command == 1 {
                let mut data = vec![0; length as usize];
                script.0.read_exact(&mut data).await.unwrap();
                writes += 1;
            }
            match (command, writes) {
                (1, 2) => refuse(&mut script, cookie, 5).await,
                _ => answer(&mut script, cookie, &[]).await,
            }
        }
    };
    let work = async {
        let (device, context) = (connect(&place).await.unwrap(), IoContext::default());
        write(&device, 0, Buffer::zeroed(4096)).await.unwrap();
        let flags = nectary_block::WriteFlags { fua: true };
        let forced = device.write_at(4096, vec![Buffer::zeroed(4096)], flags, context).await.map(drop);
        [forced, device.flush(context).await].map(|result| result.map_err(|error| error.kind))
    };
    assert_eq!(against(&place, script, work).await, [Err(DeviceErrorKind::Io), Err(DeviceErrorKind::Latched)]);
}
