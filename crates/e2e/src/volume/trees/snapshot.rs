//! What a tree of files shows: every entry below a root, with its attributes, its link and its bytes.
//!
//! Owns: reading a tree, comparing two, and building one. Promises: names of one inode are told from equal files. The
//! sizes of directories are left out, and all times but those of changes that calls have set.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::calls::{ModifiedTime, XATTR, attribute, c_path, shown, status};

/// What an entry has beside its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryContent {
    /// The bytes of a file.
    Bytes(Arc<Vec<u8>>),
    /// The target of a symbolic link.
    Target(PathBuf),
    /// Nothing: a directory, a pipe or a socket.
    Nothing,
}

/// An entry.
#[derive(Debug, Clone)]
pub struct TreeEntry {
    /// The number of the inode, which means something only within its file system.
    pub inode: u64,
    mode: u32,
    links: u64,
    owner: [u32; 2],
    /// Its extended attribute, or the errno of reading it.
    attribute: std::result::Result<Vec<u8>, i32>,
    /// The time of the last change of its contents.
    pub modified: ModifiedTime,
    /// What it has beside these.
    pub content: EntryContent,
}

impl TreeEntry {
    /// Describes everything but the bytes of a file and their time; `first` is the first name of its inode.
    fn words(&self, first: &Path) -> String {
        let attribute = match &self.attribute {
            Ok(value) => format!("an attribute of {} bytes, {:x}", value.len(), xxhash_rust::xxh3::xxh3_64(value)),
            Err(errno) => format!("attribute: {}", io::Error::from_raw_os_error(*errno)),
        };
        let content = match &self.content {
            EntryContent::Bytes(_) => String::new(),
            EntryContent::Target(target) => format!(", to {}, {}", target.display(), self.modified),
            EntryContent::Nothing => format!(", {}", self.modified),
        };
        let TreeEntry { mode, links, owner: [user, group], .. } = self;
        format!("mode {mode:o}, {links} links, first {}, {user}:{group}, {attribute}{content}", first.display())
    }

