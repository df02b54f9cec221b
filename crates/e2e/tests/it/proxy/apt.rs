//! Runs apt through a forward proxy twice, each time with an empty apt cache: in the second run the packages come from
//! the store.

use anyhow::Result;
use nectary_e2e::clients::{Verdict, apt};
use nectary_e2e::report::not_run;

#[test]
fn the_second_apt_run_comes_from_the_store() -> Result<()> {
    match apt::run()? {
        Verdict::Kept(report) => println!("{report}"),
        Verdict::NotRun(reason) => not_run(reason),
    }
    Ok(())
}
