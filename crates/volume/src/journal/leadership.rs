//! Leadership by the lease sectors: Disk Paxos, one ballot after another, decides who leads the next epoch.
//!
//! Owns: this incarnation's lease sector. Promises: at most one incarnation leads an epoch, even if a write of another
//! one is delayed without limit. A leader that may have been replaced notices this at its next renewal. A leader counts
//! its lease from the moment before its last successful renewal was written. The rule is in `docs/formats/volume.md`;
//! `docs/decisions/0050-volume-leadership.md` says why it is safe. Leaves to others: the heads of epochs.

use std::time::Duration;

use super::disk::BlockDisk;
use super::error::Error;
use super::heads;
use super::leader_lease::{ClockMoment, LeaderLease};
use crate::format::{
    BLOCK_BYTES, LEASE_START, LeaseSector, LeaseState, SECTORS_OF_SERVER, SERVERS, VolumeLabel, lease_block,
};
use crate::origin::ProcessOrigin;
use crate::planted::{Bug, planted};

/// The number of ballots that are skipped if a sector cannot be read.
const BALLOTS_UNKNOWN: u64 = 1 << 20;
/// The highest ballot or epoch.
const NUMBER_MAX: u64 = 1 << 62;
/// The maximum number of attempts to become leader.
const TRIES_MAX: u32 = 64;
/// The number of times that a watched sector is read during a lease.
const LOOKS: u32 = 8;

/// The identity of a server that wants to lead, and what it knows about earlier servers.
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    /// The number of the server, 0 to 31, chosen by the operator.
    pub server: u32,
    /// The name of the server's host, for messages, and to recognise sectors that this server used before.
    pub host: String,
    /// The random number of this process.
    pub incarnation: [u8; 16],
    /// Incarnations that are proven to write nothing any more.
    pub confirmed_gone: Vec<[u8; 16]>,
    /// Hosts that an operator confirms gone, as host names or as incarnations in hexadecimal. If one of them was the
    /// last leader, its lease is still watched, so that a wrong confirmation is noticed.
    pub said_gone: Vec<String>,
    /// Whether this process holds the lock of this server's number, so that an earlier process whose lock it would have
    /// seen is gone.
    pub previous_gone: bool,
    /// Where this process runs. Without a domain, the caller vouches that all earlier processes of this server's number
    /// on this host are gone, if `previous_gone` says so.
    pub origin: ProcessOrigin,
    /// The time that is stored in the head of the epoch. *Units*: seconds since 1970.
    pub created_s: u64,
    /// A fixed time for appends, instead of the clock's, so that runs with the same seed write the same bytes.
    /// *Units*: nanoseconds since 1970.
    pub fixed_ns: Option<u64>,
}

/// The content of a lease sector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SectorContent {
    Free,
    Used(LeaseSector),
    /// The sector is being written, or is damaged. The checksum shows whether its content changes.
    Torn(u32),
}

/// The content of all sectors, in the order of servers and sectors.
type Sectors = Vec<SectorContent>;

/// The leadership, or an attempt to become leader.
pub(super) struct LeadershipClaim {
    disk: BlockDisk,
    label: VolumeLabel,
    sector: u32,
    mine: LeaseSector,
    term: LeaderLease,
    /// Incarnations that are known to be gone; `said` has those of them that only an operator confirmed.
    gone: Vec<[u8; 16]>,
    said: Vec<[u8; 16]>,
}

