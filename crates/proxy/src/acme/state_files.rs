//! The directory of accounts and certificates ([format](../../../../docs/formats/acme-state.md)).
//!
//! Owns: the names of its files, their modes, and how they are replaced. *Durability*: a file that was written survives
//! a power cut when the call returns; after a crash there is the old file or the new one. Promises: no name leads out
//! of the directory; nothing that is read makes it panic. Leaves to others: what is in a certificate's file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use instant_acme::AccountCredentials;
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest file of an account or a certificate that is read, and the longest of pauses, which is about all names.
/// *Units*: bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;
const PAUSES_BYTES_MAX: u64 = 64 << 20;

/// The longest name of a file, and how much of a longer one remains. *Units*: bytes.
const NAME_MAX: usize = 200;
const NAME_KEPT: usize = 160;

/// The version of the format.
pub(crate) const FORMAT: u64 = 1;

const ACCOUNT: &str = "account.json";
/// No certificate's file has this name, because theirs end in `.pem`.
const PAUSES: &str = "pauses.json";
/// The end of the name of a file that is being written.
const NEW: &str = ".new";

/// The files of one authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateFiles {
    state: PathBuf,
    folder: PathBuf,
}

impl StateFiles {
    /// The files of the authority with this directory. Nothing is made or read yet.
    pub fn new(state: &Path, directory_url: &str) -> StateFiles {
        let authority = directory_url.strip_prefix("https://").unwrap_or(directory_url);
        StateFiles { state: state.to_owned(), folder: state.join(file_name(authority)) }
    }

    /// The file of a name's certificate.
    pub fn certificate_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.pem", file_name(name)))
    }

    /// The file of the account.
    pub fn account_path(&self) -> PathBuf {
        self.folder.join(ACCOUNT)
    }

    /// Reads the file of a name's certificate; `None` if there is none.
    pub fn read_certificate(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        read(&self.certificate_path(name), FILE_BYTES_MAX)
    }

    /// Writes the file of a name's certificate. *Errors*: then the old file is as it was.
    pub fn write_certificate(&self, name: &str, pem: &str) -> io::Result<()> {
        self.replace(&self.certificate_path(name), pem.as_bytes())
    }

    /// Reads the file of the account; `None` if there is none.
    pub fn read_account(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.account_path(), FILE_BYTES_MAX)
    }

    /// Writes the file of the account. *Errors*: then the old file is as it was.
    pub fn write_account(&self, text: &str) -> io::Result<()> {
        self.replace(&self.account_path(), text.as_bytes())
    }

    /// The file of the pauses.
    pub fn pauses_path(&self) -> PathBuf {
        self.folder.join(PAUSES)
    }

    /// Reads the file of the pauses; `None` if there is none.
    pub fn read_pauses(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.pauses_path(), PAUSES_BYTES_MAX)
    }

    /// Writes the file of the pauses. *Errors*: then the old file is as it was.
    pub fn write_pauses(&self, text: &str) -> io::Result<()> {
        self.replace(&self.pauses_path(), text.as_bytes())
    }

    /// Looks whether the directory is there or can be made. Nothing is made or written. *Returns*: what the operator
    /// should know, as a sentence. *Errors*: why there can be no such directory.
    pub fn look(&self) -> Result<Option<String>, String> {
        let mut missing = None;
        for path in self.folder.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            match fs::metadata(path) {
                Ok(found) if found.is_dir() => break,
                Ok(_) => return Err(format!("{} is no directory", path.display())),
                // The path above says what is there.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    missing = Some(path);
                }
                Err(error) => return Ok(Some(format!("cannot look at {}: {error}", path.display()))),
            }
        }
        let is_missing = missing.is_some_and(|missing| self.state.starts_with(missing));
        Ok(is_missing.then(|| format!("there is no directory {}; the proxy makes it", self.state.display())))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.make_folder()?;
        let mut new = path.as_os_str().to_owned();
        new.push(NEW);
        let written = write_new(Path::new(&new), bytes).and_then(|()| fs::rename(&new, path));
        if let Err(error) = written {
            // What remains takes space that is missing.
            _ = fs::remove_file(&new);
            return Err(error);
        }
        sync_folder(&self.folder)
    }

    fn make_folder(&self) -> io::Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        sync_folder(&self.state)?;
        self.state.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_folder)
    }
}

