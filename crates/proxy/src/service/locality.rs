//! Hints of locality for the store: what a page embeds belongs to the page.
//!
//! Owns: which object belongs to which page, as `Referer` says. A hint is made whenever something has to be read or
//! fetched: new objects are stored beside their page, and an object stored elsewhere moves there when it is read for
//! that page. Hits in memory pay nothing for it. Requests for pages themselves name the previous page in `Referer`;
//! they are recognised by their `Accept` header.

use http::Uri;
use http::header::{ACCEPT, REFERER};

use super::request::{ClientRequest, push_request_key};

/// Gives the store the page to which the object of a request belongs, if the request names it.
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
