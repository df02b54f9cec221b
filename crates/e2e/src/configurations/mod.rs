//! Configurations of the proxy: features whose effect a request sees, wrong files, and changes under load.
//!
//! Each [`ConfigurationFeature`] has one text for two files: the one with the feature, and the one without it. The same requests are
//! made to a proxy with either file, and both must be answered as expected: a check that sees nothing of its feature
//! would find the same answer twice, and no feature may have equal answers. Leaves to others: the features by what they
//! are about ([`of_routes`], [`of_origins`], [`of_clients`]), wrong files ([`wrong`]), reloads, restarts and upgrades
//! ([`changes`]).

pub mod changes;
pub mod echo;
pub mod of_clients;
pub mod of_origins;
pub mod of_routes;
mod trial;
pub mod wrong;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::nectary::certificates::ServerCertificates;
use crate::nectary::{ProxyCommand, run};
use crate::scratch::{ScratchFolder, free_address};
use echo::EchoOrigin;
pub use trial::FeatureTrial;

/// The longest time in which a proxy ends: clients may hold a connection.
const END_MAX: Duration = Duration::from_secs(40);

/// Parts that a file may name by `%NAME`, and their text. Lines after a part belong to its last table.
const USUAL: [(&str, &str); 6] = [
    ("%listener", "[[listener]]\naddress = \"{listen}\""),
    (
        "%tls",
        "[[listener]]\naddress = \"{listen}\"\ntls = true\n[[tls.certificate]]\ncert = \"{cert}\"\nkey = \"{key}\"",
    ),
    ("%store", "[store]\ndevice = \"{folder}/store\"\nsize = \"256M\"\nmemory = \"64M\"\n[server]\nworkers = 1"),
    ("%admin", "[admin]\nlisten = \"{admin}\""),
    ("%app", "[origins.app]\nservers = [\"{app}\"]"),
    ("%site", "[[site]]\nnames = [\"example.org\"]\n[[site.route]]\norigin = \"app\""),
];

/// A feature of the configuration file, and the requests that show it.
pub struct ConfigurationFeature {
    /// Its name, which differs from those of all others.
    pub name: &'static str,
    /// The text of both files: `+ ` begins lines of the file with the feature, `- ` those of the file without it, and
    /// `%NAME` is a usual part. Addresses and paths are in braces.
    pub file: &'static str,
    /// Makes the requests. *Returns*: what was seen, in words.
    pub see: fn(&FeatureTrial) -> Result<String>,
    /// What is seen with the feature.
    pub with: &'static str,
    /// What is seen without it.
    pub without: &'static str,
}

/// All features.
pub fn features() -> impl Iterator<Item = &'static ConfigurationFeature> {
    [of_routes::FEATURES, of_origins::FEATURES, of_clients::FEATURES].into_iter().flatten()
}

/// What is around the proxies of all trials: origins and certificates.
pub struct TrialEnvironment {
    scratch: ScratchFolder,
    /// The origin that most routes lead to.
    pub app: EchoOrigin,
    /// Another one.
    pub spare: EchoOrigin,
    /// One that closes each connection when a request has come.
    pub closing: EchoOrigin,
    /// The certificate for example.org.
    pub own: ServerCertificates,
    /// The certificate for other.test, which another authority has signed.
    pub other: ServerCertificates,
    /// The folder of a client's certificate of that other authority.
    pub client: PathBuf,
}

impl TrialEnvironment {
    /// Starts the origins, and makes the certificates.
    pub fn new() -> Result<TrialEnvironment> {
        let scratch = ScratchFolder::new("configurations")?;
        let folder = |name: &str| -> Result<PathBuf> {
            let path = scratch.join(name);
            fs::create_dir(&path)?;
            Ok(path)
        };
        let own = ServerCertificates::make(&folder("own")?, "example.org")?;
        let others = folder("other")?;
        let other = ServerCertificates::make(&others, "other.test")?;
        let client = scratch.join("client");
        let (pki, out) = (others.join("pki").display().to_string(), client.display().to_string());
        let (status, said) = run(&["cert", "client", &pki, "client.test", "--out", &out], scratch.path())?;
        ensure!(status.success(), "nectary cert client: {said}");
        let (app, spare, closing) =
            (EchoOrigin::start("app")?, EchoOrigin::start("spare")?, EchoOrigin::start("closing")?);
        closing.set_closed(true);
        Ok(TrialEnvironment { scratch, app, spare, closing, own, other, client })
    }