/// Writes a file that is not there yet, or remained from a crash.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Reads a file; `None` if there is none. *Errors*: `InvalidData` if it is too long; all others say that what is in the
/// file is not known.
fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long")),
        false => Ok(Some(bytes)),
    }
}

/// The name of a file for a name: no two share one, and none leads to another directory.
fn file_name(name: &str) -> String {
    let mut found = String::new();
    for (index, byte) in name.bytes().map(|byte| byte.to_ascii_lowercase()).enumerate() {
        match byte {
            b'.' if index > 0 => found.push('.'),
            b'a'..=b'z' | b'0'..=b'9' | b'-' => found.push(char::from(byte)),
            other => found.push_str(&format!("_{other:02x}")),
        }
    }
    if found.len() > NAME_MAX {
        let hash = xxhash_rust::xxh3::xxh3_64(found.as_bytes());
        found.truncate(NAME_KEPT);
        found.push_str(&format!("__{hash:016x}"));
    }
    found
}

/// The file of an account.
#[derive(Deserialize)]
struct AccountFile {
    format: u64,
    credentials: Value,
}

/// Reads the account of the authority with this directory. *Errors*: what is wrong, as a part of a sentence.
pub(crate) fn parse_account(bytes: &[u8], directory_url: &str) -> Result<AccountCredentials, String> {
    let file: AccountFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file.format != FORMAT {
        return Err(format!("its format is {}, not {FORMAT}", file.format));
    }
    if file.credentials["directory"].as_str() != Some(directory_url) {
        return Err("it is of another authority".to_owned());
    }
    serde_json::from_value(file.credentials).map_err(|error| error.to_string())
}

