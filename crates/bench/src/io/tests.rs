//! Tests of passes on small temporary files, for which the number of requests is known.

use std::path::{Path, PathBuf};

use super::super::content::{fill, settle, verify};
use super::super::job::{Operation, tests::job};
use super::*;
use crate::ErrorKind;

/// A directory that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("nectary-bench-io-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Makes an empty file for each stream.
    fn places(&self, count: usize) -> Vec<Place> {
        let place = |number: usize| {
            let path = self.0.join(format!("stream-{number}"));
            std::fs::write(&path, b"").unwrap();
            Place { path, start: 0 }
        };
        (0..count).map(place).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn corrupt(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn every_request_is_done_once_in_each_way_and_every_byte_is_right() {
    let folder = Folder::new("ways");
    let places = folder.places(2);
    let bytes = 1 << 20;
    fill(&places, bytes, 1).unwrap();
    let mut generation = 1;
    for (operation, mode, depth, engine) in [
        (Operation::Write, Mode::Buffered, 1, Engine::Threads),
        (Operation::Read, Mode::Buffered, 3, Engine::Threads),
        (Operation::Write, Mode::Dsync, 2, Engine::Threads),
        (Operation::Mixed, Mode::Sync, 1, Engine::Threads),
        (Operation::Mixed, Mode::Buffered, 4, Engine::Uring),
        (Operation::Write, Mode::Dsync, 4, Engine::Uring),
        (Operation::Read, Mode::Buffered, 4, Engine::Uring),
    ] {
        let job = Job {
            places: places.clone(),
            bytes,
            operation,
            mode,
            depth,
            engine,
            read_generations: vec![generation; 2],
            write_generation: generation + 1,
            is_synced: depth == 2,
            ..job()
        };
        let outcome = match run(&job, true) {
            Err(error) if engine == Engine::Uring && error.message.contains("io_uring is refused") => {
                println!("NOT RUN: {error}");
                continue;
            }
            outcome => outcome.unwrap(),
        };
        for stream in &outcome.streams {
            assert_eq!((stream.count(), stream.bytes), (16, bytes), "{operation:?} {mode:?} {depth} {engine:?}");
            let mut numbers: Vec<u64> = stream.requests.iter().map(|request| request.number).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..16).collect::<Vec<_>>());
        }
        let writes: u64 = outcome.streams.iter().map(|stream| stream.writes).sum();
        match operation {
            Operation::Read => assert_eq!(writes, 0),
            Operation::Write => assert_eq!(writes, 32),
            Operation::Mixed => assert!((4..28).contains(&writes), "{writes}"),
        }
        if operation.writes() {
            settle(&job, &outcome).unwrap();
            generation += 1;
        }
    }
    assert!(generation > 1);
}

#[test]
fn a_wrong_byte_makes_the_run_void() {
    let folder = Folder::new("void");
    let places = folder.places(1);
    fill(&places, 1 << 20, 2).unwrap();
    let job =
        Job { places: places.clone(), mode: Mode::Buffered, read_generations: vec![2], write_generation: 2, ..job() };
    let outcome = run(&Job { operation: Operation::Write, ..job.clone() }, false).unwrap();
    verify(&job, &outcome).unwrap();
    // This damage is in the middle of a block, where only the comparison of all bytes finds it.
    corrupt(&places[0].path, (300 << 10) + 77);
    let error = verify(&job, &outcome).unwrap_err();
    assert!(error.kind == ErrorKind::Void && error.message.contains("offset: 307200"), "{error}");
    // This damage is at the start of a request, where the read itself finds it.
    corrupt(&places[0].path, 128 << 10);
    let read = Job { operation: Operation::Read, read_generations: vec![2], ..job.clone() };
    assert_eq!(run(&read, false).unwrap_err().kind, ErrorKind::Void);
    let unknown = Job { read_generations: Vec::new(), ..read };
    assert_eq!(run(&unknown, false).unwrap().bytes(), 1 << 20, "other people's bytes are not compared");
}

#[test]
fn a_pass_ends_when_its_time_is_over_and_a_repeated_one_begins_again() {
    let folder = Folder::new("time");
    let places = folder.places(1);
    fill(&places, 1 << 20, 1).unwrap();
    let read = Job { places, operation: Operation::Read, mode: Mode::Buffered, ..job() };
    let none = run(&Job { seconds_max: Some(0.0), ..read.clone() }, false).unwrap();
    assert_eq!(none.streams[0].count(), 1, "no pass is empty");
    let again = Job { seconds_max: Some(0.05), is_repeated: true, ..read };
    let outcome = run(&again, false).unwrap();
    assert!(outcome.streams[0].count() > 16 && outcome.seconds >= 0.04, "{outcome:?}");
}

#[test]
fn a_file_that_is_too_short_or_absent_is_an_error_that_names_it() {
    let folder = Folder::new("short");
    let places = folder.places(1);
    fill(&places, 512 << 10, 1).unwrap();
    let read = Job { places, operation: Operation::Read, mode: Mode::Buffered, ..job() };
    let error = run(&read, false).unwrap_err();
    assert!(error.message.contains("stream-0") && error.message.contains("moved only 0"), "{error}");
    let absent = Job { places: vec![Place { path: folder.0.join("no"), start: 0 }], ..read };
    assert_eq!(run(&absent, false).unwrap_err().kind, ErrorKind::Failed);
}
