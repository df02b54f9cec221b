//! A naive model to compare a placement with: donors with the slots that were sent to them, a client with its memory,
//! and a check of every promise after every step.
//!
//! Owns: `PlacementModel`, which runs the steps of a placement, and `run`, random operations chosen by a seed. Each step is
//! checked (donors, groups, slots) when the placement decides it. Up to [`WINDOW`] steps are in progress at the same
//! time. The seed chooses the order in which they reach the donors, among the orders that the placement allows.
//! Whenever data or parity reaches a donor, the model checks the loss of the client's memory together with one donor:
//! every flushed block must be found on the other donors, as a scan after a crash finds it. After each operation, the
//! loss of each donor is checked, with and without the loss of the client's memory.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use nectary_ram::placement::{
    DonorSlot, NewestLocation, ParityCause, Placement, PlacementSettings, PlacementStep, RedundancyPolicy, SendCause,
    StaleRule,
};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The maximum number of steps in progress between two operations.
const WINDOW: u64 = 48;
/// A step may reach the donors before this many earlier steps.
const REORDERED_MAX: u64 = 24;

/// The description of a broken promise.
pub type Broken = String;

/// A copy that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SentCopy {
    place: DonorSlot,
    block: u32,
    sequence: u64,
    /// The number of the write, which stands for its data.
    version: u64,
}

/// The contents of a donor's slot.
#[derive(Debug, Clone)]
enum SlotContent {
    Data(SentCopy),
    /// The XOR of the members' versions.
    Parity {
        members: Vec<SentCopy>,
        xor: u64,
    },
}

/// A group, from its first member until it is free.
#[derive(Debug, Default)]
struct ModelGroup {
    members: Vec<SentCopy>,
    covered: usize,
    parity: Option<DonorSlot>,
    is_sealed: bool,
}

/// A step on its way to a donor.
#[derive(Debug)]
struct PendingStep {
    /// The number of the step, in the order in which the placement decides them.
    number: u64,
    group: u32,
    /// The block of a fetch or a send.
    block: Option<u32>,
    /// The contents to store, and the slot; `None` for a fetch.
    stored: Option<(DonorSlot, SlotContent)>,
    /// Trimmed blocks with their versions, and the sequence of the trim.
    forgotten: (Vec<(usize, u64)>, u64),
    /// The group that used the spare slot before this step.
    spare_of: Option<u32>,
}

/// The counts of a run, with which a replay is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepCounts {
    pub steps: u64,
    pub sent: u64,
    pub cleaned: u64,
    pub freed: u64,
    pub flushes: u64,
    pub trims: u64,
    pub reordered: u64,
    pub digest: u64,
}

pub struct PlacementModel {
    placement: Box<dyn Placement>,
    layout: PlacementSettings,
    /// The contents of slots, by donor and slot.
    donors: Vec<Vec<Option<SlotContent>>>,
    groups: BTreeMap<u32, ModelGroup>,
    pending: VecDeque<PendingStep>,
    /// The number of the step that freed each group last, by group.
    freed: BTreeMap<u32, u64>,
    /// The contents of slots when all steps have arrived; `parities` has the group that used each parity slot last.
    planned: BTreeMap<DonorSlot, SentCopy>,
    parities: BTreeMap<DonorSlot, u32>,
    random: SplitMix64,
    /// The client's memory: versions of blocks that it holds.
    held: BTreeMap<u32, u64>,
    /// The newest version of each block; `flushed` has the version at the last flush.
    newest: Vec<u64>,
    flushed: Vec<u64>,
    is_trimmed: Vec<bool>,
    /// The highest sequence that stored parity covers, by block; then the same of the block's recorded trims, with
    /// their version.
    covered: Vec<u64>,
    forgotten: Vec<(u64, u64)>,
    /// The highest sequence of the trims, recorded or not, by block.
    trimmed: Vec<u64>,
    version: u64,
    pub account: StepCounts,
}

