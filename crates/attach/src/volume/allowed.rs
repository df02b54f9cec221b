//! What a mount of a volume allows.
//!
//! Owns: the options, and their form for the kernel. Leaves to the kernel: refusing what is not allowed.

use nectary_fuse::MountOptions;

/// What a mount of a volume allows, as the options of `mount` say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeMountOptions {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Reading does not change times of access.
    pub no_access_times: bool,
    /// Programs on the volume cannot be run.
    pub no_programs: bool,
    /// Set-user-ID and set-group-ID bits of programs take effect.
    pub set_user_id: bool,
    /// Device nodes can be opened.
    pub devices: bool,
    /// Changes of names are durable when a call returns.
    pub sync_names: bool,
    /// The mount makes and removes names itself in directories that it alone uses.
    pub local_names: bool,
}

impl VolumeMountOptions {
    /// Returns the options of the kernel's mount.
    pub(super) fn of_kernel(self, source: String, subtype: &str) -> MountOptions {
        MountOptions {
            source,
            subtype: subtype.to_owned(),
            root_mode: libc::S_IFDIR | 0o755,
            for_all: true,
            default_permissions: true,
            read_only: self.read_only,
            programs: !self.no_programs,
            set_user_id: self.set_user_id,
            devices: self.devices,
            no_access_times: self.no_access_times,
        }
    }
}
