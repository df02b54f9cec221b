//! Calls on three hosts, losses, and their checks.
//!
//! Owns: which host makes which call. A host changes names in one directory for some time, so that it gets it; then others
//! look. Promises: calls of one step are about different names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nectary_volume::client::{Client, Error, New};
use nectary_volume::protocol::{Attributes, Changes, FileId};
use tokio::task::JoinSet;

use super::model::{Model, Place};
use crate::random::Random;
use crate::volume_clients::world::{Host, Network, World};

/// The hosts, directories and names.
const HOSTS: usize = 3;
const DIRECTORIES: usize = 3;
const NAMES: u64 = 12;
/// The longest time that a message takes. *Units*: milliseconds.
const DELAY_MS_MAX: u64 = 4;
/// The time after which a host without a network has lost its lease, and its session if others wait for it.
const LEASE: Duration = Duration::from_secs(8);
/// Longer than the time after which a host counts as the only user of a directory.
const ALONE: Duration = Duration::from_millis(600);
/// The longest time of a call.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);
const ROOT: FileId = FileId { inode: 1, generation: 1 };
/// More names than there are.
const ENTRIES: u32 = 1000;

/// What happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Calls that hosts answered without the server.
    pub local: u64,
    /// Looks at what another host had changed last.
    pub looks: u64,
    /// Lost servers, lost hosts, cut connections, stalled networks.
    pub servers: u64,
    pub hosts: u64,
    pub cuts: u64,
    pub stalls: u64,
    /// Calls of lost hosts that were undone.
    pub undone: u64,
}

/// A call.
#[derive(Debug, Clone)]
enum Act {
    Create(Place, bool),
    Unlink(Place),
    Look(Place),
    Stat(FileId),
    Mode(FileId, u32),
    Rename(Place, Place),
    Link(FileId, Place),
}

impl Act {
    fn places(&self) -> Vec<Place> {
        match self {
            Act::Create(place, _) | Act::Unlink(place) | Act::Look(place) | Act::Link(_, place) => vec![*place],
            Act::Rename(from, to) => vec![*from, *to],
            Act::Stat(_) | Act::Mode(..) => Vec::new(),
        }
    }
}

type Outcome = Result<Option<Attributes>, Error>;

fn name(number: u64) -> Vec<u8> {
    format!("n{number}").into_bytes()
}

/// A program.
pub struct Program<'a> {
    world: &'a World,
    random: Random,
    hosts: Vec<(Host, Arc<Network>)>,
    directories: Vec<FileId>,
    model: Model,
    modes: BTreeMap<FileId, u32>,
    /// What was seen last of inodes: a version is the same on every host.
    seen: BTreeMap<FileId, Attributes>,
    /// The newest time that was seen of each directory.
    times: BTreeMap<usize, i64>,
    /// What happened so far.
    pub counts: Counts,
}