impl PlacementModel {
    pub fn new(layout: PlacementSettings, seed: u64) -> PlacementModel {
        let placement = layout.clone().open().expect("a layout that works");
        let slots = layout.rows() as usize + 2 * (layout.streams + 2);
        let blocks = layout.blocks as usize;
        PlacementModel {
            placement,
            donors: vec![vec![None; slots]; usize::from(layout.donors())],
            groups: BTreeMap::new(),
            pending: VecDeque::new(),
            freed: BTreeMap::new(),
            planned: BTreeMap::new(),
            parities: BTreeMap::new(),
            random: SplitMix64::seed_from_u64(!seed),
            held: BTreeMap::new(),
            newest: vec![0; blocks],
            flushed: vec![0; blocks],
            is_trimmed: vec![true; blocks],
            covered: vec![0; blocks],
            forgotten: vec![(0, 0); blocks],
            trimmed: vec![0; blocks],
            version: 0,
            account: StepCounts::default(),
            layout,
        }
    }

    pub fn write(&mut self, blocks: Range<u32>) -> Result<(), Broken> {
        self.version += 1;
        for block in blocks.clone() {
            self.held.insert(block, self.version);
            self.newest[block as usize] = self.version;
            self.is_trimmed[block as usize] = false;
        }
        let mut steps = Vec::new();
        self.placement.write(blocks, &mut steps).map_err(|error| error.to_string())?;
        self.run(&steps)
    }

    pub fn trim(&mut self, blocks: Range<u32>) -> Result<(), Broken> {
        self.account.trims += 1;
        self.version += 1;
        for block in blocks.clone() {
            self.newest[block as usize] = self.version;
            self.is_trimmed[block as usize] = true;
        }
        let mut steps = Vec::new();
        self.placement.trim(blocks, &mut steps).map_err(|error| error.to_string())?;
        self.run(&steps)
    }

    pub fn flush(&mut self) -> Result<(), Broken> {
        self.account.flushes += 1;
        let mut steps = Vec::new();
        self.placement.flush(&mut steps);
        self.decide(&steps)?;
        while !self.pending.is_empty() {
            self.arrive()?;
        }
        self.flushed.clone_from(&self.newest);
        self.after()
    }

    fn run(&mut self, steps: &[PlacementStep]) -> Result<(), Broken> {
        self.decide(steps)?;
        let window = self.random.next_u64() % WINDOW;
        while self.pending.len() as u64 > window {
            self.arrive()?;
        }
        self.after()
    }

