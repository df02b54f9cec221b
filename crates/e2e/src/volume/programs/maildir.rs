//! A maildir on a volume: two mounts deliver messages into it at once, and two mounts claim them at once.
//!
//! Owns: the programs, each a process that uses one mount, and the comparison of what they report. Promises: of each
//! claim by rename exactly one succeeds, and each message is there once, with its bytes.
//!
//! A delivery writes `tmp/NAME`, syncs it, and moves it to `new/` by rename, or by link and unlink. A claim renames
//! `new/NAME` to `cur/NAME:2,FLAGS`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;

use super::{ProgramCounts, ProgramRound, RoundFolders, RoundPace, run, tool};
use crate::content::body;
use crate::guard::{GuardedProcess, describe};
use crate::rng::mix;

/// The longest time of a program.
const LIMIT: Duration = Duration::from_secs(240);
/// The pause of a reader that finds no message.
const IDLE: Duration = Duration::from_millis(1);
/// The size of the largest message. *Units*: bytes.
const MESSAGE_BYTES_MAX: u64 = 20_000;
/// The number of programs that deliver.
const DELIVERERS: u64 = 2;

/// A program that uses a maildir.
#[derive(Clone, Debug, Subcommand)]
pub enum MaildirProgram {
    /// Delivers messages
    Deliver {
        /// The maildir
        maildir: PathBuf,
        /// The number of the program
        deliverer: u64,
        /// The number of messages
        count: u64,
        /// The seed of the messages
        seed: u64,
    },
    /// Claims messages until nobody delivers any more
    Claim {
        /// The maildir
        maildir: PathBuf,
        /// The number of the program
        reader: u64,
        /// The file that exists when nobody delivers any more
        stop: PathBuf,
    },
    /// Compares the messages of both deliverers with those that were claimed
    Compare {
        /// The maildir
        maildir: PathBuf,
        /// The number of messages of each deliverer
        count: u64,
        /// The seed of the messages
        seed: u64,
    },
}

impl MaildirProgram {
    /// Does what the program does, in this process.
    pub fn work(&self) -> Result<()> {
        match self {
            MaildirProgram::Deliver { maildir, deliverer, count, seed } => deliver(maildir, *deliverer, *count, *seed),
            MaildirProgram::Claim { maildir, reader, stop } => claim(maildir, *reader, stop),
            MaildirProgram::Compare { maildir, count, seed } => compare(maildir, *count, *seed),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let shown = |path: &Path| path.display().to_string();
        match self {
            MaildirProgram::Deliver { maildir, deliverer, count, seed } => {
                vec!["deliver".into(), shown(maildir), deliverer.to_string(), count.to_string(), seed.to_string()]
            }
            MaildirProgram::Claim { maildir, reader, stop } => {
                vec!["claim".into(), shown(maildir), reader.to_string(), shown(stop)]
            }
            MaildirProgram::Compare { maildir, count, seed } => {
                vec!["compare".into(), shown(maildir), count.to_string(), seed.to_string()]
            }
        }
    }

    /// The command that runs this program.
    fn command(&self, folders: &RoundFolders) -> Command {
        let mut command = Command::new(&folders.kit.worker);
        command.args(["volume-programs", "work"]).args(self.arguments());
        command
    }

    fn start(&self, folders: &RoundFolders, log: &str) -> Result<GuardedProcess> {
        GuardedProcess::spawn(log, self.command(folders), &folders.beside.join(log), None)
    }
}

/// A round of the maildir.
pub(super) struct MaildirRound;

impl ProgramRound for MaildirRound {
    fn pace(&self) -> RoundPace {
        RoundPace { before_ms_max: 800, kills_max: 6, look_every_ms: 30 }
    }

    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64> {
        let (count, stop) = (messages(folders), folders.beside.join("stop"));
        let here = maildir(&folders.here);
        run(tool("mkdir").arg(&here).args(["tmp", "new", "cur"].map(|name| here.join(name))))?;
        let deliver = |mount: &Path, deliverer: u64| {
            let program = MaildirProgram::Deliver { maildir: maildir(mount), deliverer, count, seed: folders.seed };
            program.start(folders, &delivery_log(deliverer))
        };
        let claim = |mount: &Path, reader: u64| {
            let program = MaildirProgram::Claim { maildir: maildir(mount), reader, stop: stop.clone() };
            program.start(folders, &claim_log(reader))
        };
        let readers = [claim(&folders.third, 0)?, claim(&folders.there, 1)?];
        let deliverers = [deliver(&folders.here, 0)?, deliver(&folders.there, 1)?];
        for deliverer in deliverers {
            ended(deliverer, || {
                stored.store(delivered(folders)?.len() as u64, Ordering::Release);
                Ok(())
            })?;
        }
        fs::write(&stop, b"")?;
        for reader in readers {
            ended(reader, || Ok(()))?;
        }
        let logs = [0, 1].map(|reader| read_log(folders, &claim_log(reader)));
        let [first, second] = logs;
        let contests = judge(&delivered(folders)?, &[first?, second?])?;
        let done = delivered(folders)?.len() as u64;
        ensure!(done == DELIVERERS * count, "{done} messages are delivered, not {}", DELIVERERS * count);
        stored.store(done, Ordering::Release);
        Ok(contests)
    }

