//! Plants each kind of damage that a volume may have, one at a time, and checks that `check` names it.

use super::check;
use crate::format::{
    EpochRecord, EpochState, ExtentRecord, ExtentState, GrantRecord, Inode, Mutation, MutationAction, NameRecord,
    ReplyRecord, SpaceRecord, TableKey, TableKind, VolumeRecord,
};
use crate::metadata::tests::{ROOT, commit, create_in, image, label, operate, space, stamp};
use crate::protocol::{MetadataOperation, MetadataQuestion};
use crate::tables::MetadataTables;

/// A small volume with at least one record of each kind.
struct SampleVolume {
    tables: MetadataTables,
    session: u64,
    file: u64,
    other: u64,
    directory: u64,
    below: u64,
    link: u64,
    pipe: u64,
    orphan: u64,
}

impl SampleVolume {
    fn new() -> SampleVolume {
        let (mut image, session) = image();
        let image = &mut image;
        let directory = create_in(image, session, ROOT, "d", libc::S_IFDIR | 0o755).unwrap();
        let below = create_in(image, session, directory.id(), "e", libc::S_IFDIR | 0o755).unwrap();
        let file = create_in(image, session, ROOT, "a", libc::S_IFREG | 0o644).unwrap();
        let other = create_in(image, session, below.id(), "b", libc::S_IFREG | 0o644).unwrap();
        let link = create_in(image, session, ROOT, "l", libc::S_IFLNK | 0o777).unwrap().number;
        let pipe = create_in(image, session, ROOT, "p", libc::S_IFIFO | 0o644).unwrap().number;
        let orphan = create_in(image, session, ROOT, "o", libc::S_IFREG | 0o644).unwrap();
        let block = space(image, session, 64);
        operate(image, session, &commit(file.id(), 0, block, 8)).unwrap();
        operate(image, session, &commit(file.id(), 20, block + 8, 8)).unwrap();
        operate(image, session, &commit(other.id(), 0, block + 16, 8)).unwrap();
        operate(image, session, &commit(file.id(), 0, block + 24, 2)).unwrap();
        let (name, value) = (b"user.x".to_vec(), b"value".to_vec());
        operate(image, session, &MetadataOperation::SetXattr { file: file.id(), name, value, flags: 0 }).unwrap();
        image.ask(stamp(), session, &MetadataQuestion::Open { file: orphan.id(), level: 0, is_direct: false }).unwrap();
        let unlink =
            MetadataOperation::Unlink { directory: ROOT, name: b"o".to_vec(), is_directory: false, expected: 0 };
        operate(image, session, &unlink).unwrap();
        SampleVolume {
            tables: image.tables().clone(),
            session,
            file: file.number,
            other: other.number,
            directory: directory.number,
            below: below.number,
            link,
            pipe,
            orphan: orphan.number,
        }
    }

