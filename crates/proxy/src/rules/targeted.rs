//! `CDN-NameCache-Control`: cache directives for caches that work for an origin, as a reverse proxy does.
//!
//! Owns: the meaning of the field. If the field is present, parses and is not empty, it replaces `NameCache-Control` and
//! `Expires`. Otherwise the field is ignored. The proxy also sends the field to clients, because further caches of the
//! same kind may be between them and the proxy. *Source*: RFC 9213; RFC 9651, 3.2.
//!
//! The field is a dictionary and not a list like `NameCache-Control`: keys are in lower case, the last of duplicate keys
//! counts, parameters are ignored, and values have types:
//!
//! | directive | type | with another type |
//! |---|---|---|
//! | `max-age`, `s-maxage` | integer | counts as 0: stale |
//! | `stale-while-revalidate`, `stale-if-error` | integer | ignored |
//! | `public`, `must-understand` | true | ignored |
//! | `no-cache`, `private` | true, or a string of field names | set, without names; but `?0` is ignored |
//! | `no-store`, `must-revalidate`, `proxy-revalidate` | true | set; but `?0` is ignored |
//!
//! So a mistake never makes a response fresher or more widely shared than without the directive.

use http::HeaderMap;
use http::header::CDN_CACHE_CONTROL;

use super::cache_control::{DELTA_SECONDS_MAX, DirectiveName, ResponseDirectives, is_about_cookies};
use super::structured::{StructuredValue, dictionary, field};

/// Reads the field; `None` if the field is absent, empty or does not parse. In this case `NameCache-Control` and `Expires`
/// count.
pub fn directives(headers: &HeaderMap) -> Option<ResponseDirectives> {
    let field = field(headers, &CDN_CACHE_CONTROL)?;
    let members = dictionary(&field).filter(|members| !members.is_empty())?;
    let mut found = ResponseDirectives { replaces_expires: true, ..ResponseDirectives::default() };
    for (key, value) in &members {
        let (is_true, is_on) = (*value == StructuredValue::Boolean(true), *value != StructuredValue::Boolean(false));
        match DirectiveName::of(key) {
            DirectiveName::NoStore => found.no_store = is_on,
            DirectiveName::NoCache => {
                found.no_cache_cookie = matches!(value, StructuredValue::Text(names) if is_about_cookies(Some(names)));
                found.no_cache = is_on && !found.no_cache_cookie;
            }
            DirectiveName::Private => found.private = is_on,
            DirectiveName::Public => found.public = is_true,
            DirectiveName::MustRevalidate => found.must_revalidate = is_on,
            DirectiveName::ProxyRevalidate => found.proxy_revalidate = is_on,
            DirectiveName::MustUnderstand => found.must_understand = is_true,
            DirectiveName::MaxAge => found.max_age = Some(seconds(value).unwrap_or(0)),
            DirectiveName::SMaxage => found.s_maxage = Some(seconds(value).unwrap_or(0)),
            DirectiveName::StaleWhileRevalidate => found.stale_while_revalidate = seconds(value),
            DirectiveName::StaleIfError => found.stale_if_error = seconds(value),
            _ => {}
        }
    }
    Some(found)
}

fn seconds(value: &StructuredValue) -> Option<u64> {
    let StructuredValue::Integer(number) = value else { return None };
    u64::try_from(*number).ok().map(|number| number.min(DELTA_SECONDS_MAX))
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    fn read(lines: &[&str]) -> Option<ResponseDirectives> {
        let lines: Vec<_> = lines.iter().map(|line| ("cdn-cache-control", *line)).collect();
        directives(&headers(&lines))
    }

    /// Directives have types; one with a wrong type makes nothing fresher.
    #[test]
    fn targeted_mistake_never_extends_freshness() {
        type Fields = fn(&ResponseDirectives) -> bool;
        let table: &[(&[&str], Fields)] = &[
            (&["max-age=60"], |d| d.max_age == Some(60)),
            (&["max-age=60;a;b=1, foobar=(1 2)"], |d| d.max_age == Some(60)),
            (&["max-age=1", "max-age=60"], |d| d.max_age == Some(60)),
            (&["max-age=99999999999"], |d| d.max_age == Some(DELTA_SECONDS_MAX)),
            (&["max-age=\"60\""], |d| d.max_age == Some(0)),
            (&["max-age=60.5"], |d| d.max_age == Some(0)),
            (&["max-age=-1"], |d| d.max_age == Some(0)),
            (&["max-age"], |d| d.max_age == Some(0)),
            (&["s-maxage=60"], |d| d.s_maxage == Some(60) && d.forbids_stale()),
            (&["stale-while-revalidate=5, stale-if-error=6"], |d| {
                d.stale_while_revalidate == Some(5) && d.stale_if_error == Some(6)
            }),
            (&["stale-while-revalidate=\"5\", stale-if-error=a"], |d| {
                d.stale_while_revalidate.is_none() && d.stale_if_error.is_none()
            }),
            (&["no-store, private, no-cache, must-revalidate, proxy-revalidate"], |d| {
                d.no_store && d.private && d.no_cache && d.must_revalidate && d.proxy_revalidate
            }),
            (&["no-store=1, private=a, no-cache=2, must-revalidate=3"], |d| {
                d.no_store && d.private && d.no_cache && d.must_revalidate
            }),
            (&["no-store=?0, private=?0, no-cache=?0"], |d| !d.no_store && !d.private && !d.no_cache),
            (&["no-store, no-store=?0"], |d| !d.no_store),
            (&["public, must-understand"], |d| d.public && d.must_understand),
            (&["public=1, must-understand=a"], |d| !d.public && !d.must_understand),
            (&["no-cache=\"set-cookie\""], |d| d.no_cache_cookie && !d.no_cache),
            (&["no-cache=\"x\", private=\"y\""], |d| d.no_cache && d.private),
            (&["none"], |d| *d == ResponseDirectives { replaces_expires: true, ..Default::default() }),
        ];
        for (lines, holds) in table {
            let found = read(lines).unwrap_or_else(|| panic!("{lines:?} does not parse"));
            assert!(holds(&found) && found.replaces_expires, "{lines:?} gave {found:?}");
        }
    }

    #[test]
    fn invalid_targeted_field_counts_as_absent() {
        for lines in [
            &[][..],
            &[""],
            &["  "],
            &["max-age=60, &&&&&"],
            &["max-age =60"],
            &["max-age= 60"],
            &["MaX-aGe=60"],
            &["max-age=60,"],
            &["max-age=60", ""],
            &["max-age=1000000000000000"],
        ] {
            assert_eq!(read(lines), None, "{lines:?}");
        }
    }
}
