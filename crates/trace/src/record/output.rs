//! Writes the file of a recording, plain or as gzip, depending on its name.
//!
//! Promises: flushed records can be read from the file, even if it is compressed. An existing file is kept unless the
//! caller asks to overwrite it.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A file that is being written.
#[derive(Debug)]
pub(super) enum TraceOutput {
    /// The file is not compressed.
    Plain(File),
    /// The file is compressed, as one gzip stream.
    Gzip(GzEncoder<File>),
}

impl TraceOutput {
    /// Creates the file.
    pub(super) fn create(path: &Path, is_overwriting: bool) -> io::Result<TraceOutput> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
            let what = format!("there is no folder {}; make it first", folder.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        let mut options = OpenOptions::new();
        options.write(true);
        let file = match is_overwriting {
            true => options.create(true).truncate(true).open(path)?,
            false => options.create_new(true).open(path)?,
        };
        let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
        Ok(if is_gzip {
            TraceOutput::Gzip(GzEncoder::new(file, Compression::default()))
        } else {
            TraceOutput::Plain(file)
        })
    }

    /// Completes the file. *Returns* its size in bytes.
    pub(super) fn finish(self) -> io::Result<u64> {
        let file = match self {
            TraceOutput::Plain(file) => file,
            TraceOutput::Gzip(encoder) => encoder.finish()?,
        };
        Ok(file.metadata()?.len())
    }
}

impl Write for TraceOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            TraceOutput::Plain(file) => file.write(bytes),
            TraceOutput::Gzip(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            TraceOutput::Plain(file) => file.flush(),
            TraceOutput::Gzip(encoder) => encoder.flush(),
        }
    }
}

/// A random identity for a new file.
pub(super) fn random_identity() -> io::Result<[u8; 16]> {
    let mut identity = [0; 16];
    getrandom::fill(&mut identity)?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_named() {
        let error = TraceOutput::create(Path::new("/nonexistent-folder/trace"), false).expect_err("no such folder");
        assert!(error.to_string().contains("no folder /nonexistent-folder"), "{error}");
    }
}
