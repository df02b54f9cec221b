//! Which servers the records of a service name.
//!
//! Owns: the rules for records, which may say anything: a record without port, or whose target is not the name of a host, is
//! ignored; of two records for one server the one that is asked first counts; there is a largest number of servers, and
//! those that are asked last are left out. Promises: the same records in another order name the same servers in the same
//! order, so that turns do not change with each answer. *Source*: RFC 2782.
//!
//! *Weight 0.* Where others have a weight, such a server gets a very small share, as if it had 1. Where none has, all have
//! the same share.

use std::collections::HashSet;

use crate::upstream::names::ServiceRecord;

/// The maximum number of servers of a service.
pub(super) const SERVERS_MAX: usize = 64;

/// The longest name of a host, and the longest label of one. *Units*: bytes.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// A server that a record names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundServer {
    pub priority: u16,
    /// Not 0.
    pub weight: u16,
    /// Not 0.
    pub port: u16,
    /// The name of a host in lower case; no address.
    pub host: String,
}

/// The servers that the records of a service name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct FoundServers {
    /// At least one, those that are asked first first.
    pub servers: Vec<FoundServer>,
    /// The records that are ignored.
    pub ignored: usize,
    /// Why the first of them is.
    pub reason: Option<String>,
}

/// Why the records of a service name no server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoServer {
    /// There are none.
    #[error("it has no SRV record")]
    NoRecord,
    /// They say that there is none.
    #[error("its SRV record has the target `.`: the service is not available")]
    Withdrawn,
    /// None can be used.
    #[error("none of its {count} SRV records can be used: {reason}")]
    Unusable { count: usize, reason: String },
}

/// The servers that these records name.
pub(super) fn servers_of(mut records: Vec<ServiceRecord>) -> Result<FoundServers, NoServer> {
    let count = records.len();
    if count == 0 {
        return Err(NoServer::NoRecord);
    }
    if records.iter().all(|record| record.target.is_empty()) {
        return Err(NoServer::Withdrawn);
    }
    records.iter_mut().for_each(|record| record.target.make_ascii_lowercase());
    records.sort_by(|one, other| {
        let key = |record: &ServiceRecord| (record.priority, record.port, std::cmp::Reverse(record.weight));
        key(one).cmp(&key(other)).then_with(|| one.target.cmp(&other.target))
    });
    let mut found = FoundServers::default();
    let mut known = HashSet::new();
    for record in records {
        let wrong = fault_of(&record).or_else(|| {
            let is_new = known.insert((record.target.clone(), record.port));
            (!is_new).then(|| format!("{}:{} is named twice", record.target, record.port))
        });
        let wrong = wrong.or_else(|| {
            let is_full = found.servers.len() >= SERVERS_MAX;
            is_full.then(|| format!("an origin has at most {SERVERS_MAX} servers that are looked up"))
        });
        match wrong {
            Some(reason) => {
                found.ignored += 1;
                found.reason.get_or_insert(reason);
            }
            None => found.servers.push(FoundServer {
                priority: record.priority,
                weight: record.weight.max(1),
                port: record.port,
                host: record.target,
            }),
        }
    }
    match found.servers.is_empty() {
        true => Err(NoServer::Unusable { count, reason: found.reason.unwrap_or_default() }),
        false => Ok(found),
    }
}

/// Why a record cannot be used, if it cannot.
fn fault_of(record: &ServiceRecord) -> Option<String> {
    if record.target.is_empty() {
        return Some("the target `.` beside others".to_owned());
    }
    if record.port == 0 {
        return Some(format!("{} has the port 0", printable(&record.target)));
    }
    (!is_host(&record.target)).then(|| format!("`{}` is not the name of a host", printable(&record.target)))
}

