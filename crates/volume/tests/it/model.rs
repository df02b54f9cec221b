//! The metadata is compared with an independent model of the tree: random operations give the same answers and the same
//! tree, and `check` finds no problem. `NECTARY_SEED` sets the first seed.

mod tree_model;

use std::collections::BTreeMap;

use nectary_volume::format::{SessionRecord, SessionState, TableKind, VolumeIdentity, VolumeLabel};
use nectary_volume::journal::{SetAside, VolumeLayout, apply};
use nectary_volume::metadata::{AppendStamp, MetadataImage, check, first};
use nectary_volume::protocol::{
    AttributeChanges, FileId, MappedExtent, MetadataOperation, MetadataQuestion, ServerAnswer,
};
use nectary_volume::tables::MetadataTables;

use self::tree_model::{EXCHANGE, NO_REPLACE, ROOT, Result, TreeModel, TreeModelNode};

const SEEDS: u64 = 20;
const STEPS: u64 = 600;
const BLOCKS: u64 = 65536;
const BLOCK: u64 = 4096;
/// The number of blocks of a file that operations use.
const FILE_BLOCKS: u64 = 24;
const STAMP: AppendStamp = AppendStamp { now_ns: 8, sequence: 5 };
const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

struct TreeTestRandom(u64);

impl TreeTestRandom {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
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

/// The image, the state that its stored transactions define, and the model.
struct TreeTestRun {
    random: TreeTestRandom,
    image: MetadataImage,
    replica: MetadataTables,
    session: u64,
    model: TreeModel,
    refused: u64,
}

impl TreeTestRun {
    fn new(seed: u64) -> TreeTestRun {
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
        let mut replica = tables;
        apply(&mut replica, &transaction).expect("it is applied");
        let root = TreeModelNode { mode: libc::S_IFDIR | 0o755, links: 2, parent: ROOT, ..TreeModelNode::default() };
        let model = TreeModel { nodes: BTreeMap::from([(ROOT, root)]), ..TreeModel::default() };
        // The multiplication is needed because adjacent seeds would begin with similar numbers.
        let random = TreeTestRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        TreeTestRun { random, image, replica, session, model, refused: 0 }
    }

    fn operate(&mut self, operation: &MetadataOperation) -> Result<ServerAnswer> {
        let number = self.image.next_number(self.session);
        let (answer, transaction) = self.image.operate(STAMP, self.session, number, operation);
        let transaction = transaction.expect("every operation is stored");
        apply(&mut self.replica, &transaction).expect("it is applied");
        self.refused += u64::from(answer.is_err());
        answer.map_err(|failure| failure.errno)
    }

    fn ask(&mut self, question: &MetadataQuestion) -> Result<ServerAnswer> {
        let asked = self.image.ask(STAMP, self.session, question).map_err(|failure| failure.errno)?;
        if let Some(transaction) = &asked.transaction {
            apply(&mut self.replica, transaction).expect("it is applied");
        }
        Ok(asked.answer)
    }

