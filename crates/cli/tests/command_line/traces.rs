//! `nectary cache simulate`, `nectary trace stat` and `convert`: their output, and their refusals with exit codes.

use std::fs;

use crate::common::CommandScratch;

/// Makes a directory with `a.trace`: a loop over 10 blocks, five times, with marks and blank lines.
fn scratch(name: &str) -> CommandScratch {
    let scratch = CommandScratch::new(name);
    let turn: String = (0..10).map(|block| format!("{block}\n")).collect();
    fs::write(scratch.file("a.trace"), format!("*\n\n{turn}").repeat(5)).expect("written");
    scratch
}

#[test]
fn table_has_sizes_by_policies() {
    let scratch = scratch("simulate");
    let text = scratch.run("cache simulate a.trace --policy min,lru --size 5,9..10:1").exits(0).text();
    assert_eq!(
        text,
        "a: 50 references, 10 distinct blocks; misses\nsize  lru  min\n   5   50   30\n   9   50   14\n  10   10   10\n"
    );
    let text = scratch.run("cache simulate a.trace --size 100%").exits(0).text();
    let order = "size  fifo  lru  mru  lfu  clock  2q  arc  lirs  s3fifo  sieve  wtinylfu  min  dear";
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with(order)), "{text}");
}

/// There is a row for each policy and size of each trace.
#[test]
fn json_has_row_per_simulation() {
    let scratch = scratch("simulate-json");
    fs::copy(scratch.file("a.trace"), scratch.file("b.txt")).expect("copied");
    let text = scratch.run("cache simulate a.trace b.txt --policy fifo,lru --size 1,100 --json").exits(0).text();
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = value["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8);
    let row = &rows[0];
    assert_eq!((&row["trace"], &row["policy"], &row["size"]), (&"a".into(), &"fifo".into(), &1.into()));
    assert_eq!((&row["references"], &row["misses"]), (&50.into(), &50.into()));
    assert_eq!(rows[7]["misses"], 10);
    let text = scratch.run("cache simulate --mix a.trace b.txt --policy lru --size 20 --json").exits(0).text();
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&value["rows"][0]["trace"], &value["rows"][0]["misses"]), (&"a+b".into(), &20.into()));
}

#[test]
fn byte_sizes_use_recorded_block_size() {
    let scratch = scratch("simulate-block");
    fs::write(scratch.file("a.csv"), "0,4096,r\n4096,4096,r\n").expect("written");
    let columns = "--columns offset=1,size=2,op=3";
    scratch.run(&format!("trace convert a.csv a.nectrace --block 4K {columns}")).exits(0);
    let blocks = |line: &str| {
        let text = scratch.run(&format!("cache simulate {line} --policy lru --size 64K --json")).exits(0).text();
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        value["rows"][0]["size"].as_u64()
    };
    assert_eq!(blocks("a.nectrace"), Some(16));
    assert_eq!(blocks("--mix a.nectrace a.nectrace"), Some(16));
    assert_eq!(blocks("a.nectrace --block 8K"), Some(8));
    assert_eq!(blocks("--mix a.nectrace a.trace"), Some(8));
    assert_eq!(blocks(&format!("a.csv {columns}")), Some(8));
}

#[test]
fn curves_and_explanations_are_written() {
    let scratch = scratch("simulate-svg");
    scratch.run("cache simulate a.trace --size 10%..100%:10% --svg a.svg --log").exits(0);
    let picture = fs::read_to_string(scratch.file("a.svg")).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.contains(">lirs</text>"));
    let text = scratch.run("cache simulate a.trace --size 5 --policy dear --explain").exits(0).text();
    assert!(text.contains("dear on a at 5 blocks, period by period\n  no stream was referenced"), "{text}");
    let turns: String = (0..3000).map(|number| format!("{}\n", number % 600)).collect();
    fs::write(scratch.file("loop.trace"), turns).expect("written");
    let text = scratch.run("cache simulate loop.trace --size 300 --policy dear --explain").exits(0).text();
    assert!(text.contains("period 1 to 500: sequential") && text.contains(": looping; blocks"), "{text}");
    let text = scratch.run("cache simulate loop.trace --size 300 --policy dear --explain --json").exits(0).text();
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["rows"][0]["periods"][0]["verdict"], "sequential");
    scratch.run("cache simulate a.trace --size 5 --svg absent/a.svg").exits(4).says("absent: there is no such");
    scratch.run("trace convert a.trace absent/a.txt").exits(4).says("absent: there is no such");
}

