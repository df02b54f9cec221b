//! Hints for the store: the objects that a page embeds belong to the page.
//!
//! Owns: the decision which object belongs to which page, according to `Referer`. The store gets a hint whenever an
//! object must be read or fetched. It stores a new object next to its page. When an object that is stored elsewhere is
//! read for a page, the store moves it next to that page. Hits in memory give no hint. Requests for pages give none
//! either, because their `Referer` is the previous page; such requests are recognised by `text/html` in `Accept`.

use http::Uri;
use http::header::{ACCEPT, REFERER};

use super::request::ClientRequest;
use crate::sites::path_of;

/// Tells the store the page to which the requested object belongs, if `Referer` names a page.
pub(super) fn hint(request: &ClientRequest) {
    let accepts = request.headers.get(ACCEPT).map_or(&[][..], |value| value.as_bytes());
    if accepts.windows(9).any(|window| window.eq_ignore_ascii_case(b"text/html")) {
        return;
    }
    let page = request.headers.get(REFERER).and_then(|value| Uri::try_from(value.as_bytes()).ok());
    let Some(page) = page.filter(|page| page.authority().is_some()) else { return };
    let host = page.authority().map(|authority| authority.as_str().as_bytes());
    let route = request.worker.sites.borrow().find(host, path_of(&page)).clone();
    let mut seed = Vec::new();
    if route.push_request_key(&page, None, &mut seed) {
        request.worker.store.collocate(&request.key, &seed);
    }
}
