//! From `[fleet]` of a configuration to what a fleet is started with.
//!
//! Owns: the defaults of its keys. Leaves to others: whether the values fit together
//! (`nectary-config`), and what the proxy does with the keys that are about requests.

use nectary_config::{FleetConfig, PurgeWhenCut, ServerScheme, Setting};
use nectary_host::fleet::{NodeName, RulesHash};

use crate::machine::FleetRules;
use crate::options::{EtcdEndpoint, FleetConnection, FleetOptions, MemberAddress, TlsFiles};

/// The name of a fleet without one.
const FLEET_NAME: &str = "nectary";

/// The options that a configuration describes. `weight` is the size of the store in bytes, `rules` the hash of the rules
/// that make keys.
///
/// *Errors*: a name that no node can have; a configuration that was read has none.
pub fn options_of(config: &FleetConfig, weight: u64, rules: RulesHash) -> Result<FleetOptions, String> {
    let name = &config.node.value;
    let node = NodeName::new(name).ok_or_else(|| format!("`{name}` cannot be the name of a node"))?;
    let path = |file: &Setting<std::path::PathBuf>| file.as_ref().map(|file| file.value.clone());
    let share = config.share.as_ref();
    let endpoints = config.etcd.iter().map(|url| EtcdEndpoint {
        host: url.host.clone(),
        port: url.port,
        has_tls: url.scheme == ServerScheme::Https,
    });
    let (ca, identity) = (path(&config.etcd_tls.ca), path(&config.etcd_tls.cert).zip(path(&config.etcd_tls.key)));
    let connection = match (&config.purges.log, share) {
        (Some(log), Some(share)) if !config.members.is_empty() => FleetConnection::Members {
            members: config.members.iter().map(|it| MemberAddress { host: it.host.clone(), port: it.port }).collect(),
            log: log.value.clone(),
            tls: TlsFiles {
                ca: Some(share.ca.value.clone()),
                identity: Some((share.cert.value.clone(), share.key.value.clone())),
            },
            serve_limit: config.serve_when_cut.as_ref().map(|time| time.value),
        },
        _ => FleetConnection::Etcd { endpoints: endpoints.collect(), tls: TlsFiles { ca, identity } },
    };
    Ok(FleetOptions {
        fleet: value_or(&config.name, FLEET_NAME.to_owned()),
        address: share.map(|share| share.address.to_string()).unwrap_or_default(),
        node,
        zone: value_or(&config.zone, String::new()),
        weight: weight.max(1),
        rules,
        limits: limits_of(config),
        connection,
    })
}

/// The rules of leases and purges.
fn limits_of(config: &FleetConfig) -> FleetRules {
    let (default, purges) = (FleetRules::default(), &config.purges);
    FleetRules {
        lease: value_or(&config.lease, default.lease),
        serve_when_cut: value_or(&config.serve_when_cut, default.serve_when_cut),
        queues_when_cut: value_or(&purges.when_cut, PurgeWhenCut::Fail) == PurgeWhenCut::Queue,
        queue_max: purges.queue_max.as_ref().map_or(default.queue_max, |count| count.value as usize),
        purge_time: value_or(&purges.time, default.purge_time),
        purge_rate: purges.rate.as_ref().map_or(default.purge_rate, |rate| (rate.count, rate.period)),
        log_bytes_max: value_or(&purges.log_bytes_max, default.log_bytes_max),
        log_age_max: value_or(&purges.log_age, default.log_age_max),
    }
}

