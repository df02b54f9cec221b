//! Tests of watching: the reports are true, and watching changes no decision.

use std::sync::{Arc, Mutex};

use super::*;
use crate::{Adaptive, NAMES, by_name};

/// Draws an id below `count`, approximately by Zipf's law with exponent 1; `state` is the state of the random
/// generator.
fn zipf(state: &mut u64, count: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let unit = (*state >> 11) as f64 / (1_u64 << 53) as f64;
    ((count as f64).powf(unit) - 1.0) as u64
}

#[test]
fn watched_policy_decides_unchanged() {
    for name in NAMES {
        let mut plain = by_name(name, 200).expect("listed");
        let mut watched = WatchedPolicy::new(by_name(name, 200).expect("listed"), 8192, Box::new(|_| ()));
        let mut state = 7;
        for step in 0..5000_u64 {
            let id = if step % 3 == 0 { step / 3 % 300 } else { 1000 + zipf(&mut state, 900) };
            let (mut of_plain, mut of_watched) = (Vec::new(), Vec::new());
            let stream = StreamId((step % 3) as u32);
            let access = plain.reference(id, 1, stream, &mut |victim| {
                of_plain.push(victim);
                true
            });
            let as_watched = watched.reference(id, 1, stream, &mut |victim| {
                of_watched.push(victim);
                true
            });
            assert_eq!((as_watched, of_watched), (access, of_plain), "{name} at {step}");
        }
    }
}

#[test]
fn ledger_equals_separate_simulation() {
    let mut state = 7;
    let mut watched = WatchedPolicy::new(Box::new(Adaptive::new(300)), 8192, Box::new(|_| ()));
    // A naive LRU of as much memory as the policy and its tables take, oldest id first.
    let capacity_lru = lru_capacity("adaptive", 300, 8192);
    assert!(capacity_lru > 300);
    let mut lru: Vec<u64> = Vec::new();
    let mut expected = [StreamLedger::default(); 3];
    for step in 0..30_000_u64 {
        let stream = (step % 3) as u32;
        let id = match stream {
            0 => step / 3 % 250,
            1 => 10_000 + zipf(&mut state, 1000),
            _ => 20_000 + zipf(&mut state, 200) + step / 100,
        };
        let is_hit = watched.reference(id, 1, StreamId(stream), &mut |_| true) == AccessResult::Hit;
        let position = lru.iter().position(|other| *other == id);
        lru.retain(|other| *other != id);
        lru.push(id);
        if lru.len() as u64 > capacity_lru {
            lru.remove(0);
        }
        let ledger = &mut expected[stream as usize];
        ledger.references += 1;
        ledger.misses += u64::from(!is_hit);
        ledger.saved += u64::from(is_hit && position.is_none());
        ledger.lost += u64::from(!is_hit && position.is_some());
    }
    for (stream, expected) in expected.iter().enumerate() {
        assert_eq!(watched.ledger(StreamId(stream as u32)), Some(*expected));
    }
    assert_eq!(watched.ledger(StreamId(3)), None);
}

/// Every period, window and change of leader is reported.
#[test]
fn periods_and_leaders_are_reported() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let tell = Box::new(move |event: PolicyEvent<'_>| sink.lock().expect("not poisoned").push(event.to_string()));
    let mut watched = WatchedPolicy::new(Box::new(Adaptive::new(500)), 8192, tell);
    let mut state = 5;
    for step in 0..60_000_u64 {
        let id = if step < 10_000 { step % 800 } else { 10_000 + step / 8 + zipf(&mut state, 450) };
        watched.reference(id, 1, StreamId(5), &mut |_| true);
    }
    let lines = lines.lock().expect("not poisoned");
    assert_eq!(lines.iter().filter(|line| line.starts_with("stream 5 period")).count(), 120);
    assert!(lines.iter().any(|line| line.contains("looping") && line.contains("loop of 800")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("window 2: ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(" leads (")), "{lines:?}");
}
