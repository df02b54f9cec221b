//! The deterministic origin as a program: prints its URL and serves until it is killed. It is for experiments by hand.
use anyhow::Result;
use nectary_e2e::origin::Origin;

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let origin = Origin::start_at(address.parse()?)?;
    println!("{}", origin.url());
    loop {
        std::thread::park();
    }
}
