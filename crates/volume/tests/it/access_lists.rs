//! Access control lists are compared with an independent implementation of acl(5): random lists, modes and new inodes
//! give the same modes and lists, and `check` finds no problem. `NECTARY_SEED` sets the first seed.

use std::collections::BTreeMap;

use nectary_volume::format::{SessionRecord, SessionState, VolumeIdentity, VolumeLabel};
use nectary_volume::journal::{SetAside, VolumeLayout, apply};
use nectary_volume::metadata::{AppendStamp, MetadataImage, check, first};
use nectary_volume::protocol::{AttributeChanges, FileId, MetadataOperation, MetadataQuestion, ServerAnswer};
use nectary_volume::tables::MetadataTables;

const SEEDS: u64 = 20;
const STEPS: u64 = 400;
const BLOCKS: u64 = 65536;
const ROOT: u64 = 1;
const STAMP: AppendStamp = AppendStamp { now_ns: 8, sequence: 5 };
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const KILL_GROUP_ID: u32 = 4;
// The tags of entries.
const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

struct AccessListRandom(u64);

impl AccessListRandom {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// The permissions, by tag and user or group.
type List = BTreeMap<(u16, u32), u16>;

fn bytes(list: &List) -> Vec<u8> {
    let entries = list.iter().flat_map(|((tag, id), permissions)| {
        [tag.to_le_bytes().to_vec(), permissions.to_le_bytes().to_vec(), id.to_le_bytes().to_vec()].concat()
    });
    2u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// Returns the entry that each three bits of a mode stand for, with the shift of these bits.
fn classes(list: &List) -> [(u16, u32); 3] {
    let group = if list.contains_key(&(MASK, 0)) { MASK } else { OWNING_GROUP };
    [(OWNER, 6), (group, 3), (OTHER, 0)]
}

fn mode_of(list: &List) -> u32 {
    classes(list).into_iter().map(|(tag, shift)| u32::from(list[&(tag, 0)]) << shift).sum()
}

fn with_mode(mut list: List, mode: u32) -> List {
    for (tag, shift) in classes(&list) {
        list.insert((tag, 0), (mode >> shift) as u16 & 7);
    }
    list
}

#[derive(Debug, Clone, Default)]
struct AccessListNode {
    mode: u32,
    access: Option<List>,
    default: Option<List>,
}

struct AccessListRun {
    random: AccessListRandom,
    image: MetadataImage,
    replica: MetadataTables,
    session: u64,
    nodes: BTreeMap<u64, AccessListNode>,
    lists: u64,
    refused: u64,
}

fn label() -> VolumeLabel {
    VolumeLabel {
        volume: VolumeIdentity([1; 16]),
        blocks: BLOCKS,
        segment_blocks: 2048,
        first_segment: 2048,
        hash_key: [3; 16],
        created_s: 0,
        lease_ms: 1000,
        drift_per_mille: 10,
        incompat: 0,
        ro_compat: 0,
        compat: 0,
        version_min: 1,
        version_made: 1,
        name: String::new(),
    }
}

impl AccessListRun {
    fn new(seed: u64) -> AccessListRun {
        let segments = vec![SetAside { block: 2048, blocks: 2048, epoch: 1 }];
        let mut tables = MetadataTables::default();
        first(&VolumeLayout { blocks: BLOCKS, segments }, 7).iter().for_each(|mutation| tables.apply(mutation));
        let mut image = MetadataImage::load(tables.clone(), &label(), 1).expect("it is sound");
        let session = SessionRecord {
            incarnation: [9; 16],
            state: SessionState::Active,
            kind: 1,
            flags: 0,
            lease_ms: 1000,
            acknowledged: 0,
            machine: 0,
            boot: 0,
            created_ns: 0,
            ended_ns: 0,
            reason: 0,
            host: "h".to_owned(),
        };
        let (session, transaction) = image.begin_session(&session).expect("it begins");
        apply(&mut tables, &transaction).expect("it is applied");
        let root = AccessListNode { mode: libc::S_IFDIR | 0o755, ..AccessListNode::default() };
        let nodes = BTreeMap::from([(ROOT, root)]);
        // The multiplication is needed because adjacent seeds would begin with similar numbers.
        let random = AccessListRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        AccessListRun { random, image, replica: tables, session, nodes, lists: 0, refused: 0 }
    }

    fn operate(&mut self, operation: &MetadataOperation) -> Result<ServerAnswer, i32> {
        let number = self.image.next_number(self.session);
        let (answer, transaction) = self.image.operate(STAMP, self.session, number, operation);
        apply(&mut self.replica, &transaction.expect("every operation is stored")).expect("it is applied");
        self.image.acknowledge(self.session, number, STAMP.sequence);
        self.refused += u64::from(answer.is_err());
        answer.map_err(|failure| failure.errno)
    }

    fn id(inode: u64) -> FileId {
        FileId { inode, generation: 1 }
    }

    fn any(&mut self, is_so: impl Fn(&AccessListNode) -> bool) -> u64 {
        let found: Vec<u64> = self.nodes.iter().filter(|(_, node)| is_so(node)).map(|(number, _)| *number).collect();
        self.random.of(&found)
    }

    fn list(&mut self) -> List {
        let mut list = List::new();
        for tag in [OWNER, OWNING_GROUP, OTHER] {
            list.insert((tag, 0), self.random.below(8) as u16);
        }
        for tag in [USER, GROUP] {
            for _ in 0..self.random.below(3) {
                list.insert((tag, 4242 + self.random.below(5) as u32), self.random.below(8) as u16);
            }
        }
        if list.len() > 3 || self.random.below(3) == 0 {
            list.insert((MASK, 0), self.random.below(8) as u16);
        }
        list
    }

    fn create(&mut self, step: u64) {
        let directory = self.any(|node| node.mode & libc::S_IFMT == libc::S_IFDIR);
        let kind = self.random.of(&[libc::S_IFREG, libc::S_IFREG, libc::S_IFDIR, libc::S_IFDIR, libc::S_IFLNK]);
        let mode = kind | if kind == libc::S_IFLNK { 0o777 } else { self.random.below(0o1000) as u32 };
        let umask = self.random.of(&[0, 0o22, 0o27, 0o77]);
        let is_link = kind == libc::S_IFLNK;
        let operation = MetadataOperation::Create {
            directory: AccessListRun::id(directory),
            name: format!("n{step}").into_bytes(),
            mode,
            owner: 0,
            group: 0,
            umask,
            device: 0,
            target: if is_link { b"where".to_vec() } else { Vec::new() },
            target_block: None,
            open: false,
            inode: 0,
        };
        let Ok(ServerAnswer::Attributes(made)) = self.operate(&operation) else { panic!("{operation:?}") };
        let mut node = AccessListNode { mode, ..AccessListNode::default() };
        let inherits_group = self.nodes[&directory].mode & libc::S_ISGID != 0 && kind == libc::S_IFDIR;
        match self.nodes[&directory].default.clone() {
            _ if is_link => {}
            None => node.mode &= !umask,
            Some(list) => {
                let allowed = mode & mode_of(&list);
                node.mode = kind | allowed;
                node.access = (list.len() > 3).then(|| with_mode(list.clone(), allowed));
                node.default = (kind == libc::S_IFDIR).then_some(list);
            }
        }
        node.mode |= if inherits_group { libc::S_ISGID } else { 0 };
        self.nodes.insert(made.number, node);
    }

    fn set(&mut self, number: u64, name: &[u8]) {
        let list = self.list();
        let (mut value, is_wrong) = (bytes(&list), self.random.below(5) == 0);
        if is_wrong {
            match self.random.below(3) {
                0 => value.truncate(value.len() - 1 - self.random.below(8) as usize),
                1 => value[0] ^= 1,
                // This repeats an entry that the list already has.
                _ => value.extend_from_within(4..12),
            }
        }
        let kills = self.random.below(2) == 0;
        let flags = if kills { KILL_GROUP_ID } else { 0 };
        let operation =
            MetadataOperation::SetXattr { file: AccessListRun::id(number), name: name.to_vec(), value, flags };
        let node = self.nodes.get_mut(&number).expect("it is there");
        let expected = match node.mode & libc::S_IFMT {
            libc::S_IFLNK => Err(libc::EOPNOTSUPP),
            kind if name == DEFAULT && kind != libc::S_IFDIR => Err(libc::EACCES),
            _ if is_wrong => Err(libc::EINVAL),
            _ => Ok(()),
        };
        if expected.is_ok() {
            if name == DEFAULT {
                node.default = Some(list);
            } else {
                node.mode = node.mode & !0o777 | mode_of(&list);
                node.access = (list.len() > 3).then_some(list);
            }
            if kills {
                node.mode &= !libc::S_ISGID;
            }
        }
        self.lists += u64::from(expected.is_ok());
        assert_eq!(self.operate(&operation).map(drop), expected, "{operation:?}");
    }

    fn remove(&mut self, number: u64, name: &[u8]) {
        let node = self.nodes.get_mut(&number).expect("it is there");
        let removed = if name == DEFAULT { node.default.take() } else { node.access.take() };
        let operation = MetadataOperation::RemoveXattr { file: AccessListRun::id(number), name: name.to_vec() };
        assert_eq!(self.operate(&operation).map(drop), removed.map(drop).ok_or(libc::ENODATA));
    }

    fn step(&mut self, step: u64) {
        let (number, name) = (self.any(|_| true), self.random.of(&[ACCESS, DEFAULT]));
        match self.random.below(10) {
            0..=2 => self.create(step),
            3..=5 => self.set(number, name),
            6 => self.remove(number, name),
            7 => {
                let other = self.random.of(&[&b"system.posix_acl_other"[..], b"system.posix_acl_"]);
                let (name, value) = (other.to_vec(), bytes(&self.list()));
                let operation = MetadataOperation::SetXattr { file: AccessListRun::id(number), name, value, flags: 0 };
                assert_eq!(self.operate(&operation).map(drop), Err(libc::EOPNOTSUPP));
            }
            _ => {
                let mode = self.random.below(0o4000) as u32;
                let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
                self.operate(&MetadataOperation::SetAttributes { file: AccessListRun::id(number), changes })
                    .expect("it is changed");
                let node = self.nodes.get_mut(&number).expect("it is there");
                node.mode = node.mode & libc::S_IFMT | mode;
                node.access = node.access.take().map(|list| with_mode(list, mode));
            }
        }
    }

    fn compare(&mut self) {
        assert_eq!(check(self.image.tables(), &label()), Vec::<String>::new());
        for (number, node) in self.nodes.clone() {
            let mut ask = |question| self.image.ask(STAMP, self.session, &question).map(|asked| asked.answer);
            let answer = ask(MetadataQuestion::GetAttributes { file: AccessListRun::id(number) });
            let Ok(ServerAnswer::Attributes(found)) = answer else { panic!("inode {number}: {answer:?}") };
            assert_eq!(format!("{:o}", found.inode.mode), format!("{:o}", node.mode), "inode {number}");
            for (name, list) in [(ACCESS, &node.access), (DEFAULT, &node.default)] {
                let answer = ask(MetadataQuestion::ReadXattr { file: AccessListRun::id(number), name: name.to_vec() });
                let expected = list.as_ref().map(|list| ServerAnswer::Bytes(bytes(list))).ok_or(libc::ENODATA);
                assert_eq!(answer.map_err(|failure| failure.errno), expected, "inode {number}");
            }
        }
        let transactions = self.image.background(STAMP).expect("it is done");
        transactions.iter().for_each(|transaction| apply(&mut self.replica, transaction).expect("it is applied"));
        assert!(self.replica == *self.image.tables(), "the transactions say something else");
    }
}

/// New inodes inherit the lists of their directory as acl(5) says.
#[test]
fn modes_match_access_lists() {
    let from = std::env::var("NECTARY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let (mut lists, mut refused, mut inherited) = (0, 0, 0);
    for seed in from..from + SEEDS {
        println!("NECTARY_SEED={seed}");
        let mut run = AccessListRun::new(seed);
        for step in 0..STEPS {
            run.step(step);
            if step % 40 == 0 {
                run.compare();
            }
        }
        run.compare();
        lists += run.lists;
        refused += run.refused;
        inherited += run.nodes.values().filter(|node| node.access.is_some()).count();
    }
    println!("{lists} lists were set, {refused} steps refused, {inherited} inodes have lists");
    assert!(lists > 500 && refused > 500 && inherited > 100);
}
