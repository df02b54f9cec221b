//! The certificates that `[fleet]` names.

use std::path::PathBuf;

use nectary_config::{EtcdTls, FleetConfig, LocatedValue, ServerScheme, SourcePosition};
use nectary_host::tls::ClientTls;

use super::refused::ProblemCollector;
use crate::fleet::FleetPeers;
use crate::options::ProxyOptions;

/// Refuses files that a node cannot use: they are read here as at its start.
pub(super) fn check(fleet: &FleetConfig, options: &ProxyOptions, refused: &mut ProblemCollector) {
    if let (Some(share), Some(peers)) = (&fleet.share, &options.peers)
        && let Err(error) = FleetPeers::new(peers, &options.limits)
    {
        let files = [("cert", &share.cert), ("key", &share.key), ("ca", &share.ca)];
        refuse(refused, files, &error.to_string(), ("cert", share.cert.place));
    }
    let EtcdTls { ca, cert, key } = &fleet.etcd_tls;
    let Some(first) = fleet.etcd.iter().find(|url| url.value.scheme == ServerScheme::Https) else { return };
    let identity = cert.as_ref().zip(key.as_ref()).map(|(cert, key)| (cert.value.as_path(), key.value.as_path()));
    if let Err(error) = ClientTls::load_for(ca.as_ref().map(|ca| ca.value.as_path()), identity, Some(b"h2")) {
        let files = [("etcd-ca", ca), ("etcd-cert", cert), ("etcd-key", key)];
        let files = files.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?)));
        refuse(refused, files, &error.to_string(), ("etcd", first.place));
    }
}

/// Refuses the file that a text names, or `otherwise` if it names none of them.
fn refuse<'a>(
    refused: &mut ProblemCollector,
    files: impl IntoIterator<Item = (&'a str, &'a LocatedValue<PathBuf>)>,
    text: &str,
    otherwise: (&'a str, SourcePosition),
) {
    let named = files.into_iter().filter(|(_, path)| text.contains(&*path.value.to_string_lossy()));
    // Of two paths the longer one is meant, which may begin with the other.
    let named = named.max_by_key(|(_, path)| path.value.as_os_str().len()).map(|(name, path)| (name, path.place));
    let (name, place) = named.unwrap_or(otherwise);
    refused.refuse(place, name, text);
}
