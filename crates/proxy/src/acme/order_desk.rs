//! The thread that orders certificates, renews them and writes them.
//!
//! Owns: the work on each name, one step after another, and what is known of each. Promises: certificates in the state
//! directory are in use before the first client connects; a certificate that cannot be written is used from memory, and
//! written later; no certificate is ordered in place of one that cannot be read; a process that is started again and
//! again orders no more than one that runs on; what has failed is logged at most once an hour for each name. Leaves to
//! others: when something is to be done (`renewal_plan`).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use instant_acme::{Account, CertificateIdentifier};
use nectary_host::Shutdown;
use nectary_host::log::{LogLevel, LogThrottle, write};
use rustls::crypto::CryptoProvider;

use super::account_keeper::AccountKeeper;
use super::issued_certificate::{IssuedCertificate, placeholder};
use super::live_certificates::LiveNames;
use super::one_order::{OrderParts, OrderedCertificate, order};
use super::order_failure::{FailureKind, OrderFailure};
use super::pause_book::PauseBook;
use super::progress::{AcmeFailure, AcmeName};
use super::renewal_plan::{PAUSE_MAX, RenewalMoment, RenewalPlan, RenewalStep, next_step};
use super::state_files::StateFiles;
use super::{AcmeOptions, AcmeShared};

/// The longest time of an order, and of a look at what the authority suggests.
const ORDER_TIME_MAX: Duration = Duration::from_secs(300);
const LOOK_TIME_MAX: Duration = Duration::from_secs(60);

/// The longest sleep: after it the system's clock is read again, which may have been set.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The time between two messages about the same name.
const MESSAGE_TIME: Duration = Duration::from_secs(3600);

/// The shortest pause after the authority has refused for too many requests.
const LIMITED_PAUSE: Duration = Duration::from_secs(3600);

/// How many times [`RetryRule::first`](super::RetryRule::first) a process must have run before it orders certificates
/// that it cannot keep. If it ended earlier and were started again, each start would cost a certificate.
const UNWRITABLE_PAUSES: u32 = 10;

/// What orders certificates.
pub(crate) struct OrderDesk {
    shared: Arc<AcmeShared>,
    options: Arc<AcmeOptions>,
    files: StateFiles,
    names: Vec<NameWork>,
    provider: CryptoProvider,
    started: Instant,
    account: AccountKeeper,
    book: PauseBook,
    /// Until when the authority allows the account no orders, and why.
    limit: Option<(Duration, String)>,
}

/// The work on a name.
struct NameWork {
    name: String,
    plan: RenewalPlan,
    certificate: Option<IssuedCertificate>,
    failure: Option<OrderFailure>,
    /// The text of the certificate's file as long as it could not be written, and why.
    unwritten: Option<(String, String)>,
    /// Whether the authority has said when it suggests to renew.
    has_suggestion: bool,
    logged_at: Option<Duration>,
}

impl OrderDesk {
    /// Reads the certificates of the state directory and uses them. Nothing is ordered before [`run`](OrderDesk::run).
    pub fn open(shared: Arc<AcmeShared>) -> OrderDesk {
        let options = shared.options();
        let files = StateFiles::new(&options.state, &options.directory);
        let mut desk = OrderDesk {
            shared,
            names: Vec::new(),
            provider: rustls::crypto::ring::default_provider(),
            started: Instant::now(),
            account: AccountKeeper::new(options.clone(), files.clone()),
            book: PauseBook::default(),
            limit: None,
            options,
            files,
        };
        desk.read_pauses();
        desk.take_names();
        desk
    }

    /// Orders, renews and writes until a stop is requested. An order that is under way then is given up.
    pub async fn run(mut self, shutdown: Shutdown) {
        tokio::select! {
            () = self.work() => {}
            () = shutdown.requested() => {}
        }
    }