    fn id(inode: u64) -> FileId {
        FileId { inode, generation: 1 }
    }

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.random.below(12)).into_bytes()
    }

    fn any(&mut self, is_so: impl Fn(&TreeModelNode) -> bool) -> Option<u64> {
        let found = self.model.nodes.iter().filter(|(_, node)| is_so(node)).map(|(number, _)| *number);
        let found: Vec<u64> = found.collect();
        (!found.is_empty()).then(|| self.random.of(&found))
    }

    fn directory(&mut self) -> u64 {
        self.any(|node| node.is_directory() && node.links > 0).expect("there is the root")
    }

    fn step(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let file = self.any(TreeModelNode::is_file);
        let named = self.any(|node| node.links > 0);
        // Every file without a name is open.
        let orphan = self.any(|node| node.links == 0 && node.is_file());
        match (self.random.below(20), file, named) {
            (0..=3, ..) => self.create(directory, name),
            (4, ..) => self.create_nameless(directory),
            (5, _, Some(named)) => {
                let number = orphan.filter(|_| self.random.below(2) == 0).unwrap_or(named);
                let expected = self.model.link(number, directory, &name);
                let operation = MetadataOperation::Link {
                    file: TreeTestRun::id(number),
                    directory: TreeTestRun::id(directory),
                    name,
                };
                assert_eq!(self.operate(&operation).map(drop), expected, "{operation:?}");
            }
            (6..=7, ..) => {
                let is_directory = self.random.below(3) == 0;
                let expected = self.model.unlink(directory, &name, is_directory);
                let directory = TreeTestRun::id(directory);
                let operation = MetadataOperation::Unlink { directory, name, is_directory, expected: 0 };
                assert_eq!(self.operate(&operation).map(drop), expected, "{operation:?}");
            }
            (8..=9, ..) => {
                let (to, new_name) = (self.directory(), self.name());
                let flags = self.random.of(&[0, 0, NO_REPLACE, EXCHANGE]);
                let expected = self.model.rename((directory, &name), (to, &new_name), flags);
                let (directory, new_directory) = (TreeTestRun::id(directory), TreeTestRun::id(to));
                let operation = MetadataOperation::Rename { directory, name, new_directory, new_name, flags };
                assert_eq!(self.operate(&operation).map(drop), expected, "{operation:?}");
            }
            (10, Some(file), _) => {
                let size = self.random.below(FILE_BLOCKS * BLOCK);
                self.operate(&MetadataOperation::Truncate { file: TreeTestRun::id(file), size }).expect("it is cut");
                let node = self.model.node(file);
                if size <= node.size {
                    node.map.retain(|block, _| *block < size.div_ceil(BLOCK));
                }
                node.size = size;
            }
            (11, Some(file), _) if self.random.below(2) == 0 => self.allocate(file),
            (11, Some(file), _) => self.take_reserved(file),
            (12..=14, Some(file), _) => self.commit(file),
            (15, Some(file), _) => {
                let is_open = self.model.nodes[&file].is_open;
                match is_open {
                    true => {
                        drop(self.ask(&MetadataQuestion::Close { file: TreeTestRun::id(file) }).expect("it closes"))
                    }
                    false => drop(
                        self.ask(&MetadataQuestion::Open { file: TreeTestRun::id(file), level: 0, is_direct: false })
                            .expect("it opens"),
                    ),
                }
                self.model.node(file).is_open = !is_open;
                if is_open && self.model.nodes[&file].links == 0 {
                    self.model.nodes.remove(&file);
                }
            }
            (16, _, Some(number)) => self.xattr(number),
            (17, _, Some(number)) => {
                let permissions = self.random.below(0o1000) as u32;
                let changes = AttributeChanges { mode: Some(permissions), ..AttributeChanges::default() };
                self.operate(&MetadataOperation::SetAttributes { file: TreeTestRun::id(number), changes })
                    .expect("it is changed");
                let node = self.model.node(number);
                node.mode = node.mode & libc::S_IFMT | permissions;
            }
            (18, ..) => self.settle(),
            (19, ..) if self.random.below(4) == 0 => self.restart(),
            _ => {}
        }
    }

    fn create(&mut self, directory: u64, name: Vec<u8>) {
        let mode = self.random.of(&[libc::S_IFREG, libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK, libc::S_IFIFO]) | 0o640;
        let (is_link, is_directory) = (mode & libc::S_IFMT == libc::S_IFLNK, mode & libc::S_IFMT == libc::S_IFDIR);
        let operation = MetadataOperation::Create {
            directory: TreeTestRun::id(directory),
            name: name.clone(),
            mode,
            owner: 0,
            group: 0,
            umask: 0,
            device: 0,
            target: if is_link { b"where".to_vec() } else { Vec::new() },
            target_block: None,
            open: false,
            inode: 0,
        };
        let made = self.operate(&operation);
        if self.model.find(directory, &name).is_some() {
            assert_eq!(made, Err(libc::EEXIST));
            return;
        }
        let Ok(ServerAnswer::Attributes(made)) = made else { panic!("{made:?}") };
        let (links, size) = (if is_directory { 2 } else { 1 }, if is_link { 5 } else { 0 });
        let earlier =
            self.model.nodes.insert(made.number, TreeModelNode { mode, links, size, ..TreeModelNode::default() });
        assert_eq!(earlier, None, "inode {} is used again", made.number);
        self.model.add(directory, &name, made.number);
    }

    /// Makes a file without a name; only an open file can have none.
    fn create_nameless(&mut self, directory: u64) {
        let kind = self.random.of(&[libc::S_IFREG, libc::S_IFREG, libc::S_IFREG, libc::S_IFIFO]);
        let open = self.random.below(4) > 0;
        let (directory, mode) = (TreeTestRun::id(directory), kind | 0o600);
        let (name, target, target_block) = (Vec::new(), Vec::new(), None);
        let (owner, group, umask, device, inode) = (0, 0, 0, 0, 0);
        let operation = MetadataOperation::Create {
            directory,
            name,
            mode,
            owner,
            group,
            umask,
            device,
            target,
            target_block,
            open,
            inode,
        };
        let made = self.operate(&operation);
        if kind != libc::S_IFREG || !open {
            assert_eq!(made, Err(libc::EINVAL));
            return;
        }
        let Ok(ServerAnswer::Attributes(made)) = made else { panic!("{made:?}") };
        self.model
            .nodes
            .insert(made.number, TreeModelNode { mode, is_open: true, is_nameless: true, ..TreeModelNode::default() });
    }

    /// Commits granted blocks, unwritten blocks at their place, or blocks that are not granted.
    fn commit(&mut self, file: u64) {
        let start = self.random.below(FILE_BLOCKS);
        let count = 1 + self.random.below(4);
        let unwritten = self.model.nodes[&file].map.iter().find(|(_, (_, is_unwritten))| *is_unwritten);
        let unwritten = unwritten.map(|(start, (block, _))| (*start, *block));
        let (start, blocks, is_right) = match (self.random.below(4), unwritten) {
            (0, Some((start, block))) => (start, vec![block], true),
            (1, _) => (start, vec![BLOCKS - 3 - start], false),
            _ => {
                if self.model.granted.len() < 8 {
                    let Ok(ServerAnswer::Space(granted)) = self.ask(&MetadataQuestion::Space { blocks: 16 }) else {
                        return;
                    };
                    let blocks = granted.iter().flat_map(|granted| granted.block..granted.block + granted.blocks);
                    self.model.granted.extend(blocks);
                }
                let first = *self.model.granted.first().expect("there are some");
                let run = (first..first + count).take_while(|block| self.model.granted.contains(block));
                (start, run.collect(), true)
            }
        };
        let is_right = is_right || self.model.granted.contains(&blocks[0]);
        let size = (start + blocks.len() as u64) * BLOCK;
        // What was taken and not written is mapped as unwritten again.
        let is_unwritten = self.random.below(4) == 0;
        let extent = MappedExtent { file_block: start, blocks: blocks.len() as u32, block: blocks[0], is_unwritten };
        let truncate_generation = u64::MAX;
        let (modified_ns, changed_ns, extents) = (9, 9, vec![extent]);
        let operation = MetadataOperation::Commit {
            file: TreeTestRun::id(file),
            truncate_generation,
            size,
            modified_ns,
            changed_ns,
            extents,
        };
        let done = self.operate(&operation).map(drop);
        assert_eq!(done, if is_right { Ok(()) } else { Err(libc::EIO) }, "{operation:?}");
        if is_right {
            let node = self.model.nodes.get_mut(&file).expect("it is there");
            node.size = node.size.max(size);
            for (at, block) in (start..).zip(blocks) {
                self.model.granted.remove(&block);
                node.map.insert(at, (block, is_unwritten));
            }
        }
    }

    fn allocate(&mut self, file: u64) {
        let (start, length) = (self.random.below(FILE_BLOCKS * BLOCK), 1 + self.random.below(6 * BLOCK));
        let end = start + length;
        let mode = self.random.of(&[0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE]);
        self.operate(&MetadataOperation::Allocate { file: TreeTestRun::id(file), start, end, mode })
            .expect("it is allocated");
        let found = self.map(file);
        let node = self.model.node(file);
        if mode & KEEP_SIZE == 0 {
            node.size = node.size.max(end);
        }
        let whole = start.div_ceil(BLOCK)..end / BLOCK;
        if mode & PUNCH_HOLE != 0 {
            node.map.retain(|block, _| !whole.contains(block));
        }
        if mode & ZERO_RANGE != 0 {
            node.map.iter_mut().for_each(|(block, (_, is_unwritten))| *is_unwritten |= whole.contains(block));
        }
        if mode & PUNCH_HOLE == 0 {
            for block in start / BLOCK..end.div_ceil(BLOCK) {
                // The image chooses the block, but the model says that the block is unwritten.
                let place = found.get(&block).map_or(0, |(place, _)| *place);
                node.map.entry(block).or_insert((place, true));
            }
        }
        assert_eq!(node.map, found, "inode {file}, {start} to {end}, mode {mode:#x}");
    }

    /// Takes unwritten blocks of a file; they are granted, and their place in the file is a hole.
    fn take_reserved(&mut self, file: u64) {
        let start = self.random.below(FILE_BLOCKS);
        let end = start + self.random.below(8);
        let taken = self.operate(&MetadataOperation::TakeReserved { file: TreeTestRun::id(file), start, end });
        if start == end {
            assert_eq!(taken, Err(libc::EINVAL));
            return;
        }
        let Ok(ServerAnswer::Map { extents, answered_to }) = taken else { panic!("{taken:?}") };
        assert_eq!(answered_to, end);
        let blocks = extents.iter().flat_map(|extent| {
            assert!(extent.is_unwritten);
            (0..u64::from(extent.blocks)).map(move |index| (extent.file_block + index, extent.block + index))
        });
        let node = self.model.nodes.get_mut(&file).expect("it is there");
        let expected = node.map.range(start..end).filter(|(_, (_, is_unwritten))| *is_unwritten);
        let expected: Vec<(u64, u64)> = expected.map(|(at, (block, _))| (*at, *block)).collect();
        assert_eq!(blocks.collect::<Vec<_>>(), expected, "inode {file}, {start} to {end}");
        for (at, block) in expected {
            node.map.remove(&at);
            self.model.granted.insert(block);
        }
    }

    fn map(&mut self, file: u64) -> BTreeMap<u64, (u64, bool)> {
        let answer = self.ask(&MetadataQuestion::ReadMap { file: TreeTestRun::id(file), start: 0, end: 1 << 20 });
        let Ok(ServerAnswer::Map { extents, .. }) = answer else { panic!("{answer:?}") };
        let blocks = extents.iter().flat_map(|extent| {
            let place = move |index| (extent.file_block + index, (extent.block + index, extent.is_unwritten));
            (0..u64::from(extent.blocks)).map(place)
        });
        blocks.collect()
    }

    fn xattr(&mut self, number: u64) {
        let (name, file) = (format!("user.{}", self.random.below(3)).into_bytes(), TreeTestRun::id(number));
        if self.random.below(3) == 0 {
            let expected = self.model.node(number).xattrs.remove(&name).map(drop).ok_or(libc::ENODATA);
            assert_eq!(self.operate(&MetadataOperation::RemoveXattr { file, name }).map(drop), expected);
            return;
        }
        let value = vec![7; self.random.below(40) as usize];
        self.model.node(number).xattrs.insert(name.clone(), value.clone());
        self.operate(&MetadataOperation::SetXattr { file, name, value, flags: 0 }).expect("it is set");
    }

    /// Finishes all background work, so that freed blocks are free.
    fn settle(&mut self) {
        self.image.acknowledge(self.session, self.image.next_number(self.session) - 1, STAMP.sequence);
        loop {
            let transactions = self.image.background(STAMP).expect("it is done");
            if transactions.is_empty() {
                break;
            }
            transactions.iter().for_each(|transaction| apply(&mut self.replica, transaction).expect("it is applied"));
        }
        self.compare();
    }

    /// Another server continues from the stored transactions.
    fn restart(&mut self) {
        self.image = MetadataImage::load(self.replica.clone(), &label(), 1).expect("it is sound");
        let open: Vec<u64> =
            self.model.nodes.iter().filter(|(_, node)| node.is_open).map(|(number, _)| *number).collect();
        // No file that is open is freed before its session has reported its open files.
        self.image.background(STAMP).expect("it is done").iter().for_each(|transaction| {
            apply(&mut self.replica, transaction).expect("it is applied");
        });
        for file in open {
            self.ask(&MetadataQuestion::Open { file: TreeTestRun::id(file), level: 0, is_direct: false })
                .expect("it is there");
        }
        self.image.reclaimed(self.session).expect("it is in use");
        self.settle();
    }

    fn compare(&mut self) {
        assert_eq!(check(self.image.tables(), &label()), Vec::<String>::new());
        assert!(self.replica == *self.image.tables(), "the transactions say something else");
        assert_eq!(self.image.tables().table(TableKind::Inodes).len(), self.model.nodes.len());
        let mapped: usize = self.model.nodes.values().map(|node| node.map.len()).sum();
        let used = 2048 + 2048 + mapped + self.model.granted.len();
        assert_eq!(self.image.room(), (BLOCKS - used as u64, BLOCKS));
        let nodes = self.model.nodes.clone();
        for (number, node) in &nodes {
            let answer = self.ask(&MetadataQuestion::GetAttributes { file: TreeTestRun::id(*number) });
            let Ok(ServerAnswer::Attributes(found)) = answer else { panic!("inode {number}: {answer:?}") };
            let found = (found.inode.mode, found.inode.links, found.inode.size, found.inode.blocks);
            assert_eq!(found, (node.mode, node.links, node.size, node.map.len() as u64), "inode {number}");
            assert_eq!(self.map(*number), node.map, "inode {number}");
            let Ok(ServerAnswer::Names(names)) =
                self.ask(&MetadataQuestion::ListXattrs { file: TreeTestRun::id(*number) })
            else {
                panic!("inode {number}")
            };
            assert_eq!(names, node.xattrs.keys().cloned().collect::<Vec<_>>(), "inode {number}");
            for (name, value) in &node.xattrs {
                let question = MetadataQuestion::ReadXattr { file: TreeTestRun::id(*number), name: name.clone() };
                assert_eq!(self.ask(&question), Ok(ServerAnswer::Bytes(value.clone())));
            }
            if node.is_directory() {
                self.compare_names(*number, node);
            }
        }
    }

    fn compare_names(&mut self, directory: u64, node: &TreeModelNode) {
        let (mut cookie, mut found) = (0, BTreeMap::new());
        loop {
            let entries = 1 + self.random.below(4) as u32;
            let answer =
                self.ask(&MetadataQuestion::ReadDirectory { directory: TreeTestRun::id(directory), cookie, entries });
            let Ok(ServerAnswer::Listing { names, is_end }) = answer else { panic!("{answer:?}") };
            for listed in names {
                cookie = listed.cookie;
                assert_eq!(found.insert(listed.name, listed.attributes.number), None, "it is listed twice");
            }
            if is_end {
                break;
            }
        }
        assert_eq!(found, node.names, "directory {directory}");
        let (name, directory) = (self.name(), TreeTestRun::id(directory));
        let found = self.ask(&MetadataQuestion::Lookup { directory, name: name.clone() }).map(|answer| match answer {
            ServerAnswer::Attributes(found) => found.number,
            other => panic!("{other:?}"),
        });
        assert_eq!(found, node.names.get(&name).copied().ok_or(libc::ENOENT));
    }
}

#[test]
fn random_operations_match_tree_model() {
    let from = std::env::var("NECTARY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in from..from + SEEDS {
        println!("NECTARY_SEED={seed}");
        let mut run = TreeTestRun::new(seed);
        for _ in 0..STEPS {
            run.step();
        }
        run.settle();
        println!("{} inodes, {} of {STEPS} steps refused", run.model.nodes.len(), run.refused);
    }
}
