//! `nectary cert`: makes an authority and the certificates of servers and clients, and shows the certificates in a file.
//!
//! Owns: the files, and the output. Promises: no file is overwritten; a key is readable only by its owner from the
//! moment that its file exists; new files are on disk when the command ends. Leaves to others: making and reading
//! certificates (`authority`).

mod authority;

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use nectary_host::log::{self, LogLevel};
use serde_json::{Value, json};

use self::authority::{CertificateContents, CertificateUsage, CertificateWithKey, DAY, SigningAuthority, day};
use crate::arguments::{CertCommand, CertHostArguments, CertInitArguments, CertShowArguments};
use crate::exit::{CommandFailure, DEGRADED, FAILED, GOOD, NOT_FOUND, USAGE};
use crate::output;

/// The names of the files of an authority.
const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";
/// A certificate that ends within this time is reported as degraded. *Units*: days.
const SOON_DAYS: i64 = 30;
const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;

/// Runs the command.
pub fn run(command: &CertCommand) -> Result<u8, CommandFailure> {
    match command {
        CertCommand::Init(arguments) => init(arguments),
        CertCommand::Server(arguments) => host(arguments, CertificateUsage::Server),
        CertCommand::Client(arguments) => host(arguments, CertificateUsage::Client),
        CertCommand::Host(arguments) => host(arguments, CertificateUsage::Both),
        CertCommand::Show(arguments) => show(arguments),
    }
}

/// Returns the present time. *Units*: seconds since 1970.
fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A file to be made.
struct NewFile<'a> {
    path: PathBuf,
    mode: u32,
    text: &'a str,
}

impl NewFile<'_> {
    fn make(&self) -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(self.mode).open(&self.path)?;
        let written = file.write_all(self.text.as_bytes()).and_then(|()| file.sync_all());
        if written.is_err() {
            let _ = std::fs::remove_file(&self.path);
        }
        written
    }
}

/// Makes a folder that only this user can read, and files in it: all of them or none.
fn make(folder: &Path, files: &[NewFile<'_>], remedy: &str) -> Result<(), CommandFailure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("DIR {}", folder.display()))?;
    for (index, file) in files.iter().enumerate() {
        let Err(error) = file.make() else { continue };
        for earlier in &files[..index] {
            let _ = std::fs::remove_file(&earlier.path);
        }
        let path = file.path.display();
        return Err(match error.kind() {
            ErrorKind::AlreadyExists => {
                CommandFailure::new(FAILED, format!("{path}: it is there already, and stays as it is"), remedy)
            }
            _ => anyhow::Error::from(error).context(path.to_string()).into(),
        });
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(synced.with_context(|| folder.display().to_string())?)
}

/// Makes an authority.
fn init(arguments: &CertInitArguments) -> Result<u8, CommandFailure> {
    let folder = &arguments.directory;
    let now_s = now_s();
    let CertificateWithKey { certificate, key } =
        authority::new(&arguments.name, now_s).map_err(|problem| CommandFailure::new(USAGE, problem, "give --name"))?;
    let files = [
        NewFile { path: folder.join(KEY), mode: SECRET, text: &key },
        NewFile { path: folder.join(CERTIFICATE), mode: PUBLIC, text: &certificate },
    ];
    make(folder, &files, "use this authority: `nectary cert server DIR HOSTNAME`; or name another DIR")?;
    let ends = authority::read(&certificate).ok().and_then(|shown| shown.first().map(|shown| day(shown.ends_s)));
    let shown = folder.display();
    output::text(&format!(
        "authority {}, until {}\n{shown}/{KEY}   who has it can make certificates: keep it secret, and keep a copy\n\
         {shown}/{CERTIFICATE}   for every host\n",
        arguments.name,
        ends.unwrap_or_default(),
    ))?;
    Ok(GOOD)
}

/// Reads a file of an authority.
fn text_of(path: &Path, remedy: &str) -> Result<String, CommandFailure> {
    std::fs::read_to_string(path).map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { FAILED };
        CommandFailure::new(code, format!("{}: {error}", path.display()), remedy)
    })
}

/// The names of a certificate's file, of its key's, and of the authority's certificate beside them. Servers and clients
/// get the names that NBD clients look for in a directory.
fn names(host: &str, usage: CertificateUsage) -> [String; 3] {
    match usage {
        CertificateUsage::Server => ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(str::to_owned),
        CertificateUsage::Client => ["client-cert.pem", "client-key.pem", "ca-cert.pem"].map(str::to_owned),
        CertificateUsage::Both => [format!("{host}.pem"), format!("{host}.key"), CERTIFICATE.to_owned()],
    }
}

/// What to do with the files, one line for each kind of part.
fn uses(usage: CertificateUsage, out: &Path, [its, its_key, beside]: [&Path; 3]) -> String {
    let (its, its_key, beside) = (its.display(), its_key.display(), beside.display());
    let serve = format!("serve:  --tls-cert {its} --tls-key {its_key} --tls-client-ca {beside}\n");
    let mount = format!("mount:  --tls-cert {its} --tls-key {its_key} --tls-ca {beside}\n");
    // A URL names the directory from anywhere.
    let out = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
    let url = format!("URL:    nbds://HOST/EXPORT?tls-certificates={}\n", out.display());
    match usage {
        CertificateUsage::Server => serve,
        CertificateUsage::Client => mount + &url,
        CertificateUsage::Both => serve + &mount,
    }
}

