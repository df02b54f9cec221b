//! Which phase is overdue when.

use super::*;

const DEADLINES: Deadlines = Deadlines { idle: 10, head: 5, body: 7, write: 6, tunnel: 20, linger: 2 };

fn guard(side: Side) -> (Rc<Guard>, Rc<Clock>) {
    let clock = Rc::new(Clock::default());
    (Guard::new(side, clock.clone(), DEADLINES, 1024), clock)
}

/// Reads bytes that are as they should be.
fn read(guard: &Guard, bytes: &[u8]) {
    guard.on_read(&mut bytes.to_vec()).expect("fine");
}

/// Sends a request.
fn send(guard: &Guard) {
    guard.begin(false);
    guard.on_written();
}

/// The tick, counted from now, at which the guard is first overdue.
fn ticks_until_overdue(guard: &Guard, clock: &Clock) -> Option<u32> {
    (0..100).find(|_| {
        let overdue = guard.is_overdue();
        clock.advance();
        overdue
    })
}

#[test]
fn each_phase_of_a_clients_connection_has_its_limit() {
    type Prepare = fn(&Guard);
    let table: &[(&str, Prepare, Option<u32>)] = &[
        ("idle", |_| {}, Some(11)),
        ("a head that comes slowly", |guard| read(guard, b"GET / HT"), Some(6)),
        ("an exchange under way", |guard| guard.begin(false), None),
        (
            "a body that stops",
            |guard| {
                read(guard, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc");
                guard.begin(false);
                guard.on_read_waits();
            },
            Some(8),
        ),
        (
            "a body that nobody reads",
            |guard| {
                read(guard, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc");
                guard.begin(false);
            },
            None,
        ),
        (
            "a client that takes nothing",
            |guard| {
                guard.begin(false);
                guard.on_write_waits();
            },
            Some(7),
        ),
        ("a tunnel", |guard| read(guard, b"CONNECT a:443 HTTP/1.1\r\n\r\n"), Some(21)),
        ("a refused head", |guard| _ = guard.on_read(&mut b"GET / HTTP/1.1\n".to_vec()), Some(3)),
    ];
    for (name, prepare, expected) in table {
        let (guard, clock) = guard(Side::Client);
        prepare(&guard);
        assert_eq!(ticks_until_overdue(&guard, &clock), *expected, "{name}");
    }
}

#[test]
fn each_phase_of_an_origins_connection_has_its_limit() {
    type Prepare = fn(&Guard);
    let table: &[(&str, Prepare, Option<u32>)] = &[
        ("idle in the pool", |_| {}, Some(11)),
        ("no answer", |guard| guard.begin(false), Some(6)),
        (
            "an answer that stops in its head",
            |guard| {
                send(guard);
                read(guard, b"HTTP/1.1 200");
            },
            Some(6),
        ),
        (
            "an answer that stops in its body",
            |guard| {
                send(guard);
                read(guard, b"HTTP/1.1 200 OK\r\n\r\nabc");
                guard.on_read_waits();
            },
            Some(8),
        ),
    ];
    for (name, prepare, expected) in table {
        let (guard, clock) = guard(Side::Origin);
        prepare(&guard);
        assert_eq!(ticks_until_overdue(&guard, &clock), *expected, "{name}");
    }
}

#[test]
fn a_slow_head_is_overdue_although_bytes_keep_coming() {
    let (guard, clock) = guard(Side::Client);
    for byte in "GET / ".bytes() {
        assert!(!guard.is_overdue());
        read(&guard, &[byte]);
        clock.advance();
    }
    assert!(guard.is_overdue());
}

#[test]
fn a_long_response_does_not_count_as_idle_time() {
    let (guard, clock) = guard(Side::Client);
    guard.begin(false);
    guard.on_read_waits();
    (0..50).for_each(|_| clock.advance());
    guard.end();
    assert_eq!(ticks_until_overdue(&guard, &clock), Some(11));
}

#[test]
fn what_comes_before_its_request_was_sent_is_no_response_to_it() {
    let (guard, _) = guard(Side::Origin);
    guard.begin(false);
    let mut extra = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec();
    assert_eq!(guard.on_read(&mut extra), Err((0, Violation::Unexpected)));
    assert_eq!(guard.violation(), Some(Violation::Unexpected));
}

#[test]
fn informational_responses_put_no_deadline_off() {
    let (guard, clock) = guard(Side::Origin);
    send(&guard);
    let ticks = (0..100).find(|_| {
        let overdue = guard.is_overdue();
        read(&guard, b"HTTP/1.1 102 Processing\r\n\r\n".get(..).filter(|_| clock.tick() % 2 == 0).unwrap_or(b""));
        clock.advance();
        overdue
    });
    assert_eq!(ticks, Some(6));
}

#[test]
fn what_is_announced_goes_out_before_an_answer_or_not_at_all() {
    let (guard, _) = guard(Side::Client);
    guard.begin(false);
    guard.announce(b"a");
    guard.announce(b"b");
    assert_eq!(guard.take_announced(), Some(b"ab".to_vec()));
    assert_eq!(guard.take_announced(), None);
    guard.on_parser_writes();
    guard.announce(b"c");
    assert_eq!(guard.take_announced(), None, "the rest of the answer before is being written");
    guard.on_flushed();
    guard.answered();
    assert_eq!(guard.take_announced(), Some(b"c".to_vec()), "first of all that is written next");
    guard.on_parser_writes();
    guard.announce(b"d");
    guard.answered();
    guard.on_flushed();
    assert_eq!(guard.take_announced(), None, "it would be in the middle of the answer");
}
