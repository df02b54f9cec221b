//! Tests the commands on running caches (a mounted directory and an attached device): their output, their effects and
//! their refusals.

use nectary_e2e::live::{LIMIT, LiveCache, missing};
use nectary_e2e::report::not_run;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

const BLOCK: usize = 8192;

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {path} in {value:#}"))
}

/// Reads a device without the kernel's page cache.
fn read_direct(device: &str, offset: u64, bytes: usize) -> Vec<u8> {
    let mut file = File::options().read(true).custom_flags(libc::O_DIRECT).open(device).expect("it opens");
    file.seek(SeekFrom::Start(offset)).expect("it seeks");
    let mut buffer = vec![0u8; bytes + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    file.read_exact(&mut buffer[start..start + bytes]).expect("it is read");
    buffer[start..start + bytes].to_vec()
}

/// Writes a device without the kernel's page cache.
fn write_direct(device: &str, offset: u64, value: u8, bytes: usize) {
    let mut file = File::options().write(true).custom_flags(libc::O_DIRECT).open(device).expect("it opens");
    file.seek(SeekFrom::Start(offset)).expect("it seeks");
    let buffer = vec![value; bytes + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    file.write_all(&buffer[start..start + bytes]).expect("it is written");
    drop(buffer);
}

#[test]
fn mounted_files_shown_pinned_and_dropped() {
    if let Some(reason) = missing(false) {
        return not_run(format!("cache commands: {reason}"));
    }
    let odd = std::ffi::OsStr::from_bytes(b"odd \xff\x1b[2J\n\" name").to_owned();
    let live = LiveCache::mounted(&["--memory", "16M", "--policy", "lru"], |source| {
        fs::create_dir(source.join("d")).expect("made");
        for (name, blocks) in [("a", 10), ("d/b", 20), ("d/c", 30), ("large", 1200)] {
            fs::write(source.join(name), vec![7; blocks * BLOCK]).expect("written");
        }
        fs::write(source.join(&odd), vec![9; 3 * BLOCK - 5]).expect("written");
        std::os::unix::fs::symlink("a", source.join("link")).expect("made");
    })
    .expect("it is mounted");
    let path = |name: &str| live.shown(name).display().to_string();
    let cached = |name: &str| {
        let shown = live.run(&["cache", "show", &path(name), "--json"]).exits(0).json();
        (number(&shown, "/files/0/cached_bytes"), number(&shown, "/files/0/pinned_bytes"))
    };
    let bytes = |blocks: usize| (blocks * BLOCK) as u64;
    assert_eq!(cached("a"), (0, 0), "nobody has read it");
    fs::read(live.shown("a")).expect("read");
    assert_eq!(cached("a"), (bytes(10), 0));
    assert_eq!(cached("link"), (bytes(10), 0), "a link is followed");
    let text = live.run(&["cache", "show", &path("a")]).exits(0).text;
    assert!(text.contains("80K of 80K cached (100.0 %)\n  [oooooooooo"), "{text}");
    // A file can also be named by its path in the source; for a directory, all its files in memory are shown.
    let below = live.scratch.join("source/a").display().to_string();
    assert!(live.run(&["cache", "show", &below]).exits(0).text.contains("80K of 80K"));
    fs::read(live.shown("d/b")).expect("read");
    fs::read(live.shown(&odd)).expect("read");
    let all = live.run(&["cache", "show", &live.name, "--json"]).exits(0).json();
    assert_eq!(all["files"].as_array().map(Vec::len), Some(3), "{all:#}");
    let odd_path = live.shown(&odd);
    let shown = live.command(&["cache", "show", "--json"]).arg(&odd_path).output().expect("it runs");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON, whatever the name is");
    assert_eq!(number(&shown, "/files/0/cached_bytes"), bytes(3) - 5);
    let text = live.command(&["cache", "show"]).arg(&odd_path).output().expect("it runs").stdout;
    assert!(!text.contains(&0x1b), "a name moves the cursor");

    let pinned = live.run(&["cache", "pin", &path("d"), "--json"]).exits(0).json();
    assert_eq!((number(&pinned, "/files"), number(&pinned, "/pinned_bytes")), (2, bytes(50)), "{pinned:#}");
    fs::read(live.shown("large")).expect("read");
    fs::read(live.shown("large")).expect("read");
    assert_eq!((cached("d/b"), cached("d/c")), ((bytes(20), bytes(20)), (bytes(30), bytes(30))));
    assert!(live.run(&["cache", "show", &path("d/b")]).exits(0).text.contains("160K pinned\n  [PPPP"));
    let refused = live.run(&["cache", "pin", &path("large")]).exits(1);
    assert!(
        refused.errors.contains("it would pin") && refused.errors.contains("cache set NAME --memory"),
        "{refused:?}"
    );
    assert_eq!(cached("large").1, 0, "a pin that is refused pins nothing");
    let dropped = live.run(&["cache", "drop", &live.name, "--json"]).exits(0).json();
    assert_eq!(number(&dropped, "/pinned_bytes"), bytes(50));
    assert_eq!((cached("a"), cached("d/b").0), ((0, 0), bytes(20)));
    assert!(live.run(&["cache", "unpin", &live.name]).exits(0).text.contains("400K unpinned"));
    assert!(live.run(&["cache", "drop", &path("d")]).exits(0).text.contains("400K dropped"));
    assert_eq!(cached("d/c"), (0, 0));
    assert!(fs::read(live.shown("d/c")).expect("read").iter().all(|&byte| byte == 7));

    // Change memory, policy and mode while programs read.
    let set = ["cache", "set", &live.name, "--memory", "32M", "--policy", "lirs", "--mode", "readonly", "--json"];
    let set = live.run(&set).exits(0).json();
    assert_eq!(
        (number(&set, "/memory_bytes"), &set["policy"], &set["mode"]),
        (32 << 20, &json!("lirs"), &json!("readonly"))
    );
    let error = fs::write(live.shown("a"), b"x").expect_err("it is read-only");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    live.run(&["cache", "set", &live.name, "--mode", "writethrough"]).exits(0);
    fs::write(live.shown("a"), b"x").expect("it is written");
    assert!(live.run(&["cache", "flush", &live.name]).exits(0).text.contains("all of it is durable"));
    assert_eq!(number(&live.run(&["cache", "flush", &live.name, "--json"]).exits(0).json(), "/dirty_bytes"), 0);
    for (arguments, code, words) in [
        (vec!["cache", "set", &live.name], 2, "nothing to set"),
        (vec!["cache", "set", &live.name, "--memory", "1M"], 2, "too little"),
        (vec!["cache", "set", &live.name, "--policy", "best"], 2, "known are"),
        (vec!["cache", "set", &live.name, "--mode", "writeback"], 2, "others may write"),
        (vec!["cache", "show", &path("nothing")], 4, "not found"),
        (vec!["cache", "pin", "/dev"], 4, "no cache of that name"),
        (vec!["cache", "flush", "/nowhere"], 4, "there are"),
        (vec!["cache", "show", &path("a/b")], 4, "not found"),
        (vec!["cache", "set", &live.name, "--memory", "1000T"], 2, "more than this machine has"),
        (vec!["cache", "mount", "/etc", &live.name], 5, "has a cache mounted there already"),
        (vec!["cache", "mount", "/nowhere", &live.name], 4, "SOURCE /nowhere: there is no such directory"),
    ] {
        let ran = live.run(&arguments).exits(code);
        assert!(ran.errors.contains(words), "{arguments:?}: {ran:?}");
    }
}

/// The cache is flushed, shown, pinned and changed.
#[test]
fn attached_cache_managed_while_running() {
    if let Some(reason) = missing(true) {
        return not_run(format!("cache commands on a device: {reason}"));
    }
    let spec = "cache(error({folder}/disk,on=write,when={folder}/broken),memory=16M,policy=lru,mode=writeback,age=1h)";
    let live = LiveCache::attached(spec, &["--size", "32M"]).expect("it is attached");
    let device = live.name.clone();
    let figures = || {
        live.run(&["top", &device, "--json"]).exits(0).json().pointer("/caches/0/figures").cloned().expect("figures")
    };
    write_direct(&device, 0, 5, 16 * BLOCK);
    assert_eq!(number(&figures(), "/dirty_bytes"), (16 * BLOCK) as u64);
    fs::write(live.scratch.join("broken"), b"").expect("made");
    let failed = live.run(&["cache", "flush", &device]).exits(1);
    assert!(failed.errors.contains("could not be written") && failed.errors.contains("stay in memory"), "{failed:?}");
    let failed = live.run(&["cache", "flush", &device, "--json"]).exits(1);
    assert_eq!(number(&failed.json(), "/unwritten_bytes"), (16 * BLOCK) as u64);
    let status = live.run(&["status"]).exits(3).text;
    assert!(status.contains("128K could not be written back"), "{status}");
    let shown = live.run(&["cache", "show", &device]).exits(0).text;
    assert!(shown.contains("128K dirty, 128K not written"), "{shown}");
    let kept = live.run(&["cache", "drop", &device]);
    assert_eq!(kept.code, 1, "{kept:?}");
    assert!(read_direct(&device, 0, 16 * BLOCK).iter().all(|&byte| byte == 5), "what is dirty stays readable");
    fs::remove_file(live.scratch.join("broken")).expect("removed");
    // The next flush may still report a failure since the last flush.
    let again = live.run(&["cache", "flush", &device]);
    let flushed = if again.code == 0 { again } else { live.run(&["cache", "flush", &device]) }.exits(0);
    assert!(flushed.text.contains("all of it is durable"), "{flushed:?}");
    assert_eq!(number(&figures(), "/dirty_bytes"), 0);
    assert_eq!(fs::read(live.scratch.join("disk")).expect("read")[..16 * BLOCK], [5; 16 * BLOCK]);

    let pin = ["cache", "pin", &device, "--offset", "8K", "--length", "16K", "--json"];
    assert_eq!(number(&live.run(&pin).exits(0).json(), "/pinned_bytes"), 2 * BLOCK as u64);
    let dropped = live.run(&["cache", "drop", &device]).exits(0).text;
    assert!(dropped.contains("dropped; 16K stay, as they are pinned"), "{dropped}");
    // Show only this range: the kernel may read other parts on its own.
    let part = ["cache", "show", &device, "--offset", "8K", "--length", "16K", "--json"];
    let shown = live.run(&part).exits(0).json();
    let range = json!({ "offset": 8192, "length": 16384, "cached": true, "dirty": false, "pinned": true });
    assert_eq!(shown["files"][0]["ranges"], json!([range]));
    assert!(live.run(&["cache", "pin", &device]).exits(1).errors.contains("it would pin"));
    assert!(live.run(&["cache", "pin", &device, "--offset", "33M"]).exits(2).errors.contains("behind the end"));
    let set = live.run(&["cache", "set", &device, "--policy", "s3fifo", "--mode", "writethrough"]).exits(0).text;
    assert!(set.contains("16M of memory, s3fifo, writethrough"), "{set}");
    write_direct(&device, 0, 6, BLOCK);
    assert_eq!(fs::read(live.scratch.join("disk")).expect("read")[..BLOCK], [6; BLOCK], "it is written through");
    assert!(live.run(&["cache", "unpin", &device]).exits(0).text.contains("16K unpinned"));
    let plain = LiveCache::attached("memory:16M", &[]).expect("it is attached");
    for command in ["flush", "show", "drop", "pin", "unpin"] {
        let ran = plain.run(&["cache", command, &plain.name]).exits(4);
        assert!(ran.errors.contains("has no cache") && ran.errors.contains("cache(SPEC"), "{ran:?}");
    }
}

/// A refused request changes nothing.
#[test]
fn damaged_control_requests_are_refused() {
    if let Some(reason) = missing(false) {
        return not_run(format!("damaged requests: {reason}"));
    }
    let live = LiveCache::mounted(&["--memory", "16M"], |source| {
        fs::write(source.join("a"), vec![3; 4 * BLOCK]).expect("written");
    })
    .expect("it is mounted");
    fs::write(live.shown("b"), vec![4; 4 * BLOCK]).expect("written");
    fs::read(live.shown("a")).expect("read");
    live.run(&["cache", "pin", &live.shown("a").display().to_string()]).exits(0);
    let before = live.ask("show", &json!({ "path": "a" })).expect("an answer");
    let (mut refused, mut sent) = (0, 0);
    let odd = [
        json!(null),
        json!(7),
        json!(-1),
        json!(1.5),
        json!(true),
        json!("x"),
        json!([]),
        json!({}),
        json!([[]]),
        json!(u64::MAX),
        json!("\u{0}"),
        json!("../../etc"),
        json!("a/../a"),
        json!("a\u{0}b"),
        json!("x".repeat(5000)),
        json!([300]),
        json!(["a"]),
        json!({ "path": 7 }),
    ];
    for method in ["flush", "set", "show", "drop", "pin", "unpin", "figures", "top", "advise"] {
        let mut requests: Vec<Value> = odd.to_vec();
        for name in ["path", "path_bytes", "offset", "length", "option", "value", "streams", "other"] {
            requests.extend(odd.iter().map(|value| json!({ name: value })));
            requests.extend(odd.iter().map(|value| json!({ "option": "memory", "path": "b", name: value })));
        }
        for request in requests {
            // Skip requests that may be valid: they would unpin blocks that are checked below.
            if method == "unpin" && !request.to_string().contains("..") {
                continue;
            }
            sent += 1;
            let answer = live.ask(method, &request).expect("an answer to everything");
            if let Some(error) = answer.get("error") {
                refused += 1;
                assert!(
                    error["message"].as_str().is_some_and(|text| !text.is_empty() && text.len() < 2000),
                    "{answer}"
                );
            }
        }
    }
    println!("{sent} requests, {refused} refused");
    assert!(refused > 500, "{refused} of {sent}");
    // Send every byte as a name. Each request must be answered, and none may end the process.
    for byte in 0..=255u8 {
        for path in [vec![byte], vec![b'a', byte], vec![b'a', b'/', byte], vec![byte; 256], vec![byte; 5000]] {
            let answer = live.ask("show", &json!({ "path_bytes": path })).expect("an answer");
            assert!(answer.get("ok").is_some() || answer.get("error").is_some(), "{answer}");
            let is_found = answer.get("ok").is_some();
            let names: Vec<&[u8]> =
                path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
            let exists = names.is_empty() || names == [b"a"] || names == [b"b"];
            assert_eq!(is_found, exists && path.len() <= 4096, "{byte} {answer}");
        }
    }
    // Send names of 10 MB, lines without end, and bytes that are not a request.
    let long = "x".repeat(10 << 20);
    let line = format!("{}\n", json!({ "method": "show", "params": { "path": long } }));
    for request in [line.into_bytes(), vec![b'x'; 10 << 20], b"\xff\xfe\n".to_vec(), b"{}\n".to_vec(), b"[]\n".to_vec()]
    {
        let answer = live.control(&request).expect("an answer");
        assert!(answer["error"]["message"].as_str().is_some(), "{answer}");
    }
    assert_eq!(live.ask("show", &json!({ "path": "a" })).expect("an answer"), before, "it is as it was");
    assert!(fs::read(live.shown("a")).expect("read") == vec![3; 4 * BLOCK]);
    assert!(fs::read(live.scratch.join("source/b")).expect("read") == vec![4; 4 * BLOCK]);
    live.run(&["status"]).exits(0);
}

/// Both commands report what programs did, on a terminal of any width.
#[test]
fn top_and_advise_fit_terminals() {
    if let Some(reason) = missing(false) {
        return not_run(format!("top: {reason}"));
    }
    let live = LiveCache::mounted(&["--memory", "8M", "--policy", "lru"], |source| {
        fs::write(source.join("loop"), vec![7; 1000 * BLOCK]).expect("written");
        fs::write(source.join("small"), vec![7; 10 * BLOCK]).expect("written");
    })
    .expect("it is mounted");
    for _ in 0..4 {
        fs::read(live.shown("loop")).expect("read");
        fs::read(live.shown("small")).expect("read");
    }
    let top = live.run(&["top", "--json"]).exits(0).json();
    let cache = &top["caches"][0];
    let (hits, misses) = (number(cache, "/figures/hits"), number(cache, "/figures/misses"));
    // A read that begins inside a block references this block again.
    assert!((4040..4200).contains(&(hits + misses)), "{hits} {misses}");
    assert_eq!(number(cache, "/window/misses"), misses, "the window has everything");
    assert!(number(cache, "/window/min_misses") < misses && number(cache, "/window/min_misses") >= 1010);
    let streams = cache["streams"].as_array().expect("streams");
    let of_loop = streams.iter().find(|stream| stream["path"] == "loop").expect("it has a name");
    assert_eq!(of_loop["process"], json!(std::process::id()));
    assert!(number(of_loop, "/hits") + number(of_loop, "/misses") >= 4000, "{of_loop}");
    assert_eq!(number(of_loop, "/reads_saved"), 0, "LRU is LRU");
    for columns in ["80", "140"] {
        let output = live.command(&["top", "--once"]).env("COLUMNS", columns).output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.lines().all(|line| line.chars().count() <= columns.parse().unwrap()), "{text}");
        for part in ["to MIN  +", "against LRU", "loop", "VERDICT"] {
            assert!(text.contains(part), "{columns}: no {part} in\n{text}");
        }
        assert_eq!(text.contains("lru decides for all streams alike"), columns == "140", "{text}");
    }
    let metrics = live.run(&["top", "--prometheus"]).exits(0).text;
    assert!(metrics.contains(&format!("policy=\"lru\",mode=\"writethrough\"}} {misses}\n")), "{metrics}");
    let advice = live.run(&["cache", "advise", &live.name, "--json"]).exits(0).json();
    let rows = advice["caches"][0]["rows"].as_array().expect("rows");
    let now = rows.iter().find(|row| row["now"] == true).expect("the cache as it is");
    assert_eq!(number(now, "/counted/misses"), misses, "a replay of all references is exact");
    let double = rows.iter().find(|row| row["memory_bytes"] == json!(16 << 20)).expect("twice the memory");
    assert_eq!(number(double, "/counted/misses"), 1010, "all of it fits");
    let text = live.run(&["cache", "advise"]).exits(0).text;
    assert!(text.contains("16M of memory would save 7") && text.contains(" now"), "{text}");
    let empty = LiveCache::mounted(&["--memory", "8M", "--policy", "lru"], |_| ()).expect("it is mounted");
    assert!(empty.run(&["cache", "advise"]).exits(0).text.contains("too few to say anything"));
    assert!(empty.run(&["top", "--once"]).exits(0).text.contains("no stream has referred to it yet"));
}

/// The frames of `nectary top` on a terminal of a given size, as text.
fn frames(live: &LiveCache, columns: usize, rows: usize, count: usize) -> Option<Vec<String>> {
    let program = nectary_e2e::nectary::binary().expect("binary");
    let script = format!("stty cols {columns} rows {rows}; exec {} top", program.display());
    let mut command = std::process::Command::new("script");
    command.args(["-q", "-f", "-c", &script, "/dev/null"]).env("NECTARY_RUNTIME_DIR", live.scratch.join("run"));
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            not_run(format!("top on a terminal: script: {error}"));
            return None;
        }
    };
    let mut output = child.stdout.take().expect("piped");
    let (began, mut seen, mut buffer) = (Instant::now(), Vec::new(), [0; 4096]);
    // A frame is complete when the next one begins.
    while seen.windows(3).filter(|part| *part == b"\x1b[H").count() <= count && began.elapsed() < LIMIT {
        match output.read(&mut buffer) {
            Ok(bytes) if bytes > 0 => seen.extend_from_slice(&buffer[..bytes]),
            ended => panic!("it ended: {ended:?} {}", String::from_utf8_lossy(&seen)),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let text = String::from_utf8(seen).expect("text");
    let clean = |frame: &str| frame.replace("\x1b[K", "").replace("\x1b[J", "").replace('\r', "");
    Some(text.split("\x1b[H").skip(1).take(count).map(clean).collect())
}

/// If `NECTARY_CAPTURE` is set, the frames are written to `docs/captures`.
#[test]
fn top_redraws_at_both_widths() {
    if let Some(reason) = missing(false) {
        return not_run(format!("top on a terminal: {reason}"));
    }
    let live = LiveCache::mounted(&["--memory", "32M"], |source| {
        for (name, blocks) in [("index.db", 1500), ("archive.tar", 4000), ("main.c", 12)] {
            fs::write(source.join(name), vec![7; blocks * BLOCK]).expect("written");
        }
    })
    .expect("it is mounted");
    // Run programs that read while the frames are drawn.
    let script = "while :; do cat index.db; cat main.c; grep -c x index.db main.c; cat archive.tar; done >/dev/null";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).current_dir(live.shown(""));
    let log = live.scratch.join("programs.log");
    let mut programs = nectary_e2e::guard::GuardedProcess::spawn("programs", command, &log, None).expect("they start");
    let began = Instant::now();
    loop {
        let top = live.run(&["top", "--json"]).exits(0).json();
        if number(&top, "/caches/0/figures/hits") > 20_000 {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{top:#}");
    }
    for (columns, rows) in [(80, 24), (140, 30)] {
        let Some(frames) = frames(&live, columns, rows, 2) else { break };
        let frame = frames.last().expect("two frames");
        let lines: Vec<&str> = frame.lines().collect();
        assert!(lines.len() < rows && lines.iter().all(|line| line.chars().count() <= columns), "{frame}");
        for part in ["nectary top: 1 cache", "; now ", "to MIN  +", "VERDICT", "archive.tar"] {
            assert!(frame.contains(part), "no {part} in\n{frame}");
        }
        assert!(!frame.contains('\u{1b}'), "{frame:?}");
        if std::env::var_os("NECTARY_CAPTURE").is_some() {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/captures");
            fs::create_dir_all(&folder).expect("made");
            let text = format!("{}\n", frame.trim_end());
            fs::write(folder.join(format!("top-{columns}.txt")), text).expect("written");
            let advice = live.command(&["cache", "advise"]).output().expect("it runs").stdout;
            fs::write(folder.join("advise.txt"), advice).expect("written");
        }
    }
    programs.kill();
}

/// What the process has in memory beside its cache. *Units*: bytes.
const BASE_BYTES_MAX: u64 = 48 << 20;

#[test]
fn reduced_memory_returns_to_system() {
    if let Some(reason) = missing(false) {
        return not_run(format!("cache set: {reason}"));
    }
    let fill = |source: &Path| fs::write(source.join("file"), vec![b'a'; 150 << 20]).expect("it is written");
    let live = LiveCache::mounted_in_memory(&["--memory", "160M", "--policy", "lru"], fill).expect("it is mounted");
    let resident = || {
        let detail = live.run(&["cache", "stat", "--json"]).json()["caches"][0]["detail"].clone();
        detail["resident_bytes"].as_u64().expect("its resident memory")
    };
    let mut file = fs::File::open(live.shown("file")).expect("it opens");
    std::io::copy(&mut file, &mut std::io::sink()).expect("it is read");
    let full = resident();
    assert!(full > 120 << 20 && full < (160 << 20) + BASE_BYTES_MAX, "{full} bytes are resident");
    live.run(&["cache", "set", &live.name, "--memory", "32M"]).exits(0);
    let less = resident();
    assert!(less < (32 << 20) + BASE_BYTES_MAX, "{full} bytes were resident, {less} are left");
    assert!(live.run(&["cache", "stat"]).exits(0).text.contains("resident in the whole process"));
}
