//! Tests of passes on small temporary files, for which the number of requests is known.

use std::path::{Path, PathBuf};

use super::super::content::{fill, settle, verify};
use super::super::job::{RequestOperation, tests::job};
use super::*;
use crate::ExperimentErrorKind;

/// A directory that is removed at the end.
struct PassFolder(PathBuf);

impl PassFolder {
    fn new(name: &str) -> PassFolder {
        let path = std::env::temp_dir().join(format!("nectary-bench-io-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        PassFolder(path)
    }

    /// Makes an empty file for each stream.
    fn places(&self, count: usize) -> Vec<StreamPlace> {
        let place = |number: usize| {
            let path = self.0.join(format!("stream-{number}"));
            std::fs::write(&path, b"").unwrap();
            StreamPlace { path, start: 0 }
        };
        (0..count).map(place).collect()
    }
}

impl Drop for PassFolder {
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

/// Every byte is right with each operation, mode, depth and engine.
#[test]
fn modes_do_each_request_once() {
    let folder = PassFolder::new("ways");
    let places = folder.places(2);
    let bytes = 1 << 20;
    fill(&places, bytes, 1).unwrap();
    let mut generation = 1;
    for (operation, mode, depth, engine) in [
        (RequestOperation::Write, OpenMode::Buffered, 1, SubmissionEngine::Threads),
        (RequestOperation::Read, OpenMode::Buffered, 3, SubmissionEngine::Threads),
        (RequestOperation::Write, OpenMode::Dsync, 2, SubmissionEngine::Threads),
        (RequestOperation::Mixed, OpenMode::Sync, 1, SubmissionEngine::Threads),
        (RequestOperation::Mixed, OpenMode::Buffered, 4, SubmissionEngine::Uring),
        (RequestOperation::Write, OpenMode::Dsync, 4, SubmissionEngine::Uring),
        (RequestOperation::Read, OpenMode::Buffered, 4, SubmissionEngine::Uring),
    ] {
        let job = IoPass {
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
            Err(error) if engine == SubmissionEngine::Uring && error.message.contains("io_uring is refused") => {
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
            RequestOperation::Read => assert_eq!(writes, 0),
            RequestOperation::Write => assert_eq!(writes, 32),
            RequestOperation::Mixed => assert!((4..28).contains(&writes), "{writes}"),
        }
        if operation.writes() {
            settle(&job, &outcome).unwrap();
            generation += 1;
        }
    }
    assert!(generation > 1);
}

#[test]
fn wrong_byte_voids_io_run() {
    let folder = PassFolder::new("void");
    let places = folder.places(1);
    fill(&places, 1 << 20, 2).unwrap();
    let job = IoPass {
        places: places.clone(),
        mode: OpenMode::Buffered,
        read_generations: vec![2],
        write_generation: 2,
        ..job()
    };
    let outcome = run(&IoPass { operation: RequestOperation::Write, ..job.clone() }, false).unwrap();
    verify(&job, &outcome).unwrap();
    // This damage is in the middle of a block, where only the comparison of all bytes finds it.
    corrupt(&places[0].path, (300 << 10) + 77);
    let error = verify(&job, &outcome).unwrap_err();
    assert!(error.kind == ExperimentErrorKind::Void && error.message.contains("offset: 307200"), "{error}");
    // This damage is at the start of a request, where the read itself finds it.
    corrupt(&places[0].path, 128 << 10);
    let read = IoPass { operation: RequestOperation::Read, read_generations: vec![2], ..job.clone() };
    assert_eq!(run(&read, false).unwrap_err().kind, ExperimentErrorKind::Void);
    let unknown = IoPass { read_generations: Vec::new(), ..read };
    assert_eq!(run(&unknown, false).unwrap().bytes(), 1 << 20, "other people's bytes are not compared");
}

/// A pass ends when its time is over, and a repeated one starts again at its first request.
#[test]
fn pass_ends_in_time() {
    let folder = PassFolder::new("time");
    let places = folder.places(1);
    fill(&places, 1 << 20, 1).unwrap();
    let read = IoPass { places, operation: RequestOperation::Read, mode: OpenMode::Buffered, ..job() };
    let none = run(&IoPass { seconds_max: Some(0.0), ..read.clone() }, false).unwrap();
    assert_eq!(none.streams[0].count(), 1, "no pass is empty");
    let again = IoPass { seconds_max: Some(0.05), is_repeated: true, ..read };
    let outcome = run(&again, false).unwrap();
    assert!(outcome.streams[0].count() > 16 && outcome.seconds >= 0.04, "{outcome:?}");
}

/// A file that is too short or absent is an error.
#[test]
fn unusable_file_error_names_it() {
    let folder = PassFolder::new("short");
    let places = folder.places(1);
    fill(&places, 512 << 10, 1).unwrap();
    let read = IoPass { places, operation: RequestOperation::Read, mode: OpenMode::Buffered, ..job() };
    let error = run(&read, false).unwrap_err();
    assert!(error.message.contains("stream-0") && error.message.contains("moved only 0"), "{error}");
    let absent = IoPass { places: vec![StreamPlace { path: folder.0.join("no"), start: 0 }], ..read };
    assert_eq!(run(&absent, false).unwrap_err().kind, ExperimentErrorKind::Failed);
}

/// A worker that ends before the start keeps no other worker waiting.
#[test]
fn early_worker_end_releases_others() {
    let start = StartBarrier::new(3);
    let parts = [start.part(), start.part(), start.part()];
    let results = std::thread::scope(|scope| {
        let workers: Vec<_> = parts
            .into_iter()
            .enumerate()
            .map(|(number, part)| {
                scope.spawn(move || {
                    assert!(number != 1, "a planted panic");
                    part.wait().is_ok()
                })
            })
            .collect();
        start.go();
        workers.into_iter().map(|worker| worker.join().ok()).collect::<Vec<_>>()
    });
    assert_eq!(results, [Some(true), None, Some(true)]);
}

/// Workers end if another one cannot be started.
#[test]
fn failed_start_ends_workers() {
    let start = StartBarrier::new(2);
    let part = start.part();
    let result = std::thread::scope(|scope| {
        let worker = scope.spawn(move || part.wait().is_ok());
        start.give_up();
        worker.join().unwrap()
    });
    assert!(!result);
}