    /// Each message that was delivered before is in `new` or in `cur`, which is listed later.
    fn look(&self, folders: &RoundFolders, before: u64) -> Result<bool> {
        if before == 0 {
            return Ok(false);
        }
        let known = delivered(folders)?;
        let found = ["new", "cur"].map(|name| run(tool("ls").arg("-U").arg(maildir(&folders.here).join(name))));
        let [new, cur] = found;
        let text = new? + &cur?;
        let found: std::collections::BTreeSet<&str> = text.lines().map(unflagged).collect();
        let lost = known.iter().find(|name| !found.contains(name.as_str()));
        ensure!(lost.is_none(), "{lost:?} was delivered, and is in neither new nor cur");
        Ok(true)
    }

    fn spoil(&self, folders: &RoundFolders) -> Result<()> {
        let script = "rm \"$(ls cur/* | head -n1)\"";
        run(tool("sh").args(["-c", script]).current_dir(maildir(&folders.there))).map(drop)
    }

    fn check(&self, folders: &RoundFolders, _done: &ProgramCounts) -> Result<()> {
        for mount in folders.every() {
            let compare =
                MaildirProgram::Compare { maildir: maildir(mount), count: messages(folders), seed: folders.seed };
            run(&mut compare.command(folders))?;
        }
        Ok(())
    }
}

/// The number of messages that each program delivers.
fn messages(folders: &RoundFolders) -> u64 {
    folders.kit.scale.of(40, 250)
}

fn maildir(mount: &Path) -> PathBuf {
    mount.join("maildir")
}

fn delivery_log(deliverer: u64) -> String {
    format!("deliverer-{deliverer}")
}

fn claim_log(reader: u64) -> String {
    format!("reader-{reader}")
}

/// Waits for the end of a program, and does something meanwhile.
fn ended(mut process: GuardedProcess, meanwhile: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while process.try_status().is_none() && Instant::now() < deadline {
        meanwhile()?;
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = process.wait(Duration::ZERO)?;
    ensure!(status.success(), "{}\n{}", describe(status), process.log_tail());
    Ok(())
}

/// The whole lines of a log so far.
fn read_log(folders: &RoundFolders, name: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(folders.beside.join(name)).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    Ok(whole.lines().map(str::to_owned).collect())
}

/// The messages that programs say are delivered.
fn delivered(folders: &RoundFolders) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for deliverer in 0..DELIVERERS {
        let lines = read_log(folders, &delivery_log(deliverer))?;
        names.extend(lines.iter().filter_map(|line| line.strip_prefix("delivered ").map(str::to_owned)));
    }
    Ok(names)
}

/// Requires that each message was claimed by exactly one reader; returns how many the other reader tried to claim.
fn judge(delivered: &[String], logs: &[Vec<String>; 2]) -> Result<u64> {
    let (mut claims, mut contests) = (BTreeMap::<&str, u64>::new(), 0);
    for line in logs.iter().flatten() {
        match line.split_once(' ') {
            Some(("claimed", name)) => *claims.entry(name).or_default() += 1,
            Some(("missed", _)) => contests += 1,
            _ => bail!("a reader says {line}"),
        }
    }
    for name in delivered {
        let times = claims.remove(name.as_str()).unwrap_or_default();
        ensure!(times == 1, "{name} was claimed {times} times");
    }
    ensure!(claims.is_empty(), "claimed, and never delivered: {claims:?}");
    Ok(contests)
}

fn message_name(seed: u64, deliverer: u64, index: u64) -> String {
    format!("{seed}.M{index}.host{deliverer}")
}

/// The bytes of a message.
fn message(name: &str) -> Vec<u8> {
    let number = name.bytes().fold(0, |sum, byte| mix(sum ^ u64::from(byte)));
    let mut bytes = format!("Message-Id: <{name}>\n\n").into_bytes();
    bytes.extend(body(name, 0, number % MESSAGE_BYTES_MAX));
    bytes
}

/// The name of a message without its flags.
fn unflagged(name: &str) -> &str {
    name.split(":2,").next().unwrap_or_default()
}

fn deliver(maildir: &Path, deliverer: u64, count: u64, seed: u64) -> Result<()> {
    for index in 0..count {
        let name = message_name(seed, deliverer, index);
        let (temporary, new) = (maildir.join("tmp").join(&name), maildir.join("new").join(&name));
        let write = || -> std::io::Result<()> {
            let mut file = File::create_new(&temporary)?;
            // Several writes, as programs make that get a message from a connection.
            message(&name).chunks(4000).try_for_each(|piece| file.write_all(piece))?;
            file.sync_all()
        };
        write().with_context(|| format!("write {name}"))?;
        let deliver = || -> std::io::Result<()> {
            if index.is_multiple_of(2) {
                return fs::rename(&temporary, &new);
            }
            fs::hard_link(&temporary, &new)?;
            fs::remove_file(&temporary)
        };
        deliver().with_context(|| format!("deliver {name}"))?;
        println!("delivered {name}");
    }
    Ok(())
}

fn claim(maildir: &Path, reader: u64, stop: &Path) -> Result<()> {
    let new = maildir.join("new");
    loop {
        // A listing that begins after the last delivery has every message that nobody has claimed.
        let is_last = stop.exists();
        let mut names = names(&new)?;
        names.sort();
        if names.is_empty() {
            if is_last {
                return Ok(());
            }
            std::thread::sleep(IDLE);
        }
        for name in names {
            // Both readers give the same name to half of the messages.
            let flags = if reader == 0 || message(&name).len().is_multiple_of(2) { "S" } else { "FS" };
            let claimed = maildir.join("cur").join(format!("{name}:2,{flags}"));
            match fs::rename(new.join(&name), &claimed) {
                Ok(()) => {
                    let found = fs::read(&claimed).with_context(|| format!("read {name}, which it has claimed"))?;
                    ensure!(found == message(&name), "{name} has other bytes: {} of them", found.len());
                    println!("claimed {name}");
                }
                Err(error) if error.kind() == ErrorKind::NotFound => println!("missed {name}"),
                Err(error) => return Err(error).context(format!("claim {name}")),
            }
        }
    }
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn compare(maildir: &Path, count: u64, seed: u64) -> Result<()> {
    for folder in ["tmp", "new"] {
        let rest = names(&maildir.join(folder))?;
        ensure!(rest.is_empty(), "{folder} still has {rest:?}");
    }
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for deliverer in 0..DELIVERERS {
        expected.extend((0..count).map(|index| (message_name(seed, deliverer, index), 0)));
    }
    let cur = maildir.join("cur");
    for name in names(&cur)? {
        let times = expected.get_mut(unflagged(&name)).with_context(|| format!("{name} was never delivered"))?;
        *times += 1;
        ensure!(*times == 1, "{name} is there twice");
        let found = fs::read(cur.join(&name))?;
        ensure!(found == message(unflagged(&name)), "{name} has other bytes: {} of them", found.len());
    }
    let lost: Vec<_> = expected.iter().filter(|(_, times)| **times == 0).map(|(name, _)| name).collect();
    ensure!(lost.is_empty(), "lost: {lost:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    /// A message that two readers claimed, or none, is an error.
    #[test]
    fn each_message_needs_one_claim() {
        let delivered = log(&["a", "b"]);
        let first = log(&["claimed a", "missed b"]);
        assert_eq!(judge(&delivered, &[first.clone(), log(&["claimed b"])]).unwrap(), 1);
        assert!(judge(&delivered, &[first.clone(), log(&["claimed b", "claimed a"])]).is_err());
        assert!(judge(&delivered, &[first.clone(), log(&["missed a"])]).is_err());
        assert!(judge(&delivered, &[first, log(&["claimed b", "claimed c"])]).is_err());
    }
}
