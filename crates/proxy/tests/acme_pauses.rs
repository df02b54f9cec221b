//! Certificates that the proxy orders: what it does not ask an authority for, however often it is started or reloaded.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nectary_proxy::{AcmeFailure, ProxyOptions, RetryRule};

use crate::acme::{HTTP, only, ordering, ordering_config, until, wait_for_tls};
use crate::common::authority::{DAY_S, shown};
use crate::common::http2::tls;
use crate::common::sites::{at, configured};
use crate::common::*;

/// Why a name has no certificate.
fn failure_of(proxy: &TestProxy, name: &str) -> Option<AcmeFailure> {
    proxy.reader().ordered_names().into_iter().find(|found| found.name == name)?.failure
}

/// The names that were ordered.
fn ordered(authority: &AcmeServer) -> Vec<String> {
    authority.book().orders.iter().map(|order| order.name.clone()).collect()
}

/// Options whose pauses after failures outlast a test.
fn patient(authority: &AcmeServer, from: &TestOrigin, names: &[&str]) -> ProxyOptions {
    let mut options = ordering(authority, from, names);
    options.acme.as_mut().expect("options").retry = RetryRule::default();
    options
}

#[tokio::test]
async fn pause_outlives_the_process() {
    let (authority, from) = (AcmeServer::start("pause-kept").await, TestOrigin::start().await);
    authority.book().refuses = Some("rejectedIdentifier");
    let mut proxy = TestProxy::start(patient(&authority, &from, &["a.test"])).await;
    until(|| only(&proxy).failure.is_some()).await;
    proxy.stop().await;
    authority.book().refuses = None;
    let proxy = TestProxy::start(patient(&authority, &from, &["a.test", "b.test"])).await;
    let failure = failure_of(&proxy, "a.test").expect("a failure");
    assert!(failure.what.contains("not for you") && failure.count == 1, "{failure:?}");
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "b.test", &authority).await;
    assert_eq!((ordered(&authority), authority.book().refusals), (vec!["b.test".to_owned()], 1));
    assert_eq!(authority.book().accounts, 1);
}

#[tokio::test]
async fn limit_of_the_account_holds_all() {
    let (authority, from) = (AcmeServer::start("account-limit").await, TestOrigin::start().await);
    {
        let mut book = authority.book();
        book.refuses = Some("rateLimited");
        book.says = "too many new orders (300) from this account in the last 3h0m0s";
    }
    let mut proxy = TestProxy::start(patient(&authority, &from, &["a.test", "b.test"])).await;
    let is_held = |proxy: &TestProxy, name: &str| {
        failure_of(proxy, name).is_some_and(|failure| failure.what.contains("from this account"))
    };
    until(|| is_held(&proxy, "a.test") && is_held(&proxy, "b.test")).await;
    assert_eq!(authority.book().refusals, 1, "the other name does not ask");
    proxy.stop().await;
    authority.book().refuses = None;
    let proxy = TestProxy::start(patient(&authority, &from, &["a.test", "b.test", "c.test"])).await;
    until(|| is_held(&proxy, "c.test")).await;
    assert_eq!((authority.counts(), authority.book().refusals), ((1, 0), 1), "nor does one after a restart");
}

#[tokio::test]
async fn name_rate_limit_spares_others() {
    let (authority, from) = (AcmeServer::start("name-limit").await, TestOrigin::start().await);
    {
        let mut book = authority.book();
        book.refuses = Some("rateLimited");
        book.says = "too many certificates (5) already issued for this exact set of identifiers in the last 168h0m0s";
    }
    let proxy = TestProxy::start(patient(&authority, &from, &["a.test", "b.test"])).await;
    until(|| authority.book().refusals == 2).await;
    until(|| failure_of(&proxy, "b.test").is_some_and(|failure| failure.count == 1)).await;
}

#[tokio::test]
async fn forgotten_account_is_made_again() {
    let (authority, from) = (AcmeServer::start("forgotten").await, TestOrigin::start().await);
    authority.book().forgets = true;
    let proxy = TestProxy::start(patient(&authority, &from, &["a.test"])).await;
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    assert_eq!(authority.counts(), (2, 1));
}

