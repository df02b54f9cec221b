//! `Set-Cookie` and the store.
//!
//! Owns: the decision whether a response that sets a cookie is stored, and whether the cookie is stored with it. RFC
//! 9111, 7.3 leaves this to the origin's `NameCache-Control`. But many origins send session cookies with responses that are
//! fresh for a while, and a stored copy would hand one client's cookie to another. So such a response is stored only if
//! the origin or the operator allows it:
//!
//! | the response has | it is stored | hits have the cookie |
//! |---|---|---|
//! | no `Set-Cookie` | as its other headers say | |
//! | `Set-Cookie` and `public`, or the operator allows it | the same | yes |
//! | `Set-Cookie` and `no-cache="set-cookie"` (RFC 9111, 5.2.2.4) | the same | no |
//! | `Set-Cookie` and neither | no | |

use http::HeaderMap;
use http::header::{HeaderValue, SET_COOKIE};

use super::cache_control::ResponseDirectives;

/// The treatment of a response's cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CookieTreatment {
    /// The response has no cookies, or they are stored with the other headers.
    Kept,
    /// The cookies go to the requesting client and are not stored; the rest of the response may be stored.
    Apart,
    /// The response is not stored, because of its cookies.
    Forbidding,
}

/// Decides about the cookies of a response; `stores_cookies` is the operator's setting.
pub fn cookies(headers: &HeaderMap, directives: &ResponseDirectives, stores_cookies: bool) -> CookieTreatment {
    if !headers.contains_key(SET_COOKIE) || directives.public || stores_cookies {
        CookieTreatment::Kept
    } else if directives.no_cache_cookie {
        CookieTreatment::Apart
    } else {
        CookieTreatment::Forbidding
    }
}

/// Removes the cookies from headers and returns them.
pub fn take(headers: &mut HeaderMap) -> Vec<HeaderValue> {
    let taken = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    taken
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn cookie_storage_needs_permission() {
        let table = [
            ("max-age=60", false, CookieTreatment::Forbidding),
            ("max-age=60", true, CookieTreatment::Kept),
            ("max-age=60, public", false, CookieTreatment::Kept),
            ("max-age=60, no-cache=\"set-cookie\"", false, CookieTreatment::Apart),
            ("max-age=60, no-cache=\"Set-Cookie\", public", false, CookieTreatment::Kept),
            ("s-maxage=60", false, CookieTreatment::Forbidding),
        ];
        for (value, stores_cookies, expected) in table {
            let mut map = headers(&[("cache-control", value), ("set-cookie", "a=b"), ("set-cookie", "c=d")]);
            let directives = ResponseDirectives::parse(&map);
            assert_eq!(cookies(&map, &directives, stores_cookies), expected, "{value}");
            assert_eq!(take(&mut map), ["a=b", "c=d"]);
            assert_eq!(cookies(&map, &directives, stores_cookies), CookieTreatment::Kept, "{value}, without a cookie");
        }
    }
}
