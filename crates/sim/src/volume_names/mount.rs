//! A mount: system calls on names and attributes, as the kernel and the mount's process carry them out together.
//!
//! Owns: the order in which the kernel locks, asks and applies, and what the mount's process gives it
//! (`nectary-attach` does the same). Leaves to others: the kernel's state (`kernel`), the session (`nectary-volume`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nectary_block::Buffer;
use nectary_volume::client::{EarlierName, Error, NewInode, OpenAccess, OpenFile, VolumeClient, WritePosition};
use nectary_volume::protocol::{AttributeChanges, FileId, InodeAttributes};
use tokio::time::{Instant, sleep_until};

use super::bugs::{VolumeNamesBug, is_planted};
use super::kernel::{ABSENT, KernelModel, OwnChange};

/// A wrong time, by a planted bug.
const WRONG: Duration = Duration::from_secs(1);
/// More names than a directory has.
const ENTRIES: u32 = 1000;

/// Why a call failed.
#[derive(Debug)]
pub enum SystemCallFailure {
    /// It is refused, with this error.
    Refused(i32),
    /// The session is over, and the call may have been done or not.
    Over,
    /// The session was over before the call, or what it showed is not sure.
    Void,
    /// Nothing of this kind may happen.
    Wrong(String),
}

type Result<T> = std::result::Result<T, SystemCallFailure>;

impl From<Error> for SystemCallFailure {
    fn from(error: Error) -> SystemCallFailure {
        match error.errno() {
            _ if error.is_end_before() => SystemCallFailure::Void,
            _ if error.is_end() => SystemCallFailure::Over,
            errno @ (libc::ENOENT
            | libc::EEXIST
            | libc::ENOTEMPTY
            | libc::EINVAL
            | libc::ESTALE
            | libc::ENOTDIR
            | libc::EISDIR
            | libc::EPERM) => SystemCallFailure::Refused(errno),
            _ => SystemCallFailure::Wrong(error.to_string()),
        }
    }
}

fn is_directory(found: &InodeAttributes) -> bool {
    found.inode.mode & libc::S_IFMT == libc::S_IFDIR
}

/// A mount, with its present session.
pub struct SimulatedMount {
    pub kernel: Arc<KernelModel>,
    client: Mutex<(VolumeClient, usize)>,
    /// Until when programs make no calls.
    rest_until: Mutex<Option<Instant>>,
}

/// A file that a program has open, in the session with this number. A call on it is one of that session, also after its
/// end.
pub struct OpenHandle {
    pub file: OpenFile,
    pub session: usize,
}

/// A part of a listing: its names, with the last one's cookie, and whether they are the last.
pub type Part = (Vec<(Vec<u8>, InodeAttributes)>, u64, bool);

impl SimulatedMount {
    /// Makes a mount whose session has this number in the history.
    pub fn new(kernel: Arc<KernelModel>, client: VolumeClient, session: usize) -> SimulatedMount {
        SimulatedMount { kernel, client: Mutex::new((client, session)), rest_until: Mutex::default() }
    }

    /// Returns the present session, and its number in the history.
    pub fn session(&self) -> (VolumeClient, usize) {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins another session.
    pub fn set_session(&self, client: VolumeClient, session: usize) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = (client, session);
    }

    /// Lets programs begin no calls for some time.
    pub fn rest(&self, time: Duration) {
        *self.rest_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    /// Waits until programs may begin calls.
    pub async fn rested(&self) {
        let until = *self.rest_until.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    /// Returns the calls of the present session.
    pub fn calls(&self) -> SystemCalls<'_> {
        let (client, session) = self.session();
        SystemCalls { mount: self, kernel: &self.kernel, client, session, thread: self.kernel.new_thread() }
    }
}

/// System calls; those that the session cannot answer are none of the next session.
pub struct SystemCalls<'a> {
    mount: &'a SimulatedMount,
    kernel: &'a Arc<KernelModel>,
    client: VolumeClient,
    session: usize,
    thread: u32,
}

/// Makes a call that uses names. The kernel makes it once more if that says that the names are old, and then looks all of
/// them up by requests.
async fn retried<T, F: Future<Output = Result<T>>>(call: impl Fn(bool) -> F) -> Result<T> {
    match call(false).await {
        Err(SystemCallFailure::Refused(libc::ESTALE)) => call(true).await,
        made => made,
    }
}

