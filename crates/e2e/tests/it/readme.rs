//! Runs the README's commands unchanged: a user who copies them gets the output shown.
//!
//! Owns: reading the blocks of the README, and a scratch folder in which they run, with links to the repository's
//! files, the built program, a free port and a local origin. A command's output is compared with the README's, except
//! for numbers. Leaves to others: `make test`, which runs this, and commands outside of `sh` and `console` blocks.
//!
//! Everything runs in a process namespace that ends with the test, so the README's `pkill` affects nothing else.

use anyhow::{Context, Result, bail};
use nectary_e2e::content;
use nectary_e2e::guard::{GuardedProcess, find_program};
use nectary_e2e::nectary::binary;
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::{ScratchFolder, free_address};
use std::fmt::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The address in the README.
const SHOWN_ADDRESS: &str = "127.0.0.1:8080";
/// The target that replaces the package in the README; it has the same size.
const TARGET: &str = "/debian/pool/main/h/hello/hello.deb?size=53080&nocc";
/// The time limit of all commands together; they take two or three seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// The script prints this mark after the output of each command, followed by the command's exit code.
const MARK: &str = "@@ended@@";
/// Programs that the commands need, in addition to the build.
const PROGRAMS: &[&str] = &["bash", "make", "cc", "curl", "unshare", "pkill", "pgrep", "grep"];

/// A command of the README, and the output shown below it.
#[derive(Debug, PartialEq, Eq)]
struct ReadmeCommand {
    command: String,
    shown: String,
}

/// The commands of all `sh` and `console` blocks, in their order.
fn steps(text: &str) -> Vec<ReadmeCommand> {
    let mut steps: Vec<ReadmeCommand> = Vec::new();
    let mut language = None;
    for line in text.lines() {
        match (language, line.strip_prefix("```")) {
            (None, Some(name)) => language = Some(name),
            (Some(_), Some(_)) => language = None,
            (Some("sh"), None) => steps.push(ReadmeCommand { command: line.to_owned(), shown: String::new() }),
            (Some("console"), None) => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(ReadmeCommand { command: command.to_owned(), shown: String::new() }),
                (None, Some(last)) => last.shown += &format!("{line}\n"),
                (None, None) => {}
            },
            _ => {}
        }
    }
    steps
}

/// The text with each number replaced by `#`.
fn without_numbers(text: &str) -> String {
    let mut result = String::new();
    for symbol in text.chars() {
        match symbol.is_ascii_digit() {
            false => result.push(symbol),
            true if !result.ends_with('#') => result.push('#'),
            true => {}
        }
    }
    result
}

fn is_server(step: &ReadmeCommand) -> bool {
    step.command.split('#').next().unwrap_or_default().trim() == "make run &"
}

/// Returns the steps as a script. Servers print to `server.log`. After the start of a server, the script waits until it
/// listens; after `pkill`, until no `nectary` process runs.
fn script(steps: &[ReadmeCommand], address: &str) -> Result<String> {
    let (host, port) = address.split_once(':').context("an address has a port")?;
    let mut script = String::from("cd \"$SCRATCH\"\n");
    for step in steps {
        let command = step.command.replace(SHOWN_ADDRESS, address);
        match is_server(step) {
            true => writeln!(
                script,
                "exec 5>&1 6>&2 >>server.log 2>&1\n{command}\nexec >&5 2>&6\n\
                 until (exec 3<>/dev/tcp/{host}/{port}) 2>/dev/null; do sleep 0.02; done\necho '{MARK}' 0"
            )?,
            false => writeln!(script, "{command}\necho '{MARK}' $?")?,
        }
        if command.contains("pkill") {
            script += "while pgrep -x nectary >/dev/null; do sleep 0.02; done\n";
        }
    }
    Ok(script)
}