/// The file of an account.
pub(crate) fn account_text(credentials: &AccountCredentials) -> Result<String, String> {
    let credentials = serde_json::to_value(credentials).map_err(|error| error.to_string())?;
    let file = json!({ "format": FORMAT, "credentials": credentials });
    serde_json::to_string_pretty(&file).map(|text| text + "\n").map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const URL: &str = "https://acme.test:14000/dir";
    const KEY: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgJVWC_QzOTCS5vtsJp2IG-UDc8cdDfeoKtxSZxaznM-mhRANC\
                       AAQenCPoGgPFTdPJ7VLLKt56RxPlYT1wNXnHc54PEyBg3LxKaH0-sJkX0mL8LyPEdsfL_Oz4TxHkWLJGrXVtNhfH";

    struct StateScratch(PathBuf);

    impl StateScratch {
        fn new(name: &str) -> StateScratch {
            let path = std::env::temp_dir().join(format!("nectary-acme-state-{name}-{}", std::process::id()));
            _ = fs::remove_dir_all(&path);
            StateScratch(path)
        }
    }

    impl Drop for StateScratch {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    #[test]
    fn hostile_names_stay_in_their_directory() {
        for (name, expected) in [
            ("www.Example.org", "www.example.org"),
            ("acme.test:14000/dir", "acme.test_3a14000_2fdir"),
            ("..", "_2e."),
            (".", "_2e"),
            ("", ""),
            ("../../etc/passwd", "_2e._2f.._2fetc_2fpasswd"),
            ("/etc/passwd", "_2fetc_2fpasswd"),
            ("a_b", "a_5fb"),
            ("a\0b\n", "a_00b_0a"),
            ("ä", "_c3_a4"),
        ] {
            assert_eq!(file_name(name), expected);
        }
        let files = StateFiles::new(Path::new("/s"), URL);
        assert_eq!(files.certificate_path("../x"), Path::new("/s/acme.test_3a14000_2fdir/_2e._2fx.pem"));
        assert_eq!(files.certificate_path("").file_name().expect("a name"), ".pem");
    }

    #[test]
    fn files_are_replaced_whole() {
        let scratch = StateScratch::new("replaced");
        let files = StateFiles::new(&scratch.0.join("acme"), URL);
        assert_eq!(
            (files.read_certificate("a").expect("no file"), files.read_account().expect("no file")),
            (None, None)
        );
        files.write_pauses("{}").expect("written");
        assert_eq!(files.read_pauses().expect("readable"), Some(b"{}".to_vec()));
        // What a crash left has no effect.
        let left = files.certificate_path("a").with_extension("pem.new");
        fs::write(&left, "half").expect("written");
        fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).expect("permissions");
        for text in ["first", "second"] {
            files.write_certificate("a", text).expect("written");
            assert_eq!(files.read_certificate("a").expect("readable"), Some(text.as_bytes().to_vec()));
        }
        assert!(!left.exists());
        let path = files.certificate_path("a");
        let folder = path.parent().expect("a folder");
        assert_eq!((mode(&path), mode(folder), mode(&scratch.0.join("acme"))), (0o600, 0o700, 0o700));
        assert_eq!(fs::read_dir(folder).expect("a folder").count(), 2);
    }

    #[test]
    fn failed_write_keeps_the_old_file() {
        let scratch = StateScratch::new("failed");
        let files = StateFiles::new(&scratch.0, URL);
        files.write_certificate("a", "old").expect("written");
        // A directory that is not empty stands where the new file is written.
        let left = files.certificate_path("a").with_extension("pem.new");
        fs::create_dir_all(left.join("x")).expect("a folder");
        assert!(files.write_certificate("a", "new").is_err());
        assert_eq!(files.read_certificate("a").expect("readable"), Some(b"old".to_vec()));
        // A file stands where the directory would be.
        let file = scratch.0.join("file");
        fs::write(&file, "").expect("written");
        assert!(StateFiles::new(&file, URL).write_certificate("a", "new").is_err());
    }

    #[test]
    fn look_makes_nothing() {
        let scratch = StateScratch::new("look");
        let state = scratch.0.join("above/acme");
        let files = StateFiles::new(&state, URL);
        let told = files.look().expect("it can be made").expect("a sentence");
        assert_eq!(told, format!("there is no directory {}; the proxy makes it", state.display()));
        assert!(!scratch.0.exists());
        fs::create_dir_all(&state).expect("a folder");
        assert_eq!(files.look(), Ok(None));
        assert_eq!(fs::read_dir(&state).expect("a folder").count(), 0);
        let file = scratch.0.join("file");
        fs::write(&file, "").expect("written");
        for state in [file.clone(), file.join("acme"), file.join("a/b")] {
            let error = StateFiles::new(&state, URL).look().expect_err("no directory");
            assert_eq!(error, format!("{} is no directory", file.display()));
        }
    }

    #[test]
    fn long_files_are_refused() {
        let scratch = StateScratch::new("long");
        let files = StateFiles::new(&scratch.0, URL);
        files.write_certificate("a", &"x".repeat(FILE_BYTES_MAX as usize)).expect("written");
        assert!(files.read_certificate("a").is_ok());
        files.write_certificate("a", &"x".repeat(FILE_BYTES_MAX as usize + 1)).expect("written");
        assert!(files.read_certificate("a").is_err());
    }

    #[test]
    fn account_file_round_trips() {
        let text = json!({ "format": 1, "credentials": { "id": "i", "key_pkcs8": KEY, "directory": URL }, "x": 1 });
        let credentials = parse_account(text.to_string().as_bytes(), URL).expect("an account");
        let written = account_text(&credentials).expect("a text");
        assert!(parse_account(written.as_bytes(), URL).is_ok());
        for (bytes, expected) in [
            (text.to_string().replace("\"format\":1", "\"format\":2"), "its format is 2"),
            (text.to_string().replace(URL, "https://other.test/"), "another authority"),
            (text.to_string().replace(KEY, "*"), ""),
            ("{}".to_owned(), ""),
            (String::new(), ""),
        ] {
            let error = parse_account(bytes.as_bytes(), URL).err().expect(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn long_names_share_no_file() {
        let long = |end: &str| file_name(&format!("{}.{end}", "x".repeat(NAME_MAX)));
        let (one, other) = (long("a.test"), long("b.test"));
        assert!(one != other && one.len() <= NAME_MAX && other.len() <= NAME_MAX, "{one} {other}");
        assert_eq!(one, long("A.test"));
    }

    proptest! {
        #[test]
        fn names_share_no_file(left in ".{0,80}", right in ".{0,80}") {
            let (of_left, of_right) = (file_name(&left), file_name(&right));
            prop_assert_eq!(of_left == of_right, left.eq_ignore_ascii_case(&right));
            prop_assert!(of_left.len() <= NAME_MAX && !of_left.contains(['/', '\0']) && !of_left.starts_with('.'));
        }

        #[test]
        fn garbage_is_no_account(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(parse_account(&bytes, URL).is_err());
        }
    }
}