impl<'a> Program<'a> {
    /// Begins a program on a new volume.
    ///
    /// *Errors*: what is wrong, in words.
    pub async fn begin(world: &'a World, seed: u64) -> Result<Program<'a>, String> {
        world.serve().await.map_err(|error| format!("the first server: {error}"))?;
        let mut program = Program {
            world,
            random: Random::new(seed),
            hosts: Vec::new(),
            directories: Vec::new(),
            model: Model::default(),
            modes: BTreeMap::new(),
            seen: BTreeMap::new(),
            times: BTreeMap::new(),
            counts: Counts::default(),
        };
        for number in 0..HOSTS {
            let host = program.start(number).await?;
            program.hosts.push(host);
        }
        for number in 0..DIRECTORIES {
            let new = New { mode: libc::S_IFDIR | 0o755, ..New::default() };
            let made = program.client(0).create(ROOT, &name(number as u64), new).await;
            program.directories.push(made.map_err(|error| format!("mkdir: {error}"))?.id());
        }
        Ok(program)
    }

    async fn start(&mut self, number: usize) -> Result<(Host, Arc<Network>), String> {
        let network = Network::new(self.random.bits() >> 32, DELAY_MS_MAX);
        Ok((self.world.host_behind(number, network.clone()).await?, network))
    }

    fn client(&self, host: usize) -> Client {
        self.hosts[host].0.client.clone()
    }

    fn host(&mut self) -> usize {
        self.random.below(HOSTS as u64) as usize
    }

    fn place(&mut self, directory: usize) -> Place {
        (directory, self.random.below(NAMES))
    }

    /// Makes this many rounds of calls, with losses between them.
    ///
    /// *Errors*: what is wrong, in words.
    pub async fn run(&mut self, rounds: u64) -> Result<(), String> {
        for _ in 0..rounds {
            let (host, directory) = (self.host(), self.random.below(DIRECTORIES as u64) as usize);
            if self.random.chance(70) {
                let pause = Duration::from_millis(400 + self.random.below(1500));
                tokio::time::sleep(pause).await;
            }
            for _ in 0..2 + self.random.below(12) {
                self.step(host, directory).await?;
            }
            match self.random.below(100) {
                0..=9 => self.lose_server(host, directory).await?,
                10..=17 => self.lose_host(host).await?,
                18..=29 => self.cut(host, directory).await?,
                30..=35 => self.stall(host, directory).await?,
                36..=69 => self.look(host, directory).await?,
                _ => {}
            }
        }
        for number in 0..HOSTS {
            self.counts.local += self.client(number).figures().local;
        }
        self.look_at_all(0).await.map(drop)
    }

    /// Makes one to three calls at the same time, mostly on one host and in one directory.
    async fn step(&mut self, host: usize, directory: usize) -> Result<(), String> {
        let (mut places, mut files) = (BTreeSet::new(), BTreeSet::new());
        let mut calls = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let act = self.act(directory);
            let is_other = matches!(act, Act::Stat(_) | Act::Look(_)) && self.random.chance(40);
            let of = if is_other { self.host() } else { host };
            let touched: Vec<FileId> = match &act {
                Act::Stat(file) | Act::Mode(file, _) | Act::Link(file, _) => vec![*file],
                other => other.places().into_iter().filter_map(|place| self.model.find(place)).collect(),
            };
            let is_free = act.places().iter().all(|place| !places.contains(place))
                && touched.iter().all(|file| !files.contains(file));
            if is_free {
                places.extend(act.places());
                files.extend(touched);
                calls.push((of, act));
            }
        }
        let mut tasks = JoinSet::new();
        for (of, act) in calls {
            let (client, directories) = (self.client(of), self.directories.clone());
            tasks.spawn(async move {
                let done = tokio::time::timeout(CALL_TIME_MAX, make(&client, &directories, act.clone())).await;
                (of, act, done)
            });
        }
        while let Some(done) = tasks.join_next().await {
            let (of, act, outcome) = done.map_err(|error| error.to_string())?;
            let outcome = outcome.map_err(|_| format!("host {of}: {act:?} does not end"))?;
            self.counts.calls += 1;
            self.check(of, &act, outcome).map_err(|what| format!("host {of}: {act:?}: {what}"))?;
        }
        Ok(())
    }

    fn act(&mut self, directory: usize) -> Act {
        let place = self.place(directory);
        let made: Vec<FileId> = self.model.made().collect();
        let any = made.get(self.random.below(made.len() as u64) as usize).copied();
        match (self.random.below(100), any) {
            (0..=39, _) => Act::Create(place, self.random.chance(50)),
            (40..=64, _) => Act::Unlink(place),
            (65..=77, Some(file)) => Act::Stat(file),
            (78..=81, Some(file)) if self.model.links(file) > 0 => Act::Mode(file, self.random.below(0o1000) as u32),
            (82..=85, _) => {
                let other = self.random.below(DIRECTORIES as u64) as usize;
                let to = self.place(other);
                if to == place { Act::Look(place) } else { Act::Rename(place, to) }
            }
            (86..=88, Some(file)) if self.model.links(file) > 0 => Act::Link(file, place),
            _ => Act::Look(place),
        }
    }

    /// Compares the outcome of a call with the model, which then has its effect.
    fn check(&mut self, host: usize, act: &Act, outcome: Outcome) -> Result<(), String> {
        let errno = outcome.as_ref().err().map_or(0, Error::errno);
        if let Err(error) = &outcome
            && error.is_end()
        {
            return Err(format!("its session has ended: {error}"));
        }
        let found = outcome.ok().flatten();
        let is = |expected: i32| match errno == expected {
            true => Ok(()),
            false => Err(format!("errno {errno}, not {expected}")),
        };
        match act {
            Act::Create(place, _) if self.model.find(*place).is_some() => is(libc::EEXIST),
            Act::Create(place, _) => {
                is(0)?;
                let made = found.ok_or("no attributes")?;
                self.model.make(made.id())?;
                self.note_seen(&made)?;
                self.modes.insert(made.id(), made.inode.mode & 0o7777);
                self.model.change(host, *place, Some(made.id()));
                Ok(())
            }
            Act::Unlink(place) => match self.model.find(*place) {
                None => is(libc::ENOENT),
                Some(file) => {
                    is(0)?;
                    self.model.change(host, *place, None);
                    let found = found.ok_or("no attributes")?;
                    let links = self.model.links(file);
                    match found.id() == file && found.inode.links as usize == links {
                        true => Ok(()),
                        false => {
                            Err(format!("{:?} with {} names, not {file:?} with {links}", found.id(), found.inode.links))
                        }
                    }
                }
            },
            Act::Look(place) => match (self.model.find(*place), found) {
                (None, _) => is(libc::ENOENT),
                (Some(file), Some(found)) if found.id() == file => self.same(file, &found),
                (Some(file), other) => Err(format!("errno {errno}, {:?}, not {file:?}", other.map(|other| other.id()))),
            },
            Act::Stat(file) | Act::Mode(file, _) if self.model.links(*file) == 0 => match found {
                Some(found) if found.inode.links > 0 => {
                    Err(format!("it has {} names, and lost them", found.inode.links))
                }
                _ => Ok(()),
            },
            Act::Mode(file, mode) => {
                is(0)?;
                self.modes.insert(*file, *mode);
                Ok(())
            }
            Act::Stat(file) => {
                is(0)?;
                self.same(*file, &found.ok_or("no attributes")?)
            }
            Act::Rename(from, to) => match self.model.find(*from) {
                None => is(libc::ENOENT),
                Some(file) => {
                    is(0)?;
                    if self.model.find(*to) != Some(file) {
                        self.model.change(host, *from, None);
                        self.model.change(host, *to, Some(file));
                    }
                    Ok(())
                }
            },
            Act::Link(file, place) if self.model.find(*place).is_none() => {
                is(0)?;
                self.model.change(host, *place, Some(*file));
                Ok(())
            }
            Act::Link(..) => is(libc::EEXIST),
        }
    }

