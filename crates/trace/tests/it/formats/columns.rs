//! Tests of CSV files by the meaning of their columns: published traces, headers, keys, quotes, and what is refused.

use nectary_trace::TraceReference;
use nectary_trace::formats::csv::CsvColumns;
use nectary_trace::formats::{ReadOptions, TraceFormat, TraceOperation};

use super::encode::read;

fn by(columns: &str) -> ReadOptions {
    ReadOptions { columns: Some(CsvColumns::parse(columns).expect("columns")), ..ReadOptions::default() }
}

fn named(format: &str) -> ReadOptions {
    ReadOptions { format: TraceFormat::by_name(format), ..ReadOptions::default() }
}

#[track_caller]
fn references(text: &str, options: &ReadOptions) -> Vec<TraceReference> {
    let (references, result) = read("a.csv", text.as_bytes(), options);
    assert!(result.is_ok(), "{result:?}");
    references
}

#[track_caller]
fn refused(text: &str, options: &ReadOptions, parts: &[&str]) {
    let error = read("a.csv", text.as_bytes(), options).1.expect_err("refused").to_string();
    for part in parts {
        assert!(error.contains(part), "no {part:?} in {error:?}");
    }
}

/// The blocks of references, each numbered by its first place.
fn pattern(references: &[TraceReference]) -> Vec<usize> {
    let first = |block| references.iter().position(|reference| reference.block == block).unwrap_or_default();
    references.iter().map(|reference| first(reference.block)).collect()
}

#[test]
fn twitter_traces_read_by_name() {
    let text = "0,nz:u:eeW511W3dcH3de3d15ec,24,100,7,get,0\n1,nz:u:eeW511W3dcH3de3d15ec,24,100,8,set,3600\n\
                2,nz:u:x,6,0,8,delete,0\n";
    let found = references(text, &named("twitter"));
    assert_eq!(pattern(&found), [0, 0, 2]);
    let shapes: Vec<_> = found.iter().map(|one| (one.bytes, one.operation, one.time_s, one.ttl_s)).collect();
    assert_eq!(
        shapes,
        [(124, TraceOperation::Read, 0, 0), (124, TraceOperation::Write, 1, 3600), (6, TraceOperation::Delete, 2, 0)]
    );
}

#[test]
fn cachelib_traces_read_by_header() {
    let old = "key,op,size,op_count,key_size\nkey1,GET,100,2,4\nkey2,SET,7,1,4\nkey1,GET_LEASE,100,1,4\n";
    let found = references(old, &ReadOptions::default());
    assert_eq!(pattern(&found), [0, 0, 2, 0]);
    assert_eq!(found.iter().map(|one| one.bytes).collect::<Vec<_>>(), [104, 104, 11, 104]);
    let new = "op_time,key,key_size,op,op_count,size,cache_hits,ttl\n5,a,1,SET,1,9,0,60\n6,a,1,GET,1,9,1,\n";
    let found = references(new, &named("cachelib"));
    assert_eq!(found.iter().map(|one| (one.time_s, one.ttl_s)).collect::<Vec<_>>(), [(5, 60), (6, 0)]);
}

#[test]
fn wikimedia_traces_read_by_header() {
    let text = "relative_unix\thashed_path_query\timage_type\tresponse_size\ttime_firstbyte\n\
                0\t833946053\tjpeg\t4096\t0.01\n0\t-99\tpng\t10\t0.02\n1\t833946053\tjpeg\t4096\t0.01\n";
    let found = references(text, &ReadOptions::default());
    assert_eq!(pattern(&found), [0, 1, 0]);
    assert_eq!((found[0].block, found[0].bytes, found[2].time_s), (833_946_053, 4096, 1));
}

/// `block=` would take a sector of 512 bytes for a block of 8 KiB.
#[test]
fn spc_requests_are_in_sectors() {
    let text = "0,16,8192,w,0.551706\n0,24,4096,W,0.6\n1,16,512,r,7.25\n";
    for options in [named("spc"), by("volume,sector,size,op,time")] {
        let found = references(text, &options);
        let blocks: Vec<u64> = found.iter().map(|one| one.block).collect();
        assert_eq!(blocks, [1, 1, 1 << 48 | 1]);
        assert_eq!(
            (found[0].operation, found[2].operation, found[2].time_s),
            (TraceOperation::Write, TraceOperation::Read, 7)
        );
    }
    refused(text, &by("volume,block,size,op"), &["give --block SIZE", "sector=N"]);
    let sectors = ReadOptions { block_bytes: Some(512), ..by("volume,block,size,op") };
    let blocks: Vec<u64> = references(text, &sectors).iter().map(|one| one.block).collect();
    assert_eq!(blocks.len(), 16 + 8 + 1);
    assert_eq!((blocks[0], blocks[15], blocks[16]), (16, 31, 24));
}

/// Keys are any text, and numbers stay numbers.
#[test]
fn text_keys_are_kept() {
    let text = "a b\n7\n07\n18446744073709551615\n18446744073709551616\n7\ngr\u{fc}n\n";
    let found = references(text, &by("key,sep=;"));
    assert_eq!(pattern(&found), [0, 1, 2, 3, 4, 1, 6]);
    assert_eq!((found[1].block, found[3].block), (7, u64::MAX));
    let joined = references("a,b\nab,\na,b\n", &by("key=1+2"));
    assert_eq!(pattern(&joined), [0, 1, 0]);
    refused("a,1\n,2\n", &by("key,size"), &["line 2:", "a key in column 1"]);
}

