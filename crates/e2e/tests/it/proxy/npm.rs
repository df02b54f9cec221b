//! Runs npm through a reverse proxy in front of its registry twice, each time with an empty npm cache: the tarballs of
//! the second installation come from the store.

use anyhow::Result;
use nectary_e2e::clients::{ClientVerdict, npm};
use nectary_e2e::report::not_run;

#[test]
fn second_npm_install_hits_store() -> Result<()> {
    match npm::run()? {
        ClientVerdict::Kept(report) => {
            assert!(report.packages >= 2, "expected a package and its dependency: {report}");
            println!("{report}");
        }
        ClientVerdict::NotRun(reason) => not_run(reason),
    }
    Ok(())
}
