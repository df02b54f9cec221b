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

use arguments::NectaryCommand;
use exit::CommandFailure;
use mounts::helper::MountHelper;
use nectary_host::descriptors;

/// How long the end of the process waits for operations of a disk.
const DISK_WAIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if let Some(helper) = words.next().as_deref().and_then(MountHelper::of) {
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

fn run(command: &NectaryCommand) -> Result<u8, CommandFailure> {
    // Programs that `trace record` and `bench` start must have the limit that they have without it.
    if !matches!(command, NectaryCommand::Trace(_) | NectaryCommand::Bench(_)) {
        descriptors::raise();
    }
    match command {
        NectaryCommand::Proxy(arguments) => in_runtime(proxy::run(arguments)),
        NectaryCommand::Store(command) => in_runtime(store::run(command)),
        NectaryCommand::Cache(command) => cache::run(command),
        NectaryCommand::Trace(command) => trace::run(command),
        NectaryCommand::Attach(arguments) => attach::run(arguments),
        NectaryCommand::Detach(arguments) => attach::detach(arguments),
        NectaryCommand::Export(arguments) => runtime()?.block_on(export::run(arguments)),
        NectaryCommand::Nbd(command) => runtime()?.block_on(nbd::run(command)),
        NectaryCommand::Ram(command) => ram::run(command),
        NectaryCommand::Volume(command) => volume::run(command),
        NectaryCommand::Cert(command) => cert::run(command),
        NectaryCommand::Bench(command) => bench::run(command),
        NectaryCommand::Fleet(command) => proxy::fleet_status::run(command),
        NectaryCommand::Status(arguments) => status::run(arguments),
        NectaryCommand::Top(arguments) => live::top::run(arguments),
        NectaryCommand::Describe => describe::run(),
    }
}

/// Runs a command in a runtime. A thread that waits for a disk which does not answer does not keep the process.
fn in_runtime(command: impl Future<Output = Result<u8, CommandFailure>>) -> Result<u8, CommandFailure> {
    let runtime = runtime()?;
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(DISK_WAIT);
    result
}

/// Makes a runtime with one thread: a command waits for one thing at a time, and the proxy's workers have separate
/// runtimes.
fn runtime() -> Result<tokio::runtime::Runtime, CommandFailure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
