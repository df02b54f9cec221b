//! A request as the proxy sees it.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::header::{
    CACHE_CONTROL, CONNECTION, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, PRAGMA, RANGE,
    REFERER, UPGRADE, USER_AGENT, VIA,
};
use http::{HeaderMap, HeaderValue, Method, Uri, Version};
use nectary_host::fleet::{NodeStanding, RulesHash};

use super::parts::part_range::PartRange;
use super::tunnel::OriginTunnel;
use crate::access_log::{AnswerNote, CacheOutcome};
use crate::body::RequestTicket;
use crate::connections::EntranceRole;
use crate::fleet::PeerCounters;
use crate::rules::cache_control::RequestDirectives;
use crate::rules::forwarded::is_forwarding;
use crate::rules::host::is_host;
use crate::sites::SiteRoute;
use crate::wire::exchange::ClientExchange;
use crate::worker::ProxyWorker;

/// A client: its connection with HTTP/1, one stream of it with HTTP/2.
pub(crate) struct RequestClient {
    /// Its address; that of this machine if it is unnamed.
    pub address: SocketAddr,
    /// Whether the client has no address: it uses a Unix socket, and no load balancer there says whose request it is.
    pub is_unnamed: bool,
    /// Whether the client may use a forward proxy.
    pub is_admitted: bool,
    pub is_loopback: bool,
    /// Whether the client's headers about earlier hops are trusted.
    pub is_trusted: bool,
    /// The node that asks for the client, if it is known.
    pub node: Option<Arc<PeerCounters>>,
    /// What the address to which the client connected is for.
    pub door: EntranceRole,
    /// Whether the client used TLS.
    pub is_secure: bool,
    /// The version of TLS, for example `1.3`; `None` without TLS.
    pub tls: Option<&'static str>,
    pub exchange: ClientExchange,
    /// Whether the body of the client's last request was refused. If so, the client may still be sending it.
    pub is_at_fault: Cell<bool>,
    /// The other end of a tunnel that a request has opened.
    pub tunnel: RefCell<Option<OriginTunnel>>,
}

impl RequestClient {
    /// The same client in another exchange.
    pub fn with(&self, exchange: ClientExchange) -> RequestClient {
        let node = self.node.clone();
        RequestClient { exchange, node, is_at_fault: Cell::default(), tunnel: RefCell::default(), ..*self }
    }

    /// Its address for the log and for the limits by network; `None` if it is unnamed: behind it there may be many.
    pub fn own_address(&self) -> Option<IpAddr> {
        (!self.is_unnamed).then(|| self.address.ip())
    }

    /// Whether the client connected to an address for administration.
    pub fn is_admin(&self) -> bool {
        self.door == EntranceRole::Admin
    }

    /// Whether limits by network count: not for administration, and not for other nodes, at which they have counted.
    pub fn is_limited(&self) -> bool {
        !matches!(self.door, EntranceRole::Admin | EntranceRole::Fleet)
    }

    /// Whether the client connected to an address at which it gets responses of origins.
    pub fn gets_content(&self) -> bool {
        matches!(self.door, EntranceRole::Clients | EntranceRole::Tls)
    }
}

/// A request without its body.
#[derive(Clone)]
pub(crate) struct ClientRequest {
    pub worker: Rc<ProxyWorker>,
    /// The route of the request. A new configuration does not change it.
    pub route: Arc<SiteRoute>,
    /// The rules of the table in which the route was found.
    pub rules: RulesHash,
    pub client: Rc<RequestClient>,
    pub method: Method,
    pub uri: Uri,
    pub version: Version,
    pub headers: HeaderMap,
    /// The primary key of the request's URL, or the request's target as received if the URL has no key.
    pub key: Vec<u8>,
    pub features: HeaderFeatures,
    pub directives: RequestDirectives,
    pub started: Instant,
    pub at_ms: u64,
    /// What the log tells of the origin's answer.
    pub answer: AnswerNote,
    /// The part that this request of the proxy's own is for; `None` for a client's request.
    pub part: Option<PartRange>,
    /// The validator of the body whose answer it continues, if another part was requested for that before.
    pub continues: Option<HeaderValue>,
}

