//! Tests of the judgement of what is found on donors, without I/O.

use nectary_block::{DeviceErrorKind, DeviceRegistry, OpenOptions};

use super::label::UNIT_BYTES;
use super::opening::{DonorAssignment, DonorFinding, assess};
use super::options::RamOptions;
use super::*;

fn options(spec: &str) -> Result<RamOptions, Error> {
    let registry = DeviceRegistry::with_builtins();
    RamOptions::parse(registry.arguments(spec, "ram", &OpenOptions::default())?)
}

fn label(number: usize, count: usize) -> DonorLabel {
    DonorLabel {
        number,
        redundancy: Redundancy::None,
        identity: [7; 16],
        size_bytes: UNIT_BYTES,
        generation: 3,
        client: 1,
        id: "disk".to_owned(),
        shares: vec![UNIT_BYTES; count],
        formers: Vec::new(),
    }
}

fn holds(label: DonorLabel) -> DonorFinding {
    DonorFinding::Holds(LabelContent::Label(Box::new(label)))
}

/// Judges `found` on donors with the names h1, h2, …
fn judge(found: Vec<DonorFinding>, lost_max: usize) -> Result<DonorAssignment, (DeviceErrorKind, String)> {
    let names: Vec<String> = (1..=found.len()).map(|number| format!("h{number}:7070")).collect();
    let options = options(&format!("ram({},id=disk,size=64K)", names.join(","))).unwrap();
    let found: Vec<(&str, DonorFinding)> = names.iter().map(String::as_str).zip(found).collect();
    assess(&options, &found, lost_max)
}

/// The order of the donors in the SPEC does not matter.
#[test]
fn labels_identify_donors() {
    let newer = DonorLabel { generation: 4, ..label(0, 2) };
    let assessed = judge(vec![holds(label(1, 2)), holds(newer)], 0).unwrap();
    assert_eq!((assessed.places, assessed.label.generation), (vec![Some(1), Some(0)], 4));
}

#[test]
fn interrupted_growth_has_newer_size() {
    let formers = vec![vec![UNIT_BYTES; 2]];
    let grown = DonorLabel {
        generation: 4,
        size_bytes: 3 * UNIT_BYTES,
        shares: vec![2 * UNIT_BYTES; 2],
        formers,
        ..label(1, 2)
    };
    let options = options("ram(h1:7070,h2:7070,id=disk)").unwrap();
    for found in [[label(0, 2), grown.clone()], [grown, label(0, 2)]] {
        let found: Vec<(&str, DonorFinding)> = ["h1", "h2"].into_iter().zip(found.map(holds)).collect();
        let label = assess(&options, &found, 0).unwrap().label;
        assert_eq!((label.size_bytes, label.generation, label.formers.len()), (3 * UNIT_BYTES, 4, 1));
    }
}

/// The error about empty donors says how a device is made.
#[test]
fn open_of_empty_donors_fails() {
    let empty = || DonorFinding::Holds(LabelContent::Empty);
    let (kind, text) = judge(vec![empty(), empty()], 0).unwrap_err();
    assert_eq!(kind, DeviceErrorKind::Absent);
    assert!(text.contains("none of the donors (2) holds anything") && text.contains("nectary ram create"), "{text}");
    let (_, text) = judge(vec![holds(label(0, 2)), empty()], 0).unwrap_err();
    assert!(text.contains("h2:7070: it is empty") && text.contains("all 2 donors are needed"), "{text}");
}

