//! Checks the promises that a volume must keep after a crash.
//!
//! 1. A server can start a volume that was completely created.
//! 2. Every acknowledged transaction is there. Of the other transactions a prefix is there, and no transaction is there
//!    in part.
//! 3. The volume can be used: later appends and a checkpoint are there at the next start.

use nectary_block::SharedDevice;
use nectary_volume::format::{Transaction, TransactionKind};
use nectary_volume::journal::{Error, apply, read};

use super::server::{JournalServer, gone, start_options, transaction};
use super::workload::{JournalPromise, JournalWorkload, changes, tables_after};
use crate::crash::CrashState;
use crate::random::SimulationRandom;

/// The incarnations of servers after the crash have numbers from this one on.
const AFTER: u64 = 1000;
/// A number of starts that is larger than that of any workload.
const LIVES: u64 = 16;

/// The results of a check of a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalStateCheck {
    /// Whether a server started the volume.
    pub is_started: bool,
    /// The number of unacknowledged transactions that the server recovered.
    pub unacknowledged: u64,
}

/// Checks a state; returns the error in words.
pub async fn check(workload: &JournalWorkload, state: &CrashState) -> Result<JournalStateCheck, String> {
    let device: SharedDevice = std::sync::Arc::new(state.device());
    let promised = JournalPromise::of(state.marks());
    let mut random = SimulationRandom::new(state.hash ^ workload.seed);
    let mut options = start_options(0, AFTER);
    // Either this server holds the machine's lock, so all others have ended, or it waits until the old lease has
    // expired.
    let all_gone = random.chance(50);
    if all_gone {
        options.confirmed_gone = (1..LIVES).map(|life| start_options(0, life).incarnation).collect();
    }
    let mut server = match JournalServer::start(device.clone(), options).await {
        Ok(server) => server,
        Err(Error::Refused(_)) if !promised.is_formatted => return Ok(JournalStateCheck::default()),
        Err(error) => return Err(format!("it does not start: {error}")),
    };
    let unacknowledged = compare(workload, promised, &server)?;
    if all_gone {
        let epochs = (1..server.log.epoch()).map(gone).collect();
        server.append(vec![transaction(epochs)], &mut ()).await.map_err(|error| error.to_string())?;
    }
    goes_on(&device, server, &mut random).await.map_err(|error| format!("it does not go on: {error}"))?;
    Ok(JournalStateCheck { is_started: true, unacknowledged })
}

/// Compares the tables with the tables after each prefix of transactions that may be there; returns the number of
/// unacknowledged transactions.
fn compare(workload: &JournalWorkload, promised: JournalPromise, server: &JournalServer) -> Result<u64, String> {
    let mut tables = tables_after(workload, promised.acknowledged);
    if tables == server.tables {
        return Ok(0);
    }
    let rest: &[Transaction] = &workload.transactions[promised.acknowledged..promised.begun.max(promised.acknowledged)];
    for (transaction, count) in rest.iter().zip(1..) {
        debug_assert_ne!(transaction.kind, TransactionKind::Manifest);
        let _ = apply(&mut tables, transaction);
        if tables == server.tables {
            return Ok(count);
        }
    }
    Err(format!(
        "the tables are not those after {} to {} transactions",
        promised.acknowledged,
        promised.begun.max(promised.acknowledged)
    ))
}

/// Checks that the volume can be used: appends, sometimes writes a checkpoint, and starts a server again.
async fn goes_on(device: &SharedDevice, mut server: JournalServer, random: &mut SimulationRandom) -> Result<(), Error> {
    for _ in 0..1 + random.below(3) {
        server.append(changes(random, false), &mut ()).await?;
        if random.chance(40) {
            server.checkpoint(&mut ()).await?;
        }
    }
    let differs = |what: &str| Err(Error::Refused(format!("{what} finds other tables")));
    if read(device).await?.tables != server.tables {
        return differs("a reader without a lease");
    }
    let mut options = start_options(1, AFTER + 1);
    options.confirmed_gone = vec![start_options(0, AFTER).incarnation];
    let next = JournalServer::start(device.clone(), options).await?;
    match next.tables == server.tables {
        true => Ok(()),
        false => differs("the start after"),
    }
}