    /// The bytes of a file.
    pub fn bytes(&self) -> Option<&Arc<Vec<u8>>> {
        match &self.content {
            EntryContent::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A tree as it was once.
#[derive(Debug, Clone, Default)]
pub struct TreeSnapshot {
    /// The entries, by their paths below the root.
    pub entries: BTreeMap<PathBuf, TreeEntry>,
}

impl TreeSnapshot {
    /// Returns the first name of each inode.
    fn first_names(&self) -> HashMap<u64, &Path> {
        let mut names = HashMap::new();
        for (path, entry) in &self.entries {
            names.entry(entry.inode).or_insert(path.as_path());
        }
        names
    }

    /// Describes every entry, without the bytes of files.
    fn words(&self) -> BTreeMap<&Path, String> {
        let names = self.first_names();
        self.entries.iter().map(|(path, entry)| (path.as_path(), entry.words(names[&entry.inode]))).collect()
    }

    /// Returns the first difference in names and attributes; the bytes of files are not compared, nor the times of their
    /// changes.
    pub fn names_differ(&self, expected: &TreeSnapshot) -> Option<String> {
        let (found, expected) = (self.words(), expected.words());
        let absent = "absent".to_owned();
        let paths: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
        paths.into_iter().find_map(|path| {
            let (found, expected) = (found.get(path).unwrap_or(&absent), expected.get(path).unwrap_or(&absent));
            let shown = path.display();
            (found != expected).then(|| format!("{shown}: {found} on the volume, {expected} beside it"))
        })
    }

    /// Returns the first difference.
    pub fn differs(&self, expected: &TreeSnapshot) -> Option<String> {
        let bytes = || {
            self.entries.iter().find_map(|(path, entry)| {
                let (found, expected) = (entry.bytes()?, expected.entries.get(path)?.bytes()?);
                let at = found.iter().zip(expected.iter()).position(|(found, expected)| found != expected);
                (found != expected).then(|| {
                    format!(
                        "{}: {} bytes on the volume, {} beside it, the first difference is at {at:?}",
                        path.display(),
                        found.len(),
                        expected.len()
                    )
                })
            })
        };
        let times = || {
            self.entries.iter().find_map(|(path, entry)| {
                let (found, expected) = (entry.modified, expected.entries.get(path)?.modified);
                let shown = path.display();
                (found != expected).then(|| format!("{shown}: {found} on the volume, {expected} beside it"))
            })
        };
        self.names_differ(expected).or_else(bytes).or_else(times)
    }

    /// Makes this tree in an empty directory.
    pub fn build(&self, root: &Path) -> Result<()> {
        let names = self.first_names();
        for (path, entry) in &self.entries {
            let (place, first) = (root.join(path), names[&entry.inode]);
            if first != path {
                fs::hard_link(root.join(first), &place)?;
                continue;
            }
            match &entry.content {
                EntryContent::Bytes(bytes) => fs::write(&place, bytes.as_slice())?,
                EntryContent::Target(target) => symlink(target, &place)?,
                EntryContent::Nothing if entry.mode & libc::S_IFMT == libc::S_IFDIR => fs::create_dir(&place)?,
                EntryContent::Nothing => {
                    let path = c_path(&place)?;
                    // SAFETY: a plain system call; the path outlives it.
                    status(unsafe { libc::mknod(path.as_ptr(), entry.mode, 0) })?;
                }
            }
        }
        for (path, entry) in &self.entries {
            entry.give(&root.join(path)).with_context(|| format!("attributes of {}", path.display()))?;
        }
        Ok(())
    }
}

impl TreeEntry {
    /// Gives an entry its owner, mode, extended attribute and time.
    fn give(&self, place: &Path) -> Result<()> {
        let [user, group] = self.owner;
        std::os::unix::fs::lchown(place, Some(user), Some(group))?;
        if !matches!(self.content, EntryContent::Target(_)) {
            fs::set_permissions(place, Permissions::from_mode(self.mode & 0o7777))?;
        }
        if let Ok(value) = &self.attribute {
            let path: CString = c_path(place)?;
            // SAFETY: the names and the value live across the call, and the length is that of the value.
            let given =
                unsafe { libc::lsetxattr(path.as_ptr(), XATTR.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
            status(given)?;
        }
        Ok(self.modified.set(place)?)
    }
}

/// An inode, and its bytes.
type KeptBytes = (File, Option<Arc<Vec<u8>>>);

/// Reads trees.
#[derive(Debug, Default)]
pub struct TreeReader {
    /// If it keeps bytes: the bytes of each inode, and the inode, so that its number is not used again.
    kept: Option<HashMap<u64, KeptBytes>>,
}

impl TreeReader {
    /// A reader that reads the bytes of a file only once. They must be [forgotten](TreeReader::forget) when they change.
    pub fn keeping() -> TreeReader {
        TreeReader { kept: Some(HashMap::new()) }
    }

    /// The bytes of an inode are read again.
    pub fn forget(&mut self, inode: u64) {
        if let Some((_, bytes)) = self.kept.as_mut().and_then(|kept| kept.get_mut(&inode)) {
            *bytes = None;
        }
    }

    /// Reads everything below a root. *Errors*: a call failed, or a file's size is not the number of its bytes.
    pub fn read(&mut self, root: &Path) -> Result<TreeSnapshot> {
        let (mut found, mut folders) = (TreeSnapshot::default(), vec![root.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
                let path = entry?.path();
                let entry = self.entry(&path).with_context(|| path.display().to_string())?;
                if entry.mode & libc::S_IFMT == libc::S_IFDIR {
                    folders.push(path.clone());
                }
                found.entries.insert(path.strip_prefix(root)?.to_owned(), entry);
            }
        }
        Ok(found)
    }

    fn entry(&mut self, path: &Path) -> Result<TreeEntry> {
        let stat = shown(&c_path(path)?)?;
        let content = match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                let bytes = self.bytes(path, stat.st_ino)?;
                ensure!(bytes.len() as i64 == stat.st_size, "{} bytes are read of {}", bytes.len(), stat.st_size);
                EntryContent::Bytes(bytes)
            }
            libc::S_IFLNK => EntryContent::Target(fs::read_link(path)?),
            _ => EntryContent::Nothing,
        };
        Ok(TreeEntry {
            inode: stat.st_ino,
            mode: stat.st_mode,
            links: stat.st_nlink,
            owner: [stat.st_uid, stat.st_gid],
            attribute: attribute(path).map_err(|error| error.raw_os_error().unwrap_or(-1)),
            modified: ModifiedTime::of(&stat),
            content,
        })
    }

    fn bytes(&mut self, path: &Path, inode: u64) -> Result<Arc<Vec<u8>>> {
        let read = || -> io::Result<Arc<Vec<u8>>> {
            let mut bytes = Vec::new();
            File::open(path)?.read_to_end(&mut bytes)?;
            Ok(Arc::new(bytes))
        };
        let Some(kept) = &mut self.kept else { return Ok(read()?) };
        if let Some((_, Some(bytes))) = kept.get(&inode) {
            return Ok(bytes.clone());
        }
        let bytes = read()?;
        let held = File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)?;
        kept.insert(inode, (held, Some(bytes.clone())));
        Ok(bytes)
    }
}