impl LeadershipClaim {
    /// Becomes leader of a new epoch, which is higher than any epoch that a contender was given.
    ///
    /// *Errors*: [`Error::NewLeader`] if another server leads and is alive.
    pub async fn take(disk: &BlockDisk, label: &VolumeLabel, options: &StartOptions) -> Result<LeadershipClaim, Error> {
        if options.server >= SERVERS {
            return Err(Error::Refused(format!("server {}: the numbers are 0 to {}", options.server, SERVERS - 1)));
        }
        let sectors = read_all(disk, label).await?;
        let known = gone(&sectors, options);
        let mut said = said_gone(&sectors, options)?;
        said.extend(unless_alive(&sectors, options));
        said.retain(|incarnation| !known.contains(incarnation));
        let sector = own_sector(&sectors, options, &known, &said)?;
        let gone = [known, said.clone()].concat();
        let mine = LeaseSector {
            incarnation: options.incarnation,
            server: options.server,
            state: LeaseState::Contends,
            ballot: 0,
            accepted: 0,
            value_incarnation: [0; 16],
            value_epoch: 0,
            renewal: renewal_of(&sectors[place(options.server, sector)]),
            lease_ms: label.lease_ms,
            host: padded(&options.host).to_owned(),
            origin: options.origin,
        };
        let label = label.clone();
        // The heads are read after the sectors, so the head of a leader whose sector was already given up is seen.
        let newest = heads::current(&heads::read(disk, &label).await?)?.epoch;
        let term = LeaderLease::new(Duration::from_millis(label.lease_ms.into()));
        let mut lease = LeadershipClaim { disk: disk.clone(), label, sector, mine, term, gone, said };
        let mut watched = sectors.clone();
        lease.watch(&mut watched, newest).await?;
        for attempt in 1..=TRIES_MAX {
            match lease.ballot(&mut watched, newest).await? {
                true => return Ok(lease),
                false => lease.step_back(attempt, &mut watched, newest).await?,
            }
        }
        Err(Error::Refused("other servers contend all the time: start one of them alone".to_owned()))
    }

    /// Returns the epoch that is led.
    pub fn epoch(&self) -> u64 {
        self.mine.value_epoch
    }

    /// Returns the incarnations that are known to be gone.
    pub fn gone(&self) -> &[[u8; 16]] {
        &self.gone
    }

    /// Returns the lease as others see it.
    pub fn term(&self) -> &LeaderLease {
        &self.term
    }

    /// Renews the lease.
    ///
    /// *Errors*: [`Error::ConnectionLoss`] if another contender has a higher ballot, if one that is not known to be gone was
    /// given the same or a later epoch, or if another process writes this server's sector; errors of the disk.
    pub async fn renew(&mut self) -> Result<(), Error> {
        let begun = ClockMoment::now();
        self.mine.state = LeaseState::Leads;
        self.write().await?;
        let sectors = read_all(&self.disk, &self.label).await?;
        let lost = |why: String| Err(Error::Lost { epoch: self.mine.value_epoch, why });
        if !self.is_still_mine(&sectors) {
            return lost(format!("another process writes the sectors of server {}", self.mine.server));
        }
        let other = self.others(&sectors).find(|other| self.is_beyond(other) && !planted(Bug::BallotIgnored));
        if let Some(other) = other {
            return lost(format!("server {} on {} has a higher ballot", other.server, other.host));
        }
        self.term.renewed(begun);
        Ok(())
    }

    /// Resigns, so that the next leader can begin at once.
    pub async fn resign(mut self) -> Result<(), Error> {
        // The next leader waits for nothing, so nothing may be said from now on.
        self.term.end();
        self.mine.state = LeaseState::Resigned;
        self.write().await
    }

    /// Runs one ballot; returns whether it was won. `watched` has the sectors that did not change for a whole lease.
    async fn ballot(&mut self, watched: &mut Sectors, newest: u64) -> Result<bool, Error> {
        let seen = read_all(&self.disk, &self.label).await?;
        self.mine.ballot = self.next_ballot(&seen);
        if self.mine.ballot > NUMBER_MAX || self.next_epoch(&seen, newest) > NUMBER_MAX {
            return Err(Error::damaged(LEASE_START, "a lease sector has a number that nobody can have reached"));
        }
        (self.mine.accepted, self.mine.value_epoch, self.mine.value_incarnation) = (0, 0, [0; 16]);
        self.write().await?;
        let seen = read_all(&self.disk, &self.label).await?;
        if !self.is_first(&seen)? {
            return Ok(false);
        }
        if self.rivals(&seen, newest).any(|at| seen[at] != watched[at]) {
            self.watch(watched, newest).await?;
            return Ok(false);
        }
        self.mine.accepted = self.mine.ballot;
        self.mine.value_incarnation = self.mine.incarnation;
        self.mine.value_epoch = self.next_epoch(&seen, newest);
        self.write().await?;
        let seen = read_all(&self.disk, &self.label).await?;
        if !self.is_first(&seen)? {
            return Ok(false);
        }
        self.renew().await.map(|()| true).or_else(|error| match error {
            Error::Lost { .. } => Ok(false),
            error => Err(error),
        })
    }

