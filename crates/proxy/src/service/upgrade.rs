//! `Upgrade: websocket`: a request that becomes a tunnel to the origin if the origin agrees.
//!
//! Owns: which requests ask for that, and the answer to them. Only WebSocket is passed on: with other protocols, for
//! example `h2c`, a client could send requests to the origin that this proxy does not see. Such a header is removed and
//! the request answered as any other. *Source*: RFC 9110, 7.8; RFC 6455, 4.

use http::header::{CONNECTION, UPGRADE, VIA};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};

use super::pass::{self, UnstoredReason};
use super::reply::{failed, finish, own};
use super::request::ClientRequest;
use super::tunnel::OriginTunnel;
use crate::access_log::CacheOutcome;
use crate::body::{BodyContent, ReplyBody};
use crate::rules::cache_status::{CacheStatus, ForwardReason};
use crate::rules::hop::remove_hop_by_hop;
use crate::rules::list::members_of;
use crate::upstream::{FetchError, SwitchAnswer, SwitchedConnection, switch};

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Whether a request asks for a protocol that is passed on.
pub(super) fn is_wanted(request: &ClientRequest) -> bool {
    request.features.has_upgrade
        && request.method == Method::GET
        && request.version == Version::HTTP_11
        && asks_for_websocket(&request.headers)
}

fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = members_of(headers, &UPGRADE);
    let is_one = protocols.next().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
    is_one
        && protocols.next().is_none()
        && members_of(headers, &CONNECTION).any(|member| member.eq_ignore_ascii_case(b"upgrade"))
}

/// Asks the origin to switch. The tunnel begins when the response has been sent.
pub(super) async fn open(request: ClientRequest) -> Response<ReplyBody> {
    let unanswered =
        CacheStatus::Forwarded { why: ForwardReason::Bypass, status: None, stored: false, collapsed: false };
    let (Some(to), mut head) = request.upstream() else {
        return failed(&request, &FetchError::Connect("the URL names no origin".into()), unanswered);
    };
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.insert(UPGRADE, WEBSOCKET);
    let (mut headers, inside) = match switch(&request.worker.upstream, &to, head).await {
        Ok(SwitchAnswer::Yes(headers, inside)) => (headers, inside),
        Ok(SwitchAnswer::No(mut response, lease)) => {
            request.answer.set(|| lease.answer());
            request.route.adapt(response.headers_mut());
            return pass::forward(request, response, *lease, ForwardReason::Bypass, UnstoredReason::Any);
        }
        Err(error) => return failed(&request, &error, unanswered),
    };
    if !asks_for_websocket(&headers) {
        let error = FetchError::Broken("it switched to another protocol".into());
        return failed(&request, &error, unanswered);
    }
    // What a client sends before the answer could be a request or the new protocol.
    if !request.client.exchange.switch() {
        let text = "Something was sent before the protocol was switched.";
        return own(&request, StatusCode::BAD_REQUEST, "early-bytes", text, true);
    }
    remove_hop_by_hop(&mut headers);
    request.route.response_headers.apply(&mut headers);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
    headers.append(VIA, request.worker.via.clone());
    let ticket = request.ticket(StatusCode::SWITCHING_PROTOCOLS.as_u16(), CacheOutcome::Tunnel, None);
    let SwitchedConnection { stream: origin, early, place, of_server } = inside;
    let tunnel = OriginTunnel { origin, early, ticket, place, of_server };
    *request.client.tunnel.borrow_mut() = Some(tunnel);
    finish(&request.client, StatusCode::SWITCHING_PROTOCOLS, headers, BodyContent::Empty, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn only_websocket_is_asked_for() {
        for (upgrade, connection, expected) in [
            ("websocket", "Upgrade", true),
            ("WebSocket", "keep-alive, Upgrade", true),
            ("websocket", "close", false),
            ("h2c", "upgrade", false),
            ("websocket, h2c", "upgrade", false),
            ("websocket/13", "upgrade", false),
        ] {
            let found = asks_for_websocket(&headers(&[("upgrade", upgrade), ("connection", connection)]));
            assert_eq!(found, expected, "{upgrade}, {connection}");
        }
    }
}