fn program(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

/// Prepares the folder in which the commands run: links to the repository, and programs that replace the build and apt.
fn prepare(scratch: &ScratchFolder, root: &Path, origin: &DeterministicOrigin) -> Result<()> {
    for name in ["Makefile", "README.md", "ci", "docs"] {
        symlink(root.join(name), scratch.join(name))?;
    }
    std::fs::create_dir_all(scratch.join("target/dist"))?;
    symlink(binary()?, scratch.join("target/dist/nectary"))?;
    std::fs::create_dir(scratch.join("bin"))?;
    // The program is already built; a build here would only wait for another build.
    program(
        &scratch.join("bin/cargo"),
        "#!/bin/sh\n[ \"$*\" = 'build --profile dist --locked' ] || { echo \"cargo $*\" >&2; exit 1; }\n",
    )?;
    let url = format!("{}{TARGET}", origin.url());
    program(
        &scratch.join("bin/apt-get"),
        &format!(
            "#!/bin/sh\n[ \"$*\" = 'download --print-uris hello' ] || {{ echo \"apt-get $*\" >&2; exit 1; }}\n\
             echo \"'{url}' hello.deb 53080 SHA256:0\"\n"
        ),
    )?;
    Ok(std::fs::DirBuilder::new().mode(0o700).create(scratch.join("run"))?)
}

fn command(scratch: &ScratchFolder, address: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "bash"]).arg(scratch.join("session.sh"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", scratch.join("bin").display()));
    command.env("SCRATCH", scratch.path()).env("NECTARY_RUNTIME_DIR", scratch.join("run"));
    command.env("LISTEN", address).env("SIZE", "256M").env("MEMORY", "64M").env("NO_PROXY", "").env("no_proxy", "");
    for name in ["CARGO_TARGET_DIR", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS", "DATA", "TTL"] {
        command.env_remove(name);
    }
    command
}

#[test]
fn readme_commands_print_shown_output() -> Result<()> {
    if let Some(missing) = PROGRAMS.iter().find(|name| find_program(name).is_none()) {
        not_run(format_args!("{missing} is not installed"));
        return Ok(());
    }
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        not_run("a process namespace needs root");
        return Ok(());
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let text = std::fs::read_to_string(root.join("README.md"))?;
    // The first block is `make run` in the foreground; the commands after it run it in the background.
    let mut steps = steps(&text);
    assert!(steps.remove(0).command.starts_with("make run "), "the first command starts the proxy");
    assert_eq!(steps.iter().filter(|step| is_server(step)).count(), 2, "it is started twice: {steps:?}");

    let (scratch, origin) = (ScratchFolder::new("readme")?, DeterministicOrigin::start()?);
    prepare(&scratch, &root, &origin)?;
    let address = free_address()?.to_string();
    std::fs::write(scratch.join("session.sh"), script(&steps, &address)?)?;
    let mut session = GuardedProcess::spawn("README", command(&scratch, &address), &scratch.join("session.log"), None)?;
    let ended = session.wait(LIMIT);
    session.kill();
    let server = std::fs::read_to_string(scratch.join("server.log")).unwrap_or_default();
    ended.with_context(|| server.clone())?;

    let log = session.log_text();
    let mut printed = log.split(MARK);
    let mut output = printed.next().unwrap_or_default();
    for step in &steps {
        let rest = printed.next().with_context(|| format!("{:?} was not run\n{log}\n{server}", step.command))?;
        let (code, next) = rest.split_once('\n').unwrap_or((rest, ""));
        let said = without_numbers(output);
        if code.trim() != "0" || (!step.shown.is_empty() && said != without_numbers(&step.shown)) {
            bail!("{:?} ended with{code} and printed\n{output}instead of\n{}\n{server}", step.command, step.shown);
        }
        println!("$ {}\n{}", step.command, output.trim_end());
        output = next;
    }
    assert_eq!(server.matches("forward proxy on").count(), 2, "it ran twice, so the first was killed\n{server}");
    let bytes = content::body(TARGET, 1, 53_080).len() as u64;
    assert_eq!((origin.count(TARGET).requests, origin.body_bytes()), (1, bytes), "one fetch for all of it");
    Ok(())
}

/// Commands are found in blocks, and numbers in outputs are ignored.
#[test]
fn readme_steps_are_parsed() {
    let found = steps("a\n```sh\nmake run   # x\n```\n```\nother\n```\n```console\n$ b\nttl=12\n$ c\n```\n");
    let expected = [("make run   # x", ""), ("b", "ttl=12\n"), ("c", "")];
    let expected = expected.map(|(command, shown)| ReadmeCommand { command: command.into(), shown: shown.into() });
    assert_eq!(found, expected);
    assert_eq!(without_numbers("ttl=604797; 2 of 30\n"), without_numbers("ttl=1; 45 of 6\n"));
    assert_ne!(without_numbers("hit; ttl=1"), without_numbers("fwd=miss; ttl=1"));
}
