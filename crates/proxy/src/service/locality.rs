//! Hints for the store: the objects that a page embeds belong to the page.
//!
//! Owns: which object belongs to which page, according to `Referer`. A hint is made whenever an object must be read or
//! fetched: new objects are stored next to their page, and an object stored elsewhere moves there when it is read for
//! that page. Hits in memory make no hint. Requests for pages get no hint either, because their `Referer` is the
//! previous page; they are recognised by `text/html` in `Accept`.

use http::Uri;
use http::header::{ACCEPT, REFERER};

use super::request::{ClientRequest, push_request_key};

/// Tells the store the page to which the requested object belongs, if the request names a page.
pub(super) fn hint(request: &ClientRequest) {
    let accepts = request.headers.get(ACCEPT).map_or(&[][..], |value| value.as_bytes());
    if accepts.windows(9).any(|window| window.eq_ignore_ascii_case(b"text/html")) {
        return;
    }
    let page = request.headers.get(REFERER).and_then(|value| Uri::try_from(value.as_bytes()).ok());
    let Some(page) = page.filter(|page| page.authority().is_some()) else { return };
    let mut seed = Vec::new();
    if push_request_key(&request.worker, &page, &mut seed) {
        request.worker.store.collocate(&request.key, &seed);
    }
}