/// A link that leads to itself stands where the file is, so reading fails also for root.
#[tokio::test]
async fn unreadable_certificate_is_not_replaced() {
    let (authority, from) = (AcmeServer::start("unreadable").await, TestOrigin::start().await);
    let certificate = authority.put("a.test", (-DAY_S, 89 * DAY_S));
    let (file, aside) = (authority.file_of("a.test"), authority.folder.join("aside.pem"));
    std::fs::rename(&file, &aside).expect("moved");
    std::os::unix::fs::symlink(&file, &file).expect("a link");
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test", "b.test"])).await;
    let failure = failure_of(&proxy, "a.test").expect("a failure");
    assert!(failure.what.contains("a.test.pem cannot be read") && failure.count == 0, "{failure:?}");
    assert!(failure.remedy.contains("read the file"), "{failure:?}");
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "b.test", &authority).await;
    std::fs::rename(&aside, &file).expect("moved");
    wait_for_tls(&proxy, "a.test", &authority).await;
    assert_eq!(shown(proxy.address, "a.test", HTTP).await.expect("a handshake").0, certificate);
    until(|| failure_of(&proxy, "a.test").is_none()).await;
    assert_eq!(ordered(&authority), ["b.test"]);
}

#[tokio::test]
async fn unreadable_account_orders_nothing() {
    let (authority, from) = (AcmeServer::start("unreadable-account").await, TestOrigin::start().await);
    let account = authority.file_of("a.test").with_file_name("account.json");
    std::fs::create_dir_all(account.parent().expect("a folder")).expect("a folder");
    std::os::unix::fs::symlink(&account, &account).expect("a link");
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    authority.book().check_at = proxy.redirect_address;
    until(|| only(&proxy).failure.is_some()).await;
    let failure = only(&proxy).failure.expect("a failure");
    assert!(failure.what.contains("account.json cannot be read") && failure.count == 0, "{failure:?}");
    assert_eq!(authority.counts(), (0, 0));
    std::fs::remove_file(&account).expect("removed");
    wait_for_tls(&proxy, "a.test", &authority).await;
    assert_eq!(authority.counts(), (1, 1));
}

#[tokio::test]
async fn unwritable_state_delays_first_orders() {
    let (authority, from) = (AcmeServer::start("delayed").await, TestOrigin::start().await);
    std::fs::write(authority.state(), "").expect("written");
    let mut options = ordering(&authority, &from, &["a.test"]);
    // The first orders come after twenty seconds, or two seconds after the state can be written.
    options.acme.as_mut().expect("options").retry =
        RetryRule { first: Duration::from_secs(2), longest: Duration::from_secs(2) };
    let proxy = TestProxy::start(options).await;
    authority.book().check_at = proxy.redirect_address;
    until(|| only(&proxy).failure.is_some()).await;
    let failure = only(&proxy).failure.expect("a failure");
    assert!(failure.what.contains("pauses.json cannot be written") && failure.count == 0, "{failure:?}");
    assert_eq!(authority.counts(), (0, 0));
    std::fs::remove_file(authority.state()).expect("removed");
    wait_for_tls(&proxy, "a.test", &authority).await;
    until(|| authority.file_of("a.test").exists() && only(&proxy).failure.is_none()).await;
    assert_eq!(authority.counts(), (1, 1));
}

