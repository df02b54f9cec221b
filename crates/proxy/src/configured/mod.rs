//! From the values of a configuration file to what the proxy runs with.
//!
//! Owns: the meaning of each value, and the refusal of each that this version does not act on, with its place: nothing in a
//! file is silently ignored. Reading a file's certificates of origins is the only I/O. Leaves to others: the syntax and
//! the consistency of a file (`nectary-config`), the store and what a command prints (the caller).

mod accepted_acme;
mod accepted_fleet;
mod accepted_origins;
mod accepted_sites;
mod changes;
mod process_options;
pub(crate) mod refused;

use std::sync::Arc;

use nectary_config::{ConfigProblem, ProxyConfig, Setting};

pub use changes::unchanged_parts;
pub use process_options::options_of;
pub use refused::ConfigProblems;

use crate::accept::ProxyCertificates;
use crate::sites::SiteTable;
use refused::ProblemCollector;

/// The table of sites that a configuration describes. `generation` tells it from earlier ones.
///
/// *Errors*: what this version does not act on, and files of origins that cannot be used.
pub(crate) fn sites_of(config: &Arc<ProxyConfig>, generation: u32) -> Result<SiteTable, ConfigProblems> {
    let mut refused = ProblemCollector::new(&config.source);
    let origins = accepted_origins::origins(config, &mut refused);
    let sites = accepted_sites::sites(config, &origins, generation, &mut refused);
    refused.finish(sites)
}

/// Checks a configuration as a start does: what it asks for, and the files that it names, but no address.
///
/// *Errors*: all that is wrong.
pub fn check(config: &Arc<ProxyConfig>) -> Result<(), ConfigProblems> {
    let (options, sites) = (options_of(config), sites_of(config, 0));
    let mut refused = ProblemCollector::new(&config.source);
    if let Ok(options) = &options
        && (!options.certificates.is_empty() || options.acme.is_some())
        && let Err(error) = ProxyCertificates::new(options.certificates.clone(), options.tls.clone(), None)
    {
        let text = error.to_string();
        let files = config.tls.certificates.iter().flat_map(|files| [(&files.key, "key"), (&files.cert, "cert")]);
        let files = files.chain(config.tls.client_ca.as_ref().map(|path| (path, "client-ca")));
        let found = files.filter(|(path, _)| text.contains(&*path.value.to_string_lossy()));
        // Of two paths the longer one is meant, which may begin with the other.
        match found.max_by_key(|(path, _)| path.value.as_os_str().len()) {
            Some((path, key)) => refused.refuse(path.place, key, text),
            None => {
                let place = config.tls.certificates.first().map(|certificate| certificate.place).unwrap_or_default();
                refused.refuse(place, "certificate", text);
            }
        }
    }
    accepted_acme::check(config, &mut refused);
    if let (Ok(options), Some(fleet)) = (&options, &config.fleet) {
        accepted_fleet::check(fleet, options, &mut refused);
    }
    let mut problems = refused.problems();
    problems.extend(options.err().into_iter().chain(sites.err()).flat_map(|found| found.0));
    problems.sort_by_key(ConfigProblem::place);
    if problems.is_empty() { Ok(()) } else { Err(ConfigProblems(problems)) }
}

/// The value of a key, or its default.
fn value_or<T: Clone>(setting: &Setting<T>, default: T) -> T {
    setting.as_ref().map_or(default, |found| found.value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listening::unix_socket::{SocketUsers, UnixSocket};

    #[test]
    fn unix_sockets_become_options() {
        let text = "[[listener]]\naddress = \"unix:/run/a.sock\"\nsocket-mode = \"0660\"\n\
                    proxy-protocol-from = [\"unix\"]\n[admin]\nlisten = \"unix:/run/b.sock\"\n[store]\n\
                    device = \"memory:1G\"\n[forward-proxy]\n";
        let (config, _) = ProxyConfig::parse("f", text).expect("the syntax is right");
        let options = options_of(&Arc::new(config)).expect("this version does it");
        let clients =
            UnixSocket { mode: 0o660, has_proxy_header: true, ..UnixSocket::new("/run/a.sock", SocketUsers::Clients) };
        assert_eq!(options.unix, [clients, UnixSocket::new("/run/b.sock", SocketUsers::Admin)]);
        assert!(options.listen.is_empty() && options.admin.listen.is_empty() && options.proxy_protocol_from.is_empty());
    }

    #[test]
    fn limits_by_network_become_options() {
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n[store]\ndevice = \"memory:1G\"\n[forward-proxy]\n\
                    [limits]\n";
        let limits_of = |more: &str| {
            let (config, _) = ProxyConfig::parse("f", &format!("{text}{more}")).expect("the syntax is right");
            options_of(&Arc::new(config)).expect("this version does it").limits
        };
        let limits = limits_of("client-connections-max = 20\nclient-requests = \"600/min\"\n");
        let rate = limits.by_network.requests.expect("a rate");
        assert_eq!((limits.by_network.connections_max, rate.count, rate.period.as_secs()), (Some(20), 600, 60));
        assert_eq!(limits.figures()["client_requests"], "600/min");
        assert_eq!(limits_of("").by_network, crate::options::NetworkLimits::default());
    }

    #[test]
    fn bad_client_ca_is_located() {
        let folder = std::env::temp_dir().join(format!("nectary-proxy-client-ca-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (cert, key, empty) = (folder.join("site.pem"), folder.join("site.key"), folder.join("empty.pem"));
        let pair = rcgen::KeyPair::generate().expect("a key");
        let signed = rcgen::CertificateParams::default().self_signed(&pair).expect("a certificate");
        for (path, text) in [(&cert, signed.pem()), (&key, pair.serialize_pem()), (&empty, String::new())] {
            std::fs::write(path, text).expect("written");
        }
        let checked = |client_ca: &std::path::Path| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:0\"\ntls = true\n[tls]\nclient-ca = \"{}\"\n[[tls.certificate]]\n\
                 cert = \"{}\"\nkey = \"{}\"\n[store]\ndevice = \"memory:1G\"\n[forward-proxy]\n",
                client_ca.display(),
                cert.display(),
                key.display()
            );
            let (config, _) = ProxyConfig::parse("f", &text).expect("the syntax is right");
            check(&Arc::new(config)).map_err(|problems| problems.to_string())
        };
        assert_eq!(checked(&cert), Ok(()));
        for path in [&empty, &folder.join("absent.pem")] {
            let problems = checked(path).expect_err("it has no certificate");
            let expected = format!("f:5:13: error: `client-ca`: {}", path.display());
            assert!(problems.starts_with(&expected), "{problems}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn bad_certificate_is_located() {
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\ntls = true\n[[tls.certificate]]\ncert = \"/none.pem\"\n\
                    key = \"/none.key\"\n[store]\ndevice = \"memory:1G\"\n[forward-proxy]\n";
        let (config, _) = ProxyConfig::parse("f", text).expect("the syntax is right");
        let problems = check(&Arc::new(config)).expect_err("there are no files").to_string();
        assert!(problems.starts_with("f:5:8: error: `cert`: /none.pem"), "{problems}");
    }
}
