//! Problems with the donors of a network RAM disk with redundancy, and their remedies.
//!
//! Owns: the texts for `nectary status`. Leaves to others: the figures (`nectary-ram`).

use std::time::Duration;

use nectary_block::{DeviceCounters, DeviceSpec, SpecForm, format_size};
use nectary_host::{PartHealth, PartStatus};

/// The number of donors whose loss every redundancy survives.
const SURVIVED: usize = 1;

/// The donors of the first network RAM disk in a SPEC, in the order of their numbers.
fn addresses(spec: &DeviceSpec) -> Option<Vec<String>> {
    let SpecForm::Call { name, arguments } = &spec.form else { return None };
    if name != "ram" {
        return arguments.iter().find_map(|argument| addresses(&argument.value));
    }
    let unnamed = arguments.iter().filter(|argument| argument.key.is_none());
    let address = |spec: &DeviceSpec| match &spec.form {
        // What follows are labels.
        SpecForm::Text(text) => text.split(';').next().unwrap_or_default().to_owned(),
        SpecForm::Call { .. } => spec.to_string(),
    };
    Some(unnamed.map(|argument| address(&argument.value)).collect())
}

/// Adds the state of a device with redundancy to a status; `ram` has its figures, `all` those of the whole stack, and
/// `spec` names the stack.
pub fn with_mirror(mut status: PartStatus, ram: &DeviceCounters, all: &[DeviceCounters], spec: &str) -> PartStatus {
    let count = |name: &str| ram.get(name).unwrap_or_default();
    let donors: Vec<&DeviceCounters> = all.iter().filter(|figures| figures.device == "donor").collect();
    let addresses = DeviceSpec::parse(spec).ok().and_then(|spec| addresses(&spec)).unwrap_or_default();
    // A donor's number, and its address if it is known.
    let named = |number: u64| {
        let address = usize::try_from(number).ok().and_then(|number| addresses.get(number.checked_sub(1)?));
        address.map_or_else(|| number.to_string(), |address| format!("{number} ({address})"))
    };
    let list = |donors: &[&DeviceCounters]| {
        let all: Vec<String> = donors.iter().map(|donor| named(donor.get("number").unwrap_or_default())).collect();
        all.join(", ")
    };
    let numbers = |name: &str| {
        let found: Vec<&DeviceCounters> = donors.iter().copied().filter(|donor| donor.get(name) == Some(1)).collect();
        (!found.is_empty()).then(|| list(&found))
    };
    let silent: Vec<&DeviceCounters> = donors.iter().copied().filter(|donor| donor.get("reached") == Some(0)).collect();
    let is_broken = silent.len() > SURVIVED;
    if count("attached") == 0 {
        let what = "another client has taken the device over, or it was given up: every request fails".to_owned();
        return status.with_problem(PartHealth::Broken, what, "detach it here with --force");
    }
    if let Some(lost) = numbers("lost") {
        let what = format!("donor {lost} is lost with another one: blocks that no other has are I/O errors");
        let remedy = "save what can still be read, then delete the device and make it again (docs/ram.md)";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if count("lost_blocks") > 0 {
        let what = format!(
            "{} blocks are lost: the last client ended while it changed their stripes and a donor was missing, or no \
             donor had their right bytes",
            count("lost_blocks")
        );
        status = status.with_problem(PartHealth::Degraded, what, "write the files again that cannot be read");
    }
    if is_broken {
        let what = format!(
            "{} donors do not answer: {}; the device survives the loss of one: requests to blocks that only these have \
             wait, then fail",
            silent.len(),
            list(&silent)
        );
        let remedy = "bring their network back, or let them go on: one that is started again has lost what it had";
        status = status.with_problem(PartHealth::Broken, what, remedy);
    }
    let is = |donor: &&DeviceCounters, names: &[&str]| names.iter().any(|name| donor.get(name) == Some(1));
    let are_others_well = silent.iter().all(|donor| is(donor, &["left", "lost"]));
    if let Some(left) = numbers("left").filter(|_| !is_broken) {
        let what = match numbers("lost") {
            None => "nothing is lost, and losing one more donor would lose blocks",
            Some(_) => "what others have can be used",
        };
        let what = format!("degraded: donor {left} is left; {what}");
        let remedy = match (count("spares"), count("spares_up")) {
            (_, 1..) if are_others_well && numbers("lost").is_none() => {
                "a spare takes its place when it has been left for 30 s, and is filled by itself"
            }
            (1.., 0) => {
                "no spare answers: start it or a spare again, or bring its network back; it is filled by itself"
            }
            _ => "start it again at its address, or bring its network back: it is filled by itself",
        };
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if let Some(refused) = numbers("refused") {
        let what = format!(
            "donor {refused} is there, but has another device of this name, or another client: it is not filled"
        );
        let remedy = "delete that device or detach that client, or `nectary ram replace` this donor with another one";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if let Some(filled) = numbers("rebuilding") {
        let (copied, all) = (count("rebuild_copied_stripes"), count("rebuild_stripes").max(1));
        let left = left(ram, "rebuild_left_ms");
        let units = if count("mirror") == 1 { "stripes" } else { "groups" };
        let percent = copied * 100 / all;
        let what = format!("degraded: donor {filled} is filled: {copied} of {all} {units}, {percent} %{left}");
        status = status.with_problem(PartHealth::Degraded, what, "wait; the device can be used meanwhile");
    }
    if let Some(moved) = ram.get("move_donor") {
        let (copied, all) = (count("move_copied_bytes"), count("move_bytes").max(1));
        let left = left(ram, "move_left_ms");
        let percent = copied * 100 / all;
        let (copied, all) = (format_size(copied), format_size(all));
        let moved = named(moved);
        let what = format!("donor {moved} is being replaced: {copied} of {all}, {percent} %{left}");
        status = status.with_problem(PartHealth::Healthy, what, "wait; the device can be used meanwhile");
    }
    status = with_scrub(status, ram);
    let remedy = "see whether it runs and can be reached";
    if !are_others_well && !is_broken {
        let is_other = |donor: &&DeviceCounters| donor.get("reached") == Some(1) && is(donor, &["left", "rebuilding"]);
        let what = match donors.iter().any(is_other) {
            true => ", and another one is not whole: requests wait for it, then fail",
            false => ": writes wait for it until it is left",
        };
        let what = format!("donor {} does not answer at the moment{what}", list(&silent));
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    } else if silent.is_empty() && count("donors_up") < count("donors") && numbers("left").is_none() {
        let what = "a donor is connected, and does not serve this client yet: writes wait for it".to_owned();
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    status
}

/// Returns the time that a figure says is left, as the end of a sentence.
fn left(ram: &DeviceCounters, name: &str) -> String {
    let left = ram.get(name).map(|left| Duration::from_millis(left).as_secs_f64().ceil());
    left.map_or_else(String::new, |seconds| format!(", about {seconds:.0} s are left"))
}

/// Adds the progress and the findings of the scrub.
fn with_scrub(mut status: PartStatus, ram: &DeviceCounters) -> PartStatus {
    let count = |name: &str| ram.get(name).unwrap_or_default();
    if let Some(done) = ram.get("scrub_done_bytes") {
        let all = count("scrub_bytes").max(1);
        let left = left(ram, "scrub_left_ms");
        let rate = (done * 1000).checked_div(count("scrub_elapsed_ms")).unwrap_or_default();
        let percent = u128::from(done) * 100 / u128::from(all);
        let (done, all, rate) = (format_size(done), format_size(all), format_size(rate));
        let what = format!("copies are compared: {done} of {all}, {percent} %, {rate} a second{left}");
        status = status.with_problem(PartHealth::Healthy, what, "wait; the device can be used meanwhile");
    }
    let (repaired, lost, doubtful) = (count("scrub_repaired"), count("scrub_lost"), count("scrub_doubtful"));
    if repaired > 0 {
        let what = format!("{repaired} damaged copies were found and repaired since the device was attached");
        let remedy = "if it goes on, test the memory of the donors, or replace them one by one";
        status = status.with_problem(PartHealth::Healthy, what, remedy);
    }
    if lost > 0 {
        let what = format!("{lost} blocks are lost: no donor has the right bytes");
        status = status.with_problem(PartHealth::Degraded, what, "write the files again that cannot be read");
    }
    if doubtful > 0 {
        let what = format!(
            "the copies of {doubtful} blocks differ: one is damaged, and this client has not written them, so it does not \
             know which one"
        );
        status = status.with_problem(
            PartHealth::Degraded,
            what,
            "compare the files with other copies, and write them again",
        );
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(values: &[(&'static str, u64)], donors: &[&'static str]) -> String {
        let mut own = vec![("attached", 1), ("donors", donors.len() as u64), ("donors_up", donors.len() as u64)];
        own.extend_from_slice(values);
        let own = DeviceCounters { device: "ram", values: own };
        let donor = |(place, state): (usize, &&'static str)| DeviceCounters {
            device: "donor",
            values: vec![("number", place as u64 + 1), (*state, 1), ("reached", u64::from(*state != "silent"))],
        };
        let mut all = vec![own.clone()];
        all.extend(donors.iter().enumerate().map(donor));
        let spec = "stats(ram(h1:7070,\"h2:7070;rack=a\",h3:7070,id=a,redundancy=mirror))";
        let status = with_mirror(PartStatus::healthy("attach", "/dev/loop0"), &own, &all, spec);
        serde_json::to_string(&status).unwrap()
    }

    #[test]
    fn degraded_mirror_names_donor_and_remedy() {
        assert!(!words(&[], &["trusted", "trusted"]).contains("degraded"));
        let left = words(&[], &["trusted", "left"]);
        assert!(left.contains("donor 2 (h2:7070) is left") && left.contains("start it again"), "{left}");
        let spared = words(&[("spares", 2), ("spares_up", 1)], &["trusted", "left"]);
        assert!(spared.contains("a spare takes its place"), "{spared}");
        let refused = words(&[], &["trusted", "refused"]);
        assert!(refused.contains("donor 2 (h2:7070) is there, but has another device"), "{refused}");
        let filled = [("mirror", 1), ("rebuild_copied_stripes", 3), ("rebuild_stripes", 4), ("rebuild_left_ms", 1500)];
        let filled = words(&filled, &["rebuilding", "trusted"]);
        assert!(filled.contains("3 of 4 stripes, 75 %, about 2 s are left"), "{filled}");
        let moved = [("move_donor", 2), ("move_copied_bytes", 1 << 20), ("move_bytes", 4 << 20), ("move_left_ms", 900)];
        let moved = words(&moved, &["trusted", "trusted"]);
        assert!(moved.contains("donor 2 (h2:7070) is being replaced: 1M of 4M, 25 %, about 1 s"), "{moved}");
        assert!(moved.contains("\"healthy\""), "{moved}");
        let scrub = [("scrub_done_bytes", 1 << 20), ("scrub_bytes", 4 << 20), ("scrub_elapsed_ms", 500)];
        let scrub = words(&[&scrub[..], &[("scrub_left_ms", 1500), ("scrub_repaired", 7)]].concat(), &["trusted"; 2]);
        assert!(scrub.contains("1M of 4M, 25 %, 2M a second, about 2 s are left"), "{scrub}");
        assert!(scrub.contains("7 damaged copies") && scrub.contains("\"healthy\""), "{scrub}");
        let unfinished = words(&[("mirror", 1), ("lost_blocks", 9)], &["trusted"; 3]);
        assert!(unfinished.contains("9 blocks are lost"), "{unfinished}");
        let lost = words(&[("scrub_lost", 1), ("scrub_doubtful", 2)], &["trusted"; 2]);
        assert!(lost.contains("1 blocks are lost") && lost.contains("of 2 blocks differ"), "{lost}");
        assert!(lost.contains("\"degraded\""), "{lost}");
    }

    /// A spare that does not answer is not promised as a replacement.
    #[test]
    fn two_silent_donors_break_device() {
        let broken = words(&[("spares", 1), ("spares_up", 1)], &["silent", "trusted", "silent"]);
        assert!(broken.contains("2 donors do not answer: 1 (h1:7070), 3 (h3:7070)"), "{broken}");
        assert!(broken.contains("\"broken\"") && !broken.contains("a spare takes its place"), "{broken}");
        let silent = words(&[("spares", 1), ("spares_up", 0)], &["trusted", "left"]);
        assert!(silent.contains("no spare answers") && !silent.contains("a spare takes"), "{silent}");
        let one = words(&[], &["silent", "trusted"]);
        assert!(one.contains("donor 1 (h1:7070) does not answer at the moment: writes wait"), "{one}");
        let both = words(&[("spares", 1), ("spares_up", 1)], &["silent", "left"]);
        assert!(both.contains("another one is not whole") && !both.contains("a spare takes its place"), "{both}");
    }
}
