//! Names, which the token of their directory protects. Lookups are cached, also those of absent names; changes are
//! operations of the server. A client that changes names keeps the other ones that it knows.

use nectary_volume::protocol::{FileId, TokenAspect};
use nectary_volume::tokens::level;

use super::bugs::VolumeModelBug;
use super::client::{ModelCallFailure, MountModel};
use super::file::{ObjectLockGuard, ObjectLockKind};
use super::history::{ValueAccess, ValueKey};
use super::hold::DataPermission;
use super::network::ModelQuestion;
use super::servers::image::{ModelAnswer, ModelOperation};

/// The directory.
pub const DIRECTORY: FileId = FileId { inode: 100, generation: 1 };
/// The kind of token that protects the directory's names.
pub const PROTECTS: TokenAspect = TokenAspect::Directory;

impl MountModel {
    fn directory(&self) -> usize {
        self.world.files
    }

    async fn names(&self, kind: ObjectLockKind, level: u8) -> Result<ObjectLockGuard, ModelCallFailure> {
        loop {
            self.admit(self.directory(), DataPermission::Level(level)).await?;
            let guard = self.lock(self.directory(), kind).await;
            if self.holds(self.directory(), DataPermission::Level(level)) {
                return Ok(guard);
            }
        }
    }

    async fn resolve(&self, name: u64) -> Result<u64, ModelCallFailure> {
        let object = self.object(self.directory());
        let known = object.names.borrow().get(&name).copied();
        if let Some(inode) = known {
            self.world.coverage.met("a lookup from the cache");
            return Ok(inode);
        }
        let ModelAnswer::Named(inode, _) = self.ask(ModelQuestion::Lookup(name)).await? else {
            return Err(ModelCallFailure::Ended);
        };
        object.names.borrow_mut().insert(name, inode);
        Ok(inode)
    }

    /// Looks a name up.
    pub async fn look_up(&self, name: u64) -> Result<(), ModelCallFailure> {
        let deed = self.begin();
        let guard = self.names(ObjectLockKind::Read, level::READ).await?;
        let inode = self.resolve(name).await?;
        drop(guard);
        self.still_leased(VolumeModelBug::ReadAfterLease)?;
        self.saw(ValueKey::Name(name), ValueAccess::Read(inode), deed.invoked);
        Ok(())
    }

    /// Creates, removes or moves a name.
    pub async fn change_name(&self, name: u64, to: u64) -> Result<(), ModelCallFailure> {
        let mut deed = self.begin();
        let _guard = self.names(ObjectLockKind::Write, level::WRITE).await?;
        let object = self.object(self.directory());
        let found = self.resolve(name).await?;
        let operation = match found {
            0 => ModelOperation::Create { name, inode: self.world.next_value() },
            _ if to == name => ModelOperation::Unlink { name },
            _ => ModelOperation::Rename { name, to },
        };
        let (after, moved) = match operation {
            ModelOperation::Create { inode, .. } => (inode, None),
            ModelOperation::Rename { .. } => (0, Some(found)),
            _ => (0, None),
        };
        self.did(&mut deed, ValueKey::Name(name), ValueAccess::Swap(found, after));
        if let Some(inode) = moved {
            self.did(&mut deed, ValueKey::Name(to), ValueAccess::Write(inode));
        }
        // Nothing is known of what is being changed.
        object.names.borrow_mut().retain(|known, _| *known != name && (moved.is_none() || *known != to));
        let ModelAnswer::Named(inode, _) = self.operate(operation).await? else { return Err(ModelCallFailure::Ended) };
        if inode != found.max(after) {
            // The name had another inode than the client believed under its token.
            let id = deed.entries.remove(0);
            self.world.history.borrow_mut().settle(id, ValueAccess::Swap(inode, after));
        } else {
            object.names.borrow_mut().insert(name, after);
            moved.map(|inode| object.names.borrow_mut().insert(to, inode));
        }
        self.end(deed);
        Ok(())
    }
}