/// Whether a text is the name of a host that can be looked up, and written in a URL. An address is none: records have names.
fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(is_allowed)
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= NAME_BYTES_MAX && text.split('.').all(is_label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// The text without what could change a line of a log.
fn printable(text: &str) -> String {
    text.chars().take(NAME_BYTES_MAX).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(priority: u16, weight: u16, port: u16, target: &str) -> ServiceRecord {
        ServiceRecord { priority, weight, port, target: target.to_owned() }
    }

    fn shown(found: &FoundServers) -> Vec<String> {
        let server = |it: &FoundServer| format!("{} {} {}:{}", it.priority, it.weight, it.host, it.port);
        found.servers.iter().map(server).collect()
    }

    #[test]
    fn records_name_servers_in_one_order() {
        let records = [
            record(20, 0, 80, "c.test"),
            record(10, 5, 80, "B.test"),
            record(10, 0, 80, "a.test"),
            record(10, 5, 81, "a.test"),
        ];
        let expected = ["10 5 b.test:80", "10 1 a.test:80", "10 5 a.test:81", "20 1 c.test:80"];
        for rotated in 0..records.len() {
            let mut records = records.to_vec();
            records.rotate_left(rotated);
            let found = servers_of(records).expect("servers");
            assert_eq!((shown(&found), found.ignored), (expected.map(str::to_owned).to_vec(), 0));
        }
    }

    #[test]
    fn bad_records_are_ignored_and_told() {
        let long = format!("{}.test", "a".repeat(LABEL_BYTES_MAX + 1));
        let longer = format!("{}test", "abcdefg.".repeat(32));
        let of_long = format!("`{long}` is not the name of a host");
        let of_longer = format!("`{}` is not the name of a host", &longer[..NAME_BYTES_MAX]);
        for (bad, why) in [
            (record(0, 1, 0, "a.test"), "a.test has the port 0"),
            (record(0, 1, 80, ""), "the target `.` beside others"),
            (record(0, 1, 80, "127.0.0.1"), "`127.0.0.1` is not the name of a host"),
            (record(0, 1, 80, "a.1"), "`a.1` is not the name of a host"),
            (record(0, 1, 80, "a b"), "`a?b` is not the name of a host"),
            (record(0, 1, 80, "a..b"), "`a..b` is not the name of a host"),
            (record(0, 1, 80, "a\\010b\n.test"), "`a\\010b?.test` is not the name of a host"),
            (record(0, 1, 80, "a/b@c:1"), "`a/b@c:1` is not the name of a host"),
            (record(0, 1, 80, "[::1]"), "`[::1]` is not the name of a host"),
            (record(0, 1, 80, &long), &of_long),
            (record(0, 1, 80, &longer), &of_longer),
            (record(2, 9, 80, "GOOD.test"), "good.test:80 is named twice"),
        ] {
            let good = record(1, 1, 80, "good.test");
            let found = servers_of(vec![bad.clone(), good]).expect("one is good");
            assert_eq!((shown(&found), found.ignored), (vec!["1 1 good.test:80".to_owned()], 1), "{bad:?}");
            assert_eq!(found.reason.as_deref(), Some(why));
        }
    }

    #[test]
    fn records_without_server_say_why() {
        let text = |records: Vec<ServiceRecord>| servers_of(records).expect_err("no server").to_string();
        assert_eq!(text(Vec::new()), "it has no SRV record");
        assert!(matches!(servers_of(vec![record(0, 0, 0, "")]), Err(NoServer::Withdrawn)));
        let unusable = vec![record(0, 0, 0, "a.test"), record(1, 0, 0, "b.test")];
        assert_eq!(text(unusable), "none of its 2 SRV records can be used: a.test has the port 0");
    }

    #[test]
    fn servers_of_a_service_are_bounded() {
        let records = |count: usize| (0..count).map(|n| record(u16::from(n == 0), 1, n as u16 + 1, "a.test")).collect();
        let found = servers_of(records(SERVERS_MAX)).expect("servers");
        assert_eq!((found.servers.len(), found.ignored), (SERVERS_MAX, 0));
        let found = servers_of(records(SERVERS_MAX + 2)).expect("servers");
        assert_eq!((found.servers.len(), found.ignored), (SERVERS_MAX, 2));
        assert!(found.servers.iter().all(|server| server.priority == 0), "those asked last are left out");
    }
}
