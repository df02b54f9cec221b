//! The pauses that outlive the process ([format](../../../../docs/formats/acme-state.md)).
//!
//! Owns: the file of the pauses, and how a pause of the clock that only goes forward becomes one of the system's clock
//! and back. Promises: a clock that is wrong makes no pause longer than it was; nothing that is read makes it panic; a
//! file that is not understood because it is newer, or that cannot be read, is not overwritten. Leaves to others: what
//! the pauses mean (`renewal_plan`).

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::Duration;

use nectary_host::log::{LogLevel, write};
use serde::{Deserialize, Serialize};

use super::order_failure::{FailureKind, OrderFailure};
use super::renewal_plan::{LeftPauses, seconds_up};
use super::state_files::{FORMAT, StateFiles};

/// The pauses that outlive the process.
#[derive(Debug, Default)]
pub(crate) struct PauseBook {
    pauses: PauseFile,
    /// Why the file is not overwritten; `None` if it may be.
    unusable: Option<String>,
}

/// The file of the pauses.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PauseFile {
    format: u64,
    account: Option<AccountPause>,
    #[serde(default)]
    names: BTreeMap<String, NamePauses>,
}

/// What every version of the file has.
#[derive(Deserialize)]
struct PauseFormat {
    format: u64,
}

/// The pause of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AccountPause {
    pause: TimedPause,
    what: String,
}

/// The pauses of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NamePauses {
    failures: u32,
    order: Option<TimedPause>,
    suggestion: Option<TimedPause>,
    hurry: Option<TimedPause>,
    failure: Option<PauseReason>,
}

/// Why a name waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PauseReason {
    kind: FailureKind,
    what: String,
    /// Whether the authority has asked for the pause.
    asked: bool,
}

/// A pause by the system's clock. *Units*: Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct TimedPause {
    /// When this was written.
    since_s: i64,
    until_s: i64,
}

impl TimedPause {
    /// `None` if nothing is left.
    fn new(left: Duration, now_s: i64) -> Option<TimedPause> {
        (!left.is_zero()).then(|| TimedPause { since_s: now_s, until_s: now_s.saturating_add(seconds_up(left)) })
    }

    /// What is left. It is no more than there was when it was written, whatever the clock says now.
    fn left(self, now_s: i64) -> Duration {
        let left_s = self.until_s.saturating_sub(now_s).min(self.until_s.saturating_sub(self.since_s));
        Duration::from_secs(u64::try_from(left_s).unwrap_or(0))
    }
}

impl NamePauses {
    fn is_over(&self, now_s: i64) -> bool {
        [self.order, self.suggestion, self.hurry].into_iter().flatten().all(|pause| pause.left(now_s).is_zero())
    }
}

impl PauseBook {
    /// Reads the file. If that cannot be, there are no pauses.
    pub fn read(files: &StateFiles) -> PauseBook {
        let path = files.pauses_path();
        let found = match files.read_pauses() {
            Ok(None) => return PauseBook::default(),
            Ok(Some(bytes)) => parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(PauseFileFault::Damaged(error.to_string())),
            Err(error) => Err(PauseFileFault::Unknown(format!("{} cannot be read: {error}", path.display()))),
        };
        match found {
            Ok(pauses) => PauseBook { pauses, unusable: None },
            Err(PauseFileFault::Damaged(what)) => {
                let what = format!("{} cannot be used: {what}", path.display());
                write(LogLevel::Warning, "proxy", format_args!("{what}; pauses of before are forgotten"));
                PauseBook::default()
            }
            Err(PauseFileFault::Newer(format)) => {
                let what = format!("its format is {format}, not {FORMAT}");
                PauseBook::unusable(format!("{} cannot be used, nor overwritten: {what}", path.display()))
            }
            Err(PauseFileFault::Unknown(what)) => PauseBook::unusable(what),
        }
    }

    fn unusable(what: String) -> PauseBook {
        PauseBook { unusable: Some(what), ..PauseBook::default() }
    }

    /// The pauses of a name, and why it waits; `None` if nothing is noted.
    pub fn of_name(&self, name: &str, now_s: i64) -> Option<(LeftPauses, Option<OrderFailure>)> {
        let noted = self.pauses.names.get(name)?;
        let left = |pause: Option<TimedPause>| pause.map_or(Duration::ZERO, |pause| pause.left(now_s));
        let pauses = LeftPauses {
            failures: noted.failures,
            order: left(noted.order),
            suggestion: left(noted.suggestion),
            hurry: left(noted.hurry),
        };
        // Without a pause it is tried at once, and then it is known what is wrong.
        let reason = noted.failure.as_ref().filter(|_| !pauses.order.is_zero());
        let failure = reason.map(|reason| OrderFailure {
            pause: reason.asked.then_some(pauses.order),
            ..OrderFailure::new(reason.kind, reason.what.as_str())
        });
        Some((pauses, failure))
    }

