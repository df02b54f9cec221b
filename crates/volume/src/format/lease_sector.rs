//! Lease sectors; each is written by one incarnation of a server.

use super::cursor::{BoundedReader, BoundedWriter};
use super::error::FormatError;
use super::frame::{FrameKind, FramePosition, VerifiedFrame, VolumeIdentity};
use super::{SERVERS, lease_block};
use crate::origin::ProcessOrigin;

/// The longest host name that a sector stores. *Units*: bytes.
const HOST_BYTES: usize = 64;

/// The state of the incarnation that writes the sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// No incarnation uses the sector.
    Free,
    /// The incarnation wants to lead.
    Contends,
    /// The incarnation leads.
    Leads,
    /// The incarnation resigned.
    Resigned,
}

/// A lease sector: a block of Disk Paxos.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSector {
    /// The incarnation that writes the sector.
    pub incarnation: [u8; 16],
    /// The number of the server.
    pub server: u32,
    /// The state of that incarnation.
    pub state: LeaseState,
    /// The highest ballot that the incarnation takes part in.
    pub ballot: u64,
    /// The highest ballot in which the incarnation accepted a leader; 0 for none.
    pub accepted: u64,
    /// The leader that the incarnation accepted.
    pub value_incarnation: [u8; 16],
    /// The epoch of that leader.
    pub value_epoch: u64,
    /// A counter that grows with each write.
    pub renewal: u64,
    /// The length of the lease. *Units*: milliseconds.
    pub lease_ms: u32,
    /// The name of the server's host.
    pub host: String,
    /// Where the incarnation runs; zeroes in a sector of a program that did not store it.
    pub origin: ProcessOrigin,
}

impl LeaseSector {
    /// Encodes the block of one lease sector of the server; `sector` is its number, 0 to 15. A host name of more than
    /// 64 bytes is cut.
    ///
    /// *Errors*: none in practice, because the length is fixed and fits into a block.
    ///
    /// # Panics
    /// When there is no such server or sector: that is a bug of the caller.
    pub fn encode(&self, volume: VolumeIdentity, sector: u32) -> Result<Vec<u8>, FormatError> {
        let state = match self.state {
            LeaseState::Free => 0,
            LeaseState::Contends => 1,
            LeaseState::Leads => 2,
            LeaseState::Resigned => 3,
        };
        let mut writer = BoundedWriter::default();
        writer.put(&self.incarnation).u32(self.server).u32(state).u64(self.ballot).u64(self.accepted);
        writer.put(&self.value_incarnation).u64(self.value_epoch).u64(self.renewal).u32(self.lease_ms).u32(0);
        writer.padded(&self.host, HOST_BYTES);
        writer.u64(self.origin.machine).u64(self.origin.kernel).u64(self.origin.domain);
        let address = lease_block(self.server, sector);
        VerifiedFrame::encode(FrameKind::Lease, volume, 0, address, self.renewal, &writer.bytes)
    }

    /// Decodes one lease sector of a server; `sector` is its number, 0 to 15.
    ///
    /// *Errors*: the first problem found, also if the sector belongs to another volume, server or place.
    ///
    /// # Panics
    /// When there is no such server or sector: that is a bug of the caller.
    pub fn decode(volume: VolumeIdentity, server: u32, sector: u32, bytes: &[u8]) -> Result<LeaseSector, FormatError> {
        let place = FramePosition { volume: Some(volume), address: lease_block(server, sector) };
        let mut reader = VerifiedFrame::decode(FrameKind::Lease, place, bytes)?.body("lease sector")?;
        let (incarnation, number, state) = (reader.array()?, reader.u32()?, reader.u32()?);
        reader.within("server", number.into(), server.into(), server.into())?;
        let state = match state {
            0 => LeaseState::Free,
            1 => LeaseState::Contends,
            2 => LeaseState::Leads,
            3 => LeaseState::Resigned,
            other => return Err(reader.unknown("state", other.into())),
        };
        let (ballot, accepted) = (reader.u64()?, reader.u64()?);
        // A server starts only its own ballots, but may accept those of others.
        let own = ballot == 0 || state != LeaseState::Contends || ballot % u64::from(SERVERS) == u64::from(server);
        if !own {
            return Err(reader.unknown("ballot", ballot));
        }
        let (value_incarnation, value_epoch) = (reader.array()?, reader.u64()?);
        let (renewal, lease_ms) = (reader.u64()?, reader.u32()?);
        reader.skip(4)?;
        let host = reader.padded("host", HOST_BYTES)?;
        // The first programs ended the sector here.
        let mut rest = BoundedReader::new("lease sector", reader.rest());
        let origin = match rest.u64() {
            Ok(machine) => ProcessOrigin { machine, kernel: rest.u64()?, domain: rest.u64()? },
            Err(_) => ProcessOrigin::default(),
        };
        Ok(LeaseSector {
            incarnation,
            server,
            state,
            ballot,
            accepted,
            value_incarnation,
            value_epoch,
            renewal,
            lease_ms,
            host,
            origin,
        })
    }
}