    async fn work(&mut self) {
        let mut wanted = self.shared.wanted.subscribe();
        let options = wanted.borrow_and_update().clone();
        if options != self.options {
            self.follow(options);
        }
        loop {
            if wanted.has_changed().unwrap_or(false) {
                let options = wanted.borrow_and_update().clone();
                self.follow(options);
            }
            let now = self.now();
            let next = next_step(self.names.iter().map(|work| &work.plan), now);
            match next {
                Some((index, RenewalStep::Order)) => self.order(index).await,
                Some((index, RenewalStep::Look)) => self.look(index).await,
                Some((index, RenewalStep::Save)) => self.save(index),
                Some((index, RenewalStep::Read)) => self.read_again(index),
                None => {
                    let idle = self.names.iter().map(|work| work.plan.idle_time(now)).min();
                    let idle = idle.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
                    tokio::select! {
                        () = tokio::time::sleep(idle) => {}
                        _ = wanted.changed() => wanted.mark_changed(),
                    }
                    continue;
                }
            }
            self.publish();
        }
    }

    fn now(&self) -> RenewalMoment {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_s = since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        RenewalMoment { unix_s, uptime: self.started.elapsed() }
    }

    /// Uses other options. What has failed is tried at once, unless it is to wait.
    fn follow(&mut self, options: Arc<AcmeOptions>) {
        let is_elsewhere = options.directory != self.options.directory || options.state != self.options.state;
        // Other names are no reason to try those again that remain.
        let is_changed =
            AcmeOptions { names: self.options.names.clone(), ..AcmeOptions::clone(&options) } != *self.options;
        self.options = options;
        if is_elsewhere {
            self.files = StateFiles::new(&self.options.state, &self.options.directory);
            self.names.clear();
            self.read_pauses();
        }
        self.account.follow(self.options.clone(), self.files.clone());
        self.take_names();
        let now = self.now();
        for work in &mut self.names {
            let is_to_wait = work.failure.as_ref().is_some_and(OrderFailure::is_to_wait);
            work.plan.hurry(now, is_to_wait, is_changed);
        }
        self.publish();
    }

    /// Reads the pauses of an earlier process.
    fn read_pauses(&mut self) {
        let now = self.now();
        self.book = PauseBook::read(&self.files);
        let limit = self.book.of_account(now.unix_s);
        self.limit = limit.map(|(left, what)| (now.uptime.saturating_add(left.min(PAUSE_MAX)), what));
    }

    /// Writes the pauses. `attempt` is the name that is about to be ordered. *Errors*: why they cannot be written.
    fn write_pauses(&mut self, attempt: Option<usize>) -> Result<(), String> {
        let now = self.now();
        for (index, work) in self.names.iter().enumerate() {
            if attempt == Some(index) {
                let left = work.plan.left_in_attempt(now, &self.options.retry);
                let ended = OrderFailure::new(FailureKind::Interrupted, "the process ended while it ordered one");
                self.book.note_name(&work.name, left, Some(&ended), now.unix_s);
            } else if !work.plan.is_unreadable() {
                self.book.note_name(&work.name, work.plan.left(now), work.failure.as_ref(), now.unix_s);
            }
        }
        let limit = self.limit.as_ref().map(|(until, what)| (until.saturating_sub(now.uptime), what.as_str()));
        self.book.note_account(limit, now.unix_s);
        let wanted: HashSet<&str> = self.names.iter().map(|work| work.name.as_str()).collect();
        self.book.write(&self.files, &wanted, now.unix_s)
    }

    /// Makes the work on each wanted name, keeps that on names that remain, and shows clients what there is.
    fn take_names(&mut self) {
        let mut known: HashMap<_, _> =
            std::mem::take(&mut self.names).into_iter().map(|work| (work.name.clone(), work)).collect();
        let options = self.options.clone();
        self.names =
            options.names.iter().map(|name| known.remove(name).unwrap_or_else(|| self.read(name, None))).collect();
        // A name that has no certificate in another directory keeps the one that it shows until there is one.
        let by_name = self.names.iter().map(|work| {
            let own = work.certificate.as_ref().map(|certificate| certificate.certified.clone());
            (work.name.clone(), own.or_else(|| self.shared.certificates.find(&work.name, false)))
        });
        let placeholder = placeholder(&self.provider);
        if let Err(error) = &placeholder {
            write(LogLevel::Error, "proxy", format_args!("no placeholder for certificates: {error}"));
        }
        self.shared.certificates.replace(LiveNames {
            by_name: by_name.collect(),
            first: options.names.first().cloned(),
            placeholder: placeholder.ok(),
        });
        self.publish();
    }

