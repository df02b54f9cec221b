//! Connections and a clock for simulations: streams in memory, and the time of the runtime.
//!
//! Owns: for a thread that has switched this on, the listeners of the process, by the paths of their sockets; the clock
//! by which clients count leases; and the identities of clients. Promises: in a build without the feature `planted` none
//! of this exists. With a paused clock and one thread, a simulation does the same each time, as far as it depends on
//! these.

use std::time::Duration;

#[cfg(feature = "planted")]
pub use switched::{connect, is_on, listen, switch_on};

/// The time since the host's start, or since the start of the simulation.
pub(crate) fn since_boot() -> Duration {
    #[cfg(feature = "planted")]
    if let Some(since) = switched::since_start() {
        return since;
    }
    nectary_host::clock::since_boot()
}

/// Returns the identity of the next client of a simulation.
pub(crate) fn next_id() -> Option<[u8; 16]> {
    #[cfg(feature = "planted")]
    return switched::next_id();
    #[cfg(not(feature = "planted"))]
    None
}

#[cfg(feature = "planted")]
mod switched {
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;
    use std::io::{Error, ErrorKind};
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use tokio::io::{DuplexStream, duplex};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::time::Instant;

    /// What a stream holds that nobody has read. *Units*: bytes.
    const STREAM_BYTES: usize = 1 << 20;

    thread_local! {
        static START: Cell<Option<Instant>> = const { Cell::new(None) };
        static IDS: Cell<u64> = const { Cell::new(0) };
        static LISTENING: RefCell<HashMap<PathBuf, UnboundedSender<DuplexStream>>> = RefCell::default();
    }

    /// Switches simulation on for this thread, from this time of the runtime on; forgets what was simulated before.
    pub fn switch_on(is_on: bool) {
        START.set(is_on.then(Instant::now));
        IDS.set(0);
        LISTENING.take();
    }

    /// Whether this thread simulates.
    pub fn is_on() -> bool {
        START.get().is_some()
    }

    pub fn since_start() -> Option<Duration> {
        START.get().map(|start| start.elapsed())
    }

    pub fn next_id() -> Option<[u8; 16]> {
        START.get()?;
        IDS.set(IDS.get() + 1);
        let mut id = [0x5A; 16];
        id[..8].copy_from_slice(&IDS.get().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        Some(id)
    }

    /// Listens on a path in place of an earlier listener.
    pub fn listen(path: &Path) -> UnboundedReceiver<DuplexStream> {
        let (accept, accepted) = unbounded_channel();
        LISTENING.with_borrow_mut(|listening| listening.insert(path.to_owned(), accept));
        accepted
    }

    /// Connects to the listener of a path. *Errors*: `ConnectionRefused` if there is none.
    pub fn connect(path: &Path) -> std::io::Result<DuplexStream> {
        let (near, far) = duplex(STREAM_BYTES);
        let is_accepted = LISTENING.with_borrow(|listening| listening.get(path).is_some_and(|at| at.send(far).is_ok()));
        if is_accepted { Ok(near) } else { Err(Error::new(ErrorKind::ConnectionRefused, "nobody listens")) }
    }
}
