//! `nectary cache simulate`, `cache curve`, `trace stat` and `convert` on objects: keys, sizes, lives, columns by name.

use std::fs;

use serde_json::Value;

use crate::common::CommandScratch;

/// A loop over ten objects of 100 to 1,000 bytes, five times, a second for each reference.
fn scratch(name: &str) -> CommandScratch {
    let scratch = CommandScratch::new(name);
    let line = |turn: usize| format!("{turn},\"object {0}\",{1}\n", turn % 10, 100 * (turn % 10 + 1));
    let text: String = (0..50).map(line).collect();
    fs::write(scratch.file("o.csv"), format!("time,key,size\n{text}")).expect("written");
    scratch
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Misses are counted too.
#[test]
fn byte_capacities_count_missed_bytes() {
    let scratch = scratch("objects");
    let text = scratch.run("cache simulate o.csv --policy lru,gdsf,min --size 3000B,100%").exits(0).text();
    assert_eq!(
        text,
        "o: 50 references, 10 distinct objects of 5500 bytes; misses\nbytes  lru  min  gdsf\n \
         3000   50   31    38\n 5500   10   10    10\n\n\
         o: 50 references, 10 distinct objects of 5500 bytes; missed bytes\nbytes    lru    min   gdsf\n \
         3000  27500  18200  25100\n 5500   5500   5500   5500\n"
    );
    let text = scratch.run("cache simulate o.csv --policy lru --size 4,10 --json").exits(0).text();
    let rows = json(&text)["rows"].clone();
    assert_eq!((&rows[0]["unit"], &rows[0]["misses"], &rows[1]["misses"]), (&"objects".into(), &50.into(), &10.into()));
    assert_eq!((&rows[1]["bytes"], &rows[1]["missed_bytes"]), (&27_500.into(), &5500.into()));
    assert_eq!(rows[1]["byte_miss_ratio"], 0.2);
    scratch.run("cache simulate o.csv --size 10,1K").exits(2).says("cannot be in one table");
}

/// The requests after the warm-up are counted in windows.
#[test]
fn warm_up_is_not_counted() {
    let scratch = scratch("objects-windows");
    let csv = scratch.run("cache simulate o.csv --policy lru --size 6K --window 20s --csv").exits(0).text();
    assert_eq!(
        csv,
        "trace,policy,size,unit,from,from_s,references,misses,miss_ratio,bytes,missed_bytes,byte_miss_ratio\n\
         o,lru,6144,bytes,0,0,20,10,0.5,11000,5500,0.5\n\
         o,lru,6144,bytes,20,20,20,0,0,11000,0,0\n\
         o,lru,6144,bytes,40,40,10,0,0,5500,0,0\n"
    );
    let text =
        scratch.run("cache simulate o.csv --policy lru --size 6K --warm-up 10% --window 40% --ratio").exits(0).text();
    assert!(
        text.contains(
            "o at 6144 bytes, over time; misses in % of references\nfrom  second    lru\n   5       5  25.00"
        ),
        "{text}"
    );
    let text = scratch.run("cache simulate o.csv --policy lru --size 6K --warm-up 10s --json").exits(0).text();
    assert_eq!((&json(&text)["rows"][0]["misses"], &json(&text)["rows"][0]["references"]), (&0.into(), &40.into()));
    let ttl = scratch.run("cache simulate o.csv --policy lru --size 6K --ttl 15s --json").exits(0).text();
    assert_eq!(json(&ttl)["rows"][0]["misses"], 30);
    for (options, says) in [
        ("--warm-up 50", "leaves nothing of the 50 references"),
        ("--warm-up 1h", "leaves nothing"),
        ("--window 0", "a window of nothing"),
        ("--ttl 5", "expected a time"),
        ("--csv --json", "cannot be used with"),
    ] {
        scratch.run(&format!("cache simulate o.csv --policy lru {options}")).exits(2).says(says);
    }
    fs::write(scratch.file("a.trace"), "1\n2\n").expect("written");
    scratch.run("cache simulate a.trace --warm-up 1s").exits(2).says("has no times");
    scratch.run("cache simulate a.trace --ttl 1s").exits(2).says("needs times");
}

#[test]
fn bad_columns_get_a_remedy() {
    let scratch = scratch("objects-columns");
    let misses = |file: &str, options: &str| {
        let text =
            scratch.run(&format!("cache simulate {file} --policy lru --size 2K --json {options}")).exits(0).text();
        json(&text)["rows"][0]["missed_bytes"].clone()
    };
    let expected = misses("o.csv", "");
    for columns in ["time,key,size", "time=1,key=2,size=3", "key=key,size=size"] {
        assert_eq!(misses("o.csv", &format!("--columns {columns}")), expected, "{columns}");
    }
    let text = fs::read_to_string(scratch.file("o.csv")).expect("there");
    fs::write(scratch.file("mark.csv"), format!("\u{feff}{text}")).expect("written");
    fs::write(scratch.file("tabs.tsv"), text.replace(',', "\t")).expect("written");
    fs::write(scratch.file("spaces.txt"), text.replace(',', "   ")).expect("written");
    for file in ["mark.csv", "tabs.tsv", "spaces.txt"] {
        assert_eq!(misses(file, ""), expected, "{file}");
    }
    fs::write(scratch.file("bad.csv"), "0,h,0,Read,x,8\n0,h,0,Read,8,8\n").expect("written");
    scratch.run("trace stat bad.csv").exits(2).says("bad.csv: line 1: expected an offset in bytes");
    scratch.run("trace stat o.csv --columns block,size,op").exits(2).says("give --block SIZE");
    scratch.run("trace stat o.csv --columns key,colour").exits(2).says("\"colour\" is no column");
    let stat = scratch.run("trace stat o.csv --json").exits(0).text();
    assert_eq!(
        (&json(&stat)["traces"][0]["distinct"], &json(&stat)["traces"][0]["distinct_bytes"]),
        (&10.into(), &5500.into())
    );
}

/// A curve of sampled requests shows its error.
#[test]
fn curve_is_exact_without_sampling() {
    let scratch = scratch("objects-curve");
    let text = scratch.run("cache curve o.csv --size 1000B,6K").exits(0).text();
    assert_eq!(
        text,
        "o.csv: 50 references; LRU misses in %, exact, 10 distinct\nbytes      references           bytes\n\
         \u{20}1000  100.00 ±  0.00  100.00 ±  0.00\n 6144   20.00 ±  0.00   20.00 ±  0.00\n"
    );
    let lines: String = (0..40_000_u64).map(|turn| format!("{}\n", turn * 7919 % 20_011)).collect();
    fs::write(scratch.file("loop.trace"), lines).expect("written");
    let text = scratch.run("cache curve loop.trace --samples 2000 --size 100,30000 --json").exits(0).text();
    let curve = json(&text)["curves"][0].clone();
    assert_eq!((&curve["unit"], &curve["references"]), (&"blocks".into(), &40_000.into()));
    assert!(curve["rate"].as_f64().is_some_and(|rate| rate < 0.11), "{curve}");
    for (point, truth) in [(0, 1.0), (1, 20_011.0 / 40_000.0)] {
        let figure = |name: &str| curve["points"][point][name].as_f64().unwrap_or(f64::NAN);
        assert!((figure("miss_ratio") - truth).abs() <= figure("miss_ratio_error"), "{curve}");
    }
    let csv = scratch.run("cache curve loop.trace --csv --samples 100000").exits(0).text();
    assert!(csv.starts_with("trace,size,unit,miss_ratio,miss_ratio_error,") && csv.lines().count() > 10, "{csv}");
    scratch.run("cache curve o.csv --size 10%").exits(2).says("give sizes");
    scratch.run("cache curve o.csv --size 10").exits(2).says("give bytes");
}

/// Numbers that are hashes lie in more files of 2^40 blocks than the format has room for. The error spoke of streams.
#[test]
fn wide_ids_are_renumbered() {
    let scratch = CommandScratch::new("objects-convert");
    let id = |number: u64| (number % 100_000 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let text: String = (0..150_000).map(|number| format!("{}\n", id(number))).collect();
    fs::write(scratch.file("wide.txt"), text).expect("written");
    let said = scratch.run("trace convert wide.txt wide.nectrace").exits(0).text();
    assert!(said.contains("150000 references") && said.contains("100000 block numbers are new"), "{said}");
    assert!(!said.contains("streams"), "{said}");
    let figures = |file: &str| {
        let text = scratch.run(&format!("trace stat {file} --json")).exits(0).text();
        let stat = json(&text)["traces"][0].clone();
        (stat["references"].clone(), stat["distinct"].clone(), stat["reuse_median"].clone(), stat["streams"].clone())
    };
    assert_eq!(figures("wide.nectrace"), figures("wide.txt"));
    let misses = |file: &str| {
        let text =
            scratch.run(&format!("cache simulate {file} --policy lru --size 50000,100000 --json")).exits(0).text();
        json(&text)["rows"].as_array().expect("rows").iter().map(|row| row["misses"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(misses("wide.nectrace"), misses("wide.txt"));
    fs::write(scratch.file("o.csv"), "time,key,size,op\n7,a,5,get\n9,b,6,delete\n9,a,5,set\n").expect("written");
    let said = scratch.run("trace convert o.csv o.txt").exits(0).text();
    for lost in ["the sizes of its objects are left out", "its deletes are left out", "its writes are taken for reads"]
    {
        assert!(said.contains(lost), "{said}");
    }
    scratch.run("trace convert o.csv o.oracleGeneral").exits(0);
    let bytes = fs::read(scratch.file("o.oracleGeneral")).expect("written");
    assert_eq!((bytes.len(), bytes[0], bytes[24], bytes[12]), (48, 7, 9, 5));
}

#[test]
fn a_stream_prints_what_memory_prints() {
    let scratch = scratch("objects-stream");
    let common = "cache simulate o.csv --policy lru,s3fifo,gdsf --warm-up 10% --window 10s";
    for form in ["", "--csv", "--ratio"] {
        for size in ["10%,50%", "1000B,3000B", "2,5"] {
            let held = scratch.run(&format!("{common} --size {size} {form}")).exits(0).text();
            let streamed = scratch.run(&format!("{common} --size {size} {form} --stream")).exits(0).text();
            assert_eq!(held, streamed, "{size} {form}");
        }
    }
    let all = scratch.run("cache simulate o.csv --size 2K --stream --json").exits(0).text();
    let rows = json(&all)["rows"].as_array().expect("rows").len();
    let held = scratch.run("cache simulate o.csv --size 2K --json").exits(0).text();
    assert_eq!(rows + 1, json(&held)["rows"].as_array().expect("rows").len(), "all but min");
    for (options, says) in [
        ("--policy min", "min needs the whole trace in memory"),
        ("--explain", "--explain needs the whole trace in memory"),
        ("--mix", "--mix needs the whole trace in memory"),
        ("--size 10 --warm-up 1000", "o.csv: the warm-up leaves nothing of the 50 references"),
    ] {
        scratch.run(&format!("cache simulate o.csv --stream {options}")).exits(2).says(says);
    }
    scratch.run("cache simulate - --stream --size 10%").exits(2).says("a pipe is read once");
}

#[test]
fn conversion_losses_appear_in_json() {
    let scratch = scratch("objects-convert-json");
    let text = scratch.run("trace convert o.csv o.txt --json").exits(0).text();
    let said = json(&text);
    assert_eq!((&said["format"], &said["references"], &said["sizes_lost"]), (&"text".into(), &50.into(), &true.into()));
    assert_eq!((&said["streams_lost"], &said["deletes_lost"]), (&false.into(), &false.into()));
}
