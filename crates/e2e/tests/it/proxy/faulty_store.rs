//! A damaged or unsuitable store causes a clear error or counted misses, never a panic or a wrong byte.
//!
//! The planted bug: the same check must notice a byte that differs from the origin's, so one test changes the origin's
//! objects.

use anyhow::{Context, Result};
use nectary_e2e::filled::{FilledProxy, ObjectCheckCounts};
use nectary_e2e::guard::{describe, find_program};
use nectary_e2e::http::HttpConnection;
use nectary_e2e::nectary::{self, ProxyCommand, find};
use nectary_e2e::report::not_run;
use nectary_e2e::rng::SeededRng;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const OBJECTS: usize = 300;

/// Runs a proxy that must refuse to start; returns its output.
fn refused(command: &ProxyCommand) -> Result<String> {
    let (status, text) = command.run_to_refusal(LIMIT)?;
    let code = status.code().with_context(|| format!("{}: {text}", describe(status)))?;
    assert!(code != 0 && code != 101 && !text.contains("panicked"), "exit code {code}: {text}");
    assert!(text.contains("nectary: error:"), "no error line: {text}");
    Ok(text)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(std::fs::write(path, bytes)?)
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1)))
    })
}

#[test]
fn open_store_refused_to_second_process() -> Result<()> {
    let filled = FilledProxy::new("twice", 20, 1)?;
    let nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    let mut second = filled.command.clone();
    second.listen = nectary_e2e::scratch::free_address()?;
    second.folder = filled.scratch.join("second");
    std::fs::create_dir(&second.folder)?;
    let (status, text) = second.run_to_refusal(LIMIT)?;
    assert_eq!(status.code(), Some(5), "{text}");
    let store = filled.store_path().display().to_string();
    assert!(text.contains(&store) && text.contains("what to do"), "it names the store and the remedy: {text}");
    assert!(text.contains(&nectary.process.id().to_string()), "it names the process that has it: {text}");
    let (status, text) = nectary::run(&["store", "stat", &store], filled.scratch.path())?;
    assert_eq!(status.code(), Some(5), "{text}");
    assert_eq!(filled.check(&nectary), ObjectCheckCounts { hits: 20, ..ObjectCheckCounts::default() });
    println!("opened twice: refused with exit code 5, the first goes on");
    Ok(())
}

#[test]
fn foreign_file_refused_and_unchanged() -> Result<()> {
    let filled = FilledProxy::new("foreign", 20, 2)?;
    let path = filled.store_path();
    let mut rng = SeededRng::new(2);
    let random: Vec<u8> = (0..1 << 20).map(|_| rng.next_u64() as u8).collect();
    let mut text = b"#!/bin/sh\necho important\n".to_vec();
    text.resize(8 << 20, b'\n');
    let mut zeros_then_data = vec![0; 4 << 20];
    zeros_then_data[512 << 10] = 7;
    for (name, bytes) in
        [("random bytes", random), ("a script", text), ("zeros with one byte in them", zeros_then_data)]
    {
        write(&path, &bytes)?;
        let printed = refused(&filled.command)?;
        assert!(printed.contains(&path.display().to_string()), "{name}: it does not name the file: {printed}");
        assert!(std::fs::read(&path)? == bytes, "{name}: the file was changed");
    }
    println!("foreign files: 3 refused, unchanged");
    Ok(())
}

#[test]
fn unknown_store_version_is_refused() -> Result<()> {
    let mut filled = FilledProxy::new("version", 20, 3)?;
    filled.command.size = "64M".to_owned();
    filled.fill_and_stop()?;
    let file = File::options().read(true).write(true).open(filled.store_path())?;
    for copy in [0, 4096] {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, copy)?;
        block[4..6].copy_from_slice(&7u16.to_le_bytes());
        let length = u32::from_le_bytes(block[8..12].try_into()?) as usize;
        block[12..16].fill(0);
        let checksum = crc32c(block.get(..length).context("the length of the superblock is within its block")?);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&block, copy)?;
    }
    let text = refused(&filled.command)?;
    assert!(text.contains("version") && text.contains('7'), "{text}");
    println!("another version: {}", text.trim());
    Ok(())
}