#[test]
fn error_names_all_bad_donors() {
    let away = || DonorFinding::Unreachable("nothing answers".to_owned());
    let (kind, text) = judge(vec![away(), holds(label(0, 3)), away()], 0).unwrap_err();
    assert_eq!(kind, DeviceErrorKind::Absent);
    assert!(text.contains("h1:7070: nothing answers; h3:7070: nothing answers"), "{text}");
    let other = DonorLabel { id: "other".into(), ..label(1, 2) };
    for (finding, words) in [
        (holds(other), "h2:7070: it holds device \"other\", not \"disk\""),
        (holds(DonorLabel { identity: [8; 16], ..label(1, 2) }), "another one, made at another time"),
        (holds(label(0, 2)), "h1:7070 and h2:7070 are the same donor, number 1"),
        (DonorFinding::Holds(LabelContent::SomethingElse), "h2:7070: it holds something that is no network RAM disk"),
        (
            DonorFinding::Holds(LabelContent::Unusable("its label has version 2".into())),
            "h2:7070: its label has version 2",
        ),
    ] {
        let (kind, text) = judge(vec![holds(label(0, 2)), finding], 0).unwrap_err();
        assert!(kind == DeviceErrorKind::Invalid && text.contains(words), "{text}");
    }
    let (_, text) = judge(vec![holds(label(1, 3)), holds(label(0, 3))], 0).unwrap_err();
    assert!(text.contains("the device has 3 donors, 2 are named: number 3 is missing"), "{text}");
    // One donor more is missing than allowed.
    let (_, text) = judge(vec![holds(label(0, 1)), away()], 0).unwrap_err();
    assert!(text.contains("h2:7070: nothing answers"), "{text}");
    let large = DonorLabel { size_bytes: 2 * UNIT_BYTES, shares: vec![2 * UNIT_BYTES], ..label(0, 1) };
    let (kind, text) = judge(vec![holds(large)], 0).unwrap_err();
    assert!(kind == DeviceErrorKind::Invalid && text.contains("the device has 128K, not size=64K"), "{text}");
}

#[test]
fn redundancy_tolerates_absent_donor() {
    let away = DonorFinding::Unreachable("nothing answers".to_owned());
    let assessed = judge(vec![holds(label(0, 3)), away.clone(), holds(label(2, 3))], 1).unwrap();
    assert_eq!(assessed.places, [Some(0), None, Some(2)]);
    let (_, text) = judge(vec![holds(label(0, 3)), away.clone(), away], 1).unwrap_err();
    assert!(text.contains("2 of 3 donors are needed"), "{text}");
}

#[test]
fn specs_are_read_and_mistakes_named() {
    let spec = "ram(h1:7070,[::1]:7070,\"nbd+unix:///a?socket=/b\",id=disk,size=8G,patience=2s,redundancy=mirror)";
    let read = options(spec).unwrap();
    assert_eq!(options(&read.spec()).unwrap(), read);
    for (spec, words) in [
        ("ram(id=disk)", "0 donors; 1 to 64"),
        ("ram(h1:7070)", "id=disk"),
        ("ram(h1:7070,h1:7070,id=disk)", "h1:7070 is named twice"),
        ("ram(h1,id=disk)", "host:port"),
        ("ram(h1:7070,id=a b)", "no id"),
        ("ram(h1:7070,id=disk,size=5000)", "a multiple of 4096"),
        ("ram(h1:7070,id=disk,patience=0s)", "patience is 1ms to 24h"),
        ("ram(h1:7070,h2:7070,id=disk,redundancy=parity)", "2 donors; redundancy=parity takes 3 to 16"),
        ("ram(h1:7070,id=disk,redundancy=adaptive)", "1 donors; redundancy=adaptive takes 3 to 16"),
        ("ram(h1:7070,id=disk,redundancy=mirror)", "1 donors; redundancy=mirror takes 2 to 16"),
        ("ram(h1:7070,id=disk,redundancy=raid)", "no redundancy"),
        ("ram(stats(memory:1G),id=disk)", "not the device stats"),
        ("ram(h1:7070,id=disk,more=1)", "no option \"more\""),
        ("memory:1G", "expected ram(…)"),
    ] {
        let error = options(spec).unwrap_err();
        assert!(error.detail.contains(words), "{spec}: {error}");
    }
}
