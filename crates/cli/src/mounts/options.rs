//! The options of `mount`, as after `-o`.
//!
//! Owns: their names. Leaves to others: options with values, which are those of the command (`helper`).

use nectary_attach::VolumeMountOptions;

use crate::exit::{CommandFailure, USAGE};

/// Options that mean something to `mount` and to the system's start, and nothing to a file system.
const FOR_OTHERS: [&str; 15] = [
    "defaults",
    "async",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "silent",
    "loud",
    "nomand",
    "noiversion",
    "nolazytime",
    "nosymfollow",
    "symfollow",
    "_rnetdev",
];
/// Options that let other users mount: they imply that nothing on the file system gives a user rights.
const FOR_USERS: [&str; 4] = ["user", "users", "owner", "group"];

/// Applies an option; returns whether it is known.
pub fn apply(allowed: &mut VolumeMountOptions, option: &str) -> bool {
    match option {
        "ro" => allowed.read_only = true,
        "rw" => allowed.read_only = false,
        "noatime" => allowed.no_access_times = true,
        "relatime" | "atime" => allowed.no_access_times = false,
        "nodev" => allowed.devices = false,
        "dev" => allowed.devices = true,
        "nosuid" => allowed.set_user_id = false,
        "suid" => allowed.set_user_id = true,
        "noexec" => allowed.no_programs = true,
        "exec" => allowed.no_programs = false,
        "dirsync" => allowed.sync_names = true,
        "localnames" => allowed.local_names = true,
        _ => return false,
    }
    true
}

/// Applies an option that is meant for `mount` itself or for the system's start; returns whether it is known.
pub fn apply_for_fstab(allowed: &mut VolumeMountOptions, option: &str) -> bool {
    if FOR_USERS.contains(&option) || FOR_USERS.iter().any(|name| option.strip_prefix(name).is_some_and(is_value)) {
        *allowed = VolumeMountOptions { devices: false, set_user_id: false, no_programs: true, ..*allowed };
        return true;
    }
    FOR_OTHERS.contains(&option) || ["x-", "X-", "comment="].iter().any(|start| option.starts_with(start))
}

fn is_value(rest: &str) -> bool {
    rest.starts_with('=')
}

/// Returns what a mount with these options allows; later options overrule earlier ones.
///
/// *Errors*: one of them is not known.
pub fn parse(options: &[String]) -> Result<VolumeMountOptions, CommandFailure> {
    let mut allowed = VolumeMountOptions::default();
    for option in options.iter().filter(|option| !option.is_empty()) {
        if !apply(&mut allowed, option) {
            let remedy = "known are ro, rw, noatime, relatime, nodev, dev, nosuid, suid, noexec, exec, dirsync, \
                          localnames";
            return Err(CommandFailure::new(USAGE, format!("-o {option}: there is no such option"), remedy));
        }
    }
    Ok(allowed)
}

/// Returns these options as words, so that [`parse`] returns the same.
pub fn words(allowed: VolumeMountOptions) -> String {
    let words = [
        if allowed.read_only { "ro" } else { "rw" },
        if allowed.no_access_times { "noatime" } else { "relatime" },
        if allowed.devices { "dev" } else { "nodev" },
        if allowed.set_user_id { "suid" } else { "nosuid" },
        if allowed.no_programs { "noexec" } else { "exec" },
    ];
    let dirsync = if allowed.sync_names { ",dirsync" } else { "" };
    let local = if allowed.local_names { ",localnames" } else { "" };
    words.join(",") + dirsync + local
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> VolumeMountOptions {
        let words: Vec<String> = text.split(',').map(str::to_owned).collect();
        parse(&words).expect("they are known")
    }

    #[test]
    fn later_options_overrule_earlier_ones() {
        assert_eq!(parsed("ro,dev,rw,nodev"), VolumeMountOptions::default());
        let all = parsed("ro,noatime,suid,dev,noexec,dirsync,localnames");
        let VolumeMountOptions {
            read_only,
            no_access_times,
            no_programs,
            set_user_id,
            devices,
            sync_names,
            local_names,
        } = all;
        assert!(read_only && no_access_times && no_programs && set_user_id && devices && sync_names && local_names);
        for allowed in [all, parsed("relatime,exec"), parsed("suid")] {
            assert_eq!(parsed(&words(allowed)), allowed);
        }
    }

    #[test]
    fn an_unknown_option_is_named() {
        for option in ["sync", "data=ordered", "nofail", "_netdev", "ro=1"] {
            let failure = parse(&["rw".to_owned(), option.to_owned()]).expect_err("it is not known");
            assert!(failure.code() == USAGE && failure.message().contains(option), "{}", failure.message());
        }
    }

    /// Options that only `fstab` uses are accepted.
    #[test]
    fn fstab_options_grant_no_rights() {
        let mut allowed = parsed("suid,dev");
        for option in ["defaults", "_netdev", "nofail", "noauto", "x-systemd.requires=a", "X-mount.mkdir", "comment=b"]
        {
            assert!(apply_for_fstab(&mut allowed, option), "{option}");
        }
        assert_eq!(allowed, parsed("suid,dev"));
        assert!(apply_for_fstab(&mut allowed, "user") && apply_for_fstab(&mut allowed, "user=anna"));
        assert_eq!(allowed, parsed("noexec"));
        assert!(!apply_for_fstab(&mut allowed, "server=h1") && !apply_for_fstab(&mut allowed, "usergroup"));
    }
}
