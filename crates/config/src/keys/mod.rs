//! The keys of the file.
//!
//! Owns: the name, the kind, the default and the meaning of each key, in the order in which they are printed. The reader
//! refuses other keys, the printer writes these meanings as comments, and a test compares them with
//! `docs/proxy-config.md`. Leaves to others: reading the values.

mod acme_keys;
mod fleet_keys;
mod process;
mod routing;
mod storage;
mod upstream;

pub use acme_keys::ACME;
pub use fleet_keys::FLEET;
pub use process::{ADMIN, CERTIFICATE, LISTENER, LOG, SERVER, TLS};
pub use routing::{FORWARD, HEADERS, REDIRECT, ROUTE, SITE};
pub use storage::{LIMITS, STORE};
pub use upstream::{CHECK, EJECT, ORIGIN, ORIGIN_SERVER};

/// A key of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigKey {
    /// Its name.
    pub name: &'static str,
    /// What it is set to, for example `SIZE`. The page explains the words in capitals.
    pub kind: &'static str,
    /// What counts if the key is absent: a value as the file has it, `required`, or words.
    pub default: &'static str,
    /// A value, as the file has it.
    pub example: &'static str,
    /// What it means, in a sentence or two.
    pub meaning: &'static str,
}

/// A table of the file.
#[derive(Debug, Clone, Copy)]
pub struct ConfigTable {
    /// Its header, for example `[store]` or `[[site.route]]`; for a table in a line its key and its parts.
    pub header: &'static str,
    /// What it is for, in a sentence.
    pub meaning: &'static str,
    /// Its keys in groups; the groups are only for what several tables share.
    pub groups: &'static [&'static [ConfigKey]],
}

impl ConfigTable {
    /// Its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static ConfigKey> + use<> {
        self.groups.iter().copied().flatten()
    }

    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static ConfigKey> {
        self.keys().find(|key| key.name == name)
    }
}

/// The names of the tables at the top of the file.
pub static TOP: [&str; 11] =
    ["server", "listener", "store", "admin", "log", "tls", "limits", "fleet", "forward-proxy", "origins", "site"];

/// All tables, in the order of the page. `[tls.acme]` and `[fleet]` are last: a name that
/// others share with them is said to be theirs.
pub static TABLES: [&ConfigTable; 19] = [
    &LISTENER,
    &TLS,
    &CERTIFICATE,
    &STORE,
    &SERVER,
    &ADMIN,
    &LOG,
    &LIMITS,
    &FORWARD,
    &ORIGIN,
    &ORIGIN_SERVER,
    &CHECK,
    &EJECT,
    &SITE,
    &ROUTE,
    &HEADERS,
    &REDIRECT,
    &ACME,
    &FLEET,
];

/// Makes a key.
const fn key(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    example: &'static str,
    meaning: &'static str,
) -> ConfigKey {
    ConfigKey { name, kind, default, example, meaning }
}