#[test]
fn impossible_store_sizes_are_refused() -> Result<()> {
    let filled = FilledProxy::new("small", 1, 4)?;
    for (size, memory) in [("16K", "64M"), ("256M", "1K")] {
        let mut command = filled.command.clone();
        (command.size, command.memory) = (size.to_owned(), memory.to_owned());
        let text = refused(&command)?;
        println!("size {size}, memory {memory}: {}", text.lines().next().unwrap_or(""));
        let _ = std::fs::remove_file(filled.store_path());
    }
    Ok(())
}

#[test]
fn truncated_store_misses_or_errors() -> Result<()> {
    let filled = FilledProxy::new("truncated", OBJECTS, 5)?;
    filled.fill_and_stop()?;
    let bytes = std::fs::metadata(filled.store_path())?.len();
    let keep = filled.scratch.join("whole");
    std::fs::copy(filled.store_path(), &keep)?;
    for left in [bytes - 4096, bytes / 2, 16 << 20, 4096, 100, 0] {
        std::fs::copy(&keep, filled.store_path())?;
        File::options().write(true).open(filled.store_path())?.set_len(left)?;
        let mut nectary = filled.command.spawn()?;
        match nectary.wait_ready(LIMIT) {
            Ok(()) => {
                let checked = filled.check(&nectary);
                assert_eq!(checked.wrong, 0, "{left} bytes left: {checked:?}\n{}", nectary.process.log_tail());
                println!("truncated to {left} of {bytes} bytes: {checked:?}");
            }
            Err(_) => {
                drop(nectary);
                let text = refused(&filled.command)?;
                assert!(text.contains(&filled.store_path().display().to_string()), "{text}");
                println!("truncated to {left} of {bytes} bytes: refused: {}", text.lines().next().unwrap_or(""));
            }
        }
    }
    Ok(())
}

#[test]
fn flipped_bits_lose_touched_objects() -> Result<()> {
    let filled = FilledProxy::new("flipped", OBJECTS, 6)?;
    filled.fill_and_stop()?;
    let file = File::options().read(true).write(true).open(filled.store_path())?;
    let bytes = file.metadata()?.len();
    let mut rng = SeededRng::new(6);
    // Flip one bit in each of 200 written blocks after both superblocks.
    let mut flipped = 0;
    while flipped < 200 {
        let offset = 8192 + rng.below(bytes.min(96 << 20) - 8192);
        let mut byte = [0; 1];
        file.read_exact_at(&mut byte, offset)?;
        if byte[0] != 0 {
            byte[0] ^= 1 << rng.below(8);
            file.write_all_at(&byte, offset)?;
            flipped += 1;
        }
    }
    for memory in ["64M", "16M"] {
        let mut command = filled.command.clone();
        command.memory = memory.to_owned();
        let mut nectary = command.start()?;
        let checked = filled.check(&nectary);
        assert_eq!(checked.wrong, 0, "{checked:?}\n{}", nectary.process.log_tail());
        let status = nectary.control()?.status()?;
        assert!(checked.cut <= OBJECTS / 20, "only long objects can be cut: {checked:?}");
        // Objects whose answers were truncated are no longer in the store, and are fetched again.
        let again = filled.check(&nectary);
        assert_eq!((again.wrong, again.cut), (0, 0), "{again:?}\n{}", nectary.process.log_tail());
        println!("200 flipped bits, memory {memory}: {checked:?}, damaged {:?}", find(&status, "damaged"));
        nectary.terminate(LIMIT)?;
        assert!(!nectary.process.log_text().contains("panicked"), "{}", nectary.process.log_tail());
        if memory == "64M" {
            assert!(checked.misses > 0 && checked.hits > 0, "some were touched and some not: {checked:?}");
        }
    }
    Ok(())
}

/// A store with one damaged superblock still opens.
#[test]
fn two_damaged_superblocks_are_refused() -> Result<()> {
    let filled = FilledProxy::new("superblock", 20, 7)?;
    filled.fill_and_stop()?;
    let file = File::options().write(true).open(filled.store_path())?;
    file.write_all_at(&[0xff; 64], 0)?;
    let mut nectary = filled.command.start()?;
    assert_eq!(filled.check(&nectary), ObjectCheckCounts { hits: 20, ..ObjectCheckCounts::default() });
    nectary.terminate(LIMIT)?;
    file.write_all_at(&[0xff; 64], 0)?;
    file.write_all_at(&[0xff; 64], 4096)?;
    let text = refused(&filled.command)?;
    println!("both superblocks damaged: {}", text.trim());
    Ok(())
}