fn value_or<T: Clone>(setting: &Setting<T>, default: T) -> T {
    setting.as_ref().map_or(default, |found| found.value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_config::ProxyConfig;
    use std::time::Duration;

    fn options(fleet: &str) -> FleetOptions {
        let text = format!(
            "[[listener]]\naddress = \":80\"\n[store]\ndevice = \"memory:1G\"\n[forward-proxy]\n[fleet]\n\
             {fleet}"
        );
        let (config, _) = ProxyConfig::parse("f", &text).unwrap_or_else(|problems| panic!("{}", problems[0]));
        options_of(&config.fleet.expect("a fleet"), 1 << 30, RulesHash(7)).expect("it has a name")
    }

    /// The page says these defaults; `nectary_config` has their text.
    #[test]
    fn fleet_defaults_match_documented_page() {
        let found = options("node = \"a\"\netcd = [\"http://10.0.0.9:2379\"]\n");
        assert_eq!((found.fleet.as_str(), found.node.as_str()), ("nectary", "a"));
        assert_eq!(found.limits, FleetRules::default());
        let page = |key: &str| nectary_config::keys::FLEET.key(key).map(|key| key.default.trim_matches('"'));
        assert_eq!(
            (page("lease"), page("serve-when-cut"), page("purge-time")),
            (Some("10s"), Some("60s"), Some("20s"))
        );
        assert_eq!((page("purge-queue-max"), page("purge-rate")), (Some("1000"), Some("1000/s")));
        assert_eq!((page("purge-log-size"), page("purge-log-age")), (Some("64M"), Some("1d")));
        let seconds = [found.limits.lease, found.limits.serve_when_cut, found.limits.purge_time].map(|it| it.as_secs());
        assert_eq!((seconds, found.limits.queue_max), ([10, 60, 20], 1000));
        assert_eq!(found.limits.purge_rate, (1000, Duration::from_secs(1)));
        assert_eq!((found.limits.log_bytes_max >> 20, found.limits.log_age_max.as_secs()), (64, 86_400));
    }

    #[test]
    fn fleet_keys_become_options() {
        let found = options(
            "node = \"a\"\nname = \"edge\"\nzone = \"z\"\netcd = [\"https://[::1]:443\"]\netcd-ca = \"e.pem\"\n\
             etcd-cert = \"e.crt\"\netcd-key = \"e.key\"\nlease = \"5s\"\nserve-when-cut = \"0s\"\n\
             purge-when-cut = \"queue\"\npurge-queue-max = 5\npurge-time = \"1s\"\npurge-rate = \"60/min\"\n\
             purge-log-size = \"1M\"\npurge-log-age = \"1h\"\n",
        );
        assert_eq!((found.fleet.as_str(), found.node.as_str(), found.zone.as_str()), ("edge", "a", "z"));
        let FleetConnection::Etcd { endpoints, tls } = found.connection else { panic!("it has no members") };
        assert_eq!(endpoints, [EtcdEndpoint { host: "::1".to_owned(), port: 443, has_tls: true }]);
        assert_eq!(tls, TlsFiles { ca: Some("e.pem".into()), identity: Some(("e.crt".into(), "e.key".into())) });
        let expected = FleetRules {
            lease: Duration::from_secs(5),
            serve_when_cut: Duration::ZERO,
            queues_when_cut: true,
            queue_max: 5,
            purge_time: Duration::from_secs(1),
            purge_rate: (60, Duration::from_secs(60)),
            log_bytes_max: 1 << 20,
            log_age_max: Duration::from_secs(3600),
        };
        assert_eq!(found.limits, expected);
    }
    #[test]
    fn members_need_no_etcd() {
        let found = options(
            "members = [\"10.0.0.1:7443\", \"[::1]:7443\"]\naddress = \"10.0.0.1:7443\"\ncert = \"c\"\nkey = \"k\"\n\
             ca = \"a\"\npurge-log = \"/var/lib/nectary/purges\"\n",
        );
        assert_eq!(found.node.as_str(), "10.0.0.1:7443");
        let FleetConnection::Members { members, log, tls, serve_limit } = found.connection else { panic!("members") };
        let names: Vec<_> = members.iter().filter_map(MemberAddress::name).map(|name| name.to_string()).collect();
        assert_eq!((names, serve_limit), (vec!["10.0.0.1:7443".to_owned(), "[::1]:7443".to_owned()], None));
        assert_eq!((log.to_str(), tls.ca.as_deref()), (Some("/var/lib/nectary/purges"), Some("a".as_ref())));
    }
}
