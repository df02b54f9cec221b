//! What a reload leaves as it was at the start.

use nectary_config::ProxyConfig;

/// The tables of a configuration that differ from those with which the process started, and that only a restart changes.
pub fn unchanged_parts(started: &ProxyConfig, now: &ProxyConfig) -> Vec<&'static str> {
    let forward = |config: &ProxyConfig| {
        let forward = config.forward.as_ref();
        forward.map(|forward| (forward.allow.clone(), forward.connect_ports.clone()))
    };
    let server = |config: &ProxyConfig| (config.server.workers, config.server.trust_forwarded.clone());
    let parts = [
        ("[[listener]]", started.listeners != now.listeners),
        ("[tls.acme], which is new", started.tls.acme.is_none() && now.tls.acme.is_some()),
        ("[store]", started.store != now.store),
        ("[server]", server(started) != server(now)),
        ("[admin]", started.admin != now.admin),
        ("[log]", started.log != now.log),
        ("[limits]", started.limits != now.limits),
        ("[fleet]", started.fleet != now.fleet),
        ("`allow` and `connect-ports` of [forward-proxy]", forward(started) != forward(now)),
    ];
    parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
}
