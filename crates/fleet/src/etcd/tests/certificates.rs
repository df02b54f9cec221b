//! etcd with TLS, whose certificates change.

use std::path::{Path, PathBuf};

use nectary_host::tls::ServerTls;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

/// A folder, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    /// Makes an authority, and lets it sign a certificate for etcd and one for nodes, in place of those from before.
    fn renew(&self) {
        let key = || KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = key();
        let authority = params.self_signed(&own).expect("an authority");
        std::fs::write(self.0.join("ca.pem"), authority.pem()).expect("written");
        let issuer = Issuer::new(params, own);
        for name in ["etcd", "node"] {
            let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
            let key = key();
            let signed = params.signed_by(&key, &issuer).expect("a certificate");
            std::fs::write(self.0.join(format!("{name}.pem")), signed.pem()).expect("written");
            std::fs::write(self.0.join(format!("{name}-key.pem")), key.serialize_pem()).expect("written");
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// etcd's side, which believes the authority alone.
    fn server(&self) -> ServerTls {
        let file = |name: &str| self.file(name);
        let of = |cert: &Path, key: &Path, ca: &Path| ServerTls::load(cert, key, Some(ca)).expect("certificates");
        of(&file("etcd.pem"), &file("etcd-key.pem"), &file("ca.pem"))
    }

    fn client(&self) -> TlsFiles {
        let identity = Some((self.file("node.pem"), self.file("node-key.pem")));
        TlsFiles { ca: Some(self.file("ca.pem")), identity }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a purge at this node is applied.
async fn purges(fleet: &EtcdFleet) {
    let begun = Instant::now();
    while !fleet.purge(purge("http://a/"), PurgeWish::Applied).await.is_ok_and(|outcome| outcome.is_applied) {
        assert!(begun.elapsed() < WAIT_MAX, "no purge is applied: {:?}", fleet.figures().problems);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Certificates that live shortly are replaced while nodes run; else all of them would be cut off at once, for good.
#[tokio::test]
async fn renewed_certificates_of_etcd_are_used() {
    let folder = Folder(std::env::temp_dir().join(format!("nectary-fleet-tls-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    folder.renew();
    let etcd = FakeEtcd::start_with(Some(folder.server())).await;
    let [store] = stores();
    let fleet = start_with_tls(&etcd, "a", &store, (rules(), folder.client()));
    joined(&fleet, 1).await;
    purges(&fleet).await;
    // Half of what is new cannot be used, and changes nothing.
    let (cert, kept) = (folder.file("node.pem"), std::fs::read(folder.file("node.pem")).expect("read"));
    std::fs::write(&cert, "half").expect("written");
    etcd.cut();
    purges(&fleet).await;
    std::fs::write(&cert, kept).expect("written");
    folder.renew();
    etcd.set_tls(folder.server());
    etcd.cut();
    purges(&fleet).await;
}
