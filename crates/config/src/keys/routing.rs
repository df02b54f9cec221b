//! The keys of sites, routes and the forward proxy.
//!
//! Owns: the keys of `[[site]]`, `[[site.route]]` and `[forward-proxy]`, and the rules that the latter two share.

use super::{ConfigKey, ConfigTable, key};

/// Who may use a site or a route.
const ACCESS: &[ConfigKey] = &[
    key("allow", "list of NET", "everyone", "[\"10.0.0.0/8\"]", "Clients that may use it; others get 403."),
    key("deny", "list of NET", "[]", "[\"192.0.2.7\"]", "Clients that may not, also if allow has them; they get 403."),
];

/// How often a network may send requests to a site or a route.
const RATE: &[ConfigKey] = &[key(
    "client-requests",
    "N/PERIOD",
    "no limit",
    "\"50/s\"",
    "Requests to it of one client network in a period (s or min), beside those of [limits]; further ones get 429 with \
     Retry-After.",
)];

/// The rules of caching.
const RULES: &[ConfigKey] = &[
    key("pass", "BOOL", "false", "true", "Whether every request goes to the origin, and nothing is stored."),
    key(
        "default-ttl",
        "TTL",
        "none",
        "\"5m\"",
        "Lifetime of responses that give none. Without it they are fetched each time.",
    ),
    key(
        "status-ttl",
        "table of TTL",
        "{}",
        "{ 404 = \"1m\" }",
        "The same by status (200 to 599), instead of default-ttl.",
    ),
    key(
        "stale-unreachable",
        "TTL",
        "\"1d\"",
        "\"1h\"",
        "How long beyond its lifetime a response is served while its origin cannot be reached. 0s for not at all.",
    ),
    key(
        "stale-while-revalidate",
        "TTL",
        "\"0s\"",
        "\"30s\"",
        "How long beyond its lifetime a response is served while it is fetched again. 0s for not at all.",
    ),
    key(
        "query-ignore",
        "list of PATTERN",
        "[]",
        "[\"utm_*\"]",
        "Parameters of the query that are removed before the key is made and the origin is asked.",
    ),
    key(
        "query-keep",
        "list of PATTERN",
        "all",
        "[\"page\"]",
        "The only parameters of the query that remain; [] removes the query. Not together with query-ignore.",
    ),
    key(
        "cookies-ignore",
        "list of PATTERN",
        "[]",
        "[\"_ga*\"]",
        "Cookies of requests that are removed before the key is made and the origin is asked.",
    ),
    key(
        "cookies-keep",
        "list of PATTERN",
        "all",
        "[\"session\"]",
        "The only cookies of requests that remain; [] removes all. Not together with cookies-ignore.",
    ),
    key("cookies-key", "list of NAME", "[]", "[\"language\"]", "Cookies whose values are in the key."),
    key(
        "key-headers",
        "list of HEADER",
        "[]",
        "[\"x-forwarded-proto\"]",
        "Request headers that are in the key: each of their values has its own copies.",
    ),
    key(
        "ignore-request-cache-control",
        "BOOL",
        "false",
        "true",
        "Whether no-cache, max-age, min-fresh and Pragma of requests are ignored.",
    ),
    key(
        "store-set-cookie",
        "BOOL",
        "false",
        "true",
        "Whether responses with Set-Cookie are stored as if they had none.",
    ),
    key(
        "part-size",
        "SIZE",
        "none",
        "\"1M\"",
        "Size of the parts in which bodies are fetched and stored: 64K to 64M. Without it they are whole.",
    ),
    key("strip-tags", "BOOL", "false", "true", "Whether Surrogate-Key and Cache-Tag are kept from clients."),
    key("tags", "list of TAG", "[]", "[\"shop\"]", "Tags of every response that is stored, to purge it by."),
];

/// `[forward-proxy]`.
pub const FORWARD: ConfigTable = ConfigTable {
    header: "[forward-proxy]",
    meaning: "Requests with a whole URL whose host is no site's, and CONNECT. Without this table they are refused.",
    groups: &[
        &[
            key(
                "allow",
                "list of NET",
                "[]",
                "[\"10.0.0.0/8\"]",
                "Clients that may use it, beside those with loopback addresses.",
            ),
            key(
                "connect-ports",
                "list of PORT",
                "[443]",
                "[443, 8443]",
                "Ports to which CONNECT may tunnel; [] for none.",
            ),
        ],
        RULES,
    ],
};

/// `[[site]]`.
pub const SITE: ConfigTable = ConfigTable {
    header: "[[site]]",
    meaning: "What is served under some names. There is at least one site, or [forward-proxy].",
    groups: &[
        &[
            key(
                "names",
                "list of HOST",
                "required, but for the default site",
                "[\"example.org\", \"*.example.org\"]",
                "Its names, without ports. A * is the whole first label, and stands for one or more labels. An exact name \
                 wins, then the longest.",
            ),
            key(
                "default",
                "BOOL",
                "false",
                "true",
                "Whether it serves hosts that are no site's. At most one site does.",
            ),
            key("route", "list of tables", "required", "see below", "Its routes, at least one. Other paths get 404."),
        ],
        ACCESS,
        RATE,
    ],
};

/// `[[site.route]]`.
pub const ROUTE: ConfigTable = ConfigTable {
    header: "[[site.route]]",
    meaning: "A path, and what is done with requests for it: an origin or a redirect. The networks are those of the site \
              if it has none, and so is client-requests; its own one counts apart, and instead of the site's.",
    groups: &[
        &[
            key(
                "path",
                "PATH",
                "\"/\"",
                "\"/static/\"",
                "The beginning of paths, or = and a whole path. An exact path wins, then the longest. Queries do not count.",
            ),
            key("origin", "NAME", "required, or redirect", "\"app\"", "The origin that responses are fetched from."),
            key(
                "redirect",
                "table",
                "none",
                "{ to = \"https://example.org/\" }",
                "Where clients are sent, instead of an origin.",
            ),
            key(
                "request-headers",
                "table",
                "{}",
                "{ remove = [\"dnt\"] }",
                "Changes of the headers of requests to the origin. The key is made before.",
            ),
            key(
                "response-headers",
                "table",
                "{}",
                "{ set = { x-frame-options = \"DENY\" } }",
                "Changes of the headers of responses to clients, after the cache.",
            ),
        ],
        RULES,
        ACCESS,
        RATE,
    ],
};

/// `request-headers` and `response-headers` of a route.
pub const HEADERS: ConfigTable = ConfigTable {
    header: "request-headers = { … }, response-headers = { … }",
    meaning: "Changes of headers: first some are removed, then some are set. Headers of the connection, Content-Length and \
              Host stay as they are.",
    groups: &[&[
        key(
            "set",
            "table of texts",
            "{}",
            "{ x-served-by = \"nectary\" }",
            "Headers that then are there once, with this value.",
        ),
        key("remove", "list of HEADER", "[]", "[\"server\"]", "Headers that then are not there."),
    ]],
};

/// `redirect` of a route.
pub const REDIRECT: ConfigTable = ConfigTable {
    header: "redirect = { … }",
    meaning: "Where clients are sent.",
    groups: &[&[
        key("to", "URL or PATH", "required", "\"https://example.org/\"", "A URL, or a path of the same site."),
        key("status", "STATUS", "302", "301", "301, 302, 303, 307 or 308."),
        key(
            "keep-path",
            "BOOL",
            "false",
            "true",
            "Whether path and query of the request follow it, with one / between them.",
        ),
    ]],
};
