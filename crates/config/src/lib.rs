//! The configuration of a proxy: one TOML file, read into checked values.
//!
//! Owns: the keys of the file, their checks, the messages about mistakes, and the form in which a configuration is
//! printed. Promises: a mistake is named with file, line and column, with what is allowed, and with what was perhaps
//! meant; all mistakes that can be found are found in one go; no bytes make it panic; a value that was printed is read
//! as an equal value. Leaves to others: the meaning of the values (the proxy), and everything that a file points at:
//! certificates, devices and names of hosts are not looked at here.
//!
//! ```
//! use nectary_config::{ProxyConfig, to_toml};
//!
//! let text = "listener = [{ address = ':80' }]\nstore.device = 'cache'\n[forward-proxy]\nalow = ['10.0.0.0/8']\n";
//! let problems = ProxyConfig::parse("proxy.toml", text).expect_err("a key that is not known");
//! assert_eq!((problems[0].place().line, problems[0].place().column), (4, 1));
//! assert!(problems[0].help().is_some_and(|help| help.starts_with("perhaps `allow`")));
//!
//! let (config, warnings) = ProxyConfig::parse("proxy.toml", &text.replace("alow", "allow")).expect("a right file");
//! assert!(warnings.is_empty());
//! assert_eq!(ProxyConfig::parse("printed.toml", &to_toml(&config)).expect("a right file").0, config);
//! ```

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod fuzzing;
pub mod keys;
mod place;
mod print;
mod problem;
mod quantity;
mod read;
mod source;
mod suggest;
mod text;
mod values;

pub use place::{LocatedValue, Setting, SourcePosition};
pub use print::to_toml;
pub use problem::{ConfigProblem, ConfigWarning};
pub use read::FILE_BYTES_MAX;
pub use source::ConfigSource;
pub use values::*;
