//! Empty files that stay, each with a number after a prefix, which several processes make in one directory.
//!
//! Owns: their names, and the clock of each loop.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Error, ExperimentErrorKind};

/// Empty files in an existing directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixedFiles {
    /// The directory.
    pub folder: PathBuf,
    /// What their names begin with.
    pub prefix: String,
    /// Their number.
    pub files: u32,
}

impl PrefixedFiles {
    fn paths(&self) -> Vec<PathBuf> {
        (0..self.files).map(|number| self.folder.join(format!("{}{number:07}", self.prefix))).collect()
    }

    /// Makes the files. *Returns*: the time. *Units*: seconds.
    pub fn create(&self) -> Result<f64, Error> {
        timed(&self.paths(), |path| File::create_new(path).map(drop))
    }

    /// Requests the attributes of each file. *Returns*: the time. *Units*: seconds.
    /// *Errors*: [`ExperimentErrorKind::Void`] if one is not an empty file.
    pub fn stat(&self) -> Result<f64, Error> {
        let mut wrong = None;
        let paths = self.paths();
        let took = timed(&paths, |path| {
            let found = fs::symlink_metadata(path)?;
            if !found.is_file() || found.len() != 0 {
                wrong = Some(path.to_owned());
            }
            Ok(())
        })?;
        match wrong {
            Some(path) => {
                let message = format!("the run is void: {} is not an empty file", path.display());
                Err(Error::new(ExperimentErrorKind::Void, message))
            }
            None => Ok(took),
        }
    }

    /// How long a loop may take before the caller gives up.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(120) + Duration::from_millis(u64::from(self.files) * 100)
    }
}

fn timed(paths: &[PathBuf], mut step: impl FnMut(&Path) -> std::io::Result<()>) -> Result<f64, Error> {
    let began = Instant::now();
    for path in paths {
        step(path).map_err(|error| Error::failed(path.display(), error))?;
    }
    Ok(began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files with two prefixes share a directory; a file with bytes makes a run void, and a missing one fails it.
    #[test]
    fn prefixed_files_made_and_compared() {
        let folder = std::env::temp_dir().join(format!("nectary-bench-prefixed-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let files = |prefix: &str| PrefixedFiles { folder: folder.clone(), prefix: prefix.to_owned(), files: 9 };
        assert!(files("a").create().unwrap() > 0.0 && files("b").create().unwrap() > 0.0);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 18);
        assert_eq!(files("a").create().unwrap_err().kind, ExperimentErrorKind::Failed);
        assert!(files("b").stat().unwrap() > 0.0);
        fs::write(folder.join("b0000008"), "x").unwrap();
        assert_eq!(files("b").stat().unwrap_err().kind, ExperimentErrorKind::Void);
        fs::remove_file(folder.join("a0000000")).unwrap();
        assert_eq!(files("a").stat().unwrap_err().kind, ExperimentErrorKind::Failed);
        fs::remove_dir_all(folder).unwrap();
    }
}
