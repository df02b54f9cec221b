//! Certificates for TLS, in files.

use std::path::PathBuf;

use nectary_proxy::CertificateFiles;

/// A folder with an authority and certificates that it signed, which is removed at the end.
pub struct TestCertificates {
    folder: PathBuf,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl TestCertificates {
    /// Makes an authority; `name` is that of its folder.
    pub fn new(name: &str) -> TestCertificates {
        let folder = std::env::temp_dir().join(format!("nectary-proxy-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        let authority = params.self_signed(&key).expect("an authority");
        std::fs::write(folder.join("ca.pem"), authority.pem()).expect("written");
        TestCertificates { folder, issuer: rcgen::Issuer::new(params, key) }
    }

    /// The file of the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Signs a certificate for these names, under a file's name.
    pub fn sign(&self, file: &str, names: &[&str]) -> CertificateFiles {
        self.sign_until(file, names, 4096)
    }

    /// Signs a certificate that ends with the beginning of a year.
    pub fn sign_until(&self, file: &str, names: &[&str], year: i32) -> CertificateFiles {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(names).expect("names");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = |end: &str| self.folder.join(format!("{file}{end}.pem"));
        std::fs::write(path(""), signed.pem()).expect("written");
        std::fs::write(path("-key"), key.serialize_pem()).expect("written");
        CertificateFiles { certificate: path(""), key: path("-key") }
    }
}

impl Drop for TestCertificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