    /// Whether no other contender has a higher ballot.
    fn is_first(&self, seen: &Sectors) -> Result<bool, Error> {
        if !self.is_still_mine(seen) {
            let number = self.mine.server;
            return Err(Error::Refused(format!("another process uses server number {number}: give each its own")));
        }
        Ok(!self.others(seen).any(|other| self.is_beyond(other)))
    }

    /// Gives up the ballot, so that another contender can continue.
    async fn step_back(&mut self, attempt: u32, watched: &mut Sectors, newest: u64) -> Result<(), Error> {
        (self.mine.accepted, self.mine.value_epoch, self.mine.value_incarnation) = (0, 0, [0; 16]);
        self.mine.state = LeaseState::Contends;
        self.write().await?;
        let lease = Duration::from_millis(self.label.lease_ms.into());
        tokio::time::sleep(lease / 64 * (1 + self.mine.server) * attempt.min(8)).await;
        let seen = read_all(&self.disk, &self.label).await?;
        match self.rivals(&seen, newest).any(|at| seen[at] != watched[at]) {
            true => self.watch(watched, newest).await,
            false => Ok(()),
        }
    }

    /// Waits until a whole lease, plus the drift of clocks, has passed without a write of a possible leader.
    ///
    /// *Errors*: [`Error::NewLeader`] if one of them writes, which shows that it is alive.
    async fn watch(&self, watched: &mut Sectors, newest: u64) -> Result<(), Error> {
        *watched = read_all(&self.disk, &self.label).await?;
        let rivals: Vec<usize> = self.rivals(watched, newest).collect();
        let lease_ms = rivals.iter().map(|at| match &watched[*at] {
            SectorContent::Used(sector) => sector.lease_ms.clamp(self.label.lease_ms, 600_000),
            _ => self.label.lease_ms,
        });
        let Some(lease_ms) = lease_ms.max() else { return Ok(()) };
        let drift = u64::from(lease_ms) * u64::from(self.label.drift_per_mille) / 1000;
        let whole = Duration::from_millis(u64::from(lease_ms) + drift + 1);
        for _ in 0..LOOKS {
            tokio::time::sleep(whole / LOOKS + Duration::from_millis(1)).await;
            let seen = read_all(&self.disk, &self.label).await?;
            let still: Vec<usize> = self.rivals(&seen, newest).collect();
            for at in &rivals {
                match (&watched[*at], &seen[*at]) {
                    (old, new) if old == new => {}
                    // Its writer resigned, or gave up its ballot.
                    (_, new) if !still.contains(at) => watched[*at] = new.clone(),
                    (_, SectorContent::Used(sector)) => {
                        return Err(Error::Led { server: sector.server, host: sector.host.clone() });
                    }
                    _ => return Err(Error::Led { server: (*at as u32) / SECTORS_OF_SERVER, host: "?".to_owned() }),
                }
            }
        }
        Ok(())
    }

    /// Returns the sectors whose writers may lead now and are not proven gone; an operator's word is no proof. The sector
    /// that this incarnation will use is one of them as long as another incarnation wrote it.
    fn rivals<'a>(&'a self, sectors: &'a Sectors, newest: u64) -> impl Iterator<Item = usize> + 'a {
        let own = place(self.mine.server, self.sector);
        sectors
            .iter()
            .enumerate()
            .filter(move |(at, seen)| match seen {
                SectorContent::Used(sector) if *at == own && sector.incarnation == self.mine.incarnation => false,
                SectorContent::Free => false,
                SectorContent::Torn(_) => true,
                SectorContent::Used(sector) => {
                    sector.accepted > 0
                        && matches!(sector.state, LeaseState::Contends | LeaseState::Leads)
                        && sector.value_epoch >= newest
                        && (!self.gone.contains(&sector.incarnation) || self.said.contains(&sector.incarnation))
                }
            })
            .map(|(at, _)| at)
    }

    /// Returns an epoch that is higher than any that another contender may have been given.
    fn next_epoch(&self, sectors: &Sectors, newest: u64) -> u64 {
        let given = self.others(sectors).filter(|other| other.accepted > 0);
        let given = given.filter(|other| !self.gone.contains(&other.incarnation)).map(|other| other.value_epoch).max();
        let torn = u64::from(sectors.iter().any(|seen| matches!(seen, SectorContent::Torn(_))));
        given.unwrap_or(0).max(newest).saturating_add(1 + torn)
    }

