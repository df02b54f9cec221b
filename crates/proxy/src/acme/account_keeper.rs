//! The account at the authority.
//!
//! Owns: the account in use, and its file. Promises: an account is made only if there is no file of one; one whose file
//! cannot be written is used from memory, and written later. Leaves to others: when an account may be made.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{Account, NewAccount};
use nectary_host::log::{LogLevel, LogThrottle};

use super::AcmeOptions;
use super::authority_client::{AskedPause, AuthorityClient};
use super::order_failure::{FailureKind, OrderFailure};
use super::state_files::{StateFiles, account_text, parse_account};

/// The time between two messages about a file that cannot be written.
const MESSAGE_TIME: Duration = Duration::from_secs(3600);

/// The account at the authority.
pub(crate) struct AccountKeeper {
    options: Arc<AcmeOptions>,
    files: StateFiles,
    account: Option<Account>,
    /// The text of the account's file as long as it could not be written.
    unwritten: Option<String>,
    pause: AskedPause,
}

impl AccountKeeper {
    /// Nothing is read or made yet.
    pub fn new(options: Arc<AcmeOptions>, files: StateFiles) -> AccountKeeper {
        AccountKeeper { options, files, account: None, unwritten: None, pause: AskedPause::default() }
    }

    /// Uses other options. Whether the same account serves is found out by the next request.
    pub fn follow(&mut self, options: Arc<AcmeOptions>, files: StateFiles) {
        self.account = None;
        if files != self.files {
            self.unwritten = None;
        }
        (self.options, self.files) = (options, files);
    }

    /// Reads the account and the authority's directory again with the next request: they may have changed.
    pub fn forget(&mut self) {
        self.account = None;
    }

    /// Whether an account is in use.
    pub fn is_in_use(&self) -> bool {
        self.account.is_some()
    }

    /// Takes the pause that the authority has asked for with its last refusal.
    pub fn take_pause(&self) -> Option<Duration> {
        self.pause.take()
    }

    /// Why it is not known now whether there is an account, so none may be made; `None` if it is.
    pub fn unreadable(&self) -> Option<String> {
        if self.account.is_some() || self.unwritten.is_some() {
            return None;
        }
        let error = self.files.read_account().err().filter(|error| error.kind() != io::ErrorKind::InvalidData)?;
        Some(format!("{} cannot be read: {error}", self.files.account_path().display()))
    }

    /// The account; `None` if there is none.
    pub async fn find(&mut self) -> Result<Option<Account>, OrderFailure> {
        if let Some(account) = &self.account {
            return Ok(Some(account.clone()));
        }
        self.write();
        let path = self.files.account_path();
        let unusable = |what: String| {
            OrderFailure::new(FailureKind::Account, format!("{} cannot be used: {what}", path.display()))
        };
        let found = match &self.unwritten {
            Some(text) => Some(text.clone().into_bytes()),
            None => self.files.read_account().map_err(|error| unusable(error.to_string()))?,
        };
        let Some(found) = found else { return Ok(None) };
        let credentials = parse_account(&found, &self.options.directory).map_err(unusable)?;
        let account = Account::builder_with_http(Box::new(self.client()?)).from_credentials(credentials).await?;
        self.account = Some(account.clone());
        Ok(Some(account))
    }

    /// Makes an account, in place of the one that there may be.
    pub async fn make(&mut self) -> Result<Account, OrderFailure> {
        let contact: Vec<String> = self.options.contact.iter().map(|address| format!("mailto:{address}")).collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let wanted = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let builder = Account::builder_with_http(Box::new(self.client()?));
        let made = builder.create(&wanted, self.options.directory.clone(), None).await;
        let (account, credentials) = made.map_err(OrderFailure::of_new_account)?;
        let text = account_text(&credentials).map_err(|what| OrderFailure::new(FailureKind::Account, what))?;
        self.unwritten = Some(text);
        self.write();
        self.account = Some(account.clone());
        Ok(account)
    }

    /// Writes the account if it is not written yet. *Returns*: whether it is written, or there is none.
    pub fn write(&mut self) -> bool {
        let Some(text) = &self.unwritten else { return true };
        match self.files.write_account(text) {
            Ok(()) => {
                self.unwritten = None;
                true
            }
            Err(error) => {
                static UNWRITTEN: LogThrottle = LogThrottle::every(MESSAGE_TIME);
                let what = format!("{} cannot be written: {error}", self.files.account_path().display());
                UNWRITTEN.write(LogLevel::Error, "proxy", format_args!("{what}; the account is used from memory"));
                false
            }
        }
    }

    fn client(&self) -> Result<AuthorityClient, OrderFailure> {
        AuthorityClient::new(self.options.ca.as_deref(), self.pause.clone())
            .map_err(|error| OrderFailure::new(FailureKind::Unreachable, error.to_string()))
    }
}