/// The device returns wrong bits, or fails.
#[test]
fn faulty_device_reads_give_misses() -> Result<()> {
    let mut filled = FilledProxy::new("filters", OBJECTS, 8)?;
    filled.fill_and_stop()?;
    let path = filled.store_path().display().to_string();
    filled.command.memory = "16M".to_owned();
    let trigger = filled.scratch.join("trigger");
    for spec in ["corrupt(PATH,rate=5%,seed=1,when=FILE)", "error(PATH,rate=5%,on=read,seed=1,when=FILE)"] {
        let _ = std::fs::remove_file(&trigger);
        filled.command.store = spec.replace("PATH", &path).replace("FILE", &trigger.display().to_string());
        let mut nectary = filled.command.start()?;
        write(&trigger, b"")?;
        let mut worst = ObjectCheckCounts::default();
        for _ in 0..3 {
            let checked = filled.check(&nectary);
            assert_eq!(checked.wrong, 0, "{spec}: {checked:?}\n{}", nectary.process.log_tail());
            assert!(checked.cut <= OBJECTS / 20, "only long objects can be cut: {spec}: {checked:?}");
            if checked.misses > worst.misses {
                worst = checked;
            }
        }
        std::fs::remove_file(&trigger)?;
        println!("{spec}: at worst {worst:?}");
        nectary.terminate(LIMIT)?;
        assert!(!nectary.process.log_text().contains("panicked"), "{}", nectary.process.log_tail());
    }
    Ok(())
}

/// A full disk is an error when the store is created, and does no harm later.
#[test]
fn full_disk_fails_creation_only() -> Result<()> {
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 || find_program("unshare").is_none() {
        not_run("full disk: needs root and unshare for a separate small file system");
        return Ok(());
    }
    let mut filled = FilledProxy::new("full", OBJECTS, 9)?;
    let disk = filled.scratch.join("disk");
    std::fs::create_dir(&disk)?;
    let folder = disk.display();
    let wrapper = |prepare: &str| {
        let script = format!("mount -t tmpfs -o size=24m tmpfs {folder} && {prepare} exec \"$@\"");
        ["unshare", "-m", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
    };
    filled.command.store = disk.join("store").display().to_string();
    filled.command.wrapper = wrapper("");
    let text = refused(&filled.command)?;
    println!("no room to make a store: {}", text.lines().next().unwrap_or(""));
    // The file is sparse, so it needs room only when it is written.
    filled.command.wrapper = wrapper(&format!("truncate -s 256M {folder}/store &&"));
    let mut nectary = filled.command.spawn()?;
    if nectary.wait_ready(LIMIT).is_err() {
        drop(nectary);
        println!("no room behind a sparse file: refused: {}", refused(&filled.command)?.lines().next().unwrap_or(""));
        return Ok(());
    }
    for _ in 0..3 {
        let checked = filled.check(&nectary);
        assert_eq!(checked.wrong, 0, "{checked:?}\n{}", nectary.process.log_tail());
        println!("no room behind a sparse file: {checked:?}");
    }
    let status = nectary.control()?.status()?;
    assert_ne!(find(&status, "state").and_then(|state| state.as_str()), Some("healthy"), "{status}");
    assert!(!nectary.process.log_text().contains("panicked"), "{}", nectary.process.log_tail());
    Ok(())
}

#[test]
fn check_finds_planted_disagreement() -> Result<()> {
    let filled = FilledProxy::new("planted", 20, 10)?;
    let nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    filled.origin.bump(&filled.targets[3]);
    let checked = filled.check(&nectary);
    assert_eq!(checked, ObjectCheckCounts { hits: 19, wrong: 1, ..ObjectCheckCounts::default() });
    let response = HttpConnection::new(nectary.listen, LIMIT).get(&filled.targets[3])?;
    assert_eq!(response.version(), Some(1));
    println!("planted: one object of the store is not the origin's: caught");
    Ok(())
}
