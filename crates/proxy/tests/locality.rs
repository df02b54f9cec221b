//! A page's embedded objects are stored next to the page.

use crate::common::*;

/// Objects fetched for a page are hinted to the store; pages are not.
#[tokio::test]
async fn embedded_objects_get_hints() {
    let origin = TestOrigin::start().await;
    for path in ["/", "/a.png", "/b.css", "/next"] {
        origin.on(path, OriginScript::fresh(path.as_bytes()));
    }
    let proxy = TestProxy::forward().await;
    let referer = format!("referer: {}", origin.url("/"));
    let hints = || proxy.store.stat().counts.hints;
    get(proxy.address, &origin.url("/"), &["accept: text/html,*/*"]).await;
    assert_eq!(hints(), 0);
    get(proxy.address, &origin.url("/a.png"), &[&referer, "accept: image/*"]).await;
    get(proxy.address, &origin.url("/b.css"), &[&referer]).await;
    assert_eq!(hints(), 2);
    // A page does not belong to the previous page that its `Referer` names, and hits give the store no hint.
    get(proxy.address, &origin.url("/next"), &[&referer, "accept: application/xml,Text/HTML;q=0.9"]).await;
    assert!(get(proxy.address, &origin.url("/a.png"), &[&referer]).await.is_hit());
    assert_eq!(hints(), 2);
    // An invalid `Referer` gives no hint.
    for referer in ["referer: nonsense", "referer: http://", "referer: about:blank", "referer: /"] {
        assert_eq!(get(proxy.address, &origin.url("/absent"), &[referer]).await.status, 404);
    }
    assert_eq!(hints(), 2);
}
