//! The helpers of mount(8) and umount(8): this program under the name `mount.nectary` or `umount.nectary`.
//!
//! Owns: their command lines, `mount.TYPE SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]` and `umount.TYPE DIR
//! [-flnrv] [-N NAMESPACE] [-t TYPE]`, and their exit codes, which are those of mount(8). An option with a value is that
//! option of `volume mount`. Promises: when `mount.nectary` returns 0, the volume is mounted, and a process in the
//! background serves it; when `umount.nectary` returns 0, everything is committed. Leaves to others: mounting (`volume`).

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use nectary_attach::{VolumeMountOptions, remount_volume};

use super::{BackgroundStart, options, start};
use crate::arguments::{NectaryArguments, VolumeUmountArguments};
use crate::exit::{CommandFailure, FAILED, GOOD, USAGE};
use crate::volume;

/// The types of file systems with which `mount -t` finds this program; the second one is that of mounted volumes, for
/// which `umount` looks.
const TYPES: [&str; 2] = ["nectary", "fuse.nectary-volume"];
/// The exit codes of mount(8): the command line is wrong, something else failed, and the mount failed.
const MOUNT_USAGE: u8 = 1;
const MOUNT_SYSTEM: u8 = 2;
const MOUNT_FAILED: u8 = 32;

/// What is allowed if no option says otherwise: mount(8) passes on `nodev`, but not `dev`.
const BY_DEFAULT: VolumeMountOptions = VolumeMountOptions {
    read_only: false,
    no_access_times: false,
    sync_names: false,
    local_names: false,
    no_programs: false,
    set_user_id: true,
    devices: true,
};

/// The helpers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountHelper {
    /// `mount.nectary`
    Mount,
    /// `umount.nectary`
    Umount,
}

impl MountHelper {
    /// Returns the helper that a program of this name is.
    pub fn of(name: &OsStr) -> Option<MountHelper> {
        let (verb, kind) = Path::new(name).file_name()?.to_str()?.split_once('.')?;
        match verb {
            _ if !TYPES.contains(&kind) => None,
            "mount" => Some(MountHelper::Mount),
            "umount" => Some(MountHelper::Umount),
            _ => None,
        }
    }

    /// Runs the helper with these words, and returns its exit code.
    pub fn run(self, words: Vec<OsString>) -> ExitCode {
        let done = HelperArguments::read(words, self).and_then(|words| match self {
            MountHelper::Mount => mount(words),
            MountHelper::Umount => umount(words),
        });
        match done {
            Ok(code) => ExitCode::from(code),
            Err(failure) => {
                let _ = failure.report();
                ExitCode::from(code_of(failure.code()))
            }
        }
    }
}

/// Returns the exit code of mount(8) for one of this program.
fn code_of(code: u8) -> u8 {
    match code {
        GOOD => GOOD,
        USAGE => MOUNT_USAGE,
        _ => MOUNT_FAILED,
    }
}

/// The command line of a helper.
#[derive(Debug, Default)]
struct HelperArguments {
    /// What is mounted, and where; or only where.
    places: Vec<OsString>,
    /// The options, each as a word.
    options: Vec<String>,
    is_sloppy: bool,
    is_fake: bool,
    is_verbose: bool,
    is_lazy: bool,
}

impl HelperArguments {
    fn read(words: Vec<OsString>, helper: MountHelper) -> Result<HelperArguments, CommandFailure> {
        let mut read = HelperArguments::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let flags = word.to_str().and_then(|word| word.strip_prefix('-')).filter(|flags| !flags.is_empty());
            let Some(flags) = flags else {
                read.places.push(word);
                continue;
            };
            let mut value = || words.next().ok_or_else(|| wrong(format!("{flags}: a value is missing")));
            for (at, flag) in flags.char_indices() {
                let rest = &flags[at + flag.len_utf8()..];
                match (flag, helper) {
                    ('o', MountHelper::Mount) => {
                        let text = if rest.is_empty() { value()? } else { rest.into() };
                        let text = text.into_string().map_err(|_| wrong("-o: an option is no text".to_owned()))?;
                        read.options.extend(split(&text));
                        break;
                    }
                    // The type is that of the helper's name.
                    ('t', _) => {
                        if rest.is_empty() {
                            value()?;
                        }
                        break;
                    }
                    ('N', _) => {
                        return Err(wrong(
                            "-N: enter the mount namespace first (`nsenter -m`), and mount there".to_owned(),
                        ));
                    }
                    ('s', MountHelper::Mount) => read.is_sloppy = true,
                    ('f', MountHelper::Mount) => read.is_fake = true,
                    ('v', _) => read.is_verbose = true,
                    ('l', MountHelper::Umount) => read.is_lazy = true,
                    // No list of mounts is written; a process that does not answer is unmounted in any case.
                    ('n', _) | ('f' | 'r', MountHelper::Umount) => {}
                    _ => return Err(wrong(format!("-{flag}: there is no such option"))),
                }
            }
        }
        let expected = if helper == MountHelper::Mount { 2 } else { 1 };
        match read.places.len() == expected {
            true => Ok(read),
            false => Err(wrong(match helper {
                MountHelper::Mount => "a disk and a directory are needed".to_owned(),
                MountHelper::Umount => "a directory is needed".to_owned(),
            })),
        }
    }
}