    /// The pause of the account, and why there is one.
    pub fn of_account(&self, now_s: i64) -> Option<(Duration, String)> {
        let noted = self.pauses.account.as_ref()?;
        let left = noted.pause.left(now_s);
        (!left.is_zero()).then(|| (left, noted.what.clone()))
    }

    /// Notes the pauses of a name.
    pub fn note_name(&mut self, name: &str, left: LeftPauses, failure: Option<&OrderFailure>, now_s: i64) {
        let noted = NamePauses {
            failures: left.failures,
            order: TimedPause::new(left.order, now_s),
            suggestion: TimedPause::new(left.suggestion, now_s),
            hurry: TimedPause::new(left.hurry, now_s),
            failure: failure.map(|failure| PauseReason {
                kind: failure.kind,
                what: failure.what.clone(),
                asked: failure.pause.is_some(),
            }),
        };
        match left == LeftPauses::default() {
            true => drop(self.pauses.names.remove(name)),
            false => drop(self.pauses.names.insert(name.to_owned(), noted)),
        }
    }

    /// Notes the pause of the account, and why there is one.
    pub fn note_account(&mut self, pause: Option<(Duration, &str)>, now_s: i64) {
        self.pauses.account = pause.and_then(|(left, what)| {
            Some(AccountPause { pause: TimedPause::new(left, now_s)?, what: what.to_owned() })
        });
    }

    /// Writes the file, without names that are not `wanted` and whose pauses are over. *Errors*: why it cannot be.
    pub fn write(&mut self, files: &StateFiles, wanted: &HashSet<&str>, now_s: i64) -> Result<(), String> {
        if self.unusable.is_some() {
            let found = PauseBook::read(files);
            if let Some(what) = found.unusable {
                self.unusable = Some(what.clone());
                return Err(what);
            }
            self.unusable = None;
            for (name, noted) in found.pauses.names {
                self.pauses.names.entry(name).or_insert(noted);
            }
        }
        self.pauses.names.retain(|name, noted| wanted.contains(name.as_str()) || !noted.is_over(now_s));
        self.pauses.format = FORMAT;
        let text = serde_json::to_string_pretty(&self.pauses).map_err(|error| error.to_string())?;
        let written = files.write_pauses(&format!("{text}\n"));
        written.map_err(|error| format!("{} cannot be written: {error}", files.pauses_path().display()))
    }
}

/// Why the file is not used.
#[derive(Debug, PartialEq, Eq)]
enum PauseFileFault {
    /// It is replaced.
    Damaged(String),
    /// A later version has written it.
    Newer(u64),
    /// What is in it is not known.
    Unknown(String),
}

