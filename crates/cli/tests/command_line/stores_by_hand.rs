//! `nectary store`: later commands read back what was put, and errors have their exit code and remedy.

use std::fs;

use crate::common::CommandScratch;

/// Returns bytes without repetition.
fn body(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn what_one_command_puts_another_gets() {
    let scratch = CommandScratch::new("put-get");
    scratch.run("store create ./s --size 64M").exits(0);
    for (key, bytes) in [("empty", 0), ("small", 1000), ("large", 5_000_001)] {
        fs::write(scratch.file("in"), body(bytes)).expect("written");
        scratch.run(&format!("store put ./s {key} in")).exits(0);
        let got = scratch.run(&format!("store get ./s {key}")).exits(0);
        assert!(got.output == body(bytes), "{key}: {} bytes came back", got.output.len());
    }
    scratch.run_with("store put ./s small -", b"replaced").exits(0);
    assert_eq!(scratch.run("store get ./s small").exits(0).output, b"replaced");
    assert!(scratch.run("store get ./s large").exits(0).output == body(5_000_001));
}

#[test]
fn what_is_deleted_stays_deleted() {
    let scratch = CommandScratch::new("delete");
    scratch.run("store create ./s --size 64M").exits(0);
    scratch.run_with("store put ./s a -", b"1").exits(0);
    scratch.run_with("store put ./s b -", b"2").exits(0);
    scratch.run("store delete ./s a").exits(0);
    scratch.run("store get ./s a").exits(4).says("no object under \"a\"");
    assert_eq!(scratch.run("store get ./s b").exits(0).output, b"2");
}

/// New objects can be stored after a purge of all.
#[test]
fn purged_objects_stay_purged() {
    let scratch = CommandScratch::new("purge");
    scratch.run("store create ./s --size 64M").exits(0);
    scratch.run_with("store put ./s a -", b"1").exits(0);
    scratch.run_with("store put ./s b -", b"2").exits(0);
    scratch.run_with("store put ./s aa -", b"4").exits(0);
    scratch.run("store purge ./s --prefix aa").exits(0);
    scratch.run("store get ./s aa").exits(4);
    assert_eq!(scratch.run("store get ./s a").exits(0).output, b"1");
    scratch.run("store purge ./s --all").exits(0);
    scratch.run("store get ./s a").exits(4).says("no object under \"a\"");
    scratch.run("store get ./s b").exits(4);
    scratch.run_with("store put ./s a -", b"3").exits(0);
    assert_eq!(scratch.run("store get ./s a").exits(0).output, b"3");
}

#[test]
fn tag_purge_removes_only_tagged() {
    let scratch = CommandScratch::new("tag");
    scratch.run("store create ./s --size 64M").exits(0);
    scratch.run_with("store put ./s a - --tag news --tag sport", b"1").exits(0);
    scratch.run_with("store put ./s b - --tag sport", b"2").exits(0);
    scratch.run_with("store put ./s c -", b"3").exits(0);
    scratch.run("store purge ./s --tag news --tag absent").exits(0);
    scratch.run("store get ./s a").exits(4);
    assert_eq!(scratch.run("store get ./s b").exits(0).output, b"2");
    scratch.run("store purge ./s --tag sport").exits(0);
    scratch.run("store get ./s b").exits(4);
    assert_eq!(scratch.run("store get ./s c").exits(0).output, b"3");
    for line in ["purge ./s", "purge ./s --tag a --all", "purge ./s --tag a --prefix b"] {
        scratch.run(&format!("store {line}")).exits(2);
    }
}

#[test]
fn absent_store_error_says_create() {
    let scratch = CommandScratch::new("absent");
    for command in ["stat ./s", "get ./s a", "put ./s a -", "delete ./s a", "purge ./s --all"] {
        scratch.run(&format!("store {command}")).exits(4).says("nectary store create");
    }
    assert!(!scratch.file("s").exists(), "reading makes nothing");
    fs::write(scratch.file("blank"), vec![0; 64 << 20]).expect("written");
    scratch.run("store stat ./blank").exits(4).says("nectary store create");
}

/// A file of another program is neither used nor overwritten.
#[test]
fn foreign_file_is_not_overwritten() {
    let scratch = CommandScratch::new("other");
    let other = body(64 << 20);
    fs::write(scratch.file("s"), &other).expect("written");
    scratch.run("store stat ./s").exits(1);
    scratch.run("store create ./s").exits(1);
    scratch.run("proxy --listen 127.0.0.1:0 --store ./s").exits(1);
    assert!(fs::read(scratch.file("s")).expect("there") == other, "not a byte was written");
    scratch.run("store create ./s --force").exits(0);
    scratch.run("store stat ./s").exits(0);
}

#[test]
fn create_overwrites_only_when_forced() {
    let scratch = CommandScratch::new("force");
    scratch.run("store create ./s --size 64M").exits(0);
    scratch.run_with("store put ./s a -", b"1").exits(0);
    scratch.run("store create ./s --size 64M").exits(1).says("--force");
    assert_eq!(scratch.run("store get ./s a").exits(0).output, b"1");
    scratch.run("store create ./s --size 64M --force").exits(0);
    scratch.run("store get ./s a").exits(4);
}

#[test]
fn too_small_store_is_refused() {
    let scratch = CommandScratch::new("small");
    let ran = scratch.run("store create ./s --size 4K");
    assert!(ran.code == Some(1) || ran.code == Some(2), "{}", ran.errors);
    assert!(ran.errors.contains("nectary: error: "), "{}", ran.errors);
}

/// A truncated store is an error or loses objects.
#[test]
fn truncated_store_never_panics() {
    let scratch = CommandScratch::new("truncated");
    scratch.run("store create ./s --size 64M").exits(0);
    fs::write(scratch.file("in"), body(300_000)).expect("written");
    for number in 0..20 {
        scratch.run(&format!("store put ./s key{number} in")).exits(0);
    }
    let whole = fs::read(scratch.file("s")).expect("there");
    for length in [0, 100, 4096, 8192, 1 << 20, 20 << 20, (64 << 20) - 512] {
        fs::write(scratch.file("s"), &whole[..length]).expect("written");
        let ran = scratch.run("store get ./s key3");
        assert!(!ran.errors.contains("panicked"), "{length}: {}", ran.errors);
        assert!(matches!(ran.code, Some(0..=4)), "{length}: {:?} {}", ran.code, ran.errors);
        assert!(ran.code != Some(0) || ran.output == body(300_000), "{length}: wrong bytes");
    }
}

/// The check finds nothing in a store without damage.
#[test]
fn check_finds_only_damaged_record() {
    let scratch = CommandScratch::new("check");
    scratch.run("store create ./s --size 64M").exits(0);
    fs::write(scratch.file("in"), body(100_000)).expect("written");
    scratch.run("store put ./s a in").exits(0);
    scratch.run_with("store put ./s b -", b"1").exits(0);
    assert!(scratch.run("store check ./s").exits(0).text().contains("objects: 2\n"));
    let mut image = fs::read(scratch.file("s")).expect("there");
    let (body, window) = (body(100_000), 64);
    let at = image.windows(window).position(|bytes| bytes == &body[50_000..50_000 + window]).expect("on disk");
    image[at] ^= 1;
    fs::write(scratch.file("s"), image).expect("written");
    let ran = scratch.run("store check ./s --json").exits(3);
    let report: serde_json::Value = serde_json::from_slice(&ran.output).expect("JSON");
    assert_eq!((report["damaged"].as_u64(), report["objects"].as_u64()), (Some(1), Some(1)));
}

#[test]
fn stat_is_json_where_asked() {
    let scratch = CommandScratch::new("stat");
    scratch.run("store create ./s --size 64M").exits(0);
    scratch.run_with("store put ./s a -", b"1").exits(0);
    let stat: serde_json::Value =
        serde_json::from_slice(&scratch.run("store stat ./s --json").exits(0).output).expect("JSON");
    assert_eq!(stat["entries"], 1);
    assert!(scratch.run("store stat ./s").exits(0).text().contains("entries: 1\n"));
}

/// A wrong command line changes nothing.
#[test]
fn bad_command_line_exits_with_2() {
    let scratch = CommandScratch::new("usage");
    for line in [
        "",
        "store",
        "store get ./s",
        "store create ./s --size ten",
        "store stat nonsense(./s)",
        "store stat delay(./s,read=soon)",
        "proxy --listen 8080 --store ./s",
        "proxy --listen 127.0.0.1:0 --store ./s --io fast",
        "proxy --listen 127.0.0.1:0 --store ./s --default-ttl never",
        "proxy --listen 127.0.0.1:0 --store ./s --origin gopher://h",
    ] {
        scratch.run(line).exits(2);
    }
    assert!(!scratch.file("s").exists());
    scratch.run("--help").exits(0);
    scratch.run("store get --help").exits(0);
    scratch.run("--version").exits(0);
}

#[test]
fn status_says_that_nothing_runs() {
    let scratch = CommandScratch::new("status");
    assert!(scratch.run("status").exits(4).text().contains("nothing is running"));
    assert_eq!(scratch.run("status --json").exits(4).text(), "[]\n");
}

#[test]
fn bench_refuses_missing_folder() {
    let scratch = CommandScratch::new("bench-folder");
    scratch.run("bench limits --folder ./nowhere").exits(2).says("no such directory");
    assert!(!scratch.file("nowhere").exists());
}
