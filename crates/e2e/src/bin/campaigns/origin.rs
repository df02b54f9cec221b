//! The deterministic origin as a program: prints its URL and serves until it is killed. It is for experiments by hand:
//! `e2e-campaigns origin 127.0.0.1:8080`.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nectary_e2e::origin::DeterministicOrigin;

/// Serves the deterministic origin until it is killed.
#[derive(Args)]
pub struct OriginProgramArguments {
    /// The address at which it listens; port 0 stands for a free one.
    #[arg(default_value = "127.0.0.1:0")]
    address: SocketAddr,
}

/// Serves; it returns only with an error.
pub fn campaign(arguments: &OriginProgramArguments) -> Result<ExitCode> {
    let origin = DeterministicOrigin::start_at(arguments.address)?;
    println!("{}", origin.url());
    loop {
        std::thread::park();
    }
}
