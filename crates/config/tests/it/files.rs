//! Files that cannot be read, or are no text.

use std::fs;
use std::path::{Path, PathBuf};

use nectary_config::{FILE_BYTES_MAX, ProxyConfig, SourcePosition};

/// A file that is removed at the end.
struct ScratchFile(PathBuf);

impl ScratchFile {
    fn new(name: &str, bytes: &[u8]) -> ScratchFile {
        let path = std::env::temp_dir().join(format!("nectary-config-{}-{name}", std::process::id()));
        fs::write(&path, bytes).expect("a temporary file");
        ScratchFile(path)
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn messages(path: &Path) -> Vec<String> {
    let problems = ProxyConfig::read(path).expect_err("a wrong file");
    let text = |text: String| text.replace(&path.display().to_string(), "FILE");
    problems.iter().map(|problem| text(problem.to_string())).collect()
}

#[test]
fn a_file_is_read() {
    let file = ScratchFile::new(
        "right.toml",
        b"\xef\xbb\xbflistener = [{ address = \":80\" }]\r\nstore.device = 'a'\r\n[forward-proxy]",
    );
    let (config, warnings) = ProxyConfig::read(&file.0).expect("a right file");
    assert_eq!((config.listeners.len(), config.store.device.as_str(), warnings.len()), (1, "a", 0));
    assert_eq!(config.store.device.place, SourcePosition { line: 2, column: 16, width: 3 });
    assert_eq!(config.source.name(), file.0.display().to_string());
}

#[test]
fn missing_files_and_directories_are_told() {
    let missing = Path::new("/nonexistent/proxy.toml");
    assert_eq!(messages(missing), ["FILE: error: there is no such file\nhelp: docs/proxy-config.md has an example"]);
    let directory = std::env::temp_dir();
    assert_eq!(messages(&directory), ["FILE: error: it is a directory\nhelp: name the file in it"]);
}

#[test]
fn non_utf8_file_is_reported() {
    let file = ScratchFile::new("latin1.toml", b"[store]\ndevice = \"b\xfccher\"\n");
    assert_eq!(
        messages(&file.0),
        [
            "FILE:2:12: error: the byte 0xFC is not UTF-8\n2 | device = \"b\u{fffd}cher\"\n  |            ^\nhelp: save the file as UTF-8"
        ]
    );
}

#[test]
fn too_long_file_is_reported() {
    let mut text = vec![b'\n'; FILE_BYTES_MAX];
    let file = ScratchFile::new("long.toml", &text);
    assert!(messages(&file.0)[0].contains("there is no [[listener]]"), "at the limit");
    text.push(b'\n');
    let file = ScratchFile::new("longer.toml", &text);
    assert_eq!(messages(&file.0), ["FILE: error: it is longer than 4 MiB\nhelp: is it the right file?"]);
}

/// Root may read every file, so there the test says nothing.
#[test]
fn unreadable_file_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let file = ScratchFile::new("secret.toml", b"");
    fs::set_permissions(&file.0, fs::Permissions::from_mode(0o000)).expect("permissions");
    if fs::File::open(&file.0).is_err() {
        assert!(messages(&file.0)[0].starts_with("FILE: error: it may not be read\nhelp: "));
    }
}
