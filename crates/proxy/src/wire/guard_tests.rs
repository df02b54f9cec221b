//! Which phase is overdue when.

use super::*;

const DEADLINES: Deadlines = Deadlines { idle: 10, head: 5, body: 7, write: 6, tunnel: 20, linger: 2 };

fn guard(side: Side) -> (Rc<Guard>, Rc<Clock>) {
    let clock = Rc::new(Clock::default());
    (Guard::new(side, clock.clone(), DEADLINES, 1024), clock)
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
        ("a head that comes slowly", |guard| guard.on_read(b"GET / HT").expect("fine"), Some(6)),
        ("an exchange under way", |guard| guard.begin(false), None),
        (
            "a body that stops",
            |guard| {
                guard.on_read(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc").expect("fine");
                guard.begin(false);
                guard.on_read_waits();
            },
            Some(8),
        ),
        (
            "a body that nobody reads",
            |guard| {
                guard.on_read(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc").expect("fine");
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
        ("a tunnel", |guard| guard.on_read(b"CONNECT a:443 HTTP/1.1\r\n\r\n").expect("fine"), Some(21)),
        ("a refused head", |guard| _ = guard.on_read(b"GET / HTTP/1.1\n"), Some(3)),
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
                guard.begin(false);
                guard.on_read(b"HTTP/1.1 200").expect("fine");
            },
            Some(6),
        ),
        (
            "an answer that stops in its body",
            |guard| {
                guard.begin(false);
                guard.on_read(b"HTTP/1.1 200 OK\r\n\r\nabc").expect("fine");
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
        guard.on_read(&[byte]).expect("fine");
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
