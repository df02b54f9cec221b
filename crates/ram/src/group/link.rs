//! The connection to one donor, and what is known about the donor.
//!
//! Owns: the state of the connection, requests without an answer, and the record that the donor is known to have.
//! Promises: this record was read from the donor or confirmed by it, and never only sent. Leaves to others: deciding
//! whether the donor is trusted (`membership`).

use std::collections::BTreeMap;

use super::event::{Moment, RequestId};
use crate::format::{DonorRecord, RecordGeometry, RecordStamp};

/// The state of the connection to a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// There is no connection.
    Down,
    /// The metadata area is being read.
    Reading,
    /// The area was read, but the donor does not serve this client yet.
    Read,
    /// The donor was left and is there again, but must not be overwritten: it has another device, or another client
    /// has this device there. Its area is read again from time to time.
    Refused,
    /// A record that makes this connection the owner has been sent.
    Claiming,
    /// This connection is the owner: the donor accepts its reads and writes.
    Claimed,
}

/// The purpose of a request without an answer.
#[derive(Debug)]
pub(super) enum OutstandingPurpose {
    Metadata,
    Ping,
    Swap(Box<DonorRecord>),
    /// The machine above sent it.
    Outside {
        tag: u64,
    },
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct OutstandingRequest {
    pub sent_us: Moment,
    pub purpose: OutstandingPurpose,
}

/// The content of a donor's metadata area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MetadataContent {
    /// The area is empty.
    Empty,
    /// The area has no record of a device, or a damaged one.
    Unusable,
    /// The area has the record of another device.
    Other,
    /// The area has a record of this device for another place, or with another layout.
    OtherPlace,
    /// The area has the copy of another donor's record, left by a move that was cut short.
    Copy,
    /// The area has a record of the device.
    Record(Box<DonorRecord>),
}

/// The connection to one donor.
#[derive(Debug)]
pub(super) struct GroupLink {
    pub state: LinkState,
    pub incarnation: u64,
    /// The time since when the donor has not served this client.
    pub down_since_us: Moment,
    /// Requests without an answer, in the order of sending.
    pub outstanding: BTreeMap<RequestId, OutstandingRequest>,
    /// The stamp of the donor's metadata area.
    pub stamp: RecordStamp,
    pub content: MetadataContent,
    pub is_owned: bool,
    /// The time at which the area was read.
    pub read_us: Moment,
    /// The time of the donor's last answer.
    pub answered_us: Moment,
    /// Whether the record that the donor should have differs from the one that it has.
    pub is_stale: bool,
    /// The time at which the newest request was sent whose answer proves that this client has the device.
    pub proof_us: Option<Moment>,
    /// Whether the donor has lost its memory of the device.
    pub is_empty: bool,
    /// The number of wrong and failed answers.
    pub troubles: u32,
    /// The time at which the donor was left.
    pub left_us: Moment,
}

impl GroupLink {
    pub fn new(now_us: Moment) -> GroupLink {
        GroupLink {
            state: LinkState::Down,
            incarnation: 0,
            down_since_us: now_us,
            outstanding: BTreeMap::new(),
            stamp: RecordStamp::default(),
            content: MetadataContent::Empty,
            is_owned: false,
            read_us: now_us,
            answered_us: now_us,
            is_stale: false,
            proof_us: None,
            is_empty: false,
            troubles: 0,
            left_us: 0,
        }
    }

    /// Stores the content that was read from the metadata area.
    pub fn read(&mut self, area: &[u8], is_owned: bool, geometry: &RecordGeometry, position: usize) {
        self.stamp = RecordStamp::of(area);
        self.is_owned = is_owned;
        self.state = LinkState::Read;
        self.content = match DonorRecord::decode(area) {
            _ if DonorRecord::is_absent(area) => MetadataContent::Empty,
            // A client that died while the device grew leaves records of both sizes.
            Ok(record) if record.geometry.is_same_device(geometry) && usize::from(record.position) == position => {
                MetadataContent::Record(Box::new(record))
            }
            Ok(record) if record.geometry.device == geometry.device && !record.is_of(self.incarnation) => {
                MetadataContent::Copy
            }
            Ok(record) if record.geometry.device == geometry.device => MetadataContent::OtherPlace,
            Ok(_) => MetadataContent::Other,
            Err(_) => MetadataContent::Unusable,
        };
    }

    /// Whether the donor has a living connection of another client than this one.
    pub fn is_owned_beside(&self, client: u64) -> bool {
        self.is_owned && self.stamp.client != client
    }

    /// Returns the record that the donor is known to have.
    pub fn record(&self) -> Option<&DonorRecord> {
        match &self.content {
            MetadataContent::Record(record) => Some(record),
            _ => None,
        }
    }

    /// Returns the record that was sent and has no answer.
    pub fn swap(&self) -> Option<&DonorRecord> {
        self.outstanding.values().find_map(|request| match &request.purpose {
            OutstandingPurpose::Swap(record) => Some(&**record),
            _ => None,
        })
    }

    /// Returns when the question was sent whether this client still has the device, if it has no answer.
    pub fn ping_us(&self) -> Option<Moment> {
        let ping = self.outstanding.values().find(|request| matches!(request.purpose, OutstandingPurpose::Ping));
        ping.map(|request| request.sent_us)
    }

    /// Whether the donor's record certainly has the mark of a stripe, both now and after a record that was sent
    /// arrives.
    pub fn is_marked(&self, stripe: u64) -> bool {
        self.record().is_some_and(|record| record.dirty.has(stripe))
            && self.swap().is_none_or(|record| record.dirty.has(stripe))
    }

    /// Whether the donor has certainly stored a view.
    pub fn has_view(&self, number: (u64, u64)) -> bool {
        !self.is_empty && self.record().is_some_and(|record| record.view.number() == number)
    }

    /// Whether reading the area, or claiming the donor, has had no answer for this long.
    pub fn is_stuck(&self, now_us: Moment, limit_us: Moment) -> bool {
        let is_asked = matches!(self.state, LinkState::Reading | LinkState::Refused | LinkState::Claiming);
        let first = self.outstanding.values().next();
        is_asked && first.is_some_and(|first| first.sent_us + limit_us <= now_us)
    }

    /// Returns for how long the donor has owed an answer, or has not served this client. A donor that answers without
    /// pause owes nothing while requests wait for their turn, but none of them may wait longer than `limit_us`.
    pub fn late_us(&self, now_us: Moment, limit_us: Moment) -> Moment {
        let since = match self.state {
            LinkState::Claimed => match self.outstanding.values().next().map(|first| first.sent_us) {
                Some(sent_us) if now_us >= sent_us + limit_us => sent_us,
                Some(sent_us) => sent_us.max(self.answered_us),
                None => now_us,
            },
            _ => self.down_since_us,
        };
        now_us.saturating_sub(since)
    }
}