fn wrong(message: String) -> CommandFailure {
    let remedy = "see docs/volume.md: `mount -t nectary DISK DIR -o server=ADDR`";
    CommandFailure::new(USAGE, message, remedy)
}

/// Splits options at commas; a comma in double quotes is a part of its option.
fn split(text: &str) -> Vec<String> {
    let (mut options, mut option, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in text.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => options.push(std::mem::take(&mut option)),
            letter => option.push(letter),
        }
    }
    options.push(option);
    options.retain(|option| !option.is_empty());
    options
}

/// What the options of a mount say.
#[derive(Debug, Default, PartialEq, Eq)]
struct ParsedMountOptions {
    allowed: VolumeMountOptions,
    /// Options of `volume mount`, each with its value.
    values: Vec<(String, String)>,
    is_remount: bool,
}

impl ParsedMountOptions {
    fn read(words: &HelperArguments) -> Result<ParsedMountOptions, CommandFailure> {
        let mut wanted = ParsedMountOptions {
            allowed: BY_DEFAULT,
            is_remount: words.options.iter().any(|option| option == "remount"),
            ..ParsedMountOptions::default()
        };
        let names = value_options();
        for option in &words.options {
            let pair = option.split_once('=').filter(|(name, _)| names.iter().any(|known| known == name));
            if let Some((name, value)) = pair {
                // Several addresses of servers are a list.
                match wanted.values.iter_mut().find(|(known, _)| known == name && name == "server") {
                    Some((_, before)) => *before = format!("{before},{value}"),
                    None => wanted.values.push((name.to_owned(), value.to_owned())),
                }
                continue;
            }
            let is_known = options::apply(&mut wanted.allowed, option)
                || options::apply_for_fstab(&mut wanted.allowed, option)
                || option == "remount";
            // `mount` repeats what the kernel's list of mounts says when it mounts something again.
            if !is_known && !words.is_sloppy && !wanted.is_remount {
                return Err(wrong(format!("{option}: there is no such option")));
            }
        }
        Ok(wanted)
    }

    /// Returns the words of the command that mounts.
    fn command(&self, disk: &OsStr, directory: &OsStr) -> Vec<OsString> {
        let mut command: Vec<OsString> = ["volume", "mount"].map(OsString::from).into();
        command.extend([spec_of(disk), directory.to_owned()]);
        for (name, value) in &self.values {
            command.push(format!("--{name}={value}").into());
        }
        // `mount -a` compares the source in the list of mounts with that in fstab.
        command.extend(["--source".into(), disk.to_owned(), "-o".into(), options::words(self.allowed).into()]);
        command.push("--leave-terminal".into());
        command
    }
}

/// Returns the names of the options of `volume mount` that have values.
fn value_options() -> Vec<String> {
    let command = NectaryArguments::command();
    let found = command.find_subcommand("volume").and_then(|volume| volume.find_subcommand("mount"));
    let arguments = found.into_iter().flat_map(|mount| mount.get_arguments());
    let valued = arguments.filter(|argument| argument.get_action().takes_values() && !argument.is_hide_set());
    let names = valued.filter_map(|argument| argument.get_long().map(str::to_owned));
    names.filter(|name| name != "options").collect()
}

/// Returns the SPEC of a source: the path of a block device names a disk.
fn spec_of(source: &OsStr) -> OsString {
    let is_disk = std::fs::metadata(source).is_ok_and(|found| found.file_type().is_block_device());
    if is_disk { [OsStr::new("disk:"), source].iter().copied().collect() } else { source.to_owned() }
}