impl ClientRequest {
    /// What may be done now with what the store has, by the rules of this request's table: those in use may be others.
    pub fn standing(&self) -> NodeStanding {
        self.worker.standing_by(self.rules)
    }

    /// The request for a part of what this request is for. Its `Range` takes the place of the client's, and the client's
    /// conditions are left to those who answer the client.
    pub fn of_part(&self, part: PartRange) -> ClientRequest {
        let mut request = self.clone();
        request.headers.insert(RANGE, part.requested());
        (request.features.has_range, request.features.is_conditional) = (false, false);
        request.part = Some(part);
        request
    }

    /// Makes the ticket of a response. When the ticket is dropped, the request is logged and counted.
    pub fn ticket(&self, status: u16, outcome: CacheOutcome, object_bytes: Option<u64>) -> RequestTicket {
        let is_detailed = self.worker.log.is_detailed();
        let url = match is_detailed {
            true => self.question().logged_url(&self.headers).into_owned(),
            false => self.key.clone(),
        };
        RequestTicket {
            log: self.worker.log.clone(),
            node: self.client.node.clone(),
            client: self.client.own_address(),
            at_ms: self.at_ms,
            started: self.started,
            method: self.method.clone(),
            url,
            version: self.version,
            status,
            referrer: self.headers.get(REFERER).cloned(),
            user_agent: self.headers.get(USER_AGENT).cloned(),
            outcome,
            object_bytes,
            tls: self.client.tls,
            route: self.route.name.clone().filter(|_| is_detailed),
            answer: self.answer.clone(),
            sent_bytes: 0,
        }
    }
}

/// Facts about a request's headers, found in one pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeaderFeatures {
    /// The number of `Host` lines. The next field says whether the last of them is valid.
    pub host_count: u8,
    pub is_host_good: bool,
    /// Whether the request has `NameCache-Control` or `Pragma`.
    pub has_directives: bool,
    /// Whether the request has conditions that can be evaluated with a stored response.
    pub is_conditional: bool,
    /// Whether the request has conditions that only an origin can evaluate.
    pub is_for_origin: bool,
    pub has_range: bool,
    pub has_via: bool,
    /// Whether the request asks for another protocol.
    pub has_upgrade: bool,
    /// Whether the request has headers about earlier hops.
    pub has_forwarding: bool,
    /// Whether the request has `SweptConnection`, which may name other headers.
    pub has_connection: bool,
}

impl HeaderFeatures {
    /// Finds the facts about a request's headers.
    pub fn of(headers: &HeaderMap) -> HeaderFeatures {
        let mut found = HeaderFeatures::default();
        for (name, value) in headers {
            match *name {
                HOST => {
                    found.host_count = found.host_count.saturating_add(1);
                    found.is_host_good = is_host(value.as_bytes());
                }
                CACHE_CONTROL | PRAGMA => found.has_directives = true,
                IF_NONE_MATCH | IF_MODIFIED_SINCE => found.is_conditional = true,
                IF_MATCH | IF_UNMODIFIED_SINCE => found.is_for_origin = true,
                RANGE => found.has_range = true,
                VIA => found.has_via = true,
                UPGRADE => found.has_upgrade = true,
                CONNECTION => found.has_connection = true,
                _ => found.has_forwarding |= is_forwarding(name),
            }
        }
        found
    }

    /// Whether the request has the `Host` that its HTTP version requires.
    pub fn has_host(&self, version: Version) -> bool {
        match self.host_count {
            0 => version == Version::HTTP_10,
            1 => self.is_host_good,
            _ => false,
        }
    }

    /// The directives of `headers`, without those that the operator ignores.
    pub fn directives(&self, route: &SiteRoute, headers: &HeaderMap) -> RequestDirectives {
        if !self.has_directives {
            return RequestDirectives::default();
        }
        let found = RequestDirectives::parse(headers);
        if route.ignores_demands { found.without_demands() } else { found }
    }
}
