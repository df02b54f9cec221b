//! `nectary-foyer`: the program that runs foyer, a contender of `nectary bench store`, in a separate process.
//!
//! Owns: the command line, which is `worker` or `guardian`, and the redirection of standard output: foyer 0.22 writes a
//! line to standard output when it opens a device, but the run reads the worker's answers from standard output. Leaves
//! to others: the measurement (`nectary_bench`), and foyer's settings (`contender`).

mod contender;

use std::error::Error;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use nectary_bench::{guardian, worker};

const USAGE: &str = "nectary-foyer is started by `nectary bench store --disk bare`, as `nectary-foyer worker`";

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("worker") => contend(),
        // This program is also the guardian, so that a whole run, such as that of the test, needs no other program.
        Some("guardian") => {
            guardian::serve(std::io::stdin().lock());
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

fn contend() -> Result<(), Box<dyn Error>> {
    let answers = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let nowhere = File::options().write(true).open("/dev/null")?;
    // SAFETY: both descriptors are open; the call closes the old one, of which `answers` has a copy.
    if unsafe { libc::dup2(nowhere.as_raw_fd(), libc::STDOUT_FILENO) } < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(worker::serve_with(std::io::stdin().lock(), answers, Some(contender::open))?)
}