    fn next_ballot(&self, sectors: &Sectors) -> u64 {
        let used = |seen: &SectorContent| match seen {
            SectorContent::Used(sector) => sector.ballot.max(sector.accepted),
            _ => 0,
        };
        let highest = sectors.iter().map(used).max().unwrap_or(0).max(self.mine.ballot);
        let is_torn = sectors.iter().any(|seen| matches!(seen, SectorContent::Torn(_)));
        let highest = highest.saturating_add(if is_torn { BALLOTS_UNKNOWN } else { 0 });
        (highest.min(NUMBER_MAX) / u64::from(SERVERS) + 1) * u64::from(SERVERS) + u64::from(self.mine.server)
    }

    /// Whether `other` has a higher ballot, or was given the same or a later epoch and is not known to be gone.
    fn is_beyond(&self, other: &LeaseSector) -> bool {
        let is_later = self.mine.accepted > 0 && other.accepted > 0 && other.value_epoch >= self.mine.value_epoch;
        let is_gone = other.state == LeaseState::Resigned || self.gone.contains(&other.incarnation);
        other.ballot > self.mine.ballot || (is_later && !is_gone)
    }

    fn others<'a>(&self, sectors: &'a Sectors) -> impl Iterator<Item = &'a LeaseSector> + use<'a> {
        let own = place(self.mine.server, self.sector);
        sectors.iter().enumerate().filter_map(move |(at, seen)| match seen {
            SectorContent::Used(sector) if at != own => Some(sector),
            _ => None,
        })
    }

    fn is_still_mine(&self, sectors: &Sectors) -> bool {
        sectors[place(self.mine.server, self.sector)] == SectorContent::Used(self.mine.clone())
    }

    async fn write(&mut self) -> Result<(), Error> {
        self.mine.renewal = self.mine.renewal.wrapping_add(1);
        let bytes = self.mine.encode(self.label.volume, self.sector).map_err(Error::Bounds)?;
        self.disk.write(lease_block(self.mine.server, self.sector), &bytes).await?;
        self.disk.flush().await
    }
}

impl Drop for LeadershipClaim {
    fn drop(&mut self) {
        self.term.end();
    }
}

fn place(server: u32, sector: u32) -> usize {
    (server * SECTORS_OF_SERVER + sector) as usize
}

fn renewal_of(seen: &SectorContent) -> u64 {
    match seen {
        SectorContent::Used(sector) => sector.renewal,
        _ => 0,
    }
}

async fn read_all(disk: &BlockDisk, label: &VolumeLabel) -> Result<Sectors, Error> {
    let bytes = disk.read(LEASE_START, u64::from(SERVERS * SECTORS_OF_SERVER)).await?;
    let decode = |(at, bytes): (u32, &[u8])| {
        let (server, sector) = (at / SECTORS_OF_SERVER, at % SECTORS_OF_SERVER);
        match LeaseSector::decode(label.volume, server, sector, bytes) {
            Ok(sector) => SectorContent::Used(sector),
            Err(_) if bytes == [0; BLOCK_BYTES] => SectorContent::Free,
            Err(_) => SectorContent::Torn(crc32c::crc32c(bytes)),
        }
    };
    Ok((0..).zip(bytes.chunks_exact(BLOCK_BYTES)).map(decode).collect())
}

/// Returns the contents of all sectors that servers have used.
pub(super) async fn used(disk: &BlockDisk, label: &VolumeLabel) -> Result<Vec<LeaseSector>, Error> {
    let seen = read_all(disk, label).await?.into_iter();
    Ok(seen.filter_map(|seen| if let SectorContent::Used(sector) = seen { Some(sector) } else { None }).collect())
}

/// Returns the incarnations that cannot write any more.
fn gone(sectors: &Sectors, options: &StartOptions) -> Vec<[u8; 16]> {
    let is_gone = |sector: &LeaseSector| {
        // A process that has opened the disk by another path holds a lock that this one does not see.
        let is_seen = options.origin.domain == 0 || options.origin.sees_locks_of(&sector.origin);
        sector.state == LeaseState::Resigned || (is_previous(sector, options) && is_seen)
    };
    let seen = sectors.iter().filter_map(|seen| match seen {
        SectorContent::Used(sector) if sector.incarnation != options.incarnation && is_gone(sector) => {
            Some(sector.incarnation)
        }
        _ => None,
    });
    options.confirmed_gone.iter().copied().chain(seen).collect()
}