    fn put(&mut self, key: &TableKey, value: Vec<u8>) {
        self.tables.apply(&Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(value) });
    }

    fn delete(&mut self, key: &TableKey) {
        self.tables.apply(&Mutation { table: key.table(), key: key.encode(), action: MutationAction::Delete });
    }

    fn volume(&mut self, change: impl FnOnce(&mut VolumeRecord)) {
        let mut record = VolumeRecord::decode(self.tables.get(&TableKey::Volume).unwrap()).unwrap();
        change(&mut record);
        self.put(&TableKey::Volume, record.encode());
    }

    fn inode(&mut self, number: u64, change: impl FnOnce(&mut Inode)) {
        let mut inode = Inode::decode(self.tables.get(&TableKey::Inode(number)).unwrap()).unwrap();
        change(&mut inode);
        self.put(&TableKey::Inode(number), inode.encode().unwrap());
    }

    /// Plants an access control list whose entries have these tags and all permissions.
    fn list(&mut self, inode: u64, kind: &str, tags: &[u8]) {
        let bytes = 4 + 8 * tags.len();
        let head = [bytes as u8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
        let value = [&head[..], &tags.iter().flat_map(|tag| [*tag, 0, 7, 0, 0, 0, 0, 0]).collect::<Vec<u8>>()].concat();
        self.put(&TableKey::Xattr(inode, format!("system.posix_acl_{kind}").into_bytes()), value);
    }

    fn find(&self, directory: u64, name: &str) -> (u64, NameRecord) {
        let mut entries = self.tables.table(TableKind::Entries).iter();
        let found = entries.find_map(|(key, value)| match TableKey::decode(TableKind::Entries, key).unwrap() {
            TableKey::Entry(of, cookie) if of == directory => NameRecord::decode(value)
                .ok()
                .filter(|found| found.name == name.as_bytes())
                .map(|found| (cookie, found)),
            _ => None,
        });
        found.expect("the name is there")
    }

    /// Changes the record of a name, its directory and its cookie.
    fn name(&mut self, directory: u64, name: &str, change: impl FnOnce(&mut u64, &mut u64, &mut NameRecord)) {
        let (mut cookie, mut found) = self.find(directory, name);
        self.delete(&TableKey::Entry(directory, cookie));
        let mut directory = directory;
        change(&mut directory, &mut cookie, &mut found);
        self.put(&TableKey::Entry(directory, cookie), found.encode().unwrap());
    }

    fn extent(&mut self, inode: u64, start: u64, change: impl FnOnce(&mut ExtentRecord)) {
        let key = TableKey::Extent(inode, start);
        let mut extent = ExtentRecord::decode(self.tables.get(&key).unwrap()).unwrap();
        change(&mut extent);
        self.put(&key, extent.encode());
    }

    /// Changes the first extent in *space* that has this state.
    fn space(&mut self, state: ExtentState, change: impl FnOnce(&mut u64, &mut SpaceRecord)) {
        let mut spaces = self.tables.table(TableKind::Space).iter();
        let (mut start, mut space) = spaces
            .find_map(|(key, value)| match (TableKey::decode(TableKind::Space, key), SpaceRecord::decode(value)) {
                (Ok(TableKey::Space(start)), Ok(space)) if space.state == state => Some((start, space)),
                _ => None,
            })
            .expect("there is one");
        self.delete(&TableKey::Space(start));
        change(&mut start, &mut space);
        self.put(&TableKey::Space(start), space.encode());
    }
}

/// Plants damage.
type Plant = fn(&mut SampleVolume);

fn grant(inode: u64, reserved_blocks: u64) -> Vec<u8> {
    GrantRecord { length: 1, inode, reserved_blocks, sequence: 1, generation: 0 }.encode()
}

