//! Haggling (the negotiation of options) on the server's side, as a plain state machine that takes bytes and returns
//! actions.
//!
//! Owns: the answer to each option, and the features that client and server agree on. Promises: every option gets an
//! answer (an unknown option `NBD_REP_ERR_UNSUP`, a too long option `NBD_REP_ERR_TOO_BIG`) unless the protocol document
//! requires the connection to end; STARTTLS resets everything that was agreed before it. If TLS is configured, the
//! client must start it before anything else (FORCEDTLS in the protocol document); otherwise TLS is refused by policy
//! (NOTLS).
//!
//! | state | wants | then |
//! |---|---|---|
//! | `Flags` | 4 bytes: the client's flags | `WireRequestHeader`, or the end |
//! | `WireRequestHeader` | 16 bytes: an option | `Data`, `Skip`, or its answer |
//! | `Data` | the option's data | its answer, then `WireRequestHeader` or transmission |
//! | `Skip` | data that are too long | `NBD_REP_ERR_TOO_BIG`, then `WireRequestHeader` |

use std::sync::Arc;

use super::export::{Export, ExportRefusal, ExportTable};
use crate::limits::{OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};
use crate::wire::bytes::text;
use crate::wire::option::{self, ContextRequest, DataError, InfoRequest, info, rep};
use crate::wire::{ALLOCATION_CONTEXT, FIXED_NEWSTYLE, HeaderFormat, MAGIC, NO_ZEROES, OPTION_MAGIC};

/// The number that the server gives to the only metadata context.
pub(crate) const ALLOCATION_ID: u32 = 1;

/// The maximum number of bytes that the server skips in one step.
const SKIP_BYTES: usize = 4096;

/// The next step that the server must take.
pub(crate) enum ServerHandshakeAction {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Encrypt the stream, then call [`ServerHandshake::encrypted`].
    StartTls,
    /// Serve requests.
    Begin(ServerAgreement),
    /// End the connection, for this reason.
    End(String),
}

/// The features that client and server have agreed on.
#[derive(Clone)]
pub(crate) struct ServerAgreement {
    pub export: Arc<Export>,
    pub size_bytes: u64,
    pub headers: HeaderFormat,
    pub has_allocation: bool,
}

enum ServerHandshakeState {
    Flags,
    Header,
    Data { option: u32, length: usize },
    Skip { option: u32, left: usize },
    Over,
}

/// The haggling of one connection.
pub(crate) struct ServerHandshake {
    exports: Arc<ExportTable>,
    requires_tls: bool,
    is_encrypted: bool,
    state: ServerHandshakeState,
    is_fixed: bool,
    sends_zeroes: bool,
    options: u32,
    headers: HeaderFormat,
    /// The export for which the client last chose `base:allocation`.
    context: Option<Arc<Export>>,
}

impl ServerHandshake {
    pub fn new(exports: Arc<ExportTable>, requires_tls: bool) -> ServerHandshake {
        ServerHandshake {
            exports,
            requires_tls,
            is_encrypted: false,
            state: ServerHandshakeState::Flags,
            is_fixed: false,
            sends_zeroes: true,
            options: 0,
            headers: HeaderFormat::Simple,
            context: None,
        }
    }

    /// A server's first message.
    pub fn greeting(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(18);
        out.extend(MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        out
    }

    /// The number of bytes that the caller must read next; 0 when the haggling is over.
    pub fn wants(&self) -> usize {
        match self.state {
            ServerHandshakeState::Flags => 4,
            ServerHandshakeState::Header => option::HEADER_BYTES,
            ServerHandshakeState::Data { length, .. } => length,
            ServerHandshakeState::Skip { left, .. } => left.min(SKIP_BYTES),
            ServerHandshakeState::Over => 0,
        }
    }

    /// Processes the bytes that [`wants`](Self::wants) requested.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<ServerHandshakeAction> {
        let mut actions = Vec::new();
        match self.state {
            ServerHandshakeState::Flags => self.flags(bytes, &mut actions),
            ServerHandshakeState::Header => self.header(bytes, &mut actions),
            ServerHandshakeState::Data { option, .. } => {
                self.state = ServerHandshakeState::Header;
                self.answer(option, bytes, &mut actions);
            }
            ServerHandshakeState::Skip { option, left } => {
                let left = left.saturating_sub(bytes.len());
                self.state = ServerHandshakeState::Skip { option, left };
                if left == 0 {
                    self.state = ServerHandshakeState::Header;
                    let message = format!("an option has at most {OPTION_BYTES_MAX} bytes here");
                    actions.push(refuse(option, rep::ERR_TOO_BIG, &message));
                }
            }
            ServerHandshakeState::Over => {}
        }
        if actions
            .iter()
            .any(|action| matches!(action, ServerHandshakeAction::Begin(_) | ServerHandshakeAction::End(_)))
        {
            self.state = ServerHandshakeState::Over;
        }
        actions
    }

    /// Records that the stream is encrypted. Everything that was agreed before is reset.
    pub fn encrypted(&mut self) {
        self.is_encrypted = true;
        self.headers = HeaderFormat::Simple;
        self.context = None;
    }