/// A byte order mark, quotes and repeated spaces are read.
#[test]
fn quotes_and_spaces_are_parsed() {
    let text = "\u{feff}time,key,size\n1,\"a,\"\"b\",10\r\n2, \"c\" , 20 \n3,\"a,\"\"b\",10\n";
    for options in [ReadOptions::default(), by("time,key,size"), by("key=key,size=size,time=time")] {
        let found = references(text, &options);
        assert_eq!(pattern(&found), [0, 1, 0]);
        assert_eq!((found[1].bytes, found[2].time_s), (20, 3));
    }
    let found = references("1   x  10\n2\t y \t 20\n", &by("time,key,size"));
    assert_eq!((found.len(), found[1].bytes, found[1].time_s), (2, 20, 2));
    refused("a,1\n\"b,2\n", &by("key,size"), &["line 2:", "a quote that ends in its line"]);
    refused("a,1\n\"b\"c,2\n", &by("key,size"), &["line 2:", "a separator after a quoted value"]);
    let (found, result) = read("a.trace", "\u{feff}5\n6\n".as_bytes(), &ReadOptions::default());
    assert!(result.is_ok() && found.len() == 2 && found[0].block == 5);
}

/// A first line with a bad offset was skipped as if it were a header.
#[test]
fn header_needs_its_names() {
    refused(
        "1,h,0,Read,x17,8,0\n1,h,0,Read,0,8,0\n",
        &ReadOptions::default(),
        &["line 1:", "an offset in bytes", "\"x17\""],
    );
    refused("when,what\n1,2\n", &by("time,offset"), &["line 1:", "a header that calls it offset", "\"what\""]);
    refused("a,b\n1,2\n", &by("key=a,size=c"), &["line 1:", "a header with the columns \"a, c\"", "\"a,b\""]);
    assert_eq!(references("Time,OFFSET\n1,0\n", &by("time,offset")).len(), 1);
    assert_eq!(references("* comment\n\nobject_id bytes\n5 10\n", &by("key=object_id,size=bytes"))[0].bytes, 10);
    // A name in the second line is no header.
    refused("1,0\ntime,offset\n", &by("time,offset"), &["line 2:", "an offset in bytes in column 2"]);
}

/// Bad values are refused with their line and column.
#[test]
fn bad_values_name_their_column() {
    let options = by("time,key,size,op,ttl");
    for (line, part) in [
        ("x,a,1,get,0", "a time as a number in column 1, found \"x\""),
        ("1.x,a,1,get,0", "a time as a number in column 1"),
        ("1,a,-1,get,0", "a size in bytes in column 3, found \"-1\""),
        ("1,a,1,fly,0", "read, write or delete (or its meaning in --columns: read=VALUE) in column 4, found \"fly\""),
        ("1,a,1,get,soon", "a time to live in seconds in column 5, found \"soon\""),
        ("1,a,4294967296,get,0", "an object of at most 4294967295 bytes"),
        ("1,a", "(or its meaning in --columns: read=VALUE) in column 4, found \"1,a\""),
        ("1,a,,get", "a size in bytes in column 3, found \"\""),
    ] {
        refused(&format!("1,a,1,get,0\n{line}\n"), &options, &["a.csv: line 2:", part]);
    }
    refused("a,1\na,2000000\n", &by("key,count"), &["line 2:", "at most 1048576"]);
    // Columns that are named by the header are counted in the file.
    refused(
        "x,y,key,size\n1,2,a,b\n",
        &by("key=key,size=size"),
        &["line 2:", "a size in bytes in column 4, found \"b\""],
    );
}

/// `REST.PUT.OBJECT` was a read, as it begins with R, and numbers were no operations.
#[test]
fn operations_are_words_or_named_values() {
    let operations =
        |text: &str, columns: &str| references(text, &by(columns)).iter().map(|one| one.operation).collect::<Vec<_>>();
    let (read, write, delete) = (TraceOperation::Read, TraceOperation::Write, TraceOperation::Delete);
    let text = "1 REST.PUT.OBJECT a 10\n2 REST.GET.OBJECT a 10\n3 REST.DELETE.OBJECT a\n4 rs a 1\n5 WSM a 1\n";
    assert_eq!(operations(text, "time_ms,op,key,size"), [write, read, delete, read, write]);
    refused("1 REST.GET.OBJECT a\n", &by("time_ms,op,key,size"), &["line 1:", "a size in bytes in column 4"]);
    assert_eq!(operations("3 REST.DELETE.OBJECT a\n4 REST.GET.OBJECT a 5\n", "time_ms,op,key,size"), [delete, read]);
    refused("1 REST.COPY.OBJECT a\n", &by("time_ms,op,key"), &["line 1:", "read=VALUE", "\"REST.COPY.OBJECT\""]);
    assert_eq!(operations("1 REST.COPY.OBJECT a\n", "time_ms,op,key,write=rest.copy.object"), [write]);
    let numbers = "a,0\na,1\na,2\na,3\n";
    assert_eq!(operations(numbers, "key,op,read=0+3,write=1,delete=2"), [read, write, delete, read]);
    refused(numbers, &by("key,op,write=1"), &["line 1:", "in column 2, found \"0\""]);
}

#[test]
fn sizes_in_sectors_have_512_bytes() {
    let text = "1538323200,32,8,0,1283\n1538323200,40,24,1,1283\n";
    let found = references(text, &by("time,sector,sectors,op,volume,read=0,write=1"));
    let expected = [(2, TraceOperation::Read), (2, TraceOperation::Write), (3, TraceOperation::Write)];
    assert_eq!(found.iter().map(|one| (one.block, one.operation)).collect::<Vec<_>>(), expected);
    refused("1,2,x\n", &by("time,sector,sectors"), &["line 1:", "a size in sectors in column 3"]);
}