impl SystemCalls<'_> {
    /// Returns the client of the newest session.
    fn last(&self) -> VolumeClient {
        self.mount.session().0
    }

    /// Looks a name up.
    pub async fn look(&self, directory: FileId, name: &[u8]) -> Result<Option<InodeAttributes>> {
        retried(|is_again| self.look_once(directory, name, is_again)).await
    }

    async fn look_once(&self, directory: FileId, name: &[u8], is_again: bool) -> Result<Option<InodeAttributes>> {
        if let Some(shown) = self.kernel.shown_name(directory, name).filter(|_| !is_again) {
            return self.kernel.is_name_sure(directory, name).then_some(Some(shown)).ok_or(SystemCallFailure::Void);
        }
        if self.kernel.is_shown_absent(directory, name) {
            return Ok(None);
        }
        if let Some(identity) = self.kernel.identity(directory, name) {
            let found = self.ask(directory, name, Some(identity)).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let lock = self.kernel.lock_of(directory);
        let _shared = lock.read().await;
        self.look_locked(directory, name, is_again).await
    }

    /// Looks a name up under the lock of its directory.
    async fn look_locked(&self, directory: FileId, name: &[u8], is_again: bool) -> Result<Option<InodeAttributes>> {
        match self.kernel.shown_name(directory, name).filter(|_| !is_again) {
            Some(shown) => Ok(Some(shown)),
            None => self.ask(directory, name, None).await,
        }
    }

    /// Asks the mount's process for a name. With an identity the kernel has the name, and holds no lock.
    async fn ask(&self, directory: FileId, name: &[u8], identity: Option<u64>) -> Result<Option<InodeAttributes>> {
        let (kernel, version) = (self.kernel, self.kernel.version());
        kernel.pause().await;
        let found = match self.client.look_up(directory, name).await {
            Ok(found) => found,
            Err(error) if error.errno() == libc::ENOENT && !error.is_end() => {
                kernel.given().note_looked(self.thread, directory, name, None);
                kernel.pause().await;
                if identity.is_some() {
                    kernel.revalidated(identity, None);
                } else if is_planted(VolumeNamesBug::AbsentGiven) {
                    kernel.add_name(directory, name, ABSENT, (false, WRONG));
                }
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        if self.is_moved(&found, directory, name).await? {
            kernel.given().note_stale(self.thread, directory, name, found.id());
            kernel.pause().await;
            kernel.revalidated(identity, None);
            return if identity.is_some() { Ok(None) } else { Err(SystemCallFailure::Refused(libc::ESTALE)) };
        }
        kernel.given().note_looked(self.thread, directory, name, Some(found.id()));
        let is_settled = kernel.is_settled(found.id(), is_directory(&found), (directory, name));
        let (shown, valid) = kernel.given().give(&self.last(), &found, true);
        let valid = if is_settled { valid } else { Duration::ZERO };
        let name_valid = match valid.is_zero() {
            true => Duration::ZERO,
            false => kernel.given().give_name(&self.last(), directory, name, found.id()),
        };
        kernel.answer(shown.id());
        kernel.pause().await;
        kernel.arrived(&shown, valid, Some(version));
        if identity.is_some() {
            let is_same = kernel.revalidated(identity, Some((shown.id(), name_valid)));
            return Ok(is_same.then_some(shown));
        }
        kernel.add_name(directory, name, shown.id(), (is_directory(&shown), name_valid));
        Ok(Some(shown))
    }

    /// Whether a name was found for an inode that the call may know by a name which it has no more.
    async fn is_moved(&self, found: &InodeAttributes, directory: FileId, name: &[u8]) -> Result<bool> {
        let earlier = self.kernel.given().earlier_name(self.thread, found, (directory, name));
        let names = match earlier {
            None => return Ok(false),
            Some(EarlierName::Gone) => return Ok(true),
            Some(EarlierName::Perhaps(names)) => names,
        };
        for (of, earlier) in names {
            match self.client.look_up(of, &earlier).await {
                Ok(other) if other.id() == found.id() => {}
                Err(error)
                    if error.is_end() || !matches!(error.errno(), libc::ENOENT | libc::ESTALE | libc::ENOTDIR) =>
                {
                    return Err(error.into());
                }
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Returns the attributes of a file.
    pub async fn stat(&self, file: FileId) -> Result<InodeAttributes> {
        if let Some(shown) = self.kernel.shown(file) {
            return self.kernel.is_sure(file).then_some(shown).ok_or(SystemCallFailure::Void);
        }
        let (kernel, version) = (self.kernel, self.kernel.version());
        kernel.pause().await;
        let found = self.client.attributes(file).await?;
        let (shown, valid) = kernel.given().give(&self.last(), &found, true);
        kernel.answer(shown.id());
        kernel.pause().await;
        kernel.arrived(&shown, valid, Some(version));
        Ok(shown)
    }

    /// Makes the kernel ignore attributes that it requested before an own change: to be done before that is answered.
    async fn changed(&self, files: &[FileId]) {
        for file in files {
            self.kernel.forget_attributes(*file).await;
        }
    }

    /// Applies the answer to a change, with attributes that are shown for no time.
    async fn answered(&self, found: &InodeAttributes, valid: Duration) {
        self.kernel.answer(found.id());
        self.kernel.pause().await;
        self.kernel.arrived(found, valid, None);
    }

    /// Makes a file or a directory, and opens it if it is to be open.
    pub async fn make(
        &self,
        directory: FileId,
        name: &[u8],
        new: NewInode,
        is_open: bool,
    ) -> Result<(InodeAttributes, Option<OpenHandle>)> {
        retried(|is_again| self.make_once(directory, name, (new.clone(), is_open), is_again)).await
    }

    async fn make_once(
        &self,
        directory: FileId,
        name: &[u8],
        (new, is_open): (NewInode, bool),
        is_again: bool,
    ) -> Result<(InodeAttributes, Option<OpenHandle>)> {
        let lock = self.kernel.lock_of(directory);
        let _alone = lock.write().await;
        let is_of_directory = new.mode & libc::S_IFMT == libc::S_IFDIR;
        let there = match is_open {
            true => self.kernel.shown_name(directory, name).filter(|_| !is_again),
            false => self.look_locked(directory, name, is_again).await?,
        };
        if there.is_some() {
            return Err(SystemCallFailure::Refused(libc::EEXIST));
        }
        self.kernel.given().note_own_change(directory);
        let client = &self.client;
        let _own = OwnChange::begin(self.kernel, &[(directory, name)], &[directory], false);
        let (made, open) = match is_open {
            true => {
                let (made, open) = client.create_open(directory, name, new).await?;
                (made, Some(OpenHandle { file: open, session: self.session }))
            }
            false => (client.create(directory, name, new).await?, None),
        };
        self.changed(&[directory]).await;
        let valid = if is_planted(VolumeNamesBug::LateCreate) { WRONG } else { Duration::ZERO };
        self.answered(&made, valid).await;
        self.kernel.is_settled(made.id(), is_of_directory, (directory, name));
        self.kernel.add_name(directory, name, made.id(), (is_of_directory, Duration::ZERO));
        self.kernel.mark(directory);
        Ok((made, open))
    }

    /// Removes a name.
    pub async fn unlink(&self, directory: FileId, name: &[u8], is_of_directory: bool) -> Result<()> {
        retried(|is_again| self.unlink_once(directory, name, is_of_directory, is_again)).await
    }

    async fn unlink_once(&self, directory: FileId, name: &[u8], is_of_directory: bool, is_again: bool) -> Result<()> {
        let lock = self.kernel.lock_of(directory);
        let _alone = lock.write().await;
        let there = self.look_locked(directory, name, is_again).await?;
        let there = there.ok_or(SystemCallFailure::Refused(libc::ENOENT))?.id();
        self.kernel.given().note_own_change(directory);
        let _own = OwnChange::begin(self.kernel, &[(directory, name)], &[directory, there], true);
        let removed = self.client.unlink(directory, name, is_of_directory).await?;
        self.changed(&[directory, removed.id()]).await;
        self.kernel.pause().await;
        self.kernel.drop_name(directory, name);
        self.kernel.mark(directory);
        self.kernel.invalidate(there);
        Ok(())
    }

    /// Adds a name to a file.
    pub async fn link(&self, file: FileId, directory: FileId, name: &[u8]) -> Result<()> {
        retried(|is_again| self.link_once(file, directory, name, is_again)).await
    }

    async fn link_once(&self, file: FileId, directory: FileId, name: &[u8], is_again: bool) -> Result<()> {
        let lock = self.kernel.lock_of(directory);
        let _alone = lock.write().await;
        if self.look_locked(directory, name, is_again).await?.is_some() {
            return Err(SystemCallFailure::Refused(libc::EEXIST));
        }
        self.kernel.given().note_own_change(directory);
        let _own = OwnChange::begin(self.kernel, &[(directory, name)], &[directory, file], false);
        let linked = self.client.link(file, directory, name).await?;
        self.changed(&[directory, file]).await;
        self.answered(&linked, Duration::ZERO).await;
        self.kernel.add_name(directory, name, file, (false, Duration::ZERO));
        self.kernel.mark(directory);
        Ok(())
    }

    /// Renames a file.
    pub async fn rename(&self, from: (FileId, &[u8]), to: (FileId, &[u8]), flags: u32) -> Result<()> {
        retried(|is_again| self.rename_once(from, to, flags, is_again)).await
    }

    async fn rename_once(&self, from: (FileId, &[u8]), to: (FileId, &[u8]), flags: u32, is_again: bool) -> Result<()> {
        let (first, second) = (self.kernel.lock_of(from.0.min(to.0)), self.kernel.lock_of(from.0.max(to.0)));
        let _alone = first.write().await;
        let _both = if from.0 == to.0 { None } else { Some(second.write().await) };
        let is_exchange = flags & libc::RENAME_EXCHANGE != 0;
        let moved = self.look_locked(from.0, from.1, is_again).await?;
        let moved = moved.ok_or(SystemCallFailure::Refused(libc::ENOENT))?.id();
        // The kernel shows no name that a rename replaces.
        let there = self.look_locked(to.0, to.1, true).await?;
        match &there {
            // The kernel cannot move what it knows of a directory while it renames between two others.
            Some(there) if there.id() == moved && from.0 != to.0 && is_directory(there) => {
                return Err(SystemCallFailure::Refused(libc::ESTALE));
            }
            None if is_exchange => return Err(SystemCallFailure::Refused(libc::ENOENT)),
            Some(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(SystemCallFailure::Refused(libc::EEXIST)),
            Some(there) if there.id() == moved => return Ok(()),
            _ => {}
        }
        self.kernel.taken().await;
        let client = &self.client;
        self.kernel.given().note_own_change(from.0);
        self.kernel.given().note_own_change(to.0);
        let _own = OwnChange::begin(self.kernel, &[from, to], &[from.0, to.0, moved], true);
        let ways: &[_] = if is_exchange { &[(from, to), (to, from)] } else { &[(from, to)] };
        for (from, to) in ways {
            let pause = self.kernel.given().begin_rename(&self.last(), *from, *to);
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
        }
        let renamed = client.rename_inodes(from, to, flags).await;
        for (from, to) in ways {
            let pause = self.kernel.given().end_rename(&self.last(), *from, *to);
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
        }
        self.changed(&[from.0, to.0]).await;
        match is_planted(VolumeNamesBug::ReplacedShown) {
            true => self.changed(&[moved]).await,
            // Another host may have given the names to other inodes than the kernel knows.
            false => self.changed(renamed.as_deref().unwrap_or_default()).await,
        }
        renamed?;
        self.kernel.pause().await;
        self.kernel.move_name(from, to, is_exchange);
        [from.0, to.0, moved].into_iter().for_each(|file| self.kernel.mark(file));
        // The kernel knows that what it had under the new name has lost it.
        there.into_iter().for_each(|there| _ = self.kernel.invalidate(there.id()));
        Ok(())
    }

    /// Sets the mode of a file, or truncates it.
    pub async fn set(&self, file: FileId, changes: AttributeChanges) -> Result<()> {
        self.kernel.pause().await;
        let _own = OwnChange::begin(self.kernel, &[], &[file], false);
        let set = self.client.set_attributes(file, changes).await?;
        let valid = if is_planted(VolumeNamesBug::LateSet) { WRONG } else { Duration::ZERO };
        self.answered(&set, valid).await;
        Ok(())
    }

    /// Lists names behind a cookie, all of them or two.
    pub async fn list(&self, directory: FileId, cookie: u64, is_whole: bool) -> Result<Part> {
        let version = self.kernel.version();
        self.kernel.pause().await;
        let (names, is_end) = self.client.list(directory, cookie, if is_whole { ENTRIES } else { 2 }).await?;
        let last = names.last().map_or(cookie, |last| last.cookie);
        names.iter().for_each(|listed| self.kernel.answer(listed.attributes.id()));
        self.kernel.pause().await;
        let valid = if is_planted(VolumeNamesBug::LateListing) { WRONG } else { Duration::ZERO };
        for listed in &names {
            self.kernel.arrived(&listed.attributes, Duration::ZERO, Some(version));
            if !valid.is_zero() {
                let of = (is_directory(&listed.attributes), valid);
                self.kernel.add_name(directory, &listed.name, listed.attributes.id(), of);
            }
        }
        Ok((names.into_iter().map(|listed| (listed.name, listed.attributes)).collect(), last, is_end))
    }

    /// Opens a file.
    pub async fn open(&self, file: FileId, opening: OpenAccess) -> Result<OpenHandle> {
        Ok(OpenHandle { file: self.client.open(file, opening, false).await?, session: self.session })
    }

    /// Reads what was written last.
    pub async fn read(&self, open: &OpenHandle) -> Result<u64> {
        let bytes = open.file.read(0, 8).await?.to_vec();
        match bytes.try_into() {
            Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
            Err(bytes) if bytes.is_empty() => Ok(0),
            Err(bytes) => Err(SystemCallFailure::Wrong(format!("a read has {} bytes", bytes.len()))),
        }
    }

    /// Writes.
    pub async fn write(&self, open: &OpenHandle, value: u64) -> Result<()> {
        let (file, data) = (open.file.id(), vec![Buffer::copy_of(&value.to_le_bytes())]);
        let _own = OwnChange::begin(self.kernel, &[], &[file], false);
        open.file.write(WritePosition::Offset(0), data).await?;
        self.changed(&[file]).await;
        Ok(())
    }
}
