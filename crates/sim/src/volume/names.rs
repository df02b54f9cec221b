//! Names, which the token of their directory protects. Lookups are cached, also those of absent names; changes are
//! operations of the server. A client that changes names keeps the other ones that it knows.

use nectary_volume::protocol::{FileId, What};
use nectary_volume::tokens::level;

use super::bugs::Bug;
use super::client::{Fail, Mount};
use super::file::{Guard, Kind};
use super::history::{Act, Key};
use super::hold::Access;
use super::network::Question;
use super::servers::image::{Answer, Operation};

/// The directory.
pub const DIRECTORY: FileId = FileId { inode: 100, generation: 1 };
/// The kind of token that protects the directory's names.
pub const PROTECTS: What = What::Directory;

impl Mount {
    fn directory(&self) -> usize {
        self.world.files
    }

    async fn names(&self, kind: Kind, level: u8) -> Result<Guard, Fail> {
        loop {
            self.admit(self.directory(), Access::Level(level)).await?;
            let guard = self.lock(self.directory(), kind).await;
            if self.holds(self.directory(), Access::Level(level)) {
                return Ok(guard);
            }
        }
    }

    async fn resolve(&self, name: u64) -> Result<u64, Fail> {
        let object = self.object(self.directory());
        let known = object.names.borrow().get(&name).copied();
        if let Some(inode) = known {
            self.world.coverage.met("a lookup from the cache");
            return Ok(inode);
        }
        let Answer::Named(inode, _) = self.ask(Question::Lookup(name)).await? else { return Err(Fail::Ended) };
        object.names.borrow_mut().insert(name, inode);
        Ok(inode)
    }

    /// Looks a name up.
    pub async fn look_up(&self, name: u64) -> Result<(), Fail> {
        let deed = self.begin();
        let guard = self.names(Kind::Read, level::READ).await?;
        let inode = self.resolve(name).await?;
        drop(guard);
        self.still_leased(Bug::ReadAfterLease)?;
        self.saw(Key::Name(name), Act::Read(inode), deed.invoked);
        Ok(())
    }

    /// Creates, removes or moves a name.
    pub async fn change_name(&self, name: u64, to: u64) -> Result<(), Fail> {
        let mut deed = self.begin();
        let _guard = self.names(Kind::Write, level::WRITE).await?;
        let object = self.object(self.directory());
        let found = self.resolve(name).await?;
        let operation = match found {
            0 => Operation::Create { name, inode: self.world.next_value() },
            _ if to == name => Operation::Unlink { name },
            _ => Operation::Rename { name, to },
        };
        let (after, moved) = match operation {
            Operation::Create { inode, .. } => (inode, None),
            Operation::Rename { .. } => (0, Some(found)),
            _ => (0, None),
        };
        self.did(&mut deed, Key::Name(name), Act::Swap(found, after));
        if let Some(inode) = moved {
            self.did(&mut deed, Key::Name(to), Act::Write(inode));
        }
        // Nothing is known of what is being changed.
        object.names.borrow_mut().retain(|known, _| *known != name && (moved.is_none() || *known != to));
        let Answer::Named(inode, _) = self.operate(operation).await? else { return Err(Fail::Ended) };
        if inode != found.max(after) {
            // The name had another inode than the client believed under its token.
            let id = deed.entries.remove(0);
            self.world.history.borrow_mut().settle(id, Act::Swap(inode, after));
        } else {
            object.names.borrow_mut().insert(name, after);
            moved.map(|inode| object.names.borrow_mut().insert(to, inode));
        }
        self.end(deed);
        Ok(())
    }
}