/// For each kind of damage to names: its name, the function that plants it, and the message of `check`.
const NAMES: &[(&str, Plant, &str)] = &[
    ("wrong cookie", |v| v.name(1, "a", |_, cookie, _| *cookie ^= 1 << 20), "not that of its name"),
    ("wrong generation", |v| v.name(1, "a", |_, _, name| name.generation = 7), "generation 7"),
    ("wrong type", |v| v.name(1, "a", |_, _, name| name.kind = 1), "\"a\" is of type 1"),
    (
        "a name twice",
        |v| {
            let (cookie, name) = v.find(1, "a");
            v.put(&TableKey::Entry(1, cookie + 1), name.encode().unwrap());
            v.inode(1, |root| root.device += 1);
            let file = v.file;
            v.inode(file, |inode| inode.links += 1);
        },
        "\"a\" is there twice",
    ),
    ("a name in no directory", |v| v.name(1, "a", |directory, _, _| *directory = 99), "99 has names, and is not there"),
    (
        "a name in a file",
        |v| {
            let other = v.other;
            v.name(1, "a", |directory, _, _| *directory = other);
        },
        "has names, and is not a directory",
    ),
    (
        "a name in a removed directory",
        |v| {
            let below = v.below;
            v.inode(below, |inode| inode.links = 0);
        },
        "was removed, and has names",
    ),
    ("a name of nothing", |v| v.name(1, "a", |_, _, name| name.inode = 500), "names inode 500, which is not there"),
    (
        "a circle of directories",
        |v| {
            let (directory, below) = (v.directory, v.below);
            v.name(1, "d", |at, _, _| *at = below);
            v.inode(directory, |inode| inode.parent = below);
            v.inode(below, |inode| (inode.links, inode.device) = (3, 2));
            v.inode(1, |root| (root.links, root.device) = (root.links - 1, root.device - 1));
        },
        "is in a circle",
    ),
    (
        "a directory without a name",
        |v| {
            let (cookie, _) = v.find(1, "d");
            v.delete(&TableKey::Entry(1, cookie));
            v.inode(1, |root| (root.links, root.device) = (root.links - 1, root.device - 1));
        },
        "hangs nowhere",
    ),
    (
        "a second name of a directory",
        |v| {
            let (cookie, mut name) = v.find(1, "a");
            (name.inode, name.kind) = (v.below, 4);
            v.put(&TableKey::Entry(1, cookie), name.encode().unwrap());
        },
        "is a second name of directory",
    ),
    (
        "a name of the root",
        |v| {
            let (cookie, mut name) = v.find(1, "a");
            (name.inode, name.kind) = (1, 4);
            v.put(&TableKey::Entry(1, cookie), name.encode().unwrap());
        },
        "names the root",
    ),
    ("a wrong parent", |v| v.inode(v.below, |inode| inode.parent = 1), "its parent is"),
    ("a damaged name", |v| v.put(&TableKey::Entry(1, 5), vec![1; 9]), "directory 1, cookie 0x5: "),
    ("no root", |v| v.delete(&TableKey::Inode(1)), "there is no root directory"),
    ("a root that is a file", |v| v.inode(1, |root| root.mode = libc::S_IFREG), "the root, is not a directory"),
    ("wrong links", |v| v.inode(v.file, |inode| inode.links = 3), "3 links, 1 were counted"),
    ("wrong links of a directory", |v| v.inode(v.directory, |inode| inode.links = 2), "2 links, 3 were counted"),
    ("a wrong count of names", |v| v.inode(v.directory, |inode| inode.device = 9), "9 names, 1 were counted"),
    ("a damaged inode", |v| v.put(&TableKey::Inode(v.file), vec![0; 128]), "inodes: "),
    ("a directory with a size", |v| v.inode(v.directory, |inode| inode.size = 5), "its size is 5 bytes"),
    ("a link of another length", |v| v.inode(v.link, |inode| inode.size = 3), "a symbolic link of 3 bytes"),
    (
        "a short link in a block",
        |v| v.inode(v.link, |inode| (inode.blocks, inode.inline) = (1, Vec::new())),
        "has 0 in it, and 1 blocks",
    ),
    ("a pipe with a size", |v| v.inode(v.pipe, |inode| inode.size = 4096), "its size is 4096 bytes"),
];

