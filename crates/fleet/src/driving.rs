//! What the threads of both kinds of fleets share.
//!
//! Owns: their start, their times, and the order in which the gate is set. Leaves to others: what they drive (`etcd`,
//! `fixed`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nectary_host::fleet::{FleetError, FleetGate, Later, PurgeOutcome, RulesHash};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::machine::GateTimes;

/// The time from one tick to the next.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Events and commands that wait for a machine.
pub(crate) const WAITING_MAX: usize = 256;
/// How long leaving may take.
pub(crate) const LEAVE_TIME_MAX: Duration = Duration::from_secs(2);

/// The answer to a purge, as a driver gives it.
pub(crate) type PurgeReply = oneshot::Sender<Result<PurgeOutcome, FleetError>>;

/// Runs a driver in a thread. *Errors*: no runtime or no thread; a text for the operator.
pub(crate) fn start_thread<F>(driver: impl FnOnce() -> F + Send + 'static) -> Result<(), String>
where
    F: Future<Output = ()>,
{
    let failed = |error: std::io::Error| format!("the fleet's thread: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let thread = std::thread::Builder::new().name("nectary-fleet".to_owned());
    thread.spawn(move || runtime.block_on(driver())).map(drop).map_err(failed)
}

/// Sets what each request reads. With other rules the gate is shut first, so that no request has the times of one and the
/// rules of the other. When the node leaves, it stays shut.
pub(crate) fn set_gate(gate: &FleetGate, is_leaving: &AtomicBool, rules: RulesHash, times: GateTimes) {
    if is_leaving.load(Ordering::Acquire) {
        return gate.set_times(Duration::ZERO, Duration::ZERO);
    }
    if gate.rules() != rules.half() {
        gate.set_times(Duration::ZERO, Duration::ZERO);
        gate.set_rules(rules);
    }
    gate.set_times(times.member_until, times.serve_until);
}

/// Sends a purge to a driver, and waits for its answer.
pub(crate) fn send_purge<C: Send + 'static>(
    commands: mpsc::Sender<C>,
    command: impl FnOnce(PurgeReply) -> C + Send + 'static,
) -> Later<Result<PurgeOutcome, FleetError>> {
    Box::pin(async move {
        let (reply, answer) = oneshot::channel();
        if commands.send(command(reply)).await.is_err() {
            return Err(FleetError::Stopping);
        }
        answer.await.unwrap_or_else(|_| Err(FleetError::Unknown("this node stops".to_owned())))
    })
}

/// Shuts the gate, tells a driver to leave, and waits until it has, for a time.
pub(crate) fn leave<C: Send + 'static>(
    (gate, is_leaving): (&FleetGate, &AtomicBool),
    commands: mpsc::Sender<C>,
    command: impl FnOnce(oneshot::Sender<()>) -> C + Send + 'static,
) -> Later<()> {
    is_leaving.store(true, Ordering::Release);
    gate.set_times(Duration::ZERO, Duration::ZERO);
    Box::pin(async move {
        let (reply, answer) = oneshot::channel();
        if commands.send(command(reply)).await.is_ok() {
            let _ = timeout(LEAVE_TIME_MAX, answer).await;
        }
    })
}

/// The time in seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
