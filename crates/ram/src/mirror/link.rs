//! The connection to one donor, and what it has shown about the donor.
//!
//! Owns: the state of the connection, requests without an answer, the record that the donor is known to have. Promises:
//! the record is one that the donor confirmed or that was read from it, never one that was only sent. Leaves to others:
//! what follows from it (`membership`).

use std::collections::BTreeMap;

use super::event::{Moment, RequestId};
use crate::format::{Geometry, Record, Stamp};

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// There is none.
    Down,
    /// The metadata area is being read.
    Reading,
    /// It was read; the donor does not serve this client yet.
    Read,
    /// A record that makes this connection the owner is on its way.
    Claiming,
    /// This connection is the owner: the donor reads and writes for it.
    Claimed,
}

/// What a request without an answer is for.
#[derive(Debug)]
pub(super) enum Purpose {
    Metadata,
    Ping,
    Swap(Box<Record>),
    Piece { operation: u64, piece: usize },
    Part { operation: u64, part: usize },
    Outside { tag: u64 },
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub sent_us: Moment,
    pub purpose: Purpose,
}

/// What was found in a donor's metadata area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing.
    Empty,
    /// Something that is no record of a device, or a damaged one.
    Unusable,
    /// A record of another device, or of this one in another shape or at another position.
    Other,
    /// A record of the device.
    Record(Box<Record>),
}

/// The connection to one donor.
#[derive(Debug)]
pub(super) struct Link {
    pub state: LinkState,
    pub incarnation: u64,
    /// Since when the donor has not served this client.
    pub down_since_us: Moment,
    /// In the order of sending.
    pub outstanding: BTreeMap<RequestId, Outstanding>,
    /// The stamp of the metadata area.
    pub stamp: Stamp,
    pub content: Content,
    pub is_owned: bool,
    /// Whether what is to be stored differs from the record.
    pub is_stale: bool,
    /// When the newest request was sent whose answer showed that this client has the device.
    pub proof_us: Option<Moment>,
    /// Whether the donor's memory of the device is gone.
    pub is_empty: bool,
    /// Wrong and failed answers.
    pub troubles: u32,
    /// When the donor was left.
    pub left_us: Moment,
}

impl Link {
    pub fn new(now_us: Moment) -> Link {
        Link {
            state: LinkState::Down,
            incarnation: 0,
            down_since_us: now_us,
            outstanding: BTreeMap::new(),
            stamp: Stamp::default(),
            content: Content::Empty,
            is_owned: false,
            is_stale: false,
            proof_us: None,
            is_empty: false,
            troubles: 0,
            left_us: 0,
        }
    }

    /// Takes in what was read from the metadata area.
    pub fn read(&mut self, area: &[u8], is_owned: bool, geometry: &Geometry, position: usize) {
        self.stamp = Stamp::of(area);
        self.is_owned = is_owned;
        self.state = LinkState::Read;
        self.content = match Record::decode(area) {
            _ if Record::is_absent(area) => Content::Empty,
            Ok(record) if record.geometry == *geometry && usize::from(record.position) == position => {
                Content::Record(Box::new(record))
            }
            Ok(_) => Content::Other,
            Err(_) => Content::Unusable,
        };
    }

    /// The record that the donor is known to have.
    pub fn record(&self) -> Option<&Record> {
        match &self.content {
            Content::Record(record) => Some(record),
            _ => None,
        }
    }

    /// The record that is on its way.
    pub fn swap(&self) -> Option<&Record> {
        self.outstanding.values().find_map(|request| match &request.purpose {
            Purpose::Swap(record) => Some(&**record),
            _ => None,
        })
    }

    pub fn has_ping(&self) -> bool {
        self.outstanding.values().any(|request| matches!(request.purpose, Purpose::Ping))
    }

    /// Whether the donor has a mark for sure, both now and after the record on its way arrives.
    pub fn is_marked(&self, stripe: u64) -> bool {
        self.record().is_some_and(|record| record.dirty.has(stripe))
            && self.swap().is_none_or(|record| record.dirty.has(stripe))
    }

    /// Whether the donor has stored a view for sure.
    pub fn has_view(&self, number: (u64, u64)) -> bool {
        !self.is_empty && self.record().is_some_and(|record| record.view.number() == number)
    }

    /// How long the donor has owed an answer, or has not served this client.
    pub fn late_us(&self, now_us: Moment) -> Moment {
        let since = match self.state {
            LinkState::Claimed => self.outstanding.values().next().map_or(now_us, |request| request.sent_us),
            _ => self.down_since_us,
        };
        now_us.saturating_sub(since)
    }
}