const RECORDS: &[(&str, Plant, &str)] = &[
    ("no record of the volume", |v| v.delete(&TableKey::Volume), "the record of the volume is missing"),
    ("a damaged record of the volume", |v| v.put(&TableKey::Volume, vec![1; 80]), "the record of the volume: "),
    ("a low next_inode", |v| v.volume(|record| record.next_inode = 16), "next_inode is 16"),
    ("a wrong count of used blocks", |v| v.volume(|record| record.used_blocks = 5), "5 blocks are used, "),
    ("a low next_session", |v| v.volume(|record| record.next_session = 1), "next_session is 1"),
    (
        "an attribute of nothing",
        |v| v.put(&TableKey::Xattr(77, b"user.y".to_vec()), vec![0; 8]),
        "belongs to inode 77, which is not there",
    ),
    (
        "an attribute of another length",
        |v| v.put(&TableKey::Xattr(v.file, b"user.x".to_vec()), vec![9, 0, 0, 0, 0, 0, 0, 0, 1]),
        "is to have 9 bytes, and has 1",
    ),
    ("a list that is none", |v| v.list(v.file, "access", &[1, 4]), "is no access control list"),
    ("a list that is a mode", |v| v.list(v.file, "access", &[1, 4, 32]), "says no more than the mode"),
    (
        "a list of another mode",
        |v| v.list(v.file, "access", &[1, 4, 16, 32]),
        "agrees with mode 777, and the mode is 644",
    ),
    ("a list of a link", |v| v.list(v.link, "access", &[1, 4, 16, 32]), "is of a symbolic link"),
    ("a default list of a file", |v| v.list(v.file, "default", &[1, 4, 32]), "is of what is no directory"),
    ("a list of another kind", |v| v.list(v.directory, "other", &[1, 4, 32]), "is a list of no known kind"),
    ("a short attribute", |v| v.put(&TableKey::Xattr(v.file, b"user.x".to_vec()), vec![0; 3]), "\"user.x\" of inode"),
    (
        "an orphan of nothing",
        |v| v.put(&TableKey::Orphan(88), v.tables.get(&TableKey::Orphan(v.orphan)).unwrap().to_vec()),
        "orphans: inode 88 is not there",
    ),
    ("a damaged orphan", |v| v.put(&TableKey::Orphan(v.orphan), vec![0; 16]), "orphans: the record of inode"),
    (
        "an orphan of no known kind",
        |v| v.put(&TableKey::Orphan(v.orphan), [[0; 8], [4, 0, 0, 0, 0, 0, 0, 0]].concat()),
        "orphans: the record of inode",
    ),
    (
        "an orphan with a name",
        |v| v.put(&TableKey::Orphan(v.file), v.tables.get(&TableKey::Orphan(v.orphan)).unwrap().to_vec()),
        "1 links, and it is an orphan",
    ),
    (
        "a nameless inode that is no orphan",
        |v| v.delete(&TableKey::Orphan(v.orphan)),
        "0 links, and it is not an orphan",
    ),
    (
        "a reply of no session",
        |v| v.put(&TableKey::Reply(55, 1), ReplyRecord { status: 0, body: vec![0] }.encode().unwrap()),
        "replies: 1 belongs to session 55, which is not there",
    ),
    ("a damaged reply", |v| v.put(&TableKey::Reply(v.session, 1), vec![1]), "replies: 1 of session"),
    ("a grant of no session", |v| v.put(&TableKey::Grant(55, 1, 9), grant(0, 0)), "belongs to session 55"),
    (
        "a grant of no inode",
        |v| v.put(&TableKey::Grant(v.session, 2, 9), grant(99, 0)),
        "is of inode 99, which is not there",
    ),
    (
        "a damaged grant",
        |v| v.put(&TableKey::Grant(v.session, 1, 9), vec![0; 4]),
        "grants: kind 1 from 9 on of session",
    ),
    (
        "grants of too much",
        |v| (0..2).for_each(|at| v.put(&TableKey::Grant(v.session, 2, at), grant(v.file, 1 << 18))),
        "blocks in place, which is too much",
    ),
    (
        "a damaged session",
        |v| {
            let mut value = v.tables.get(&TableKey::Session(v.session)).unwrap().to_vec();
            value[16] = 9;
            v.put(&TableKey::Session(v.session), value);
        },
        "session 1: ",
    ),
    (
        "no session of what is granted",
        |v| v.delete(&TableKey::Session(v.session)),
        "is granted to session 1, which is not",
    ),
    ("a damaged project", |v| v.put(&TableKey::Project(1), vec![0; 3]), "projects: "),
    ("a damaged epoch", |v| v.put(&TableKey::Epoch(1), vec![0; 32]), "epochs: "),
    (
        "a wrong count of quarantined segments",
        |v| {
            let state = EpochState::Sealed;
            v.put(&TableKey::Epoch(1), EpochRecord { incarnation: [1; 16], state, segments: 3 }.encode());
        },
        "3 segments are quarantined under it, 0 were counted",
    ),
    ("a run among the tables", |v| v.put(&TableKey::Run(1), vec![0; 32]), "runs: "),
];

