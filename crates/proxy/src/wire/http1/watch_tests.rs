//! Tests of the time limit of each phase.

use super::*;

const DEADLINES: PhaseDeadlines = PhaseDeadlines { idle: 10, head: 5, body: 7, write: 6, tunnel: 20, linger: 2 };

fn watch(side: PeerSide) -> (Rc<ConnectionWatch>, Rc<TickClock>) {
    let clock = Rc::new(TickClock::default());
    (ConnectionWatch::new(side, clock.clone(), DEADLINES, 1024), clock)
}

/// Reports received bytes, which must be correct.
fn read(watch: &ConnectionWatch, bytes: &[u8]) {
    watch.on_read(&mut bytes.to_vec()).expect("fine");
}

/// Reports that a request is sent.
fn send(watch: &ConnectionWatch) {
    watch.begin(false);
    watch.on_written();
}

/// The number of ticks after which the watch is overdue; `None` if it is not overdue after 100.
fn ticks_until_overdue(watch: &ConnectionWatch, clock: &TickClock) -> Option<u32> {
    (0..100).find(|_| {
        let overdue = watch.is_overdue();
        clock.advance();
        overdue
    })
}

#[test]
fn client_connection_phases_have_limits() {
    type Prepare = fn(&ConnectionWatch);
    let table: &[(&str, Prepare, Option<u32>)] = &[
        ("idle", |_| {}, Some(11)),
        ("a head that comes slowly", |watch| read(watch, b"GET / HT"), Some(6)),
        ("an exchange under way", |watch| watch.begin(false), None),
        (
            "a body that stops",
            |watch| {
                read(watch, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc");
                watch.begin(false);
                watch.on_read_waits();
            },
            Some(8),
        ),
        (
            "a body that nobody reads",
            |watch| {
                read(watch, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc");
                watch.begin(false);
            },
            None,
        ),
        (
            "a client that takes nothing",
            |watch| {
                watch.begin(false);
                watch.transport.on_write_waits();
            },
            Some(7),
        ),
        ("a tunnel", |watch| read(watch, b"CONNECT a:443 HTTP/1.1\r\n\r\n"), Some(21)),
        ("a refused head", |watch| _ = watch.on_read(&mut b"GET / HTTP/1.1\n".to_vec()), Some(3)),
    ];
    for (name, prepare, expected) in table {
        let (watch, clock) = watch(PeerSide::Client);
        prepare(&watch);
        assert_eq!(ticks_until_overdue(&watch, &clock), *expected, "{name}");
    }
}

#[test]
fn origin_connection_phases_have_limits() {
    type Prepare = fn(&ConnectionWatch);
    let table: &[(&str, Prepare, Option<u32>)] = &[
        ("idle in the pool", |_| {}, Some(11)),
        ("no answer", |watch| watch.begin(false), Some(6)),
        (
            "an answer that stops in its head",
            |watch| {
                send(watch);
                read(watch, b"HTTP/1.1 200");
            },
            Some(6),
        ),
        (
            "an answer that stops in its body",
            |watch| {
                send(watch);
                read(watch, b"HTTP/1.1 200 OK\r\n\r\nabc");
                watch.on_read_waits();
            },
            Some(8),
        ),
    ];
    for (name, prepare, expected) in table {
        let (watch, clock) = watch(PeerSide::Origin);
        prepare(&watch);
        assert_eq!(ticks_until_overdue(&watch, &clock), *expected, "{name}");
    }
}

#[test]
fn dripping_head_is_overdue() {
    let (watch, clock) = watch(PeerSide::Client);
    for byte in "GET / ".bytes() {
        assert!(!watch.is_overdue());
        read(&watch, &[byte]);
        clock.advance();
    }
    assert!(watch.is_overdue());
}

#[test]
fn long_response_is_not_idle_time() {
    let (watch, clock) = watch(PeerSide::Client);
    watch.begin(false);
    watch.on_read_waits();
    (0..50).for_each(|_| clock.advance());
    watch.end();
    assert_eq!(ticks_until_overdue(&watch, &clock), Some(11));
}

/// Bytes before the request was sent are no response to it.
#[test]
fn early_response_is_unexpected() {
    let (watch, _) = watch(PeerSide::Origin);
    watch.begin(false);
    let mut extra = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec();
    assert_eq!(watch.on_read(&mut extra), Err((0, FramingViolation::Unexpected)));
    assert_eq!(watch.violation(), Some(FramingViolation::Unexpected));
}

#[test]
fn informational_responses_put_no_deadline_off() {
    let (watch, clock) = watch(PeerSide::Origin);
    send(&watch);
    let ticks = (0..100).find(|_| {
        let overdue = watch.is_overdue();
        read(&watch, b"HTTP/1.1 102 Processing\r\n\r\n".get(..).filter(|_| clock.tick() % 2 == 0).unwrap_or(b""));
        clock.advance();
        overdue
    });
    assert_eq!(ticks, Some(6));
}

/// An announcement is sent before an answer or not at all.
#[test]
fn announcement_never_splits_an_answer() {
    let (watch, _) = watch(PeerSide::Client);
    watch.begin(false);
    watch.announce(b"a");
    watch.announce(b"b");
    assert_eq!(watch.take_announced(), Some(b"ab".to_vec()));
    assert_eq!(watch.take_announced(), None);
    watch.on_parser_writes();
    watch.announce(b"c");
    assert_eq!(watch.take_announced(), None, "the rest of the answer before is being written");
    watch.on_flushed();
    watch.answered();
    assert_eq!(watch.take_announced(), Some(b"c".to_vec()), "first of all that is written next");
    watch.on_parser_writes();
    watch.announce(b"d");
    watch.answered();
    watch.on_flushed();
    assert_eq!(watch.take_announced(), None, "it would be in the middle of the answer");
}
