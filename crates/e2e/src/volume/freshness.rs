//! Two mounts whose kernels show names and attributes without a request, and programs on both that change them.
//!
//! Owns: the check. The promise: when a call on one host has returned, every later call on every host sees what it did.
//! Threads on both hosts look at the names all the time, so that the kernels have cached them, and answers are under
//! way, whenever a name changes. The names that a thread changes are its own, so it knows what they must be; all threads
//! share the directories.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::rng::SeededRng;

/// The directories.
const DIRECTORIES: usize = 3;
/// The number of names that each thread changes.
const NAMES: usize = 6;
/// The number of threads that change names, in turn on the two hosts.
const CHANGERS: usize = 4;

/// Which host changes which directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeLayout {
    /// The first host changes all directories.
    One,
    /// Each host changes directories of its own.
    Apart,
    /// Both hosts change the same directories.
    Together,
}

/// The figures of a run.
#[derive(Debug, Default)]
pub struct FreshnessFigures {
    /// The number of changes.
    pub changes: u64,
    /// The number of look-ups whose result was checked.
    pub checks: u64,
    /// The number of look-ups by the threads that only look.
    pub looks: u64,
    /// The longest call.
    pub longest: Duration,
    /// What was old, with the change after which it was seen.
    pub problems: Vec<String>,
}

/// What a name is: a directory, and the permission bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NamedEntry {
    is_directory: bool,
    mode: u32,
    size: u64,
}

fn find(path: &Path) -> io::Result<Option<(u64, NamedEntry)>> {
    match fs::symlink_metadata(path) {
        Ok(found) => {
            let is_directory = found.is_dir();
            let size = if is_directory { 0 } else { found.len() };
            Ok(Some((found.ino(), NamedEntry { is_directory, mode: found.mode() & 0o777, size })))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// One thread that changes names, and what they are.
struct NameChanger<'a> {
    hosts: &'a [PathBuf],
    own: usize,
    changing: ChangeLayout,
    rng: SeededRng,
    names: Vec<PathBuf>,
    known: BTreeMap<usize, (u64, NamedEntry)>,
    found: FreshnessFigures,
}

impl NameChanger<'_> {
    fn timed<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = call();
        self.found.longest = self.found.longest.max(begun.elapsed());
        result
    }

    /// Makes one change on one host; returns what it was.
    fn change(&mut self) -> Result<String> {
        let host = &self.hosts[match self.changing {
            ChangeLayout::One => 0,
            ChangeLayout::Apart => self.own % self.hosts.len(),
            ChangeLayout::Together => self.rng.index(self.hosts.len()),
        }];
        let at = self.rng.index(NAMES);
        let (path, mode) = (host.join(&self.names[at]), [0o600, 0o640, 0o644, 0o755][self.rng.index(4)]);
        let shown = path.display().to_string();
        let Some((inode, named)) = self.known.get(&at).copied() else {
            let is_directory = self.rng.chance(0.3);
            let made = self.timed(|| match is_directory {
                true => fs::create_dir(&path),
                false => fs::write(&path, b""),
            });
            made.with_context(|| format!("making {shown}"))?;
            self.timed(|| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))?;
            let (inode, named) = find(&path)?.ok_or_else(|| anyhow!("{shown} was made and is not there"))?;
            let wanted = NamedEntry { is_directory, mode, size: 0 };
            if named != wanted {
                self.found.problems.push(format!("{shown} was made as {wanted:?}, and is {named:?}"));
            }
            self.known.insert(at, (inode, wanted));
            return Ok(format!("made {shown}"));
        };
        match self.rng.index(4) {
            0 => {
                let removed = self.timed(|| match named.is_directory {
                    true => fs::remove_dir(&path),
                    false => fs::remove_file(&path),
                });
                removed.with_context(|| format!("removing {shown}"))?;
                self.known.remove(&at);
                Ok(format!("removed {shown}"))
            }
            1 => {
                self.timed(|| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
                    .with_context(|| format!("changing {shown}"))?;
                self.known.insert(at, (inode, NamedEntry { mode, ..named }));
                Ok(format!("changed the mode of {shown} to {mode:o}"))
            }
            2 if !named.is_directory => {
                let size = self.rng.below(9000);
                self.timed(|| fs::write(&path, vec![7; size as usize])).with_context(|| format!("writing {shown}"))?;
                self.known.insert(at, (inode, NamedEntry { size, ..named }));
                Ok(format!("wrote {size} bytes to {shown}"))
            }
            _ => {
                let to = self.rng.index(NAMES);
                if self.known.get(&to).is_some_and(|(_, other)| other.is_directory || named.is_directory) {
                    return Ok("nothing".to_owned());
                }
                let new = host.join(&self.names[to]);
                self.timed(|| fs::rename(&path, &new))
                    .with_context(|| format!("renaming {shown} to {}", new.display()))?;
                self.known.remove(&at);
                self.known.insert(to, (inode, named));
                Ok(format!("renamed {shown} to {}", new.display()))
            }
        }
    }

    /// Looks at one name on every host.
    fn check(&mut self, after: &str) -> Result<()> {
        let at = self.rng.index(NAMES);
        let wanted = self.known.get(&at).copied();
        for host in self.hosts {
            let path = host.join(&self.names[at]);
            let found = find(&path).with_context(|| format!("looking at {}", path.display()))?;
            self.found.checks += 1;
            if found != wanted {
                let words = format!("after \"{after}\", {} is {found:?}, and not {wanted:?}", path.display());
                self.found.problems.push(words);
            }
        }
        Ok(())
    }

    fn run(mut self, until: Instant) -> Result<FreshnessFigures> {
        while Instant::now() < until && self.found.problems.len() < 5 {
            let after = self.change().with_context(|| format!("thread {}", self.own))?;
            self.found.changes += 1;
            for _ in 0..3 {
                self.check(&after)?;
            }
        }
        Ok(self.found)
    }
}

