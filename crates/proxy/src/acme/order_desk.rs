//! The thread that orders certificates, renews them and writes them.
//!
//! Owns: the work on each name, one step after another, and what is known of each. Promises: certificates in the state
//! directory are in use before the first client connects; a certificate that cannot be written is used from memory, and
//! written later; what has failed is logged at most once an hour for each name. Leaves to others: when something is to
//! be done (`renewal_plan`).

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use instant_acme::{Account, CertificateIdentifier, NewAccount};
use nectary_host::Shutdown;
use nectary_host::log::{Level, Throttle, write};
use rustls::crypto::CryptoProvider;

use super::authority_client::{AskedPause, AuthorityClient};
use super::issued_certificate::{IssuedCertificate, placeholder};
use super::live_certificates::LiveNames;
use super::one_order::{OrderParts, Ordered, order};
use super::order_failure::{FailureKind, OrderFailure};
use super::progress::{AcmeFailure, AcmeName};
use super::renewal_plan::{Moment, RenewalPlan, Step, next_step};
use super::state_files::{StateFiles, account_text, parse_account};
use super::{AcmeOptions, AcmeShared};

/// The longest time of an order, and of a look at what the authority suggests.
const ORDER_TIME_MAX: Duration = Duration::from_secs(300);
const LOOK_TIME_MAX: Duration = Duration::from_secs(60);

/// The longest sleep: after it the system's clock is read again, which may have been set.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The time between two messages about the same name.
const MESSAGE_TIME: Duration = Duration::from_secs(3600);

/// The pause after the authority has refused for too many requests, if it names none.
const LIMITED_PAUSE: Duration = Duration::from_secs(3600);

