//! The parts that the recorder's tests share: folders, recordings, and traces that are read back.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::MultiGzDecoder;
use nectary_trace::formats::TraceOperation;
use nectary_trace::formats::nectary::{
    BLOCKS_MAX, FileEntry, NectaryReader, RecordingEnd, RecordingOutcome, TraceProcess,
};
use nectary_trace::record::{RecordingOptions, record};

/// A folder that is removed when it is dropped.
pub struct RecordingFolder(PathBuf);

impl RecordingFolder {
    /// Makes a folder for the test `name`.
    pub fn new(name: &str) -> RecordingFolder {
        let path = std::env::temp_dir().join(format!("nectary-record-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        RecordingFolder(path.canonicalize().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a text file of `bytes` bytes.
    pub fn file(&self, name: &str, bytes: u64) {
        let byte = |at: u64| if at % 61 == 60 || at + 1 == bytes { b'\n' } else { b'a' + (at * 7 % 23) as u8 };
        let text: Vec<u8> = (0..bytes).map(byte).collect();
        fs::write(self.path(name), text).unwrap();
    }

    /// Options that show paths relative to the folder.
    pub fn options(&self) -> RecordingOptions {
        let mut options = RecordingOptions::new(self.path("trace.gz"));
        options.folder.clone_from(&self.0);
        options.is_overwriting = true;
        options
    }

    /// A command that runs in the folder, without input and output.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(&self.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Records a command and reads the trace.
    pub fn record(&self, words: &[&str]) -> RecordedTrace {
        self.record_with(self.command(words), &self.options())
    }

    pub fn record_with(&self, command: Command, options: &RecordingOptions) -> RecordedTrace {
        let summary = record(command, options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        let trace = RecordedTrace::read(&options.output);
        assert_eq!(trace.end.map(|end| end.totals), Some(summary.totals));
        trace
    }

    /// Records a Python script; `None` if Python is not installed.
    pub fn python(&self, script: &str) -> Option<RecordedTrace> {
        fs::write(self.path("script.py"), script).unwrap();
        let mut command = self.command(&[python()?, "-S", "-E", "script.py"]);
        command.stderr(Stdio::inherit());
        let trace = self.record_with(command, &self.options());
        assert_eq!(trace.end.map(|end| end.outcome), Some(RecordingOutcome::Exited(0)));
        Some(trace)
    }
}

/// The real Python interpreter, not a wrapper script.
pub fn python() -> Option<&'static str> {
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists());
    if python.is_none() {
        println!("NOT RUN: no python3");
    }
    python
}

impl Drop for RecordingFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A trace that was read.
pub struct RecordedTrace {
    pub processes: Vec<TraceProcess>,
    pub files: Vec<FileEntry>,
    /// The references, each with its process, file and block, and whether it is a write.
    pub references: Vec<(u32, u32, u64, bool)>,
    pub end: Option<RecordingEnd>,
    pub is_truncated: bool,
    pub mapped: Vec<u64>,
}

impl RecordedTrace {
    pub fn read(path: &Path) -> RecordedTrace {
        let file = BufReader::new(File::open(path).unwrap());
        let mut reader = NectaryReader::new(path, MultiGzDecoder::new(file)).unwrap();
        let mut references = Vec::new();
        while let Some(reference) = reader.next_reference().unwrap() {
            let (process, file) = reader.stream(reference.stream).unwrap();
            assert_eq!(reference.block / BLOCKS_MAX, u64::from(file));
            references.push((
                process,
                file,
                reference.block % BLOCKS_MAX,
                reference.operation == TraceOperation::Write,
            ));
        }
        RecordedTrace {
            processes: reader.processes().to_vec(),
            files: reader.files().to_vec(),
            references,
            end: reader.end().copied(),
            is_truncated: reader.is_truncated(),
            mapped: (0..reader.files().len()).map(|file| reader.mapped_bytes(file as u32)).collect(),
        }
    }

    /// The blocks of the file `name` that were read or written, in order.
    pub fn blocks(&self, name: &str, is_write: bool) -> Vec<u64> {
        let is_it = |file: u32| self.files[file as usize].name == name;
        let wanted = self.references.iter().filter(|reference| is_it(reference.1) && reference.3 == is_write);
        wanted.map(|reference| reference.2).collect()
    }

    /// The numbers of the processes that referenced the file `name`.
    pub fn processes_of(&self, name: &str) -> Vec<u32> {
        let is_it = |file: u32| self.files[file as usize].name == name;
        let found = self.references.iter().filter(|reference| is_it(reference.1)).map(|reference| reference.0);
        found.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The file `name`.
    pub fn file(&self, name: &str) -> &FileEntry {
        self.files.iter().find(|file| file.name == name).unwrap_or_else(|| panic!("no {name}: {:?}", self.files))
    }

    /// The number of bytes of the file `name` that were mapped.
    pub fn mapped_bytes(&self, name: &str) -> u64 {
        let number = self.files.iter().position(|file| file.name == name).unwrap_or(usize::MAX);
        self.mapped.get(number).copied().unwrap_or_default()
    }

    /// The blocks of the file `name` that were read or written, each once, in ascending order.
    pub fn distinct(&self, name: &str, is_write: bool) -> Vec<u64> {
        self.blocks(name, is_write).into_iter().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// A series of `count` blocks: the first is block 0, and each is `step` after the previous one, modulo `modulus`.
pub fn pattern(count: u64, step: u64, modulus: u64) -> Vec<u64> {
    (0..count).map(|index| index * step % modulus).collect()
}
