//! Runs apt through a forward proxy twice, each time with an empty apt cache: in the second run the packages come from
//! the store.

use anyhow::Result;
use nectary_e2e::clients::{ClientVerdict, apt};
use nectary_e2e::report::not_run;

#[test]
fn second_apt_run_hits_store() -> Result<()> {
    match apt::run()? {
        ClientVerdict::Kept(report) => println!("{report}"),
        ClientVerdict::NotRun(reason) => not_run(reason),
    }
    Ok(())
}