/// What orders certificates.
pub(crate) struct OrderDesk {
    shared: Arc<AcmeShared>,
    options: Arc<AcmeOptions>,
    files: StateFiles,
    names: Vec<NameWork>,
    provider: CryptoProvider,
    started: Instant,
    account: Option<Account>,
    /// The account's file as long as it could not be written.
    unwritten_account: Option<String>,
    pause: AskedPause,
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
            options,
            files,
            names: Vec::new(),
            provider: rustls::crypto::ring::default_provider(),
            started: Instant::now(),
            account: None,
            unwritten_account: None,
            pause: AskedPause::default(),
        };
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
                Some((index, Step::Order)) => self.order(index).await,
                Some((index, Step::Look)) => self.look(index).await,
                Some((index, Step::Save)) => self.save(index),
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

    fn now(&self) -> Moment {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_s = since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        Moment { unix_s, uptime: self.started.elapsed() }
    }

    /// Uses other options. What has failed is tried at once, unless it is to wait.
    fn follow(&mut self, options: Arc<AcmeOptions>) {
        let is_elsewhere = options.directory != self.options.directory || options.state != self.options.state;
        self.options = options;
        // Whether the same account serves is found out by the next order.
        self.account = None;
        if is_elsewhere {
            self.files = StateFiles::new(&self.options.state, &self.options.directory);
            self.unwritten_account = None;
            self.names.clear();
        }
        self.take_names();
        let now = self.now();
        for work in &mut self.names {
            let is_to_wait = work.failure.as_ref().is_some_and(OrderFailure::is_to_wait);
            work.plan.hurry(now, is_to_wait);
        }
        self.publish();
    }

    /// Makes the work on each wanted name, keeps that on names that remain, and shows clients what there is.
    fn take_names(&mut self) {
        let mut known: HashMap<_, _> =
            std::mem::take(&mut self.names).into_iter().map(|work| (work.name.clone(), work)).collect();
        let options = self.options.clone();
        self.names = options.names.iter().map(|name| known.remove(name).unwrap_or_else(|| self.read(name))).collect();
        // A name that has no certificate in another directory keeps the one that it shows until there is one.
        let by_name = self.names.iter().map(|work| {
            let own = work.certificate.as_ref().map(|certificate| certificate.certified.clone());
            (work.name.clone(), own.or_else(|| self.shared.certificates.find(&work.name, false)))
        });
        let placeholder = placeholder(&self.provider);
        if let Err(error) = &placeholder {
            write(Level::Error, "proxy", format_args!("no placeholder for certificates: {error}"));
        }
        self.shared.certificates.replace(LiveNames {
            by_name: by_name.collect(),
            first: options.names.first().cloned(),
            placeholder: placeholder.ok(),
        });
        self.publish();
    }

    /// Reads the certificate of a name.
    fn read(&self, name: &str) -> NameWork {
        let path = self.files.certificate_path(name);
        let read = self.files.read_certificate(name).map_err(|error| error.to_string());
        let read = read.and_then(|pem| pem.map(|pem| IssuedCertificate::read(name, &pem, &self.provider)).transpose());
        let (certificate, failure) = match read {
            Ok(certificate) => (certificate, None),
            Err(what) => {
                let what = format!("{} cannot be used: {what}", path.display());
                write(Level::Warning, "proxy", format_args!("{what}; a certificate is ordered in its place"));
                (None, Some(OrderFailure::new(FailureKind::File, what)))
            }
        };
        NameWork {
            name: name.to_owned(),
            plan: RenewalPlan::new(certificate.as_ref().map(|certificate| certificate.validity)),
            certificate,
            failure,
            unwritten: None,
            has_suggestion: false,
            logged_at: None,
        }
    }

    /// Orders a certificate for a name.
    async fn order(&mut self, index: usize) {
        // What the authority asked for at an earlier request, as at a look, is no pause after this order.
        _ = self.pause.take();
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
                failure.pause = self.pause.take();
                if failure.kind == FailureKind::RateLimited {
                    failure.pause = Some(failure.pause.unwrap_or_default().max(LIMITED_PAUSE));
                }
                // The directory of the authority may have changed.
                self.account = None;
                let now = self.now();
                let is_of_all = failure.is_of_all();
                for (at, work) in self.names.iter_mut().enumerate() {
                    if at == index || (is_of_all && work.plan.step(now) == Some(Step::Order)) {
                        work.fail(failure.clone(), now, &self.options);
                    }
                }
            }
        }
    }

    async fn attempt(&mut self, index: usize) -> Result<Ordered, OrderFailure> {
        let account = self.account().await?;
        let ordered = self.order_with(&account, index).await;
        match ordered {
            // The authority has forgotten the account, which then serves nobody any more.
            Err(failure) if failure.kind == FailureKind::Account && failure.what.contains("accountDoesNotExist") => {
                let account = self.make_account().await?;
                self.order_with(&account, index).await
            }
            ordered => ordered,
        }
    }

    async fn order_with(&self, account: &Account, index: usize) -> Result<Ordered, OrderFailure> {
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

    /// The account, which is made if there is none.
    async fn account(&mut self) -> Result<Account, OrderFailure> {
        if let Some(account) = &self.account {
            return Ok(account.clone());
        }
        self.write_account();
        let path = self.files.account_path();
        let unusable = |what: String| {
            OrderFailure::new(FailureKind::Account, format!("{} cannot be used: {what}", path.display()))
        };
        let found = match &self.unwritten_account {
            Some(text) => Some(text.clone().into_bytes()),
            None => self.files.read_account().map_err(|error| unusable(error.to_string()))?,
        };
        let Some(found) = found else { return self.make_account().await };
        let credentials = parse_account(&found, &self.options.directory).map_err(unusable)?;
        let account = Account::builder_with_http(Box::new(self.client()?)).from_credentials(credentials).await?;
        self.account = Some(account.clone());
        Ok(account)
    }

    async fn make_account(&mut self) -> Result<Account, OrderFailure> {
        let contact: Vec<String> = self.options.contact.iter().map(|address| format!("mailto:{address}")).collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let wanted = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let builder = Account::builder_with_http(Box::new(self.client()?));
        let (account, credentials) = builder.create(&wanted, self.options.directory.clone(), None).await?;
        let text = account_text(&credentials).map_err(|what| OrderFailure::new(FailureKind::Account, what))?;
        self.unwritten_account = Some(text);
        self.write_account();
        self.account = Some(account.clone());
        Ok(account)
    }

    fn client(&self) -> Result<AuthorityClient, OrderFailure> {
        AuthorityClient::new(self.options.ca.as_deref(), self.pause.clone())
            .map_err(|error| OrderFailure::new(FailureKind::Unreachable, error.to_string()))
    }

    /// Writes the account if it is not written yet. *Errors*: why it cannot be.
    fn write_account(&mut self) -> Option<String> {
        let text = self.unwritten_account.as_ref()?;
        match self.files.write_account(text) {
            Ok(()) => {
                self.unwritten_account = None;
                None
            }
            Err(error) => {
                static UNWRITTEN: Throttle = Throttle::every(MESSAGE_TIME);
                let path = self.files.account_path();
                let what = format!("{} cannot be written: {error}", path.display());
                UNWRITTEN.write(Level::Error, "proxy", format_args!("{what}; the account is used from memory"));
                Some(what)
            }
        }
    }

    /// Uses a certificate that was issued, and writes it.
    fn install(&mut self, index: usize, ordered: Ordered) {
        let now = self.now();
        let work = &mut self.names[index];
        let Ordered { certificate, pem } = ordered;
        self.shared.certificates.install(&work.name, certificate.certified.clone());
        let is_of_use = work.plan.on_issued(certificate.validity, now, &self.options.retry, chance());
        let days = certificate.validity.not_after_s.saturating_sub(now.unix_s).div_euclid(86_400);
        write(Level::Note, "proxy", format_args!("certificate of {} issued; it ends in {days} days", work.name));
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
        let account_failure = self.write_account();
        let now = self.now();
        let work = &mut self.names[index];
        let Some((pem, why)) = &mut work.unwritten else {
            work.plan.on_saved(account_failure.is_none(), now);
            return;
        };
        match self.files.write_certificate(&work.name, pem) {
            Ok(()) => {
                work.unwritten = None;
                work.plan.on_saved(account_failure.is_none(), now);
            }
            Err(error) => {
                let is_first = why.is_empty();
                *why = format!("{} cannot be written: {error}", self.files.certificate_path(&work.name).display());
                if is_first {
                    write(Level::Error, "proxy", format_args!("{why}; the certificate is used from memory"));
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
        let is_unreachable = self.account.is_none();
        for (at, work) in self.names.iter_mut().enumerate() {
            if at == index {
                work.has_suggestion = asked.is_some();
                let (window_s, again) = asked.unzip();
                work.plan.on_suggested(window_s, again, now, chance());
            } else if is_unreachable && work.plan.step(now) == Some(Step::Look) {
                work.plan.on_suggested(None, None, now, chance());
            }
        }
    }

    /// The window in which the authority suggests to renew, in Unix seconds, and when to ask again.
    async fn suggestion(&mut self, index: usize) -> Option<((i64, i64), Duration)> {
        let account = self.account().await.ok()?;
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
            renewal_s: work.plan.renewal_s(),
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
    fn fail(&mut self, failure: OrderFailure, now: Moment, options: &AcmeOptions) {
        self.plan.on_failed(now, &options.retry, chance(), failure.pause);
        if self.logged_at.is_none_or(|logged_at| now.uptime.saturating_sub(logged_at) >= MESSAGE_TIME) {
            self.logged_at = Some(now.uptime);
            let again = self.plan.pause_left(now).as_secs();
            let (name, what) = (&self.name, &failure.what);
            write(Level::Warning, "proxy", format_args!("no certificate for {name}: {what}; again in {again} s"));
        }
        self.failure = Some(failure);
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
    let random = RandomState::new().hash_one(0_u8) >> 11;
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