    fn flags(&mut self, bytes: &[u8], actions: &mut Vec<ServerHandshakeAction>) {
        let flags = bytes.try_into().map_or(u32::MAX, u32::from_be_bytes);
        self.is_fixed = flags & u32::from(FIXED_NEWSTYLE) != 0;
        self.sends_zeroes = flags & u32::from(NO_ZEROES) == 0;
        self.state = ServerHandshakeState::Header;
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            actions.push(ServerHandshakeAction::End(format!("the client has set flags that do not exist: {flags:#x}")));
        } else if self.requires_tls && !self.is_fixed {
            actions
                .push(ServerHandshakeAction::End("the client cannot negotiate TLS, which is required here".to_owned()));
        }
    }

    fn header(&mut self, bytes: &[u8], actions: &mut Vec<ServerHandshakeAction>) {
        let Some((option, length)) = option::header(bytes) else {
            return actions
                .push(ServerHandshakeAction::End("an option does not begin with its magic number".to_owned()));
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return actions
                .push(ServerHandshakeAction::End(format!("the client has sent more than {OPTIONS_MAX} options")));
        }
        if option != option::EXPORT_NAME && !self.is_fixed {
            let name = option::name(option);
            return actions.push(ServerHandshakeAction::End(format!("{name} without fixed newstyle")));
        }
        match length {
            0 => self.answer(option, &[], actions),
            length if length <= OPTION_BYTES_MAX => {
                self.state = ServerHandshakeState::Data { option, length: length as usize }
            }
            length if length <= OPTION_SKIP_BYTES_MAX && option != option::EXPORT_NAME => {
                self.state = ServerHandshakeState::Skip { option, left: length as usize };
            }
            length => {
                let name = option::name(option);
                actions.push(ServerHandshakeAction::End(format!("{name} with {length} bytes, more than is skipped")));
            }
        }
    }

    fn answer(&mut self, option: u32, data: &[u8], actions: &mut Vec<ServerHandshakeAction>) {
        if self.requires_tls && !self.is_encrypted && !matches!(option, option::STARTTLS | option::ABORT) {
            return actions.push(match option {
                option::EXPORT_NAME => {
                    ServerHandshakeAction::End("NBD_OPT_EXPORT_NAME before TLS, which is required".to_owned())
                }
                _ => refuse(option, rep::ERR_TLS_REQD, "this server is used with TLS alone: nbds://"),
            });
        }
        match option {
            option::EXPORT_NAME if self.headers.is_extended() => {
                actions.push(ServerHandshakeAction::End("NBD_OPT_EXPORT_NAME with extended headers".to_owned()));
            }
            option::EXPORT_NAME => self.export_name(data, actions),
            option::ABORT => {
                actions.push(acknowledge(option));
                actions.push(ServerHandshakeAction::End("the client has ended the negotiation".to_owned()));
            }
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS | option::STARTTLS
                if !data.is_empty() =>
            {
                actions.push(refuse(option, rep::ERR_INVALID, "this option has no data"));
            }
            option::LIST => {
                for (name, description) in self.exports.listed() {
                    let mut data = (name.len() as u32).to_be_bytes().to_vec();
                    data.extend(name.as_bytes());
                    data.extend(description.as_bytes());
                    actions.push(ServerHandshakeAction::Send(option::encode_reply(option, rep::SERVER, &data)));
                }
                actions.push(acknowledge(option));
            }
            option::STRUCTURED_REPLY if self.headers.is_extended() => {
                actions.push(refuse(option, rep::ERR_EXT_HEADER_REQD, "extended headers were chosen already"));
            }
            option::STRUCTURED_REPLY => {
                self.headers = HeaderFormat::Structured;
                actions.push(acknowledge(option));
            }
            option::EXTENDED_HEADERS => {
                self.headers = HeaderFormat::Extended;
                actions.push(acknowledge(option));
            }
            option::STARTTLS if self.is_encrypted => {
                actions.push(refuse(option, rep::ERR_INVALID, "the connection is encrypted already"));
            }
            option::STARTTLS if !self.requires_tls => {
                actions.push(refuse(option, rep::ERR_POLICY, "this server has no certificate"));
            }
            option::STARTTLS => {
                actions.push(acknowledge(option));
                actions.push(ServerHandshakeAction::StartTls);
            }
            option::INFO | option::GO => self.info(option, data, actions),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, actions),
            _ => actions.push(refuse(option, rep::ERR_UNSUP, "this option is not known here")),
        }
    }

    fn export_name(&mut self, data: &[u8], actions: &mut Vec<ServerHandshakeAction>) {
        let unknown = || ExportRefusal::Unknown("the name is no text".to_owned());
        let export = match text(data).map_err(|_| unknown()).and_then(|name| self.exports.find(name)) {
            Ok(export) => export,
            Err(ExportRefusal::Unknown(_)) => {
                return actions.push(ServerHandshakeAction::End(
                    "NBD_OPT_EXPORT_NAME of an export that does not exist".to_owned(),
                ));
            }
            Err(ExportRefusal::Refused(why)) => {
                return actions.push(ServerHandshakeAction::End(format!("NBD_OPT_EXPORT_NAME: {why}")));
            }
        };
        let agreed = self.agreed(export);
        let mut out = agreed.size_bytes.to_be_bytes().to_vec();
        out.extend(agreed.export.flags(self.headers.is_structured()).to_be_bytes());
        if self.sends_zeroes {
            out.extend([0; 124]);
        }
        actions.push(ServerHandshakeAction::Send(out));
        actions.push(ServerHandshakeAction::Begin(agreed));
    }

    fn agreed(&self, export: Arc<Export>) -> ServerAgreement {
        let has_allocation = self.context.as_ref().is_some_and(|chosen| Arc::ptr_eq(chosen, &export));
        let size_bytes = export.device().exact_bytes();
        ServerAgreement { export, size_bytes, headers: self.headers, has_allocation }
    }

    fn info(&mut self, option: u32, data: &[u8], actions: &mut Vec<ServerHandshakeAction>) {
        let request = match InfoRequest::decode(data) {
            Ok(request) => request,
            Err(error) => return actions.push(malformed(option, error)),
        };
        let export = match self.exports.find(request.name) {
            Ok(export) => export,
            Err(missing) => return actions.push(absent(option, &missing)),
        };
        let agreed = self.agreed(export);
        let export = &agreed.export;
        let mut tell = |kind: u16, payload: &[u8]| {
            let data = [&kind.to_be_bytes()[..], payload].concat();
            actions.push(ServerHandshakeAction::Send(option::encode_reply(option, rep::INFO, &data)));
        };
        let mut payload = agreed.size_bytes.to_be_bytes().to_vec();
        payload.extend(export.flags(self.headers.is_structured()).to_be_bytes());
        tell(info::EXPORT, &payload);
        if request.requests.contains(&info::NAME) {
            tell(info::NAME, export.name().as_bytes());
        }
        if request.requests.contains(&info::DESCRIPTION) && !export.description().is_empty() {
            tell(info::DESCRIPTION, export.description().as_bytes());
        }
        if request.requests.contains(&info::BLOCK_SIZE) {
            let (minimum, preferred, payload) = export.block_sizes();
            tell(info::BLOCK_SIZE, &[minimum, preferred, payload].map(u32::to_be_bytes).concat());
        }
        actions.push(acknowledge(option));
        if option == option::GO {
            actions.push(ServerHandshakeAction::Begin(agreed));
        }
    }

    fn contexts(&mut self, option: u32, data: &[u8], actions: &mut Vec<ServerHandshakeAction>) {
        let is_set = option == option::SET_META_CONTEXT;
        if is_set {
            // A failed choice of contexts also resets the earlier choice.
            self.context = None;
        }
        if !self.headers.is_structured() {
            return actions.push(refuse(option, rep::ERR_INVALID, "structured replies come first"));
        }
        let request = match ContextRequest::decode(data) {
            Ok(request) => request,
            Err(error) => return actions.push(malformed(option, error)),
        };
        let export = match self.exports.find(request.name) {
            Ok(export) => export,
            Err(missing) => return actions.push(absent(option, &missing)),
        };
        if request.queries.iter().any(|query| !query.contains(':')) {
            return actions.push(refuse(option, rep::ERR_INVALID, "a query has no colon behind its namespace"));
        }
        let is_named = request.queries.contains(&ALLOCATION_CONTEXT);
        let is_listed = request.queries.is_empty() || request.queries.contains(&"base:");
        if is_named || (!is_set && is_listed) {
            let id = if is_set { ALLOCATION_ID } else { 0 };
            let data = [&id.to_be_bytes()[..], ALLOCATION_CONTEXT.as_bytes()].concat();
            actions.push(ServerHandshakeAction::Send(option::encode_reply(option, rep::META_CONTEXT, &data)));
        }
        if is_set && is_named {
            self.context = Some(export);
        }
        actions.push(acknowledge(option));
    }
}

fn acknowledge(option: u32) -> ServerHandshakeAction {
    ServerHandshakeAction::Send(option::encode_reply(option, rep::ACK, &[]))
}

fn refuse(option: u32, reply: u32, message: &str) -> ServerHandshakeAction {
    ServerHandshakeAction::Send(option::encode_reply(option, reply, message.as_bytes()))
}

/// The answer to an option if the client does not get the export that it names.
fn absent(option: u32, missing: &ExportRefusal) -> ServerHandshakeAction {
    match missing {
        ExportRefusal::Unknown(why) => refuse(option, rep::ERR_UNKNOWN, why),
        ExportRefusal::Refused(why) => refuse(option, rep::ERR_POLICY, why),
    }
}

fn malformed(option: u32, error: DataError) -> ServerHandshakeAction {
    match error {
        DataError::Malformed => refuse(option, rep::ERR_INVALID, "the lengths in the option do not fit its length"),
        DataError::NotText => refuse(option, rep::ERR_INVALID, "a name is not UTF-8, or has a NUL in it"),
        DataError::TooBig => {
            refuse(option, rep::ERR_TOO_BIG, "a name of more than 4096 bytes, or more than 1024 items")
        }
    }
}
