//! Runs NBD servers and clients, both our own and those of other projects.
//!
//! Owns: a running `nectary export`, other projects' servers on Unix sockets, certificates, and files to compare. This
//! file uses only the command line and URLs, not the implementation.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::guard::{self, GuardedProcess, describe};
use crate::nectary::binary;
use crate::rng::SeededRng;
use crate::scratch::free_address;

/// The longest wait for a server to listen, and for a client to end.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a Unix socket.
#[derive(Debug)]
pub struct NbdServer {
    /// The process.
    pub process: GuardedProcess,
    /// The socket.
    pub socket: PathBuf,
}

impl NbdServer {
    /// Runs `nectary export` of some devices on a socket in `folder`, with further arguments.
    pub fn nectary(folder: &Path, name: &str, arguments: &[&str]) -> Result<NbdServer> {
        let socket = folder.join(format!("{name}.sock"));
        let runtime = folder.join("run");
        std::fs::create_dir_all(&runtime)?;
        std::fs::set_permissions(&runtime, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let mut command = Command::new(binary()?);
        command.arg("export").args(arguments).arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.env("NECTARY_RUNTIME_DIR", runtime);
        let server = NbdServer::start(folder, name, command, socket)?;
        // It prints its URLs (nbd+unix: or nbds+unix:) once it also has its control socket.
        let deadline = Instant::now() + PATIENCE;
        while !server.process.log_text().contains("+unix:") {
            if Instant::now() > deadline {
                bail!("{name} prints no URL\n{}", server.process.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Runs another program that listens on `socket`.
    pub fn start(folder: &Path, name: &str, command: Command, socket: PathBuf) -> Result<NbdServer> {
        let process = GuardedProcess::spawn(name, command, &folder.join(format!("{name}.log")), None)?;
        let mut server = NbdServer { process, socket };
        let deadline = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.process.try_status() {
                bail!("{name} ended with {}\n{}", describe(status), server.process.log_tail());
            }
            if Instant::now() > deadline {
                bail!("{name} does not listen on {}\n{}", server.socket.display(), server.process.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Returns the URL of an export of this server.
    pub fn url(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Ends the server with SIGTERM; returns its exit status and output.
    pub fn terminate(mut self) -> Result<(ExitStatus, String)> {
        self.process.signal(libc::SIGTERM);
        let status = self.process.wait(PATIENCE)?;
        Ok((status, self.process.log_text()))
    }
}

/// The handle of an nbd-server in the background, which ends when the handle is dropped.
pub struct NbdDaemon(PathBuf);

impl Drop for NbdDaemon {
    fn drop(&mut self) {
        let number = std::fs::read_to_string(&self.0).unwrap_or_default();
        if !number.trim().is_empty() {
            let _ = Command::new("kill").arg(number.trim()).status();
        }
    }
}

impl NbdServer {
    /// Runs nbdkit with these arguments.
    pub fn nbdkit(folder: &Path, name: &str, arguments: &[&str]) -> Result<NbdServer> {
        let socket = folder.join(format!("{name}.sock"));
        let mut command = Command::new("nbdkit");
        command.arg("-f").arg("-U").arg(&socket).args(arguments);
        NbdServer::start(folder, name, command, socket)
    }

    /// Runs qemu-nbd with an image as the export `disk`, for up to eight clients at the same time.
    pub fn qemu(folder: &Path, image: &Path) -> Result<NbdServer> {
        let socket = folder.join("qemu.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["-t", "-e", "8", "-f", "raw", "-x", "disk", "-k"]).arg(&socket).arg(image);
        NbdServer::start(folder, "qemu-nbd", command, socket)
    }

    /// Runs nbd-server with an image as the export `disk`.
    pub fn reference(folder: &Path, image: &Path) -> Result<(NbdServer, NbdDaemon)> {
        let (socket, config) = (folder.join("reference.sock"), folder.join("nbd.conf"));
        let lines = format!(
            "[generic]\nunixsock = {}\nallowlist = true\nlistenaddr = 127.0.0.1\nport = {}\n[disk]\nexportname = {}\n\
             flush = true\nfua = true\n",
            socket.display(),
            free_address()?.port(),
            image.display()
        );
        std::fs::write(&config, lines)?;
        let daemon = NbdDaemon(folder.join("reference.pid"));
        let (config, number) = (config.display().to_string(), daemon.0.display().to_string());
        run(folder, "nbd-server", &["-C", &config, "-p", &number])?;
        let mut sleep = Command::new("sleep");
        sleep.arg("100");
        Ok((NbdServer::start(folder, "nbd-server-waits", sleep, socket)?, daemon))
    }
}

/// Runs a program to its end; returns its output, or an error if it fails.
pub fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let (status, text) = try_run(folder, program, arguments)?;
    if !status.success() {
        bail!("{program} {}: {}\n{text}", arguments.join(" "), describe(status));
    }
    Ok(text)
}

/// Runs a program to its end; returns its exit status and output. The name `nectary` stands for the program under test.
pub fn try_run(folder: &Path, program: &str, arguments: &[&str]) -> Result<(ExitStatus, String)> {
    let log = folder.join("command.log");
    let _ = std::fs::remove_file(&log);
    let program_path = if program == "nectary" { binary()? } else { PathBuf::from(program) };
    let mut command = Command::new(program_path);
    command.args(arguments).env("NECTARY_RUNTIME_DIR", folder.join("run"));
    guard::run(program, command, &log, PATIENCE).with_context(|| format!("{program} {}", arguments.join(" ")))
}

/// Writes a file in which 64 KiB of noise and 64 KiB of zeroes alternate; the last run may be shorter.
pub fn write_image(path: &Path, bytes: usize, seed: u64) -> Result<()> {
    let mut random = SeededRng::new(seed);
    let mut data = vec![0; bytes];
    for chunk in data.chunks_mut(128 << 10) {
        let noise = chunk.len().min(64 << 10);
        chunk[..noise].iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
    }
    std::fs::write(path, data).with_context(|| format!("cannot write {}", path.display()))
}

/// Makes a certificate authority in `folder`, with a certificate of a server named localhost and one of a client. The
/// files have the names that NBD clients expect.
pub fn make_certificates(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let at = |name: &str| folder.join(name).display().to_string();
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let (ca_key, ca) = (at("ca-key.pem"), at("ca-cert.pem"));
    let mut arguments = vec!["req", "-x509", "-days", "2", "-subj", "/CN=authority"];
    arguments.extend(key);
    arguments.extend(["-keyout", &ca_key, "-out", &ca]);
    run(folder, "openssl", &arguments)?;
    for (name, extension) in
        [("server", "subjectAltName=DNS:localhost,IP:127.0.0.1"), ("client", "subjectAltName=DNS:client")]
    {
        let (its_key, request) = (at(&format!("{name}-key.pem")), at(&format!("{name}.csr")));
        let subject = format!("/CN={name}");
        let mut arguments = vec!["req", "-subj", &subject, "-addext", extension];
        arguments.extend(key);
        arguments.extend(["-keyout", &its_key, "-out", &request]);
        run(folder, "openssl", &arguments)?;
        let certificate = at(&format!("{name}-cert.pem"));
        run(
            folder,
            "openssl",
            &[
                "x509",
                "-req",
                "-days",
                "2",
                "-in",
                &request,
                "-CA",
                &ca,
                "-CAkey",
                &ca_key,
                "-CAcreateserial",
                "-copy_extensions",
                "copy",
                "-out",
                &certificate,
            ],
        )?;
    }
    Ok(())
}
