//! Tests of the cache of names.

use std::time::{Duration, Instant};

use super::*;
use crate::room::ConnectionLimits;

const SECOND: Duration = Duration::from_secs(1);

/// Names without files, so that only the cache knows something.
fn names() -> SharedNames {
    let nowhere = std::path::PathBuf::from("/nonexistent/nectary");
    SharedNames::new(NameFiles { hosts: nowhere.clone(), resolv_conf: nowhere })
}

fn addresses(seconds: u32) -> Result<SaidAddresses, String> {
    Ok(NameReply::Found(vec!["192.0.2.1".parse().expect("an address")], SECOND * seconds))
}

/// Whether the cache knows an address, knows that there is none, or knows nothing.
fn state(names: &SharedNames, name: &str, now: Instant) -> Option<bool> {
    names.known(name, now).map(|answer| answer.is_ok())
}

#[test]
fn answers_are_known_for_their_lifetime() {
    let now = Instant::now();
    // Each row has an answer, and the seconds for which it is known.
    for (said, is_good, seconds) in [
        (addresses(60), true, 60),
        (addresses(0), true, 1),
        (addresses(1 << 31), true, 3600),
        (Ok(NameReply::Nothing(10 * SECOND)), false, 10),
        (Ok(NameReply::Nothing(3600 * SECOND)), false, 30),
        (Err("silence".into()), false, 3),
    ] {
        let text = format!("{said:?}");
        let names = names();
        assert_eq!(state(&names, "a", now), None);
        assert_eq!(names.remember("a", said, 0, now).is_ok(), is_good, "{text}");
        assert_eq!(state(&names, "a", now + SECOND * seconds - Duration::from_millis(1)), Some(is_good), "{text}");
        assert_eq!(state(&names, "a", now + SECOND * seconds), None, "{text}");
    }
}

#[test]
fn old_addresses_replace_silent_servers() {
    let (names, now) = (names(), Instant::now());
    _ = names.remember("a", addresses(10), 0, now);
    let later = now + 100 * SECOND;
    assert_eq!(state(&names, "a", later), None);
    assert!(names.remember("a", Err("silence".into()), 0, later).is_ok());
    assert_eq!((state(&names, "a", later + 2 * SECOND), state(&names, "a", later + 3 * SECOND)), (Some(true), None));
    let next_day = now + 10 * SECOND + OLD_ADDRESSES_MAX;
    assert!(names.remember("a", Err("silence".into()), 0, next_day).is_err());
    // A server that says that the name is gone is believed.
    _ = names.remember("b", addresses(10), 0, now);
    assert!(names.remember("b", Ok(NameReply::Nothing(SECOND)), 0, later).is_err());
    assert!(names.remember("b", Err("silence".into()), 0, later).is_err());
}

#[test]
fn answers_of_other_servers_are_forgotten() {
    let (names, now) = (names(), Instant::now());
    _ = names.remember("a", addresses(10), 0, now);
    names.cache().changes = 7;
    assert_eq!(state(&names, "a", now), None);
    _ = names.remember("a", addresses(10), 7, now);
    assert_eq!(state(&names, "a", now), None, "an answer of the servers of before");
}

#[test]
fn known_names_are_bounded() {
    let (names, now) = (names(), Instant::now());
    for number in 0..=NAMES_MAX {
        _ = names.remember(&number.to_string(), addresses(10), 0, now);
        assert_eq!(names.cache().names.len(), (number + 1).min(NAMES_MAX));
    }
    _ = names.remember("last", addresses(10), 0, now + 10 * SECOND);
    assert_eq!(names.cache().names.len(), 1, "those whose time is over go first");
}

#[test]
fn local_names_are_not_asked_for() {
    let (names, now) = (names(), Instant::now());
    for name in ["localhost", "localhost.", "a.localhost"] {
        let found = names.known(name, now).expect("known").expect("good");
        assert!(found.iter().all(IpAddr::is_loopback) && found.len() == 2, "{name}");
    }
    assert!(names.known("notlocalhost", now).is_none() && names.known("a.notinvalid", now).is_none());
    assert!(names.known("a.invalid.", now).expect("known").is_err());
}

#[test]
fn a_lookup_fits_into_little_room() {
    let room = ConnectionRoom::new(ConnectionLimits { descriptors: 100, clients_max: 1, origins_max: 1 });
    let lookups = NameLookups::new(Arc::new(names()), room.clone(), SECOND);
    let lookup = lookups.join("a".to_owned()).expect("a place");
    assert!(matches!(lookups.join("b".to_owned()), Err(FetchError::Crowded)));
    drop(lookup);
    assert!(room.take(ConnectionPeer::Origin).is_some());
}
