//! Tests the answers that curl gets through a forward proxy: a miss, then hits, and the answers to ranges, HEAD,
//! conditional requests and PURGE.

use anyhow::{Result, bail};
use nectary_e2e::content;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::http::HttpResponse;
use nectary_e2e::nectary::{AUTHORIZATION, ProxyCommand};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::ScratchFolder;
use std::process::Command;
use std::time::Duration;

/// Runs curl with the proxy, and reads the head and the body that it saved.
fn curl(scratch: &ScratchFolder, proxy: &str, arguments: &[&str]) -> Result<HttpResponse> {
    let (head, body) = (scratch.join("head"), scratch.join("body"));
    let _ = (std::fs::remove_file(&head), std::fs::remove_file(&body));
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--noproxy", "", "-x", proxy, "-m", "20", "-D"])
        .arg(&head)
        .arg("-o")
        .arg(&body)
        .args(arguments);
    let log = scratch.join("curl.log");
    let _ = std::fs::remove_file(&log);
    let (status, text) = guard::run("curl", command, &log, Duration::from_secs(30))?;
    if !status.success() {
        bail!("curl {arguments:?}: {}: {text}", guard::describe(status));
    }
    let head = std::fs::read_to_string(&head)?;
    let mut lines = head.lines();
    let code = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|word| word.parse().ok()).unwrap_or(0);
    let fields = lines.filter_map(|line| line.split_once(':'));
    let headers = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Ok(HttpResponse { status: code, headers, body: std::fs::read(&body).unwrap_or_default() })
}

/// Curl also gets ranges, answers to conditions, and a miss after a purge.
#[test]
fn curl_sees_miss_then_hits() -> Result<()> {
    if find_program("curl").is_none() {
        not_run("curl is not installed");
        return Ok(());
    }
    let scratch = ScratchFolder::new("curl")?;
    let origin = DeterministicOrigin::start()?;
    let command = ProxyCommand::new(scratch.path(), None)?;
    let nectary = command.start()?;
    let proxy = format!("http://{}", nectary.listen);
    for (target, bytes) in [("/c/1?size=5000", 5000), ("/c/2?size=3000000&chunked", 3_000_000)] {
        let url = format!("{}{target}", origin.url());
        let whole = content::body(target, 1, bytes);
        let ask = |arguments: &[&str]| curl(&scratch, &proxy, &[arguments, &[url.as_str()]].concat());

        let miss = ask(&[])?;
        assert!(miss.status == 200 && !miss.is_hit() && miss.body == whole, "{}", miss.cache_status());
        // The answer may be complete slightly before the object is stored.
        let mut hit = ask(&[])?;
        for _ in 0..50 {
            if hit.is_hit() {
                break;
            }
            hit = ask(&[])?;
        }
        assert!(hit.status == 200 && hit.is_hit() && hit.body == whole, "{}", hit.cache_status());
        assert!(hit.header("age").is_some(), "a hit has an Age");
        let tag = hit.header("etag").unwrap_or_default().to_owned();

        let head = ask(&["-I"])?;
        assert!(head.is_hit() && head.header("content-length") == Some(bytes.to_string().as_str()), "{head:?}");

        for (range, part) in [("0-99", 0..100), ("1000-4999", 1000..5000), ("-7", bytes as usize - 7..bytes as usize)] {
            let ranged = ask(&["-r", range])?;
            assert_eq!((ranged.status, ranged.is_hit()), (206, true), "{range}");
            assert!(ranged.body == whole[part.clone()], "{range}");
            let expected = format!("bytes {}-{}/{bytes}", part.start, part.end - 1);
            assert_eq!(ranged.header("content-range"), Some(expected.as_str()));
        }
        assert_eq!(ask(&["-r", &format!("{}-", bytes + 5)])?.status, 416);

        let known = ask(&["-H", &format!("If-None-Match: {tag}")])?;
        assert_eq!((known.status, known.body.len(), known.is_hit()), (304, 0, true));
        let unknown = ask(&["-H", "If-None-Match: \"other\""])?;
        assert!(unknown.status == 200 && unknown.body == whole && unknown.is_hit());
        assert_eq!(origin.count(target).requests, 1, "one fetch for all of this");

        let forced = ask(&["-H", "Cache-Control: no-cache"])?;
        assert!(forced.status == 200 && forced.body == whole);
        assert_eq!(origin.count(target).not_modified, 1, "no-cache revalidates");

        assert_eq!(ask(&["-X", "PURGE", "-H", &format!("{}: {}", AUTHORIZATION.0, AUTHORIZATION.1)])?.status, 200);
        let after = ask(&[])?;
        assert!(!after.is_hit() && after.body == whole, "{}", after.cache_status());
        assert_eq!(origin.count(target).requests, 3);
    }
    println!("curl: 2 objects, miss, hit, HEAD, ranges, conditions, no-cache, PURGE: as expected");
    Ok(())
}