const SPACE: &[(&str, Plant, &str)] = &[
    (
        "an extent in a directory",
        |v| {
            let extent = ExtentRecord { block: 50_000, blocks: 1, is_unwritten: false, epoch: 0 };
            v.put(&TableKey::Extent(v.directory, 0), extent.encode());
            v.inode(v.directory, |inode| inode.blocks = 1);
            let data = SpaceRecord { blocks: 1, state: ExtentState::Data, owner: v.directory, since: 0 };
            v.put(&TableKey::Space(50_000), data.encode());
        },
        "has extents, and is no file",
    ),
    (
        "an extent of nothing",
        |v| v.put(&TableKey::Extent(66, 0), v.tables.get(&TableKey::Extent(v.other, 0)).unwrap().to_vec()),
        "inode 66 has extents, and is not there",
    ),
    ("a damaged extent", |v| v.put(&TableKey::Extent(v.file, 90), vec![0; 24]), "extents: "),
    ("extents that overlap in a file", |v| v.extent(v.file, 2, |extent| extent.blocks = 100), "is mapped twice"),
    (
        "extents that overlap on the disk",
        |v| {
            let block = ExtentRecord::decode(v.tables.get(&TableKey::Extent(v.other, 0)).unwrap()).unwrap().block;
            v.extent(v.file, 20, |extent| extent.block = block + 4);
        },
        "are in extents of inode",
    ),
    ("an extent in free space", |v| v.extent(v.other, 0, |extent| extent.block = 60_000), "which are free in space"),
    (
        "an extent in metadata",
        |v| v.extent(v.other, 0, |extent| extent.block = 2048),
        "which are metadata of epoch 1 in space",
    ),
    (
        "an extent that is another's",
        |v| v.space(ExtentState::Data, |_, space| space.owner = 1),
        "which are data of inode 1 in space",
    ),
    ("an extent beyond the disk", |v| v.extent(v.other, 0, |extent| extent.block = 65_530), "are outside of the disk"),
    (
        "an extent beyond the largest file",
        |v| v.put(&TableKey::Extent(v.file, 1 << 52), v.tables.get(&TableKey::Extent(v.file, 20)).unwrap().to_vec()),
        "are beyond the largest file",
    ),
    ("a wrong count of blocks", |v| v.inode(v.file, |inode| inode.blocks = 1), "it has 1 blocks, 16 were counted"),
    ("data that nobody maps", |v| v.delete(&TableKey::Extent(v.other, 0)), "which does not map them"),
    (
        "data of nothing",
        |v| v.space(ExtentState::Data, |_, space| space.owner = 900),
        "is data of inode 900, which is not there",
    ),
    ("a space used twice", |v| v.space(ExtentState::Granted, |start, _| *start -= 1), "is used twice"),
    ("a space before the start", |v| v.space(ExtentState::Granted, |start, _| *start = 3), "before the start of space"),
    ("a space beyond the disk", |v| v.space(ExtentState::Granted, |_, space| space.blocks = 1 << 40), "outside of the"),
    ("a damaged space", |v| v.put(&TableKey::Space(60_000), vec![0; 32]), "space: "),
    (
        "a part of a segment",
        |v| v.space(ExtentState::Metadata, |_, space| space.blocks = 5),
        "of metadata are not whole segments",
    ),
    (
        "space quarantined for nobody",
        |v| v.space(ExtentState::Draining, |_, space| (space.state, space.owner) = (ExtentState::Quarantined, 44)),
        "is granted to session 44, which is not there",
    ),
];

#[test]
fn planted_damage_is_reported() {
    assert_eq!(check(&SampleVolume::new().tables, &label()), Vec::<String>::new());
    let kinds = NAMES.iter().chain(RECORDS).chain(SPACE);
    let (mut planted, mut missed) = (0, Vec::new());
    for (kind, plant, words) in kinds {
        let mut volume = SampleVolume::new();
        plant(&mut volume);
        let problems = check(&volume.tables, &label());
        planted += 1;
        if !problems.iter().any(|problem| problem.contains(words)) {
            missed.push(format!("{kind}: \"{words}\" is not in {problems:?}"));
        }
    }
    println!("{} of {planted} kinds of damage are named", planted - missed.len());
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn damaged_volume_report_is_bounded() {
    let mut volume = SampleVolume::new();
    for number in 0..20_000 {
        volume.put(&TableKey::Xattr(1 << 40 | number, b"x".to_vec()), vec![1]);
    }
    let problems = check(&volume.tables, &label());
    assert_eq!(problems.len(), super::PROBLEMS_MAX + 1);
    assert!(problems.last().is_some_and(|last| last.contains("more problems")));
}
