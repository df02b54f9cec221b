//! A reverse proxy obeys `CDN-NameCache-Control`, because it works for the origin; a forward proxy ignores it.

use crate::common::*;

/// A reverse proxy obeys the targeted field and passes it on.
#[tokio::test]
async fn targeted_field_is_obeyed() {
    let origin = TestOrigin::start().await;
    // Each row has the path and the headers of a response, and whether a reverse and a forward proxy store it.
    let table: &[(&str, &[&str], bool, bool)] = &[
        ("/long", &["cdn-cache-control: max-age=60", "cache-control: no-store"], true, false),
        ("/past", &["cdn-cache-control: max-age=60", "expires: 0"], true, false),
        ("/none", &["cdn-cache-control: none", "cache-control: max-age=60"], false, true),
        ("/store", &["cdn-cache-control: no-store", "cache-control: max-age=60"], false, true),
        ("/private", &["cdn-cache-control: private", "cache-control: max-age=60"], false, true),
        ("/broken", &["cdn-cache-control: max-age=60, &&&&&", "cache-control: no-store"], false, false),
        ("/type", &["cdn-cache-control: max-age=\"60\"", "cache-control: max-age=60"], false, true),
        ("/empty", &["cdn-cache-control: ", "cache-control: max-age=60"], true, true),
        ("/lines", &["cdn-cache-control: max-age=0", "cdn-cache-control: max-age=60;a=b"], true, false),
    ];
    for (path, lines, ..) in table {
        origin.on(path, OriginScript::ok(lines, b"hello"));
    }
    let (reverse, forward) = (TestProxy::reverse(origin.address).await, TestProxy::forward().await);
    for (path, lines, in_reverse, in_forward) in table {
        for (proxy, url, is_stored) in
            [(&reverse, (*path).to_owned(), in_reverse), (&forward, origin.url(path), in_forward)]
        {
            get(proxy.address, &url, &[]).await;
            let second = get(proxy.address, &url, &[]).await;
            assert_eq!(second.is_hit(), *is_stored, "{url}: {lines:?}");
            let value = lines[0].split_once(": ").map_or("", |(_, value)| value);
            assert!(second.header("cdn-cache-control").starts_with(value), "{second:?}");
        }
    }
}

#[tokio::test]
async fn validation_304_updates_targeted_field() {
    let origin = TestOrigin::start().await;
    let not_modified = b"HTTP/1.1 304 Not Modified\r\ncdn-cache-control: max-age=60\r\n\r\n";
    origin
        .on("/a", OriginScript::ok(&["cdn-cache-control: max-age=0", "etag: \"x\""], b"hello"))
        .on("/a", OriginScript::raw(not_modified));
    let proxy = TestProxy::reverse(origin.address).await;
    for is_hit in [false, false, true] {
        let reply = get(proxy.address, "/a", &[]).await;
        assert_eq!((reply.is_hit(), reply.text().as_str()), (is_hit, "hello"), "{}", reply.cache_status());
    }
    let reply = get(proxy.address, "/a", &["if-none-match: \"x\""]).await;
    assert_eq!((reply.status, reply.header("cdn-cache-control").as_str()), (304, "max-age=60"));
}