#[test]
fn bad_sizes_and_policies_are_refused() {
    let scratch = scratch("simulate-usage");
    for (options, says) in [
        ("--size 0", "--size: a size of 0 blocks caches nothing"),
        ("--size 0%", "caches nothing"),
        ("--size -1", "unexpected argument"),
        ("--size many", "\"many\" is not a size"),
        ("--size 100B", "less than a block of 8192"),
        ("--size 5..1:1", "the last size is below the first"),
        ("--policy best", "no policy is called \"best\"; there are: fifo, lru"),
        ("--limit 0", "--limit"),
        ("--format fast", "--format"),
    ] {
        scratch.run(&format!("cache simulate a.trace {options}")).exits(2).says(says);
    }
    for size in ["1", "11", "18446744073709551615", "1000T", "1%", "5000%"] {
        scratch.run(&format!("cache simulate a.trace --size {size}")).exits(0);
    }
}

#[test]
fn bad_trace_error_names_line() {
    let scratch = scratch("bad-traces");
    fs::write(scratch.file("garbage.trace"), "1\n2\n*\n\nabc\n").expect("written");
    fs::write(scratch.file("negative.trace"), "1\n-7\n").expect("written");
    fs::write(scratch.file("gigantic.trace"), "1\n99999999999999999999\n").expect("written");
    fs::write(scratch.file("empty.trace"), "").expect("written");
    fs::write(scratch.file("marks.trace"), "*\n\n*\n").expect("written");
    fs::write(scratch.file("cut.vscsi"), [0, 1].repeat(37)).expect("written");
    fs::write(scratch.file("cut.trace.gz"), [0x1f, 0x8b, 8, 0, 0]).expect("written");
    fs::write(scratch.file("long.trace"), vec![b'1'; 1 << 20]).expect("written");
    for (name, says) in [
        ("garbage.trace", "garbage.trace: line 5: expected a block number from 0 to 2^64-1, found \"abc\""),
        ("negative.trace", "negative.trace: line 2: expected a block number from 0 to 2^64-1, found \"-7\""),
        ("gigantic.trace", "gigantic.trace: line 2:"),
        ("empty.trace", "empty.trace: expected at least one reference, found none"),
        ("marks.trace", "marks.trace: expected at least one reference, found none"),
        ("cut.vscsi", "cut.vscsi: offset"),
        ("cut.trace.gz", "cut.trace.gz: expected whole compressed data"),
        ("long.trace", "long.trace: line 1: expected a line of at most 65536 bytes"),
        (".", ".:"),
    ] {
        scratch.run(&format!("cache simulate {name}")).exits(2).says(says);
        scratch.run(&format!("trace stat {name}")).exits(2).says(says);
        scratch.run(&format!("trace convert {name} out.txt")).exits(2).says(says);
        assert!(!scratch.file("out.txt").exists(), "{name}");
    }
    for command in ["cache simulate", "trace stat"] {
        scratch.run(&format!("{command} absent.trace")).exits(4).says("absent.trace: there is no such file");
    }
}

#[test]
fn converted_trace_keeps_references() {
    let scratch = scratch("convert");
    for (from, to) in [
        ("a.trace", "b.nectrace"),
        ("b.nectrace", "c.oracleGeneral.bin"),
        ("c.oracleGeneral.bin", "d.txt"),
        ("d.txt", "d.txt"),
    ] {
        scratch.run(&format!("trace convert {from} {to}")).exits(0);
        let text = scratch.run(&format!("cache simulate {to} --policy lru,min --size 5")).exits(0).text();
        assert!(text.contains("  5   50   30\n"), "{to}: {text}");
    }
    let rows: String = ["r", "w"].map(|op| format!("{op},8192,1\n{op},0,2\n")).concat();
    fs::write(scratch.file("io.csv"), rows).expect("written");
    let columns = "--format csv --columns op=1,offset=2,stream=3";
    scratch.run(&format!("trace convert io.csv io.nectrace {columns}")).exits(0);
    let text = scratch.run("trace stat io.nectrace --json").exits(0).text();
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let stat = &value["traces"][0];
    for (name, count) in [("references", 4), ("distinct", 2), ("streams", 2), ("writes", 2), ("once", 0)] {
        assert_eq!(stat[name], count, "{name}");
    }
    let lost = scratch.run(&format!("trace convert io.csv io.txt {columns}")).exits(0).text();
    assert!(lost.contains("streams are left out") && lost.contains("writes are taken for reads"), "{lost}");
    scratch.run("trace convert a.trace a.lis").exits(2).says("arc is only read");
    scratch.run("trace convert a.trace a.doc").exits(2).says("--into");
    scratch.run("trace convert a.trace a.txt.gz").exits(2).says("compress the file afterwards");
    scratch.run("trace convert a.trace /dev/null --into text").exits(2).says("no regular file");
}

#[test]
fn standard_input_is_a_trace() {
    let scratch = scratch("stdin");
    let text = fs::read(scratch.file("a.trace")).expect("there");
    let ran = scratch.run_with("cache simulate - --policy lru --size 10", &text).exits(0);
    assert!(ran.text().ends_with("  10   10\n"), "{}", ran.text());
}
