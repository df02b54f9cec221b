//! What must hold for every file, for tests and fuzz targets.
//!
//! Owns: the property of the reader. Not for other use.

use crate::print::to_toml;
use crate::read::FILE_BYTES_MAX;
use crate::values::ProxyConfig;

/// Reads bytes as a file. A configuration that is read must be written as a file that is read as an equal one, without
/// further change; what is wrong must have a place in the file and a bounded message.
///
/// # Panics
/// If any of this does not hold.
pub fn parse(bytes: &[u8]) {
    match ProxyConfig::parse_bytes("proxy.toml", bytes) {
        Ok((config, warnings)) => {
            let text = to_toml(&config);
            if text.len() > FILE_BYTES_MAX {
                return;
            }
            let (again, later) = ProxyConfig::parse("proxy.toml", &text).unwrap_or_else(|problems| {
                panic!("what was written is not read: {}\n{text}", problems[0]);
            });
            assert_eq!(config, again, "what was written is read as something else:\n{text}");
            assert_eq!(text, to_toml(&again), "it is written in two ways");
            assert_eq!(warnings.len(), later.len(), "the warnings differ:\n{text}");
        }
        Err(problems) => {
            assert!(!problems.is_empty() && problems.len() <= 101);
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
            for problem in &problems {
                assert!(problem.place().line as usize <= lines, "{problem}");
                let text = problem.to_string();
                assert!(text.len() < 8000, "a long message: {text}");
                assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "a control character: {text:?}");
            }
        }
    }
}
