//! The form of a request of HTTP/2.
//!
//! Owns: what of a request HTTP/1 would refuse, and the translation of a request into the form that it has in HTTP/1.
//! *Source*: RFC 9113, 8.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::{HeaderMap, HeaderValue, Request, StatusCode};

/// Whether a request has a form that HTTP/1 would accept; else the status of its refusal, and why.
pub type Form = Result<(), (StatusCode, &'static str)>;

/// Gives a request the form that it would have in HTTP/1: with a `Host`, and with all cookies in one line. `is_empty`
/// says that it has no body, `headers_max` how many headers it may have. *Errors*: why HTTP/1 would refuse it; the
/// request must not be passed on.
pub fn to_http1<B>(request: &mut Request<B>, is_empty: bool, headers_max: usize) -> Form {
    translate(request, is_empty).map_err(|problem| (StatusCode::BAD_REQUEST, problem))?;
    if request.headers().len() > headers_max {
        return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "It has too many headers."));
    }
    Ok(())
}

fn translate<B>(request: &mut Request<B>, is_empty: bool) -> Result<(), &'static str> {
    let authority = request.uri().authority().cloned();
    if request.uri().path_and_query().is_some_and(|path| !path.as_str().starts_with('/') && path.as_str() != "*") {
        return Err("Its :path is no path.");
    }
    let headers = request.headers_mut();
    if let Some(authority) = authority {
        let mut hosts = headers.get_all(HOST).iter();
        match (hosts.next(), hosts.next()) {
            (None, _) => {
                let host = HeaderValue::from_str(authority.as_str()).map_err(|_| "Its :authority is no host.")?;
                headers.insert(HOST, host);
            }
            (Some(host), None) if host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {}
            _ => return Err("Its Host is not its :authority."),
        }
    }
    check_length(headers, is_empty)?;
    join_cookies(headers);
    Ok(())
}

/// Checks the length that a request names: two readers must not be able to find different bodies.
fn check_length(headers: &HeaderMap, is_empty: bool) -> Result<(), &'static str> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else { return Ok(()) };
    if lengths.next().is_some() {
        return Err("It has several Content-Lengths.");
    }
    let is_number = !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit);
    match length.to_str().ok().filter(|_| is_number).and_then(|text| text.parse::<u64>().ok()) {
        None => Err("Its Content-Length is no number."),
        Some(length) if is_empty && length > 0 => Err("Its Content-Length is not that of its body."),
        Some(_) => Ok(()),
    }
}

/// *Source*: RFC 9113, 8.2.3.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_gets_the_form_of_http1() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Lines, bool, Option<Lines>)] = &[
            (&[], true, Some(&[("host", "a:81")])),
            (&[("host", "A:81")], true, Some(&[("host", "A:81")])),
            (&[("host", "b")], true, None),
            (&[("host", "a:81"), ("host", "a:81")], true, None),
            (&[("cookie", "a=1"), ("cookie", "b=2")], true, Some(&[("host", "a:81"), ("cookie", "a=1; b=2")])),
            (&[("a", "1"), ("b", "2")], true, Some(&[("host", "a:81"), ("a", "1"), ("b", "2")])),
            (&[("a", "1"), ("b", "2"), ("c", "3")], true, None),
            (&[("cookie", "a=1")], true, Some(&[("host", "a:81"), ("cookie", "a=1")])),
            (&[("content-length", "0")], true, Some(&[("host", "a:81"), ("content-length", "0")])),
            (&[("content-length", "3")], false, Some(&[("host", "a:81"), ("content-length", "3")])),
            (&[("content-length", "3")], true, None),
            (&[("content-length", "3"), ("content-length", "3")], false, None),
            (&[("content-length", "+3")], false, None),
            (&[("content-length", "")], false, None),
            (&[("content-length", "3, 3")], false, None),
            (&[("content-length", "99999999999999999999")], false, None),
        ];
        for (before, is_empty, after) in table {
            let mut request = Request::get("https://a:81/p").body(()).expect("a request");
            *request.headers_mut() = crate::rules::headers(before);
            let found = to_http1(&mut request, *is_empty, 3).is_ok().then(|| request.headers().clone());
            assert_eq!(found, after.map(crate::rules::headers), "{before:?}");
        }
    }
}
