//! The fast way to answer: from a fresh response that is whole in memory.
//!
//! Owns: answering without waiting. Answering allocates only for the headers, copies no body, and reads the clock
//! twice. A request that cannot be answered here goes to `route`, which looks up the request's key again.

use std::rc::Rc;
use std::time::Instant;

use http::header::HOST;
use http::{Method, Request, Response};
use hyper::body::{Body, Incoming};
use nectary_host::fleet::NodeStanding;
use nectary_store::KeyRef;

use super::lookup::{LookupVerdict, look_at};
use super::reply::{BodySource, ReplyRequest, from_stored};
use super::request::{HeaderFeatures, RequestClient};
use crate::access_log::CacheOutcome;
use crate::body::ReplyBody;
use crate::rules::forwarded::remove_unkeyed;
use crate::rules::hop::remove_named;
use crate::rules::vary::{push_variant, sort_names};
use crate::worker::ProxyWorker;

/// Answers from memory, and reuses the request's map of headers for the response. If it cannot answer, returns `None`
/// and leaves the request unchanged, except that headers which the origin must not get are removed: those that
/// `SweptConnection` names, some about earlier hops, and the cookies that do not count on the route.
pub(super) fn resident(
    worker: &Rc<ProxyWorker>,
    client: &Rc<RequestClient>,
    request: &mut Request<Incoming>,
    started: Instant,
    at_ms: u64,
) -> Option<Response<ReplyBody>> {
    let method = if *request.method() == Method::GET {
        Method::GET
    } else if *request.method() == Method::HEAD {
        Method::HEAD
    } else {
        return None;
    };
    let sites = worker.sites.borrow();
    let route = &**sites.find_for(request.uri(), request.headers());
    let mut features = HeaderFeatures::of(request.headers());
    // The key and the origin must see the same headers.
    if features.has_connection && remove_named(request.headers_mut()) {
        features = HeaderFeatures::of(request.headers());
    }
    if features.has_forwarding {
        remove_unkeyed(request.headers_mut(), client.is_trusted, &route.key_headers);
    }
    route.clean_cookies(&method, request.headers_mut());
    let is_plain = !worker.is_leaving.get()
        && worker.standing() == NodeStanding::Member
        && !features.is_for_origin
        && !features.has_via
        && !features.has_upgrade
        && features.has_host(request.version())
        && route.is_stored()
        && route.admits(client.address.ip())
        && (client.is_admitted || !route.is_forward())
        && request.body().is_end_stream();
    if !is_plain {
        return None;
    }
    let scratch = &mut *worker.scratch.borrow_mut();
    let (key, variant) = (&mut scratch.0, &mut scratch.1);
    key.clear();
    if !route.push_request_key(request.uri(), request.headers().get(HOST), key)
        || key.len() > worker.options.limits.url_bytes_max
    {
        return None;
    }
    let directives = features.directives(route, request.headers());
    let mut object = worker.store.get_resident(KeyRef::new(key, b""))?;
    if let LookupVerdict::Varies(names) = look_at(&route.policy, key, &object, &directives, at_ms) {
        variant.clear();
        if route.key_headers.iter().all(|name| names.contains(name)) {
            push_variant(variant, names, request.headers());
        } else {
            // The marker is from a time when these headers were not part of the key.
            let mut all = [names, &route.key_headers].concat();
            sort_names(&mut all);
            push_variant(variant, &all, request.headers());
        }
        object = worker.store.get_resident(KeyRef::new(key, variant))?;
    } else if !route.key_headers.is_empty() {
        return None;
    }
    let object = object;
    let LookupVerdict::Serve(stored, age_s, ttl_s) = look_at(&route.policy, key, &object, &directives, at_ms) else {
        return None;
    };
    // An object that is not in one piece may have lost some of its fragments; `route` handles that.
    object.whole()?;
    // Without a token the request goes on to `route`, and is refused there.
    if let Some(address) = client.own_address()
        && worker.client_limits.take_of_site(route.request_rule.as_ref(), address, started).is_err()
    {
        return None;
    }
    let cache_status = worker.rendered.borrow_mut().hit(ttl_s);
    let version = request.version();
    let headers = std::mem::take(request.headers_mut());
    let question = ReplyRequest {
        worker,
        route,
        client,
        method: &method,
        uri: request.uri(),
        version,
        key,
        features,
        started,
        at_ms,
        answer: None,
    };
    let source = BodySource::Object(object.clone(), None);
    Some(from_stored(&question, headers, stored, source, age_s, cache_status, CacheOutcome::Hit))
}