    /// Checks the steps of an operation, and starts them.
    fn decide(&mut self, steps: &[PlacementStep]) -> Result<(), Broken> {
        for (index, step) in steps.iter().enumerate() {
            self.account.steps += 1;
            let text = format!("{step:?}");
            let mix = |all: u64, byte: u8| (all ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            self.account.digest = text.bytes().fold(self.account.digest, mix);
            let number = self.account.steps;
            self.apply(step).map_err(|broken| format!("step {number} ({index} of the operation), {text}: {broken}"))?;
            // Up to `WINDOW` steps stay in progress: their order varies much, and the client's memory stays small.
            while self.pending.len() as u64 > WINDOW {
                self.arrive()?;
            }
        }
        Ok(())
    }

    /// Lets one of the steps in progress reach its donor; then checks the loss of the client and a donor.
    fn arrive(&mut self) -> Result<(), Broken> {
        let chosen = (self.random.next_u64() % REORDERED_MAX.min(self.pending.len() as u64)) as usize;
        let chosen = if self.may_arrive(chosen) { chosen } else { 0 };
        self.account.reordered += u64::from(chosen > 0);
        let lost = (self.random.next_u64() % self.donors.len() as u64) as usize;
        let pending = self.pending.remove(chosen).expect("one of them");
        let (blocks, sequence) = pending.forgotten;
        blocks.iter().for_each(|&(block, version)| self.forgotten[block] = (sequence, version));
        let Some((place, stored)) = pending.stored else { return Ok(()) };
        self.donors[usize::from(place.donor)][place.slot as usize] = Some(stored);
        self.crash(lost, false).map_err(|broken| format!("step {} arrived: {broken}", pending.number))
    }

    /// Whether the placement allows this step to arrive before all earlier ones.
    fn may_arrive(&self, index: usize) -> bool {
        let step = &self.pending[index];
        let freed = self.freed.get(&step.group).copied().unwrap_or(0);
        self.pending.iter().take(index).all(|earlier| {
            let is_same = earlier.group == step.group || Some(earlier.group) == step.spare_of;
            let is_fetched = earlier.stored.is_none() && earlier.block.is_some() && earlier.block == step.block;
            !is_same && !is_fetched && earlier.number > freed
        })
    }

    fn send_off(
        &mut self,
        group: u32,
        block: Option<u32>,
        stored: Option<(DonorSlot, SlotContent)>,
        spare_of: Option<u32>,
    ) -> &mut PendingStep {
        let (number, forgotten) = (self.account.steps, (Vec::new(), 0));
        self.pending.push_back(PendingStep { number, group, block, stored, forgotten, spare_of });
        self.pending.back_mut().expect("just put there")
    }

    fn apply(&mut self, step: &PlacementStep) -> Result<(), Broken> {
        match *step {
            PlacementStep::Fetch { block, group, place } => match self.planned.get(&place).copied() {
                Some(copy) if copy.block == block => {
                    self.held.insert(block, copy.version);
                    self.send_off(group, Some(block), None, None);
                }
                found => return Err(format!("fetches from {found:?}")),
            },
            PlacementStep::Send { block, group, member, place, sequence, cause } => {
                let Some(&version) = self.held.get(&block) else { return Err("sends what it does not hold".into()) };
                self.account.sent += 1;
                self.account.cleaned += u64::from(cause == SendCause::Cleaning);
                self.send(group, member, SentCopy { place, block, sequence, version })?;
            }
            PlacementStep::StoreParity { group, place, members, covering } => {
                self.store(group, place, members.0, covering)?
            }
            PlacementStep::Forget { first, count, sequence } => {
                let blocks = first as usize..(first + count) as usize;
                let forgotten = blocks.map(|block| (block, self.newest[block])).collect::<Vec<_>>();
                for (block, _) in &forgotten {
                    self.trimmed[*block] = sequence;
                    self.held.remove(&(*block as u32));
                }
                let pending = self.send_off(u32::MAX, None, None, None);
                pending.forgotten = (forgotten, sequence);
            }
            PlacementStep::Free { group } => self.free(group)?,
            PlacementStep::ReadOld { .. } => return Err("changes in place".into()),
        }
        Ok(())
    }

    fn at(&self, place: DonorSlot) -> Option<&SlotContent> {
        self.donors[usize::from(place.donor)][place.slot as usize].as_ref()
    }

    fn send(&mut self, number: u32, member: u8, copy: SentCopy) -> Result<(), Broken> {
        let group = self.groups.entry(number).or_default();
        if group.is_sealed {
            return Err("a slot of a sealed group is used again".into());
        }
        if usize::from(member) != group.members.len() || member >= self.layout.members {
            return Err(format!("member {member} of a group that has {}", group.members.len()));
        }
        if group.members.iter().any(|other| other.place.donor == copy.place.donor) {
            return Err("two members of a group on one donor".into());
        }
        if group.parity.is_some_and(|parity| parity.donor == copy.place.donor) {
            return Err("a member on the donor of its parity".into());
        }
        group.members.push(copy);
        let is_taken = |(other, group): (&u32, &ModelGroup)| {
            *other != number && group.members.iter().any(|member| member.place == copy.place)
        };
        if self.groups.iter().any(is_taken) {
            return Err("a slot of another group is used".into());
        }
        self.planned.insert(copy.place, copy);
        self.send_off(number, Some(copy.block), Some((copy.place, SlotContent::Data(copy))), None);
        Ok(())
    }

    fn store(&mut self, number: u32, place: DonorSlot, members: u32, covering: ParityCause) -> Result<(), Broken> {
        if let Some((other, _)) = self.groups.iter().find(|(_, group)| group.parity == Some(place)) {
            return Err(format!("the only parity of group {other} is overwritten"));
        }
        let Some(group) = self.groups.get_mut(&number) else { return Err("parity of a free group".into()) };
        let chosen: Vec<SentCopy> = (0..group.members.len())
            .filter(|member| members >> member & 1 == 1)
            .map(|member| group.members[member])
            .collect();
        if chosen.len() != group.members.len() || members.count_ones() as usize != chosen.len() {
            return Err(format!("parity of {} members of a group that has {}", chosen.len(), group.members.len()));
        }
        if chosen.iter().any(|member| member.place.donor == place.donor) {
            return Err("parity on the donor of a member".into());
        }
        if group.is_sealed || (covering == ParityCause::Sealed) != (chosen.len() == usize::from(self.layout.members)) {
            return Err(format!("{covering:?} parity of a group with {} members", chosen.len()));
        }
        group.is_sealed = covering == ParityCause::Sealed;
        group.parity = Some(place);
        group.covered = chosen.len();
        for member in &chosen {
            let covered = &mut self.covered[member.block as usize];
            *covered = member.sequence.max(*covered);
        }
        let xor = chosen.iter().fold(0, |all, member| all ^ member.version);
        let spare_of = self.parities.insert(place, number).filter(|_| covering != ParityCause::Sealed);
        self.send_off(number, None, Some((place, SlotContent::Parity { members: chosen, xor })), spare_of);
        Ok(())
    }

    fn free(&mut self, number: u32) -> Result<(), Broken> {
        self.account.freed += 1;
        let Some(group) = self.groups.remove(&number) else { return Err("a free group is freed".into()) };
        self.freed.insert(number, self.account.steps);
        if !group.is_sealed {
            return Err("an open group is freed".into());
        }
        for member in &group.members {
            let block = member.block as usize;
            if self.covered[block].max(self.trimmed[block]) <= member.sequence {
                return Err(format!("block {block} of the freed group has no successor that parity covers"));
            }
        }
        Ok(())
    }

    /// Returns what can be read when a donor is lost, and also the client's memory unless `with_client`: the newest
    /// sequence of each block and its version.
    fn found(&self, lost: usize, with_client: bool) -> Result<Vec<(u64, u64)>, Broken> {
        let mut found = self.forgotten.clone();
        let mut add = |copy: &SentCopy| {
            let best = &mut found[copy.block as usize];
            *best = (copy.sequence, copy.version).max(*best);
        };
        for (donor, slots) in self.donors.iter().enumerate().filter(|(donor, _)| *donor != lost) {
            for stored in slots.iter().flatten() {
                match stored {
                    SlotContent::Data(copy) => add(copy),
                    SlotContent::Parity { members, xor } => {
                        let Some(missing) = members.iter().find(|member| usize::from(member.place.donor) == lost)
                        else {
                            continue;
                        };
                        let (mut rest, mut is_whole) = (*xor, true);
                        for member in members.iter().filter(|member| *member != missing) {
                            match self.at(member.place) {
                                Some(SlotContent::Data(copy)) if copy.sequence == member.sequence => {
                                    rest ^= copy.version
                                }
                                _ => is_whole = false,
                            }
                        }
                        if is_whole {
                            if rest != missing.version {
                                return Err(format!("the parity on donor {donor} gives version {rest} of {missing:?}"));
                            }
                            add(missing);
                        }
                    }
                }
            }
        }
        if with_client {
            // The client can compute the parity of open groups, and has the data of steps in progress.
            let open = self.groups.values().filter(|group| !group.is_sealed);
            open.flat_map(|group| &group.members[group.covered..]).for_each(&mut add);
            for pending in &self.pending {
                let (blocks, sequence) = &pending.forgotten;
                for (block, version) in blocks {
                    found[*block] = (*sequence, *version).max(found[*block]);
                }
                let mut add = |copy: &SentCopy| {
                    let best = &mut found[copy.block as usize];
                    *best = (copy.sequence, copy.version).max(*best);
                };
                match &pending.stored {
                    Some((_, SlotContent::Data(copy))) => add(copy),
                    Some((_, SlotContent::Parity { members, .. })) => members.iter().for_each(&mut add),
                    None => {}
                }
            }
        }
        Ok(found)
    }

    /// Checks the loss of the client's memory and a donor: every block must have its last flushed version, or a newer
    /// one.
    fn crash(&self, lost: usize, is_all: bool) -> Result<(), Broken> {
        let found = self.found(lost, false)?;
        for (block, (_, version)) in found.iter().enumerate() {
            let (least, most) = (self.flushed[block], self.newest[block]);
            if *version < least || *version > most {
                return Err(format!(
                    "client and donor {lost} lost: block {block} has version {version}, flushed {least}"
                ));
            }
        }
        if is_all {
            let found = self.found(lost, true)?;
            for (block, (_, version)) in found.iter().enumerate() {
                let version = self.held.get(&(block as u32)).unwrap_or(version);
                if *version != self.newest[block] {
                    let newest = self.newest[block];
                    return Err(format!("donor {lost} lost: block {block} has version {version}, written {newest}"));
                }
            }
        }
        Ok(())
    }

    /// Checks what must be true between operations.
    fn after(&mut self) -> Result<(), Broken> {
        let mut places = BTreeMap::new();
        for block in 0..self.layout.blocks {
            let index = block as usize;
            match self.placement.locate(block) {
                NewestLocation::Unmapped if !self.is_trimmed[index] => {
                    return Err(format!("block {block} is unmapped"));
                }
                NewestLocation::Unmapped => {}
                _ if self.is_trimmed[index] => return Err(format!("block {block} is mapped after a trim")),
                NewestLocation::Memory => match self.held.get(&block) {
                    Some(version) if *version == self.newest[index] => continue,
                    version => return Err(format!("block {block}: version {version:?} is in memory")),
                },
                NewestLocation::Slot(place) => {
                    if let Some(other) = places.insert(place, block) {
                        return Err(format!("blocks {other} and {block} are both at {place:?}"));
                    }
                    match self.planned.get(&place) {
                        Some(copy) if (copy.block, copy.version) == (block, self.newest[index]) => {}
                        found => return Err(format!("block {block}: its slot has {found:?}")),
                    }
                }
            }
            self.held.remove(&block);
        }
        let (held, most) = (self.held.len() as u64, self.placement.memory().client_blocks_max);
        if held > most {
            return Err(format!("{held} blocks in memory, {most} are the limit"));
        }
        (0..self.donors.len()).try_for_each(|lost| self.crash(lost, true))
    }
}

/// Makes a layout with as few groups as its settings allow, from a seed.
pub fn layout(random: &mut SplitMix64, policy: RedundancyPolicy) -> PlacementSettings {
    let mut below = |bound: u64| random.next_u64() % bound;
    let members = 2 + below(7) as u8;
    let overflow_percent = 10 * (1 + below(5) as u32);
    let mut layout = PlacementSettings {
        overflow_percent,
        streams: 1 + below(4) as usize,
        column_blocks: 1 + below(4) as u32,
        stale: StaleRule::ALL[below(4) as usize],
        ..PlacementSettings::new(policy, 8, members)
    };
    while layout.clone().open().is_err() {
        layout.blocks += 1 + u32::from(members) / 2;
    }
    layout
}

/// Random operations on a full device. *Errors*: the first check that fails.
pub fn run(seed: u64, policy: RedundancyPolicy) -> Result<StepCounts, Broken> {
    let mut random = SplitMix64::seed_from_u64(seed);
    let layout = layout(&mut random, policy);
    let blocks = layout.blocks;
    let shown = format!("{layout:?}");
    let mut world = PlacementModel::new(layout, seed);
    let mut below = |bound: u32| (random.next_u64() % u64::from(bound)) as u32;
    let mut play = || {
        world.write(0..blocks)?;
        world.flush()?;
        let mut cursors = [0, blocks / 3, blocks / 2, blocks * 2 / 3];
        let (flushes, trims, singles) = (below(20), below(12), below(60));
        for _ in 0..120 {
            let at = below(4) as usize;
            match below(100) {
                chance if chance < flushes => world.flush()?,
                chance if chance < flushes + trims => {
                    let first = below(blocks);
                    world.trim(first..blocks.min(first + 1 + below(20)))?;
                }
                chance if chance < flushes + trims + singles => {
                    let block = below(blocks);
                    world.write(block..block + 1)?;
                }
                chance => {
                    if chance > 95 {
                        cursors[at] = below(blocks);
                    }
                    let end = blocks.min(cursors[at] + 1 + below(16));
                    world.write(cursors[at]..end)?;
                    cursors[at] = if end == blocks { 0 } else { end };
                }
            }
        }
        // The device is filled again, in an order that mixes old and new blocks.
        for _ in 0..blocks / 4 {
            let first = below(blocks);
            world.write(first..blocks.min(first + 1 + below(3)))?;
        }
        world.write(0..blocks)?;
        world.flush()
    };
    let played: Result<(), Broken> = play();
    played.map(|()| world.account).map_err(|broken| format!("seed {seed}, {shown}: {broken}"))
}