fn mount(words: HelperArguments) -> Result<u8, CommandFailure> {
    let wanted = ParsedMountOptions::read(&words)?;
    let [disk, directory] = &words.places[..] else {
        return Err(wrong("a disk and a directory are needed".to_owned()));
    };
    if wanted.is_remount {
        if !words.is_fake {
            let directory = Path::new(directory).canonicalize().unwrap_or_else(|_| PathBuf::from(directory));
            remount_volume(&directory, wanted.allowed)?;
        }
        return Ok(GOOD);
    }
    let command = wanted.command(disk, directory);
    // The words are checked here, so that a wrong one is an error of usage.
    let program = OsString::from("nectary");
    if let Err(error) = NectaryArguments::try_parse_from([&program].into_iter().chain(&command)) {
        return Err(wrong(error.to_string().lines().next().unwrap_or_default().replace("error: ", "")));
    }
    if words.is_fake {
        return Ok(GOOD);
    }
    match start(command) {
        Ok(BackgroundStart::Goes { line }) => {
            if words.is_verbose {
                crate::output::text(&line)?;
            }
            Ok(GOOD)
        }
        Ok(BackgroundStart::Failed { code }) => Ok(code_of(code)),
        Err(failure) => {
            let _ = failure.report();
            Ok(MOUNT_SYSTEM)
        }
    }
}

fn umount(words: HelperArguments) -> Result<u8, CommandFailure> {
    let directory =
        words.places.into_iter().next().ok_or_else(|| CommandFailure::bare(FAILED, "a directory is needed"))?;
    let arguments = VolumeUmountArguments { directory: directory.into(), lazy: words.is_lazy };
    volume::umount(&arguments).map(code_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, helper: MountHelper) -> Result<HelperArguments, CommandFailure> {
        HelperArguments::read(line.split_whitespace().map(OsString::from).collect(), helper)
    }

    fn command(line: &str) -> Result<String, CommandFailure> {
        let words = read(line, MountHelper::Mount)?;
        let wanted = ParsedMountOptions::read(&words)?;
        let command = wanted.command(&words.places[0], &words.places[1]);
        NectaryArguments::try_parse_from(["nectary".into()].into_iter().chain(command.clone())).expect("it is one");
        Ok(command.join(OsStr::new(" ")).into_string().expect("it is text"))
    }

    #[test]
    fn program_name_selects_helper() {
        let of = |name: &str| MountHelper::of(OsStr::new(name));
        assert_eq!(
            (of("/sbin/mount.nectary"), of("mount.fuse.nectary-volume")),
            (Some(MountHelper::Mount), Some(MountHelper::Mount))
        );
        assert_eq!(
            (of("umount.nectary"), of("/usr/sbin/umount.fuse.nectary-volume")),
            (Some(MountHelper::Umount), Some(MountHelper::Umount))
        );
        assert_eq!((of("nectary"), of("mount.ext4"), of("fsck.nectary"), of("mount.")), (None, None, None, None));
    }

    #[test]
    fn helper_values_match_command_options() {
        let found = command("/d /m -o rw,noexec,_netdev,server=unix:/a,memory=1G,io=posix,x-systemd.requires=b -v")
            .expect("it is one");
        assert_eq!(
            found,
            "volume mount /d /m --server=unix:/a --memory=1G --io=posix --source /d -o \
             rw,relatime,dev,suid,noexec --leave-terminal"
        );
        let several =
            read("/d /m -oserver=h1:1,server=h2:2,\"server=h3:3,h4:4\"", MountHelper::Mount).expect("it is one");
        let wanted = ParsedMountOptions::read(&several).expect("they are known");
        assert_eq!(wanted.values, [("server".to_owned(), "h1:1,h2:2,h3:3,h4:4".to_owned())]);
    }

    #[test]
    fn wrong_command_lines_are_refused() {
        for line in [
            "/d",
            "/d /m /n",
            "/d /m -o",
            "/d /m -N 5",
            "/d /m -q",
            "/d /m -o server=unix:/a,data=ordered",
            "/d /m -o server=unix:/a,background",
            "/d /m -o server=unix:/a,leave-terminal",
            "/d /m -o server=unix:/a,source=b",
        ] {
            assert_eq!(command(line).map_err(|failure| code_of(failure.code())).err(), Some(MOUNT_USAGE), "{line}");
        }
        assert!(command("-s /d /m -o server=unix:/a,data=ordered").is_ok(), "it is sloppy");
        assert!(read("/m -l -f", MountHelper::Umount).is_ok_and(|words| words.is_lazy));
        assert!(read("/m -o ro", MountHelper::Umount).is_err());
    }

    #[test]
    fn remount_accepts_options_of_kernel() {
        let line = "/d /m -o rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro";
        let wanted =
            read(line, MountHelper::Mount).and_then(|words| ParsedMountOptions::read(&words)).expect("they are known");
        assert!(wanted.is_remount && wanted.allowed.read_only && !wanted.allowed.devices);
    }
}
