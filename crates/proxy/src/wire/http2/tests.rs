//! Tests of the limits of connections and of their streams.

use super::*;

const DEADLINES: PhaseDeadlines = PhaseDeadlines { idle: 10, head: 5, body: 7, write: 6, tunnel: 20, linger: 2 };

fn connection() -> (Rc<Http2Connection>, Rc<TickClock>) {
    let clock = Rc::new(TickClock::default());
    (Http2Connection::new(clock.clone(), DEADLINES), clock)
}

fn pass(clock: &TickClock, ticks: u32) {
    (0..ticks).for_each(|_| clock.advance());
}

/// Begins a stream whose future never ends by itself, and polls it once.
fn stalled(connection: &Rc<Http2Connection>) -> (Rc<Http2Stream>, std::pin::Pin<Box<dyn Future<Output = bool>>>) {
    let stream = connection.begin();
    let mut running: std::pin::Pin<Box<dyn Future<Output = bool>>> =
        Box::pin(connection.run(std::future::pending::<()>()));
    assert!(poll(&mut running).is_pending());
    (stream, running)
}

fn poll(running: &mut std::pin::Pin<Box<dyn Future<Output = bool>>>) -> Poll<bool> {
    running.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()))
}

#[test]
fn connection_is_idle_between_its_streams() {
    let (connection, clock) = connection();
    pass(&clock, 10);
    assert!(!connection.is_overdue() && connection.idle_ticks() == Some(10));
    let (_, running) = stalled(&connection);
    pass(&clock, 50);
    assert!(!connection.is_overdue() && connection.idle_ticks().is_none(), "its origin may take long");
    drop(running);
    pass(&clock, 10);
    assert!(!connection.is_overdue() && !connection.transport.is_draining());
    pass(&clock, 1);
    assert!(!connection.is_overdue() && connection.transport.is_draining(), "the client learns of the end");
    pass(&clock, 1);
    assert!(!connection.is_overdue());
    pass(&clock, 1);
    assert!(connection.is_overdue());
}

#[test]
fn stream_without_upload_is_cut_alone() {
    let (connection, clock) = connection();
    let (stream, mut running) = stalled(&connection);
    let (_, mut other) = stalled(&connection);
    stream.on_upload_polled(true);
    pass(&clock, 7);
    stream.on_upload_polled(true);
    assert!(!connection.is_overdue() && poll(&mut running).is_pending());
    pass(&clock, 1);
    assert!(!connection.is_overdue(), "the connection lives");
    assert!(poll(&mut running) == Poll::Ready(false) && poll(&mut other).is_pending());
    drop(running);
    pass(&clock, 50);
    assert!(!connection.is_overdue() && poll(&mut other).is_pending());
}

#[test]
fn stream_that_nobody_takes_is_cut() {
    let (connection, clock) = connection();
    let (stream, mut running) = stalled(&connection);
    let mut piece = BodyPiece::new(Bytes::from_static(b"abc"), Some(&stream));
    pass(&clock, 6);
    piece.advance(1);
    pass(&clock, 6);
    assert!(!connection.is_overdue() && poll(&mut running).is_pending(), "a byte was taken");
    pass(&clock, 1);
    connection.transport.on_write_waits();
    assert!(!connection.is_overdue() && poll(&mut running).is_pending(), "the whole connection waits");
    connection.transport.on_flushed();
    assert!(!connection.is_overdue() && poll(&mut running) == Poll::Ready(false));
    drop((running, piece));
    assert_eq!(connection.idle_ticks(), Some(0));
}

#[test]
fn many_ends_left_end_the_connection() {
    let (connection, clock) = connection();
    let (_, busy) = stalled(&connection);
    let mut pieces = Vec::new();
    for _ in 0..LEFT_STREAMS_MAX {
        let (stream, running) = stalled(&connection);
        pieces.push(BodyPiece::new(Bytes::from_static(b"abc"), Some(&stream)));
        drop(running);
    }
    pass(&clock, 7);
    assert!(!connection.is_overdue());
    let (stream, running) = stalled(&connection);
    pieces.push(BodyPiece::new(Bytes::from_static(b"abc"), Some(&stream)));
    drop(running);
    pass(&clock, 6);
    assert!(!connection.is_overdue());
    pass(&clock, 1);
    assert!(connection.is_overdue());
    pieces.pop();
    assert!(!connection.is_overdue());
    drop(busy);
    pass(&clock, 10);
    assert!(!connection.is_overdue() && connection.idle_ticks() == Some(10), "what is left is not awaited");
    pass(&clock, 3);
    assert!(connection.is_overdue());
}

#[test]
fn silent_client_is_let_down() {
    let (connection, clock) = connection();
    let (_, running) = stalled(&connection);
    connection.let_go();
    pass(&clock, 5);
    assert!(connection.transport.is_draining() && !connection.is_overdue(), "its request is under way");
    assert!(!connection.is_let_down());
    drop(running);
    assert!(!connection.is_overdue() && connection.is_let_down(), "it is closed well");
}

#[test]
fn client_may_take_back_some_requests() {
    let (connection, _) = connection();
    for turn in 0..ABANDONED_MAX + 1 {
        let (answered, running) = stalled(&connection);
        answered.answered();
        drop(running);
        assert!(!connection.is_abused(), "{turn}");
        drop(stalled(&connection));
    }
    assert!(!connection.is_abused() && !connection.transport.is_killed(), "no more than half");
    drop(stalled(&connection));
    assert!(connection.is_abused() && connection.transport.is_killed());
    // What the proxy has ended was not taken back.
    let (connection, _) = self::connection();
    for _ in 0..2 * ABANDONED_MAX {
        let (stream, running) = stalled(&connection);
        stream.cut();
        drop(running);
    }
    assert!(!connection.is_abused());
}