/// Makes a certificate for a host.
fn host(arguments: &CertHostArguments, usage: CertificateUsage) -> Result<u8, CommandFailure> {
    let remedy = "`nectary cert init DIR` makes an authority; its certificate is DIR/ca.pem, its key DIR/ca.key";
    let folder = &arguments.directory;
    let (certificate, key) = (text_of(&folder.join(CERTIFICATE), remedy)?, text_of(&folder.join(KEY), remedy)?);
    let authority = SigningAuthority::read(&certificate, &key)
        .map_err(|problem| CommandFailure::new(FAILED, format!("{}: {problem}", folder.display()), remedy))?;
    for host in &arguments.hosts {
        authority::check_host(host).map_err(|problem| {
            CommandFailure::new(USAGE, problem, "give what clients reach the host by, as h1.example,h1,10.0.0.1")
        })?;
    }
    let made = authority.certify(&arguments.hosts, usage, now_s(), arguments.days);
    let made = made
        .map_err(|problem| CommandFailure::new(FAILED, problem, "make another authority, and give it to all hosts"))?;
    let Some(name) = arguments.hosts.first() else { return Ok(USAGE) };
    let out = &arguments.out;
    let [its, its_key, beside] = names(name, usage).map(|file| out.join(file));
    let mut files = vec![
        NewFile { path: its_key.clone(), mode: SECRET, text: &made.key },
        NewFile { path: its.clone(), mode: PUBLIC, text: &made.certificate },
    ];
    // If several hosts use the same folder, the same authority's certificate may already be there.
    if std::fs::read_to_string(&beside).ok().as_deref() != Some(certificate.as_str()) {
        files.push(NewFile { path: beside.clone(), mode: PUBLIC, text: &certificate });
    }
    make(out, &files, "name another folder with --out, or remove the old files first")?;
    let shown = authority::read(&made.certificate).unwrap_or_default();
    let ends = shown.first().map(|shown| day(shown.ends_s)).unwrap_or_default();
    output::text(&format!(
        "{name} ({}), signed by {}, until {ends}\n{}",
        arguments.hosts.join(", "),
        authority.shown.name,
        uses(usage, out, [&its, &its_key, &beside]),
    ))?;
    Ok(GOOD)
}

/// Prints a warning to standard error if a certificate that is about to be used ends soon.
pub fn note_end(path: &Path) {
    let Some(shown) = std::fs::read_to_string(path).ok().and_then(|text| authority::read(&text).ok()) else { return };
    let Some(first) = shown.first().filter(|shown| shown.ends_s < now_s() + SOON_DAYS * DAY) else { return };
    let (path, ends) = (path.display(), day(first.ends_s));
    log::write(LogLevel::Warning, "cert", format_args!("{path}: it ends on {ends}; `nectary cert` makes a new one"));
}

/// Shows the certificates in a file.
fn show(arguments: &CertShowArguments) -> Result<u8, CommandFailure> {
    let path = &arguments.file;
    let text = text_of(path, "name a file of certificates (PEM)")?;
    let shown = authority::read(&text).map_err(|problem| {
        CommandFailure::new(FAILED, format!("{}: {problem}", path.display()), "name a file of certificates (PEM)")
    })?;
    let now_s = now_s();
    let days_left = |shown: &CertificateContents| (shown.ends_s - now_s).div_euclid(DAY);
    let code = match shown.iter().map(days_left).min() {
        Some(days) if days < 0 => FAILED,
        Some(days) if days < SOON_DAYS => DEGRADED,
        _ => GOOD,
    };
    if arguments.json {
        let certificates = shown.iter().map(|shown| {
            json!({
                "name": shown.name,
                "issuer": shown.issuer,
                "hosts": shown.hosts,
                "authority": shown.is_authority,
                "begins": day(shown.begins_s),
                "ends": day(shown.ends_s),
                "days_left": days_left(shown),
            })
        });
        output::json(&json!({ "certificates": certificates.collect::<Vec<Value>>() }))?;
        return Ok(code);
    }
    let mut text = String::new();
    for shown in &shown {
        let what = if shown.is_authority { "authority" } else { "host" };
        let _ = writeln!(text, "{what:<10}{}", shown.name);
        if !shown.hosts.is_empty() {
            let _ = writeln!(text, "names     {}", shown.hosts.join(", "));
        }
        let _ = writeln!(text, "signed by {}", shown.issuer);
        let left = match days_left(shown) {
            days if days < 0 => "it has ended".to_owned(),
            days => format!("{days} days left"),
        };
        let _ = writeln!(text, "counts    {} to {}, {left}", day(shown.begins_s), day(shown.ends_s));
    }
    output::text(&text)?;
    Ok(code)
}
