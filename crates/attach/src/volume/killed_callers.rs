//! Programs that are killed while they wait for an answer.
//!
//! A killed program ends only when the request that it waits for is answered, and a lost server may be away for long.
//! So a request that changes no data is *given up* when its program is being killed: it is answered with EINTR, its work
//! goes on, and what the work returns is dropped. A change of names or attributes is then done later, as one of a program
//! that is killed on NFS; this host does no later one before it. A change of data is not given up: the kernel drops cached
//! pages around it, and a program that does the same again could be overwritten.
//!
//! The kernel reports the first signal of a request, whatever the program does with it. A program that goes on must not
//! get EINTR from calls like `stat`. So the pending signals of the thread decide: the kernel adds SIGKILL to them when
//! any signal ends the program, except one that writes a core dump.
//!
//! Owns: when a request is given up, the bound on the work that goes on, and the changes that go on. Leaves to others:
//! which requests are given up (`serve`), and their answers (`request_tasks`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// The pause before each look at the pending signals of a thread; a request that is answered sooner is not given up.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// The maximum number of requests that are given up while their work goes on.
const GIVEN_UP_MAX: usize = 1024;

/// What requests need to know whether their programs are being killed.
pub struct KilledCallers {
    /// Notified when any thread that waits for an answer gets a signal.
    signals: Notify,
    /// The requests that may still be given up.
    places: Arc<Semaphore>,
}

impl Default for KilledCallers {
    fn default() -> KilledCallers {
        KilledCallers { signals: Notify::new(), places: Arc::new(Semaphore::new(GIVEN_UP_MAX)) }
    }
}

impl KilledCallers {
    /// Notes that a thread that waits for an answer has got a signal.
    pub fn note_signal(&self) {
        self.signals.notify_waiters();
    }

    /// Waits until a request may be given up: its thread `has_signal`, and then `is_killed`. Returns the place of the
    /// request among those that are given up, until its work ends.
    ///
    /// *Cancel safety*: nothing is lost. *Cost*: no timer before the first signal.
    pub async fn killed(&self, has_signal: impl Fn() -> bool, is_killed: impl Fn() -> bool) -> OwnedSemaphorePermit {
        loop {
            let noted = self.signals.notified();
            tokio::pin!(noted);
            noted.as_mut().enable();
            if has_signal() {
                break;
            }
            noted.await;
        }
        // The kernel does not report a second signal.
        loop {
            sleep(LOOK_PAUSE).await;
            if is_killed()
                && let Ok(place) = self.places.clone().try_acquire_owned()
            {
                return place;
            }
        }
    }
}

/// Changes that were given up and go on.
#[derive(Debug, Default)]
pub struct GivenUpChanges {
    count: AtomicUsize,
    /// Notified when one has ended.
    ended: Notify,
}

/// A change that was given up, until its work has ended.
#[derive(Debug)]
pub struct GivenUpChange(Arc<GivenUpChanges>);

impl Drop for GivenUpChange {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

impl GivenUpChanges {
    /// Notes that a change goes on.
    pub fn begin(self: &Arc<GivenUpChanges>) -> GivenUpChange {
        self.count.fetch_add(1, Ordering::AcqRel);
        GivenUpChange(self.clone())
    }

    /// Whether any goes on.
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Waits until none goes on.
    pub async fn ended(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if !self.is_any() {
                return;
            }
            ended.await;
        }
    }
}

/// Whether a thread ends as soon as its call is answered; `false` for 0, a thread that is not visible here.
pub fn is_killed(thread: u32) -> bool {
    // The name of a thread may be any bytes.
    let status = std::fs::read(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| has_kill(&String::from_utf8_lossy(&status)))
}

/// Whether SIGKILL is among the pending signals in a thread's `status`.
fn has_kill(status: &str) -> bool {
    let pending = ["SigPnd:", "ShdPnd:"].map(|field| status.lines().find_map(|line| line.strip_prefix(field)));
    let kill = 1_u64 << (libc::SIGKILL - 1);
    pending.into_iter().flatten().any(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & kill != 0))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn killed_thread_has_pending_sigkill() {
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let status = |own: u64, shared: u64| {
            let (own, shared) = (format!("SigPnd:\t{own:016x}"), format!("ShdPnd:\t{shared:016x}"));
            format!("Name:\tcat\nState:\tD (disk sleep)\n{own}\n{shared}\nSigBlk:\t{:016x}\n", bit(libc::SIGKILL))
        };
        assert!(has_kill(&status(bit(libc::SIGKILL), 0)));
        assert!(has_kill(&status(0, bit(libc::SIGKILL) | bit(libc::SIGTERM))));
        assert!(!has_kill(&status(bit(libc::SIGCHLD), bit(libc::SIGALRM))));
        assert!(!has_kill("") && !is_killed(0) && !is_killed(std::process::id()));
    }

    /// Later changes wait for all that were given up.
    #[tokio::test]
    async fn given_up_changes_come_first() {
        let changes = Arc::new(GivenUpChanges::default());
        changes.ended().await;
        let [first, second] = [(); 2].map(|()| changes.begin());
        let ended = changes.ended();
        tokio::pin!(ended);
        drop(first);
        assert!(changes.is_any() && timeout(LOOK_PAUSE, &mut ended).await.is_err(), "one goes on");
        drop(second);
        ended.await;
        assert!(!changes.is_any());
    }

    /// A signal alone changes nothing, a later SIGKILL is noticed, and the requests that are given up are bounded.
    #[tokio::test]
    async fn only_killed_callers_give_up() {
        let callers = KilledCallers::default();
        let (has_signal, is_sigkill) = (AtomicBool::new(false), AtomicBool::new(false));
        let killed = callers.killed(|| has_signal.load(Ordering::Acquire), || is_sigkill.load(Ordering::Acquire));
        tokio::pin!(killed);
        is_sigkill.store(true, Ordering::Release);
        assert!(timeout(2 * LOOK_PAUSE, &mut killed).await.is_err(), "the kernel has reported no signal");
        is_sigkill.store(false, Ordering::Release);
        has_signal.store(true, Ordering::Release);
        callers.note_signal();
        assert!(timeout(2 * LOOK_PAUSE, &mut killed).await.is_err(), "the program handles the signal");
        let all = callers.places.clone().try_acquire_many_owned(GIVEN_UP_MAX as u32).expect("nothing is given up");
        is_sigkill.store(true, Ordering::Release);
        assert!(timeout(2 * LOOK_PAUSE, &mut killed).await.is_err(), "too many are given up");
        drop(all);
        let _place = killed.await;
        assert_eq!(callers.places.available_permits(), GIVEN_UP_MAX - 1);
    }
}
