//! How far each name is, for a status and for metrics.
//!
//! Owns: the figures. They are of the moment at which something last happened to a name.

use std::path::PathBuf;

/// A name whose certificate the proxy orders, and how far that is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct AcmeName {
    /// The name, in lower case.
    pub name: String,
    /// The file of its certificate.
    pub path: PathBuf,
    /// The begin of the certificate's validity; `None` if there is no certificate. *Units*: Unix seconds.
    pub not_before_s: Option<i64>,
    /// The end of its validity. *Units*: Unix seconds.
    pub not_after_s: Option<i64>,
    /// When it is renewed. *Units*: Unix seconds.
    pub renewal_s: Option<i64>,
    /// Why there is no certificate, or no newer one; `None` if nothing is wrong.
    pub failure: Option<AcmeFailure>,
    /// Why the certificate is not in its file; `None` if it is, or if there is none.
    pub not_written: Option<String>,
}

/// Why there is no certificate.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct AcmeFailure {
    /// What is wrong, as a part of a sentence.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
    /// How often it has failed in a row; 0 if nothing was tried yet.
    pub count: u32,
    /// When it is tried again. *Units*: Unix seconds.
    pub again_s: i64,
}

impl AcmeName {
    /// Whether so little of the lifetime is left that a renewal must have failed. *Units*: Unix seconds.
    pub fn is_late(&self, unix_s: i64) -> bool {
        let (Some(not_before_s), Some(not_after_s)) = (self.not_before_s, self.not_after_s) else { return false };
        super::renewal_plan::CertificateValidity { not_before_s, not_after_s }.is_late(unix_s)
    }
}