    /// Compares what two hosts were shown of the same version of an inode.
    fn note_seen(&mut self, found: &Attributes) -> Result<(), String> {
        match self.seen.insert(found.id(), found.clone()) {
            Some(before) if before.inode.version == found.inode.version && before != *found => {
                Err(format!("{:?}, and before {:?}", found.inode, before.inode))
            }
            _ => Ok(()),
        }
    }

    fn same(&mut self, file: FileId, found: &Attributes) -> Result<(), String> {
        self.note_seen(found)?;
        let shown = (found.inode.links as usize, found.inode.mode & 0o7777);
        // After a loss nothing is known of modes.
        let expected = (self.model.links(file), self.modes.get(&file).copied().unwrap_or(shown.1));
        match shown == expected {
            true => Ok(()),
            false => Err(format!("names and mode {shown:?}, not {expected:?}")),
        }
    }

    /// Other hosts look at a directory that a host has changed, and may change it.
    async fn look(&mut self, host: usize, directory: usize) -> Result<(), String> {
        // What the host shows of the directory is what others are shown.
        self.look_at(host, directory).await?;
        let other = (host + 1 + self.random.below(HOSTS as u64 - 1) as usize) % HOSTS;
        self.counts.looks += 1;
        if self.random.chance(50) {
            return self.look_at(other, directory).await;
        }
        self.step(other, directory).await
    }

    /// Lists a directory, and looks at its attributes.
    async fn look_at(&mut self, host: usize, directory: usize) -> Result<(), String> {
        let found = listed(&self.client(host), self.directories[directory]).await?;
        let expected = self.model.names_of(directory);
        if found != expected {
            return Err(format!("host {host} lists {found:?} in directory {directory}, not {expected:?}"));
        }
        let shown = self.client(host).attributes(self.directories[directory]).await;
        let shown = shown.map_err(|error| format!("host {host}: stat of a directory: {error}"))?;
        self.note_seen(&shown)?;
        let shown = shown.inode;
        let before = self.times.insert(directory, shown.times_ns[1]).unwrap_or(i64::MIN);
        if shown.device != expected.len() as u64 || shown.times_ns[1] < before {
            let what = (shown.device, shown.times_ns[1]);
            return Err(format!("host {host} sees {what:?} of directory {directory}, of {} {before}", expected.len()));
        }
        Ok(())
    }

    /// Looks at all directories; returns all names.
    async fn look_at_all(&mut self, host: usize) -> Result<BTreeMap<Place, FileId>, String> {
        for directory in 0..DIRECTORIES {
            self.look_at(host, directory).await?;
        }
        Ok(self.model.names().clone())
    }

    async fn all(&self, host: usize) -> Result<BTreeMap<Place, FileId>, String> {
        let mut all = BTreeMap::new();
        for (directory, id) in self.directories.iter().enumerate() {
            let found = listed(&self.client(host), *id).await?;
            all.extend(found.into_iter().map(|(name, file)| ((directory, name), file)));
        }
        Ok(all)
    }

    /// Lets the server be lost: nothing is lost with it.
    async fn lose_server(&mut self, host: usize, directory: usize) -> Result<(), String> {
        self.counts.servers += 1;
        self.world.lose_server().await;
        self.world.serve().await.map_err(|error| format!("a server after a loss: {error}"))?;
        if self.random.chance(50) {
            self.step(host, directory).await?;
        }
        let other = self.host();
        self.look_at_all(other).await.map(drop)
    }