#[tokio::test]
async fn reloads_hasten_one_attempt() {
    let (authority, from) = (AcmeServer::start("storm").await, TestOrigin::start().await);
    authority.book().refuses = Some("rejectedIdentifier");
    let proxy = configured(ordering_config(&authority, &from, &["a.test"])).await;
    let count = |name: &str| failure_of(&proxy, name).map_or(0, |failure| failure.count);
    until(|| count("a.test") == 1).await;
    let reopener = proxy.reopener();
    let reload = |config| reopener.reload(&Arc::new(config)).map(drop).expect("a good file");
    reload(ordering_config(&authority, &from, &["a.test"]));
    until(|| count("a.test") == 2).await;
    // Neither the same file nor another name is a reason to ask again.
    reload(ordering_config(&authority, &from, &["a.test"]));
    reload(ordering_config(&authority, &from, &["a.test", "b.test"]));
    until(|| count("b.test") == 1).await;
    assert!(tls(proxy.address, "b.test", &authority.ca(), &[HTTP]).await.is_err());
    assert_eq!((count("a.test"), authority.book().refusals), (2, 3));
    // Another way to ask is one.
    let mut changed = ordering_config(&authority, &from, &["a.test", "b.test"]);
    changed.tls.acme.as_mut().expect("a table").value.contact = vec![at("admin@a.test".to_owned())];
    reload(changed);
    until(|| count("a.test") == 3 && count("b.test") == 2).await;
    assert_eq!(authority.book().refusals, 5);
}

#[tokio::test]
async fn limit_lasts_an_hour_at_least() {
    for (asked_s, pause_s) in [(5, 3600), (7200, 7200)] {
        let (authority, from) = (AcmeServer::start(&format!("limit-{asked_s}")).await, TestOrigin::start().await);
        {
            let mut book = authority.book();
            (book.refuses, book.refusal_pause_s) = (Some("rateLimited"), Some(asked_s));
            book.says = "too many certificates (5) already issued for this exact set of identifiers";
        }
        let proxy = TestProxy::start(patient(&authority, &from, &["a.test"])).await;
        until(|| only(&proxy).failure.is_some()).await;
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
        let left_s = only(&proxy).failure.expect("a failure").again_s - now_s;
        assert!((pause_s - 60..=pause_s).contains(&left_s), "{left_s} s after {asked_s} s were requested");
    }
}

/// The order for the other name would fail as well, so it is not sent.
#[tokio::test]
async fn broken_authority_is_asked_once() {
    let (authority, from) = (AcmeServer::start("broken").await, TestOrigin::start().await);
    authority.book().refuses = Some("serverInternal");
    let proxy = TestProxy::start(patient(&authority, &from, &["a.test", "b.test"])).await;
    until(|| ["a.test", "b.test"].iter().all(|name| failure_of(&proxy, name).is_some())).await;
    assert_eq!(authority.book().refusals, 1, "the other name would fail as well");
}

#[tokio::test]
async fn first_order_alone_names_replacement() {
    let (authority, from) = (AcmeServer::start("replaces").await, TestOrigin::start().await);
    authority.put("a.test", (-DAY_S, 89 * DAY_S));
    {
        let mut book = authority.book();
        (book.suggests_s, book.refuses) = (Some((-2 * DAY_S, -DAY_S)), Some("malformed"));
    }
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    until(|| authority.book().replacements.len() >= 3).await;
    assert_eq!(authority.book().replacements[..3], [true, false, false], "the authority may refuse it for that");
    assert!(only(&proxy).failure.is_some());
}

#[tokio::test]
async fn limited_account_is_not_made_again() {
    let (authority, from) = (AcmeServer::start("limited-account").await, TestOrigin::start().await);
    authority.put("b.test", (-DAY_S, 89 * DAY_S));
    {
        let mut book = authority.book();
        book.refuses = Some("rateLimited");
        book.says = "too many new orders (300) from this account in the last 3h0m0s";
    }
    let names = ["a.test", "b.test"];
    let mut proxy = TestProxy::start(patient(&authority, &from, &names)).await;
    until(|| failure_of(&proxy, "a.test").is_some() && authority.book().looks == 1).await;
    proxy.stop().await;
    assert_eq!(authority.book().accounts, 1);
    std::fs::remove_file(authority.file_of("a.test").with_file_name("account.json")).expect("an account");
    // The certificate is looked at again, for which there is no account now.
    let mut proxy = TestProxy::start(patient(&authority, &from, &names)).await;
    until(|| failure_of(&proxy, "a.test").is_some()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.stop().await;
    let book = authority.book();
    assert_eq!((book.accounts, book.looks), (1, 1));
}