    /// The folder of everything.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Starts a proxy with a feature's file, or with the one without it, and makes the requests.
    ///
    /// *Returns*: what was seen. *Errors*: the proxy does not start, or does not end.
    pub fn see(&self, feature: &ConfigurationFeature, is_on: bool) -> Result<String> {
        let folder = self.scratch.join(&format!("{}-{}", feature.name, if is_on { "with" } else { "without" }));
        fs::create_dir(&folder)?;
        let command = ProxyCommand::new(&folder, None)?;
        let trial = FeatureTrial::new(self, command.listen, &folder)?;
        let file = folder.join("proxy.toml");
        fs::write(&file, text_of(feature.file, is_on, &trial.places(self)))?;
        fs::write(folder.join("token"), "a-token-for-tests\n")?;
        let mut nectary = command.start_with_file(&file)?;
        let seen = (feature.see)(&trial).with_context(|| nectary.process.log_tail());
        let status = nectary.terminate(END_MAX)?;
        ensure!(status.success(), "{}\n{}", crate::guard::describe(status), nectary.process.log_tail());
        fs::remove_dir_all(&folder)?;
        seen
    }

    /// Checks a feature in both files. *Returns*: what is wrong, one text each.
    pub fn check(&self, feature: &ConfigurationFeature) -> Vec<String> {
        let mut wrong = Vec::new();
        for (is_on, words, expected) in [(true, "with", feature.with), (false, "without", feature.without)] {
            match self.see(feature, is_on) {
                Ok(seen) if seen == expected => {}
                Ok(seen) => wrong.push(format!("{words} {}: seen `{seen}`, expected `{expected}`", feature.name)),
                Err(error) => wrong.push(format!("{words} {}: {error:#}", feature.name)),
            }
        }
        wrong
    }
}

/// The text of one of a feature's two files.
fn text_of(file: &str, is_on: bool, places: &[(&str, String)]) -> String {
    let mut text = String::new();
    for line in file.lines() {
        let line = match (line.strip_prefix("+ "), line.strip_prefix("- ")) {
            (Some(with), _) if is_on => with,
            (_, Some(without)) if !is_on => without,
            (None, None) => line,
            _ => continue,
        };
        text += USUAL.iter().find(|(name, _)| *name == line).map_or(line, |(_, part)| *part);
        text.push('\n');
    }
    for (name, value) in places {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

/// A port of this machine that is free, for each of a trial's further addresses.
fn free_addresses() -> Result<[std::net::SocketAddr; 2]> {
    Ok([free_address()?, free_address()?])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_text_is_two_files() {
        let places = [("app", "http://a".to_owned())];
        let text = "%app\n+ retries = 2\n- retries = 0\nx = { y = 1 }";
        let of_app = "[origins.app]\nservers = [\"http://a\"]\n";
        assert_eq!(text_of(text, true, &places), format!("{of_app}retries = 2\nx = {{ y = 1 }}\n"));
        assert_eq!(text_of(text, false, &places), format!("{of_app}retries = 0\nx = {{ y = 1 }}\n"));
    }

    /// A feature with equal answers, or one file, would pass without being there.
    #[test]
    fn no_feature_looks_like_its_absence() {
        let names: BTreeSet<&str> = features().map(|feature| feature.name).collect();
        assert_eq!(names.len(), features().count());
        assert!(names.len() >= 30, "{}", names.len());
        for feature in features() {
            assert_ne!(feature.with, feature.without, "{}", feature.name);
            let [with, without] = [true, false].map(|is_on| text_of(feature.file, is_on, &[]));
            assert_ne!(with, without, "{}", feature.name);
            assert!(!with.contains('%') && !without.contains('%'), "{}: {with}", feature.name);
        }
    }
}
