//! A proxy on two disks: one disk fails while the proxy serves, is missing at a restart, and returns.
//!
//! The same checks run before the failure and after it, which shows that each check can fail: a hit on a disk is a miss
//! while the disk is missing.

use anyhow::{Result, bail};
use nectary_e2e::filled::{FilledProxy, ObjectCheckCounts};
use nectary_e2e::nectary::{self, AUTHORIZATION, find};
use std::time::Duration;

const OBJECTS: usize = 200;
const LIMIT: Duration = Duration::from_secs(20);

/// A proxy on two disks continues with one, and takes the other one back empty.
#[test]
fn proxy_survives_loss_of_span() -> Result<()> {
    let mut filled = FilledProxy::new("spans", OBJECTS, 11)?;
    let (second, trigger) = (filled.scratch.join("second"), filled.scratch.join("off"));
    let spec = format!("error({},when={})", second.display(), trigger.display());
    filled.command.arguments = vec!["--span".to_owned(), spec];
    let mut proxy = filled.command.start()?;
    filled.fill(&proxy)?;
    proxy.control()?.request("sync")?;

    std::fs::write(&trigger, "")?;
    // A purge must be written to every disk, so it reaches the failing one.
    proxy.client().request("PURGE", "/nothing", &[AUTHORIZATION])?;
    let lost = filled.check(&proxy);
    assert!(lost.wrong == 0 && lost.hits > OBJECTS / 4 && lost.misses > OBJECTS / 4, "after the loss {lost:?}");
    let settled = settle(&filled, &proxy)?;
    let status = proxy.control()?.status()?;
    assert!(status.to_string().contains("span 1 of the store is lost"), "{status}");
    let purged = filled.targets[3].clone();
    assert_eq!(proxy.client().request("PURGE", &purged, &[AUTHORIZATION])?.status, 200);
    assert!(proxy.terminate(LIMIT)?.success(), "{}", proxy.process.log_tail());
    println!("lost while serving: {lost:?}, then {settled:?}");

    let mut proxy = filled.command.start()?;
    let away = filled.check(&proxy);
    assert_eq!((away.hits, away.wrong), (OBJECTS - 1, 0), "what the other disk took over is there after a restart");
    assert!(proxy.terminate(LIMIT)?.success());

    std::fs::remove_file(&trigger)?;
    let proxy = filled.command.start()?;
    assert!(proxy.process.log_text().contains("it begins empty"), "{}", proxy.process.log_text());
    let back = filled.check(&proxy);
    assert!(back.wrong == 0 && back.hits > 0 && back.misses > OBJECTS / 5, "the disk is back, and empty: {back:?}");
    settle(&filled, &proxy)?;
    let status = proxy.control()?.status()?;
    assert!(find(&status, "spans").is_some() && !status.to_string().contains("is lost"), "{status}");
    println!("away over a restart: {away:?}; back: {back:?}");
    Ok(())
}

/// A store of two disks is not opened with one that may be out of date.
#[test]
fn stale_span_keeps_store_closed() -> Result<()> {
    let filled = FilledProxy::new("spans-alone", 1, 12)?;
    let path = |name: &str| filled.scratch.join(name).display().to_string();
    let (one, two) = (path("one"), path("two"));
    let run = |arguments: &[&str]| nectary::run(arguments, filled.scratch.path());
    let (status, text) = run(&["store", "create", &one, "--span", &two, "--size", "16M"])?;
    assert!(status.success() && text.contains("32"), "{text}");
    std::fs::write(path("file"), "contents")?;
    for key in ["a", "b", "c", "d", "e", "f"] {
        let (status, text) = run(&["store", "put", &one, key, &path("file"), "--span", &two])?;
        assert!(status.success(), "{text}");
    }
    let (status, text) = run(&["store", "check", &two, "--span", &one, "--json"])?;
    assert!(status.success() && text.contains("\"objects\": 6"), "{text}");
    let (status, text) = run(&["store", "stat", &one])?;
    assert!(!status.success() && text.contains("name all its spans"), "{text}");
    std::fs::rename(&two, path("away"))?;
    let (status, text) = run(&["store", "stat", &one, "--span", &two])?;
    assert!(!status.success() && text.contains("may have served without"), "{text}");
    std::fs::rename(path("away"), &two)?;
    let (status, text) = run(&["store", "get", &one, "c", "--span", &two])?;
    assert!(status.success() && text.contains("contents"), "{text}");
    Ok(())
}

/// Gets all objects until each is a hit again.
fn settle(filled: &FilledProxy, proxy: &nectary::NectaryProxy) -> Result<ObjectCheckCounts> {
    for _ in 0..40 {
        let checked = filled.check(proxy);
        if checked.wrong > 0 {
            bail!("wrong answers: {checked:?}");
        }
        if checked.hits == OBJECTS {
            return Ok(checked);
        }
    }
    bail!("the store does not fill again: {:?}", filled.check(proxy))
}