    /// Lets a host be lost.
    async fn lose_host(&mut self, lost: usize) -> Result<(), String> {
        self.counts.hosts += 1;
        let (host, _) = self.hosts.remove(lost);
        self.counts.local += host.client.figures().local;
        host.cut();
        host.settle(self.world.seed()).await;
        drop(host);
        let found = self.all(0).await?;
        self.forget(lost, &found)?;
        let again = self.start(lost).await?;
        self.hosts.insert(lost, again);
        self.look_at_all(lost).await.map(drop)
    }

    fn forget(&mut self, lost: usize, found: &BTreeMap<Place, FileId>) -> Result<(), String> {
        self.counts.undone += self.model.lose(lost, found)? as u64;
        // What others see of modes and times is what is left of them.
        self.times.clear();
        self.modes.clear();
        self.seen.clear();
        Ok(())
    }

    /// Cuts the connections of a host while it goes on.
    async fn cut(&mut self, host: usize, directory: usize) -> Result<(), String> {
        self.counts.cuts += 1;
        for _ in 0..1 + self.random.below(3) {
            self.hosts[host].1.cut();
            self.step(host, directory).await?;
        }
        self.look(host, directory).await
    }

    /// A host has no network for longer than its lease, while others need what it holds: it is over, and answers nothing.
    async fn stall(&mut self, host: usize, directory: usize) -> Result<(), String> {
        self.counts.stalls += 1;
        // It alone has used the directory lately.
        tokio::time::sleep(ALONE).await;
        for _ in 0..4 {
            self.step(host, directory).await?;
        }
        let (client, network) = (self.client(host), self.hosts[host].1.clone());
        network.stall(true);
        let other = (host + 1) % HOSTS;
        let looked = self.all(other).await?;
        tokio::time::sleep(LEASE).await;
        // If nobody waited for it, the session goes on.
        let place = self.place(directory);
        let late = make(&client, &self.directories, Act::Create(place, false));
        let late = tokio::time::timeout(Duration::from_millis(100), late).await;
        if let Ok(Ok(_)) = late {
            return Err(format!("host {host} has no lease, and makes {place:?}"));
        }
        network.stall(false);
        tokio::time::sleep(LEASE).await;
        if client.is_over() {
            self.counts.local += client.figures().local;
            self.forget(host, &looked)?;
            let again = self.start(host).await?;
            self.hosts[host] = again;
        } else if looked != *self.model.names() {
            return Err(format!("with host {host} away the names were {looked:?}, of {:?}", self.model.names()));
        }
        // The late call may be done or not.
        let found = self.all(other).await?;
        if self.model.find(place).is_none()
            && let Some(made) = found.get(&place)
        {
            self.model.make(*made)?;
            self.model.change(host, place, Some(*made));
        }
        self.modes.clear();
        self.seen.clear();
        self.look_at_all(other).await.map(drop)
    }
}

/// Makes a call.
async fn make(client: &Client, directories: &[FileId], act: Act) -> Outcome {
    let at = |(directory, number): Place| (directories[directory], name(number));
    match act {
        Act::Create(place, is_open) => {
            let (directory, name) = at(place);
            let new = New { mode: libc::S_IFREG | 0o640, ..New::default() };
            if !is_open {
                return client.create(directory, &name, new).await.map(Some);
            }
            let (made, open) = client.create_open(directory, &name, new).await?;
            open.close().await;
            Ok(Some(made))
        }
        Act::Unlink(place) => {
            let (directory, name) = at(place);
            client.unlink(directory, &name, false).await.map(Some)
        }
        Act::Look(place) => {
            let (directory, name) = at(place);
            client.look_up(directory, &name).await.map(Some)
        }
        Act::Stat(file) => client.attributes(file).await.map(Some),
        Act::Mode(file, mode) => {
            let changes = Changes { mode: Some(mode), ..Changes::default() };
            client.set_attributes(file, changes).await.map(Some)
        }
        Act::Rename(from, to) => {
            let (from, to) = (at(from), at(to));
            client.rename((from.0, &from.1), (to.0, &to.1), 0).await.map(|()| None)
        }
        Act::Link(file, place) => {
            let (directory, name) = at(place);
            client.link(file, directory, &name).await.map(Some)
        }
    }
}

/// Lists a directory.
async fn listed(client: &Client, directory: FileId) -> Result<BTreeMap<u64, FileId>, String> {
    let listed = tokio::time::timeout(CALL_TIME_MAX, client.list(directory, 0, ENTRIES)).await;
    let (names, _) = listed.map_err(|_| "a listing does not end")?.map_err(|error| format!("a listing: {error}"))?;
    let mut found = BTreeMap::new();
    for one in names {
        let number = std::str::from_utf8(&one.name).ok().and_then(|name| name.strip_prefix('n')?.parse().ok());
        found.insert(number.ok_or_else(|| format!("a listing has {:?}", one.name))?, one.attributes.id());
    }
    Ok(found)
}