    /// Reads the certificate of a name.
    fn read(&self, name: &str, logged_at: Option<Duration>) -> NameWork {
        let now = self.now();
        let path = self.files.certificate_path(name);
        let read = self.files.read_certificate(name);
        let mut work = NameWork {
            name: name.to_owned(),
            plan: RenewalPlan::new(None),
            certificate: None,
            failure: None,
            unwritten: None,
            has_suggestion: false,
            logged_at,
        };
        let read = match read {
            Ok(pem) => pem.map(|pem| IssuedCertificate::read(name, &pem, &self.provider)).transpose(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
            Err(error) => {
                // There can be a good certificate, so none is ordered.
                let what = format!("{} cannot be read: {error}", path.display());
                work.plan = RenewalPlan::unreadable(now, &self.options.retry);
                let failure = OrderFailure::new(FailureKind::Unreadable, what);
                work.tell(&failure, now);
                work.failure = Some(failure);
                return work;
            }
        };
        match read {
            Ok(certificate) => {
                work.plan = RenewalPlan::new(certificate.as_ref().map(|certificate| certificate.validity));
                work.certificate = certificate;
            }
            Err(what) => {
                let what = format!("{} cannot be used: {what}", path.display());
                write(LogLevel::Warning, "proxy", format_args!("{what}; a certificate is ordered in its place"));
                work.failure = Some(OrderFailure::new(FailureKind::File, what));
            }
        }
        if let Some((left, failure)) = self.book.of_name(name, now.unix_s) {
            work.plan.resume(left, now);
            work.failure = failure.or(work.failure);
        }
        work
    }

    /// Reads the certificate of a name that could not be read before.
    fn read_again(&mut self, index: usize) {
        let old = &self.names[index];
        let work = self.read(&old.name, old.logged_at);
        if let Some(certificate) = &work.certificate {
            self.shared.certificates.install(&work.name, certificate.certified.clone());
        }
        self.names[index] = work;
    }

    /// Orders a certificate for a name.
    async fn order(&mut self, index: usize) {
        if let Some(held) = self.held(index) {
            let now = self.now();
            for work in self.names.iter_mut().filter(|work| work.plan.step(now) == Some(RenewalStep::Order)) {
                work.hold(held.clone(), now);
            }
            return;
        }
        // What the authority asked for at an earlier request, as at a look, is no pause after this order.
        _ = self.account.take_pause();
        let ordered = match tokio::time::timeout(ORDER_TIME_MAX, guarded(self.attempt(index))).await {
            Ok(ordered) => ordered,
            Err(_) => {
                let what = format!("the authority takes longer than {} s", ORDER_TIME_MAX.as_secs());
                Err(OrderFailure::new(FailureKind::Check, what))
            }
        };
        match ordered {
            Ok(ordered) => self.install(index, ordered),
            Err(mut failure) => {
                failure.pause = self.account.take_pause();
                if failure.is_limited() {
                    failure.pause = Some(failure.pause.unwrap_or_default().clamp(LIMITED_PAUSE, PAUSE_MAX));
                }
                self.account.forget();
                let now = self.now();
                if let (FailureKind::AccountLimited, Some(pause)) = (failure.kind, failure.pause) {
                    self.limit = Some((now.uptime.saturating_add(pause), failure.what.clone()));
                }
                let is_of_all = failure.is_of_all();
                for (at, work) in self.names.iter_mut().enumerate() {
                    if at == index || (is_of_all && work.plan.step(now) == Some(RenewalStep::Order)) {
                        work.fail(failure.clone(), now, &self.options);
                    }
                }
            }
        }
        if let Err(what) = self.write_pauses(None) {
            static UNWRITTEN: LogThrottle = LogThrottle::every(MESSAGE_TIME);
            UNWRITTEN.write(
                LogLevel::Error,
                "proxy",
                format_args!("{what}; a restart forgets the pauses after failures"),
            );
        }
    }

    /// Why nothing may be ordered now, with the pause after which it is to be seen again; `None` if it may, and that
    /// this name is ordered is noted then.
    fn held(&mut self, index: usize) -> Option<OrderFailure> {
        let now = self.now();
        if let Some((until, what)) = self.limit.as_ref().filter(|(until, _)| *until > now.uptime) {
            let pause = Some(until.saturating_sub(now.uptime));
            return Some(OrderFailure { pause, ..OrderFailure::new(FailureKind::AccountLimited, what.as_str()) });
        }
        self.limit = None;
        let first = self.options.retry.first;
        if let Some(what) = self.account.unreadable() {
            return Some(OrderFailure { pause: Some(first), ..OrderFailure::new(FailureKind::Unreadable, what) });
        }
        let what = self.write_pauses(Some(index)).err()?;
        let left = first.saturating_mul(UNWRITABLE_PAUSES).saturating_sub(now.uptime);
        let what = format!("{what}; nothing is ordered until it can be, or the process has run for a while");
        let held = OrderFailure { pause: Some(left.min(first)), ..OrderFailure::new(FailureKind::Unwritable, what) };
        (!left.is_zero()).then_some(held)
    }

    async fn attempt(&mut self, index: usize) -> Result<OrderedCertificate, OrderFailure> {
        let account = match self.account.find().await? {
            Some(account) => account,
            None => self.account.make().await?,
        };
        let ordered = self.order_with(&account, index).await;
        match ordered {
            // The authority has forgotten the account, which then serves nobody any more.
            Err(failure) if failure.kind == FailureKind::AccountGone => {
                let account = self.account.make().await?;
                self.order_with(&account, index).await
            }
            ordered => ordered,
        }
    }

    async fn order_with(&self, account: &Account, index: usize) -> Result<OrderedCertificate, OrderFailure> {
        let work = &self.names[index];
        let leaf = work.certificate.as_ref().and_then(IssuedCertificate::leaf);
        let replaces = leaf.filter(|_| work.has_suggestion && work.plan.failures() == 0);
        order(OrderParts {
            account,
            name: &work.name,
            challenge: self.options.challenge,
            replaces: replaces.and_then(|leaf| CertificateIdentifier::try_from(leaf).ok()),
            answers: &self.shared.answers,
            provider: &self.provider,
        })
        .await
    }

    /// Uses a certificate that was issued, and writes it.
    fn install(&mut self, index: usize, ordered: OrderedCertificate) {
        let now = self.now();
        let work = &mut self.names[index];
        let OrderedCertificate { certificate, pem } = ordered;
        self.shared.certificates.install(&work.name, certificate.certified.clone());
        let is_of_use = work.plan.on_issued(certificate.validity, now, &self.options.retry, chance());
        let days = certificate.validity.not_after_s.saturating_sub(now.unix_s).div_euclid(86_400);
        write(LogLevel::Note, "proxy", format_args!("certificate of {} issued; it ends in {days} days", work.name));
        work.failure = (!is_of_use).then(|| {
            let what = format!("the certificate that was issued ends in {days} days by the clock of this machine");
            OrderFailure::new(FailureKind::Clock, what)
        });
        work.logged_at = None;
        work.has_suggestion = false;
        work.certificate = Some(certificate);
        work.unwritten = Some((pem, String::new()));
        self.save(index);
    }

    /// Writes what could not be written before.
    fn save(&mut self, index: usize) {
        let is_account_written = self.account.write();
        let now = self.now();
        let work = &mut self.names[index];
        let Some((pem, why)) = &mut work.unwritten else {
            work.plan.on_saved(is_account_written, now);
            return;
        };
        match self.files.write_certificate(&work.name, pem) {
            Ok(()) => {
                work.unwritten = None;
                work.plan.on_saved(is_account_written, now);
            }
            Err(error) => {
                let is_first = why.is_empty();
                *why = format!("{} cannot be written: {error}", self.files.certificate_path(&work.name).display());
                if is_first {
                    write(LogLevel::Error, "proxy", format_args!("{why}; the certificate is used from memory"));
                }
                work.plan.on_saved(false, now);
            }
        }
    }

    /// Asks the authority when it suggests to renew. What goes wrong here is no failure: age alone decides then.
    async fn look(&mut self, index: usize) {
        let suggestion = guarded(async { Ok(self.suggestion(index).await) });
        let asked = tokio::time::timeout(LOOK_TIME_MAX, suggestion).await.ok().and_then(Result::ok).flatten();
        let now = self.now();
        let is_unreachable = !self.account.is_in_use();
        for (at, work) in self.names.iter_mut().enumerate() {
            if at == index {
                work.has_suggestion = asked.is_some();
                let (window_s, again) = asked.unzip();
                work.plan.on_suggested(window_s, again, now, chance());
            } else if is_unreachable && work.plan.step(now) == Some(RenewalStep::Look) {
                work.plan.on_suggested(None, None, now, chance());
            }
        }
    }

    /// The window in which the authority suggests to renew, in Unix seconds, and when to ask again.
    async fn suggestion(&mut self, index: usize) -> Option<((i64, i64), Duration)> {
        let now = self.now();
        let is_limited = self.limit.as_ref().is_some_and(|(until, _)| *until > now.uptime);
        let account = match self.account.find().await.ok()? {
            Some(account) => account,
            None if is_limited || self.write_pauses(None).is_err() => return None,
            None => self.account.make().await.ok()?,
        };
        let leaf = self.names[index].certificate.as_ref()?.leaf()?;
        let identifier = CertificateIdentifier::try_from(leaf).ok()?;
        let (info, again) = account.renewal_info(&identifier).await.ok()?;
        let window = &info.suggested_window;
        Some(((window.start.unix_timestamp(), window.end.unix_timestamp()), again))
    }

    /// Tells a status how far each name is.
    fn publish(&self) {
        let now = self.now();
        let names = self.names.iter().map(|work| AcmeName {
            name: work.name.clone(),
            path: self.files.certificate_path(&work.name),
            not_before_s: work.certificate.as_ref().map(|certificate| certificate.validity.not_before_s),
            not_after_s: work.certificate.as_ref().map(|certificate| certificate.validity.not_after_s),
            renewal_s: work.plan.renewal_s(now),
            failure: work.failure.as_ref().map(|failure| AcmeFailure {
                what: failure.what.clone(),
                remedy: failure.remedy(),
                count: work.plan.failures(),
                again_s: now.unix_s.saturating_add(work.plan.pause_left(now).as_secs() as i64),
            }),
            not_written: work.unwritten.as_ref().map(|(_, why)| why.clone()),
        });
        self.shared.publish(names.collect());
    }
}

impl fmt::Debug for OrderDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderDesk").finish_non_exhaustive()
    }
}

