//! Targets of `nectary-block`: recordings, SPECs, and sizes, durations and shares as text.

use nectary_block::{
    DeviceSpec, SpecArgument, SpecForm, format_size, fuzzing, parse_duration, parse_share, parse_size,
};

use super::choices;
use crate::units;

/// The words of which SPECs and quantities consist.
pub const WORDS: &[&[u8]] = &[
    b"(",
    b")",
    b",",
    b"=",
    b"\"",
    b"\\",
    b"memory:",
    b"file=",
    b"delay(",
    b" ",
    b"1.5",
    b"16E",
    b"K",
    b"GiB",
    b"ms",
    b"%",
    b"18446744073709551615",
    b"./a",
    "\u{e9}".as_bytes(),
];

/// Reads a recording, and checks that writing it and reading it again gives the same events.
pub fn recording(input: &[u8]) {
    let (choices, rest) = choices(input);
    let mut bytes = rest.to_vec();
    if choices & 1 == 1 {
        units::seal_recording(&mut bytes);
    }
    if let Some(recording) = fuzzing::recording(&bytes) {
        let written = fuzzing::write_recording(&recording, [7; 16]);
        assert_eq!(fuzzing::recording(&written).as_ref(), Some(&recording));
        assert!(written.len() <= bytes.len().max(64), "more events than the file holds");
    }
}

/// Makes a recording with every kind of event.
pub fn recording_seeds() -> Vec<Vec<u8>> {
    use nectary_block::RecordedEvent;
    let events = vec![
        RecordedEvent::WriteBegun {
            id: 0,
            offset: 4096,
            data: bytes::Bytes::from_static(b"data of a write"),
            fua: true,
        },
        RecordedEvent::Completed { id: 0, succeeded: true },
        RecordedEvent::ZeroesBegun { id: 1, offset: 0, length: 8192 },
        RecordedEvent::DiscardBegun { id: 2, offset: 4096, length: 4096 },
        RecordedEvent::FlushBegun { id: 3 },
        RecordedEvent::Completed { id: 3, succeeded: false },
        RecordedEvent::GrowBegun { id: 4, size_bytes: 2 << 20 },
        RecordedEvent::Mark(9),
    ];
    let recording = nectary_block::Recording { size_bytes: 1 << 20, block_bytes: 4096, events };
    let bytes = fuzzing::write_recording(&recording, [7; 16]);
    vec![[&[0], &bytes[..]].concat(), [&[1], &bytes[..]].concat()]
}

/// Reads a SPEC, and checks that writing it and reading it again gives the same SPEC.
pub fn spec(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match DeviceSpec::parse(text) {
        Ok(spec) => {
            let shown = spec.to_string();
            let again =
                DeviceSpec::parse(&shown).unwrap_or_else(|error| panic!("{shown:?} is not read again: {error}"));
            assert!(are_same(&spec, &again), "{text:?} became {shown:?}");
            let _ = (spec.scheme(), spec.path());
        }
        Err(error) => assert!(error.position <= text.chars().count(), "{error}"),
    }
}

/// Whether two SPECs are equal apart from their positions in the text.
fn are_same(left: &DeviceSpec, right: &DeviceSpec) -> bool {
    match (&left.form, &right.form) {
        (SpecForm::Text(left), SpecForm::Text(right)) => left == right,
        (SpecForm::Call { name: left, arguments }, SpecForm::Call { name: right, arguments: others }) => {
            let same = |(one, other): (&SpecArgument, &SpecArgument)| {
                one.key == other.key && are_same(&one.value, &other.value)
            };
            left == right && arguments.len() == others.len() && arguments.iter().zip(others).all(same)
        }
        _ => false,
    }
}

/// Makes SPECs of all forms.
pub fn spec_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "memory:1G",
        "./data.img",
        "record(delay(memory:1M,read=12ms),file=\"a, b\")",
        "twice(a:b, key = \"x\\\"y\" ,(c))",
        "error(/dev/x,on=read,share=1%)",
        " a( ) ",
        "a(b(c(d(e(f(g(h(i(j(k(l(m(n(o(p)))))))))))))))",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Reads sizes, durations and shares. Checks that values are in bounds, and that a printed size is read as nearly the
/// same size.
pub fn sizes(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(size) = parse_size(text) {
        let shown = format_size(size);
        let again = parse_size(&shown);
        let near = again.as_ref().is_ok_and(|&again| again.abs_diff(size) <= size / 50);
        // Close to 2^64, rounding to two decimals may exceed the range.
        assert!(near || size > u64::MAX - (u64::MAX >> 6), "{text:?} is {size}, shown as {shown}, read as {again:?}");
    }
    if let Ok(share) = parse_share(text) {
        assert!((0.0..=1.0).contains(&share), "{text:?} is {share}");
    }
    let _ = parse_duration(text);
}

/// Makes quantities of all kinds.
pub fn size_seeds() -> Vec<Vec<u8>> {
    ["4096", "1.5T", "10 GiB", "15E", "12ms", "1.5s", "100us", "0.5%", "0.01", "16E", "18446744073709551615"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}
