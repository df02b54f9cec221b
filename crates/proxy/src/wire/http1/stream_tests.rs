//! Tests of the bytes that reach hyper: no complete head of a refused request, and no request that the shortcut
//! answers.

use std::future::poll_fn;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::wire::http1::framing::FramingViolation;
use crate::wire::transport::{PhaseDeadlines, RESTING_TICKS, TickClock};

const DEADLINES: PhaseDeadlines = PhaseDeadlines { idle: 10, head: 5, body: 7, write: 6, tunnel: 20, linger: 2 };

fn watch(side: PeerSide) -> Rc<ConnectionWatch> {
    ConnectionWatch::new(side, Rc::new(TickClock::default()), DEADLINES, 1024)
}

#[tokio::test]
async fn parser_never_sees_refused_head_end() {
    for (sent, seen) in [
        ("GET / HTTP/1.1\r\nA: b\n\r\n", &b"GET / HTTP/1.1\r\n"[..]),
        ("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n folded\r\n\r\n", b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n"),
    ] {
        let (mut peer, own) = tokio::io::duplex(4096);
        let watch = watch(PeerSide::Client);
        let mut stream = SharedStream::new(WatchedStream::new(own, watch.clone()));
        peer.write_all(sent.as_bytes()).await.expect("room");
        let mut found = [0; 256];
        let count = stream.read(&mut found).await.expect("as much as was accepted");
        assert_eq!(&found[..count], seen);
        assert!(watch.violation().is_some() && !stream.is_refused(), "the parser may still be at work");
        let mut more = ReadBuf::new(&mut found);
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_read(context, &mut more))).await;
        assert!(polled.is_pending() && stream.is_refused());
        watch.begin(false);
        assert!(!stream.is_refused(), "what came before is still to be answered");
    }
}

#[tokio::test]
async fn bad_body_fails_its_reader() {
    let (mut peer, own) = tokio::io::duplex(4096);
    let watch = watch(PeerSide::Origin);
    watch.begin(false);
    watch.on_written();
    let mut stream = WatchedStream::new(own, watch.clone());
    peer.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd").await.expect("room");
    let mut found = Vec::new();
    assert!(stream.read_to_end(&mut found).await.is_err());
    assert!(found.ends_with(b"3\r\nabc"));
    assert_eq!(watch.violation(), Some(FramingViolation::Chunk));
}

/// A shortcut that answers only `/a`, with the body `A`.
struct LetterShortcut;

impl RequestShortcut for LetterShortcut {
    fn answer(&self, request: &[u8], head: &mut Vec<u8>) -> Option<Bytes> {
        request.starts_with(b"GET /a ").then(|| head.extend_from_slice(b"head:"))?;
        Some(Bytes::from_static(b"A"))
    }
}

/// All other bytes reach the parser.
#[tokio::test]
async fn shortcut_answer_bypasses_parser() {
    let (mut peer, own) = tokio::io::duplex(4096);
    let watch = watch(PeerSide::Client);
    let mut stream = SharedStream::new(WatchedStream::new(own, watch.clone()));
    let mut room = [0; 256];
    let mut found = [0; 6];
    for _ in 0..3 {
        peer.write_all(b"GET /a HTTP/1.1\r\n\r\n").await.expect("room");
        let polled = poll_fn(|context| Poll::Ready(stream.poll_shortcut(context, &LetterShortcut, &mut room))).await;
        assert!(polled.is_pending(), "nothing is left for the parser");
        peer.read_exact(&mut found).await.expect("the answer");
        assert_eq!(&found, b"head:A");
    }
    let requests = [
        &b"GET /b HTTP/1.1\r\n\r\n"[..],
        b"GET /a HTTP/1.1\r\nContent-Length: 1\r\n\r\n",
        b"x",
        b"GET /a HT",
        b"TP/1.1\r\n\r\n",
    ];
    for request in requests {
        peer.write_all(request).await.expect("room");
        poll_fn(|context| stream.poll_shortcut(context, &LetterShortcut, &mut room)).await;
        let mut came = vec![0; request.len()];
        stream.read_exact(&mut came).await.expect("all of it");
        assert_eq!(came, request);
        let mut more = ReadBuf::new(&mut came);
        let asked = poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_read(context, &mut more))).await;
        assert!(asked.is_pending());
    }
}

/// A request behind those in the parser's buffer waits for the parser.
#[tokio::test]
async fn shortcut_waits_for_buffered_requests() {
    let (mut peer, own) = tokio::io::duplex(4096);
    let mut stream = SharedStream::new(WatchedStream::new(own, watch(PeerSide::Client)));
    let mut room = [0; 256];
    let two = b"GET /b HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    peer.write_all(two).await.expect("room");
    poll_fn(|context| stream.poll_shortcut(context, &LetterShortcut, &mut room)).await;
    stream.read_exact(&mut vec![0; two.len()]).await.expect("both");
    peer.write_all(b"GET /a HTTP/1.1\r\n\r\n").await.expect("room");
    for _ in 0..2 {
        let polled = poll_fn(|context| Poll::Ready(stream.poll_shortcut(context, &LetterShortcut, &mut room))).await;
        assert!(polled.is_ready() && stream.0.borrow().came.is_empty(), "the parser may not have answered both yet");
    }
}

#[tokio::test]
async fn shortcut_waits_for_unfinished_exchange() {
    let (mut peer, own) = tokio::io::duplex(4096);
    let watch = watch(PeerSide::Client);
    let stream = SharedStream::new(WatchedStream::new(own, watch.clone()));
    let mut room = [0; 256];
    watch.begin(false);
    peer.write_all(b"GET /a HTTP/1.1\r\n\r\n").await.expect("room");
    let polled = poll_fn(|context| Poll::Ready(stream.poll_shortcut(context, &LetterShortcut, &mut room))).await;
    assert!(polled.is_ready(), "answers keep the order of requests");
    assert!(stream.0.borrow().came.is_empty(), "nothing was read past the parser");
}

#[tokio::test]
async fn connection_rests_when_nothing_is_left() {
    let clock = Rc::new(TickClock::default());
    let watch = ConnectionWatch::new(PeerSide::Client, clock.clone(), DEADLINES, 1024);
    let (mut peer, own) = tokio::io::duplex(4096);
    let mut stream = SharedStream::new(WatchedStream::new(own, watch.clone()));
    let mut room = [0; 256];
    assert!(!stream.is_resting(), "it has just begun");
    (0..RESTING_TICKS).for_each(|_| clock.advance());
    assert!(stream.is_resting());
    peer.write_all(b"GET /b HT").await.expect("room");
    poll_fn(|context| stream.poll_shortcut(context, &LetterShortcut, &mut room)).await;
    (0..RESTING_TICKS).for_each(|_| clock.advance());
    assert!(!stream.is_resting(), "a part of a request has come");
    stream.read_exact(&mut [0; 9]).await.expect("all of it");
    assert!(!stream.is_resting(), "hyper has it");
    peer.write_all(b"TP/1.1\r\n\r\n").await.expect("room");
    stream.read_exact(&mut [0; 10]).await.expect("all of it");
    watch.begin(false);
    let mut more = [0; 1];
    let mut more = ReadBuf::new(&mut more);
    assert!(poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_read(context, &mut more))).await.is_pending());
    (0..RESTING_TICKS).for_each(|_| clock.advance());
    assert!(!stream.is_resting(), "the answer is not there yet");
    watch.end();
    watch.on_flushed();
    assert!(!stream.is_resting(), "the answer has just ended");
    (0..RESTING_TICKS).for_each(|_| clock.advance());
    assert!(stream.is_resting());
}
