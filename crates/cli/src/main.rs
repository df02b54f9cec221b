//! The `nectary` command: arguments, output, exit codes. It contains no other logic.
//!
//! Owns: the interface to users. Leaves to others: the work; each command makes a few calls of other crates.
#![forbid(unsafe_code)]

mod arguments;
mod attach;
mod bench;
mod cache;
mod cert;
mod describe;
mod device;
mod exit;
mod export;
mod health;
mod live;
mod long_waits;
mod machine;
mod mounts;
mod nbd;
mod output;
mod progress;
mod proxy;
mod purge;
mod ram;
mod services;
mod status;
mod store;
mod trace;
mod trace_record;
mod volume;

use std::process::ExitCode;
use std::time::Duration;

use arguments::Command;
use exit::Failure;
use mounts::helper::Helper;
use nectary_host::descriptors;

/// How long the end of the process waits for operations of a disk.
const DISK_WAIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if let Some(helper) = words.next().as_deref().and_then(Helper::of) {
        descriptors::raise();
        return helper.run(words.collect());
    }
    let arguments = match arguments::of_command_line() {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    match run(&arguments.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

fn run(command: &Command) -> Result<u8, Failure> {
    // Programs that `trace record` and `bench` start must have the limit that they have without it.
    if !matches!(command, Command::Trace(_) | Command::Bench(_)) {
        descriptors::raise();
    }
    match command {
        Command::Proxy(arguments) => in_runtime(proxy::run(arguments)),
        Command::Store(command) => in_runtime(store::run(command)),
        Command::Cache(command) => cache::run(command),
        Command::Trace(command) => trace::run(command),
        Command::Attach(arguments) => attach::run(arguments),
        Command::Detach(arguments) => attach::detach(arguments),
        Command::Export(arguments) => runtime()?.block_on(export::run(arguments)),
        Command::Nbd(command) => runtime()?.block_on(nbd::run(command)),
        Command::Ram(command) => ram::run(command),
        Command::Volume(command) => volume::run(command),
        Command::Cert(command) => cert::run(command),
        Command::Bench(command) => bench::run(command),
        Command::Fleet(command) => proxy::fleet_status::run(command),
        Command::Status(arguments) => status::run(arguments),
        Command::Top(arguments) => live::top::run(arguments),
        Command::Describe => describe::run(),
    }
}

/// Runs a command in a runtime. A thread that waits for a disk which does not answer does not keep the process.
fn in_runtime(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = runtime()?;
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(DISK_WAIT);
    result
}

/// Makes a runtime with one thread: a command waits for one thing at a time, and the proxy's workers have separate
/// runtimes.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