/// Looks at names until `is_over`; returns how often.
fn look(hosts: &[PathBuf], names: &[PathBuf], mut rng: SeededRng, is_over: &AtomicBool) -> u64 {
    let mut looks = 0;
    while !is_over.load(Ordering::Relaxed) {
        let path = hosts[rng.index(hosts.len())].join(&names[rng.index(names.len())]);
        // Whatever it finds: the names change meanwhile.
        let _ = find(&path);
        looks += 1;
    }
    looks
}

/// Changes names on the hosts for some time, and checks what each host shows.
///
/// *Errors*: a call fails that must not.
pub fn exercise(hosts: &[PathBuf], changing: ChangeLayout, seed: u64, time: Duration) -> Result<FreshnessFigures> {
    let top = format!("{changing:?}-{seed}");
    let directory = move |changer: usize, name: usize| match changing {
        ChangeLayout::Apart => format!("{top}/{}-{}", changer % hosts.len(), name % DIRECTORIES),
        _ => format!("{top}/{}", (changer + name) % DIRECTORIES),
    };
    for (changer, name) in (0..CHANGERS).flat_map(|changer| (0..NAMES).map(move |name| (changer, name))) {
        fs::create_dir_all(hosts[0].join(directory(changer, name)))?;
    }
    let (is_over, until) = (AtomicBool::new(false), Instant::now() + time);
    let names_of = |changer: usize| {
        let name = |name: usize| PathBuf::from(format!("{}/{changer}-{name}", directory(changer, name)));
        (0..NAMES).map(name).collect::<Vec<PathBuf>>()
    };
    let all: Vec<PathBuf> = (0..CHANGERS).flat_map(names_of).collect();
    let mut total = FreshnessFigures::default();
    let found = std::thread::scope(|scope| {
        let lookers: Vec<_> = (0..2)
            .map(|looker| {
                let (all, is_over) = (&all, &is_over);
                scope.spawn(move || look(hosts, all, SeededRng::new(seed ^ (looker + 1)), is_over))
            })
            .collect();
        let changers: Vec<_> = (0..CHANGERS)
            .map(|own| {
                let (names, rng) = (names_of(own), SeededRng::new(seed.wrapping_mul(31) + own as u64));
                let changer = NameChanger {
                    hosts,
                    own,
                    changing,
                    rng,
                    names,
                    known: BTreeMap::new(),
                    found: FreshnessFigures::default(),
                };
                scope.spawn(move || changer.run(until))
            })
            .collect();
        let panicked = |_| Err(anyhow!("a thread panicked"));
        let found: Vec<Result<FreshnessFigures>> =
            changers.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        is_over.store(true, Ordering::Relaxed);
        total.looks = lookers.into_iter().map(|thread| thread.join().unwrap_or_default()).sum();
        found
    });
    for found in found {
        let found = found?;
        total.changes += found.changes;
        total.checks += found.checks;
        total.longest = total.longest.max(found.longest);
        total.problems.extend(found.problems);
    }
    Ok(total)
}
