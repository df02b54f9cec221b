//! The session of a mount, and the next session after one was ended for the sake of other hosts.
//!
//! Owns: the choice of the session that calls use. Promises: after a session ended, handles that were opened in it
//! return EIO, the kernel keeps no page that was read in it, and calls about names and attributes wait for the next
//! session and use it. A mount that is ending begins no further session. Leaves to others: the work of a session
//! (`nectary-volume`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nectary_block::SharedDevice;
use nectary_host::log::{LogLevel, LogThrottle, write as log};
use nectary_volume::client::{ClientOptions, Error, HostKernel, VolumeClient, WaitKind};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The first pause between two attempts to begin a session.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The sessions of a mount, one after the other.
pub struct MountSessions {
    device: SharedDevice,
    options: ClientOptions,
    kernel: Arc<dyn HostKernel>,
    current: watch::Sender<VolumeClient>,
    is_closing: watch::Sender<bool>,
    ended: AtomicU64,
    /// The number of sessions that ended with changes of names that may be lost.
    lost: AtomicU64,
    /// How many of these a program was told of, by `fsync` of a directory.
    told: AtomicU64,
    /// Ended sessions with writes in progress.
    leaving: Mutex<JoinSet<()>>,
}

impl MountSessions {
    /// Begins the first session.
    ///
    /// *Errors*: those of [`VolumeClient::connect`].
    pub async fn begin(
        device: SharedDevice,
        options: ClientOptions,
        kernel: Arc<dyn HostKernel>,
    ) -> Result<Arc<MountSessions>, Error> {
        let client = VolumeClient::connect(device.clone(), options.clone(), kernel.clone()).await?;
        let sessions = Arc::new(MountSessions {
            device,
            options,
            kernel,
            current: watch::Sender::new(client),
            is_closing: watch::Sender::new(false),
            ended: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            told: AtomicU64::new(0),
            leaving: Mutex::default(),
        });
        let keeper = sessions.clone();
        tokio::spawn(async move { keeper.keep().await });
        Ok(sessions)
    }

    /// Returns the last session, which may have ended.
    pub fn last(&self) -> VolumeClient {
        self.current.borrow().clone()
    }

    /// Returns the number of sessions that were ended for the sake of other hosts.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the number of losses of changes of names that a newly opened directory need not report: those that another
    /// one has reported.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// Whether changes of names may have been lost that a directory must report: more than this number of times. That
    /// counts as reported.
    pub fn report(&self, known: u64) -> bool {
        let lost = self.lost.load(Ordering::Acquire);
        self.told.fetch_max(lost, Ordering::AcqRel);
        lost > known
    }

    /// Waits for a session that has not ended as far as this host knows, and returns it.
    ///
    /// *Errors*: the mount is ending.
    pub async fn living(&self) -> Result<VolumeClient, Error> {
        let (mut current, mut is_closing) = (self.current.subscribe(), self.is_closing.subscribe());
        tokio::select! {
            biased;
            living = WaitKind::Session.during(0, current.wait_for(|client| !client.is_over())) => match living {
                Ok(client) => Ok(client.clone()),
                Err(_) => Err(self.last().why_over()),
            },
            _ = is_closing.wait_for(|is_closing| *is_closing) => Err(self.last().why_over()),
        }
    }

    /// Notes that the mount is ending: no further session begins, and no call waits for one.
    pub fn close(&self) {
        self.is_closing.send_replace(true);
    }

    /// Begins the next session whenever one was ended.
    async fn keep(&self) {
        let mut is_closing = self.is_closing.subscribe();
        tokio::select! {
            _ = is_closing.wait_for(|is_closing| *is_closing) => {}
            () = async {
                loop {
                    let client = self.last();
                    let reason = client.over().await;
                    self.ended.fetch_add(1, Ordering::AcqRel);
                    self.follow(&client, &reason).await;
                }
            } => {}
        }
    }

    async fn follow(&self, before: &VolumeClient, reason: &str) {
        let (files, names) = (before.uncommitted(), before.figures().lost);
        self.lost.fetch_add(u64::from(names > 0), Ordering::AcqRel);
        let data = if files > 0 { format!(", and what was written to {files} files is lost") } else { String::new() };
        let names = if names > 0 { format!(", and the last {names} changes of names may be") } else { String::new() };
        log(LogLevel::Warning, "volume", format_args!("{reason}; files that are open answer EIO{data}{names}"));
        before.stop();
        before.drop_pages().await;
        // Once the last write of the ended session is over, its space can be used again.
        let leaving = before.clone();
        let mut ended = self.leaving.lock().await;
        while ended.try_join_next().is_some() {}
        ended.spawn(async move { leaving.let_go().await });
        drop(ended);
        let mut pause = RETRY_MIN;
        let next = loop {
            match VolumeClient::connect(self.device.clone(), self.options.clone(), self.kernel.clone()).await {
                Ok(client) => break client,
                Err(error) => {
                    static FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(10));
                    FAILED.write(LogLevel::Warning, "volume", format_args!("no new session yet: {error}"));
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        };
        let session = next.figures().session;
        log(LogLevel::Note, "volume", format_args!("session {session} begins: what is opened from now on works"));
        self.current.send_replace(next);
    }
}