fn parse(bytes: &[u8]) -> Result<PauseFile, PauseFileFault> {
    let damaged = |error: serde_json::Error| PauseFileFault::Damaged(error.to_string());
    let found: PauseFormat = serde_json::from_slice(bytes).map_err(damaged)?;
    if found.format != FORMAT {
        return Err(PauseFileFault::Newer(found.format));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn pauses() -> LeftPauses {
        LeftPauses { failures: 3, order: HOUR, suggestion: 24 * HOUR, hurry: Duration::from_millis(1500) }
    }

    fn failure() -> OrderFailure {
        OrderFailure { pause: Some(HOUR), ..OrderFailure::new(FailureKind::RateLimited, "too many") }
    }

    /// The files in a scratch directory, which is empty.
    fn files(name: &str) -> (PathBuf, StateFiles) {
        let path = std::env::temp_dir().join(format!("nectary-acme-pauses-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        let files = StateFiles::new(&path, "https://acme.test/dir");
        (path, files)
    }

    #[test]
    fn pauses_are_read_as_written() {
        let (folder, files) = files("read");
        let mut book = PauseBook::read(&files);
        book.note_name("a.test", pauses(), Some(&failure()), 1000);
        book.note_name("gone.test", LeftPauses { order: HOUR, ..LeftPauses::default() }, None, 1000);
        book.note_name("good.test", LeftPauses::default(), None, 1000);
        for (name, left) in [
            ("later.test", LeftPauses { order: HOUR, suggestion: 24 * HOUR, ..LeftPauses::default() }),
            ("hurry.test", LeftPauses { order: HOUR, hurry: 2 * HOUR, ..LeftPauses::default() }),
        ] {
            book.note_name(name, left, None, 1000);
        }
        book.note_account(Some((HOUR, "this account")), 1000);
        let wanted = HashSet::from(["a.test", "good.test"]);
        book.write(&files, &wanted, 1000).expect("written");
        let mut found = PauseBook::read(&files);
        assert_eq!(found.pauses, book.pauses);
        let is_kept = found.of_name("gone.test", 1000).is_some_and(|(left, _)| left.order == HOUR);
        assert!(is_kept, "a name that comes back has its pause");
        let (left, why) = found.of_name("a.test", 2800).expect("pauses");
        let half = HOUR / 2;
        assert_eq!(
            (left.failures, left.order, left.suggestion, left.hurry),
            (3, half, 24 * HOUR - half, Duration::ZERO)
        );
        assert_eq!(why, Some(OrderFailure { pause: Some(half), ..failure() }));
        assert_eq!(found.of_account(2800), Some((half, "this account".to_owned())));
        assert_eq!((found.of_name("good.test", 2800), found.of_account(4600)), (None, None));
        let (left, why) = found.of_name("a.test", 4600).expect("pauses");
        assert_eq!((left.failures, left.order, why), (3, Duration::ZERO, None));
        // A name that is gone is forgotten when all of its pauses are over, and one that is wanted is not.
        let names = |found: &mut PauseBook, now_s: i64| {
            found.write(&files, &wanted, now_s).expect("written");
            PauseBook::read(&files).pauses.names.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(names(&mut found, 4600), ["a.test", "hurry.test", "later.test"]);
        assert_eq!(names(&mut found, 8200), ["a.test", "later.test"]);
        assert_eq!(names(&mut found, 87_400), ["a.test"]);
        _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn wrong_clock_makes_no_pause_longer() {
        let pause = TimedPause::new(HOUR, 1_000_000).expect("a pause");
        for (now_s, left_s) in
            [(1_000_000, 3600), (0, 3600), (i64::MIN, 3600), (1_003_599, 1), (1_003_600, 0), (i64::MAX, 0)]
        {
            assert_eq!(pause.left(now_s), Duration::from_secs(left_s), "{now_s}");
        }
        assert_eq!(TimedPause::new(Duration::ZERO, 0), None);
    }

    #[test]
    fn newer_file_is_not_overwritten() {
        let (folder, files) = files("newer");
        files.write_pauses("{ \"format\": 2, \"names\": 5 }").expect("written");
        let mut book = PauseBook::read(&files);
        book.note_name("a.test", pauses(), None, 0);
        let error = book.write(&files, &HashSet::new(), 0).expect_err("it is newer");
        assert!(error.contains("its format is 2, not 1"), "{error}");
        assert!(fs::read_to_string(files.pauses_path()).expect("a file").contains("\"names\": 5"));
        // As soon as it is gone, or one that is understood is there, both are one.
        let other = "{ \"format\": 1, \"names\": { \"b.test\": { \"failures\": 7 } }, \"later\": 1 }";
        files.write_pauses(other).expect("written");
        book.write(&files, &HashSet::from(["a.test", "b.test"]), 0).expect("written");
        let found = PauseBook::read(&files);
        assert_eq!(found.of_name("b.test", 0).expect("pauses").0.failures, 7);
        assert_eq!(found.of_name("a.test", 0).expect("pauses").0.failures, 3);
        _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn damaged_file_is_replaced() {
        let (folder, files) = files("damaged");
        for text in ["", "{", "{}", "{ \"format\": 1, \"names\": 5 }", "{ \"format\": 1, \"account\": {} }"] {
            files.write_pauses(text).expect("written");
            let mut book = PauseBook::read(&files);
            assert!(book.of_name("a.test", 0).is_none() && book.of_account(0).is_none(), "{text}");
            book.write(&files, &HashSet::new(), 0).expect("written");
        }
        // What cannot be read is neither used nor overwritten.
        fs::remove_file(files.pauses_path()).expect("removed");
        fs::create_dir_all(files.pauses_path()).expect("a folder");
        let error = PauseBook::read(&files).write(&files, &HashSet::new(), 0).expect_err("a folder");
        assert!(error.contains("cannot be read"), "{error}");
        _ = fs::remove_dir_all(&folder);
    }

    proptest! {
        #[test]
        fn any_figures_make_pauses(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            figures in (any::<i64>(), any::<i64>(), any::<i64>(), any::<u64>()),
        ) {
            let _ = parse(&bytes);
            let (since_s, until_s, now_s, left) = figures;
            let _ = TimedPause { since_s, until_s }.left(now_s);
            let _ = TimedPause::new(Duration::new(left, 1), now_s);
        }
    }
}