impl NameWork {
    /// Notes that an order has failed, and writes a message if there was none for a while.
    fn fail(&mut self, failure: OrderFailure, now: RenewalMoment, options: &AcmeOptions) {
        self.plan.on_failed(now, &options.retry, chance(), failure.pause);
        self.tell(&failure, now);
        self.failure = Some(failure);
    }

    /// Notes that nothing may be ordered for the pause of a failure that is none of this name.
    fn hold(&mut self, held: OrderFailure, now: RenewalMoment) {
        self.plan.wait(held.pause.unwrap_or_default(), now);
        self.tell(&held, now);
        self.failure = Some(held);
    }

    /// Writes a message about a failure if there was none for a while.
    fn tell(&mut self, failure: &OrderFailure, now: RenewalMoment) {
        if self.logged_at.is_none_or(|logged_at| now.uptime.saturating_sub(logged_at) >= MESSAGE_TIME) {
            self.logged_at = Some(now.uptime);
            let again = self.plan.pause_left(now).as_secs();
            let (name, what) = (&self.name, &failure.what);
            write(LogLevel::Warning, "proxy", format_args!("no certificate for {name}: {what}; again in {again} s"));
        }
    }
}

/// Makes a failure of a panic: the client library has some for what an authority can write into its answers, and
/// without this nothing would be renewed any more.
async fn guarded<T>(work: impl Future<Output = Result<T, OrderFailure>>) -> Result<T, OrderFailure> {
    let ended = AssertUnwindSafe(work).catch_unwind().await;
    ended.unwrap_or_else(|_| {
        Err(OrderFailure::new(FailureKind::Unreachable, "the authority's answer is not one of ACME: it has no meaning"))
    })
}

/// A random number from 0 to 1.
fn chance() -> f64 {
    let random = getrandom::u64().expect("the kernel has random numbers") >> 11;
    random as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_differ() {
        let chances: Vec<f64> = (0..1000).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..1.0).contains(chance)));
        let sum: f64 = chances.iter().sum();
        assert!((400.0..600.0).contains(&sum), "{sum}");
    }
}