/// Whether the incarnation had this server's number and host, and this process holds the lock of that number.
fn is_previous(sector: &LeaseSector, options: &StartOptions) -> bool {
    options.previous_gone && sector.server == options.server && sector.host == padded(&options.host)
}

/// Returns the incarnations that are gone unless they renew their lease: those of this host before its kernel started
/// again, or whose program stored no origin. Machines with equal names exist, so their leases are watched.
fn unless_alive(sectors: &Sectors, options: &StartOptions) -> Vec<[u8; 16]> {
    let (own, unknown) = (options.origin, ProcessOrigin::default());
    let seen = sectors.iter().filter_map(|seen| match seen {
        SectorContent::Used(sector) if is_previous(sector, options) => Some(sector),
        _ => None,
    });
    let is_before = |of: &ProcessOrigin| *of == unknown || (of.machine == own.machine && of.kernel != own.kernel);
    seen.filter(|sector| is_before(&sector.origin)).map(|sector| sector.incarnation).collect()
}

/// Returns the incarnations that an operator confirms gone.
fn said_gone(sectors: &Sectors, options: &StartOptions) -> Result<Vec<[u8; 16]>, Error> {
    let mut said = Vec::new();
    for name in &options.said_gone {
        let is_meant = |sector: &LeaseSector| sector.host == padded(name) || hex(&sector.incarnation) == *name;
        let found = sectors.iter().filter_map(|seen| match seen {
            SectorContent::Used(sector) if is_meant(sector) => Some(sector.incarnation),
            _ => None,
        });
        let before = said.len();
        said.extend(found.filter(|incarnation| *incarnation != options.incarnation));
        // The sector of the named incarnation may have been reused, so the name is accepted without one.
        said.extend(unhex(name).filter(|_| said.len() == before));
        if said.len() == before {
            return Err(Error::Refused(format!(
                "no earlier server ran on \"{name}\": `nectary volume info DISK` names hosts and incarnations"
            )));
        }
    }
    Ok(said)
}

/// Cuts a host's name to the length that a sector stores.
fn padded(host: &str) -> &str {
    let mut length = host.len().min(64);
    while !host.is_char_boundary(length) {
        length -= 1;
    }
    &host[..length]
}

/// Returns a sector of this server that no other incarnation writes any more: one that is free or whose user is known to
/// be gone, otherwise that of the earliest epoch among those that are said to be gone.
fn own_sector(sectors: &Sectors, options: &StartOptions, known: &[[u8; 16]], said: &[[u8; 16]]) -> Result<u32, Error> {
    let is_usable = |sector: &u32| match &sectors[place(options.server, *sector)] {
        SectorContent::Free => true,
        SectorContent::Torn(_) => false,
        SectorContent::Used(used) => used.incarnation == options.incarnation || known.contains(&used.incarnation),
    };
    let said = (0..SECTORS_OF_SERVER).filter_map(|sector| match &sectors[place(options.server, sector)] {
        SectorContent::Used(used) if said.contains(&used.incarnation) => Some((used.value_epoch, sector)),
        _ => None,
    });
    let free = (0..SECTORS_OF_SERVER).find(is_usable);
    free.or_else(|| said.min().map(|(_, sector)| sector)).ok_or_else(|| {
        let used = (0..SECTORS_OF_SERVER).filter_map(|sector| match &sectors[place(options.server, sector)] {
            SectorContent::Used(used) => Some(format!("{} of {}", hex(&used.incarnation), used.host)),
            _ => None,
        });
        let used: Vec<String> = used.collect();
        Error::Refused(format!(
            "all sectors of server {} are used by incarnations that nobody confirmed to be gone: {}; once that is sure, \
             say so with `nectary volume serve --confirm-gone HOST`",
            options.server,
            used.join(", ")
        ))
    })
}

/// Decodes an incarnation from hexadecimal.
fn unhex(text: &str) -> Option<[u8; 16]> {
    match text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes),
        false => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
