//! Haggling (the negotiation of options) on the client's side, as a plain state machine that takes bytes and returns
//! actions.
//!
//! Owns: the order of options that the client sends, and how it continues when the server refuses one. If the client
//! wants TLS, it requests TLS before everything else. Then it requests extended headers, or structured replies if the
//! server has none, `base:allocation`, and the
//! export with its size constraints by `NBD_OPT_GO`, or by `NBD_OPT_EXPORT_NAME` if the server supports nothing newer.
//! Promises: lengths are bounded before they are used; an unexpected reply ends the haggling with a reason.

use nectary_block::DEVICE_BYTES_MAX;
use serde::Serialize;

use crate::error::NbdErrorKind;
use crate::limits::{OPTION_REPLIES_MAX, OPTION_REPLY_BYTES_MAX};
use crate::wire::bytes::{WireReader, message, text};
use crate::wire::option::{self, ContextRequest, InfoRequest, info, rep};
use crate::wire::{ALLOCATION_CONTEXT, FIXED_NEWSTYLE, HeaderFormat, MAGIC, NO_ZEROES, OLD_STYLE_MAGIC, OPTION_MAGIC};

/// The purpose for which a client connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectGoal {
    /// To read and write.
    Transmit,
    /// To get the server's information about an export.
    Info,
    /// To list the exports.
    List,
}

/// The next step that the client must take.
#[derive(Debug)]
pub(crate) enum ClientHandshakeAction {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Encrypt the stream, then call [`ClientHandshake::encrypted`].
    StartTls,
    /// The goal is reached. If `in_transmission` is true, the server already waits for requests. This can happen even
    /// for [`ConnectGoal::Info`].
    Agreed { agreed: Box<ClientAgreement>, in_transmission: bool },
    /// The list of exports.
    Listed(Vec<ListedExport>),
    /// The goal cannot be reached, for this reason.
    Fail(NbdErrorKind, String),
}

/// The features that client and server have agreed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClientAgreement {
    pub size_bytes: u64,
    pub flags: u16,
    pub headers: HeaderFormat,
    pub allocation: Option<u32>,
    pub name: Option<String>,
    pub description: Option<String>,
    /// The smallest block, the preferred block and the largest payload, in bytes.
    pub block_sizes: Option<(u32, u32, u32)>,
}

/// An export in a server's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedExport {
    /// The name of the export.
    pub name: String,
    /// The server's description of the export.
    pub description: Option<String>,
}

enum ClientHandshakeState {
    Greeting,
    ReplyHeader,
    ReplyData { reply: u32, length: usize },
    ExportName,
    Zeroes,
    Over,
}

/// The haggling of one connection.
pub(crate) struct ClientHandshake {
    goal: ConnectGoal,
    export: String,
    wants_tls: bool,
    state: ClientHandshakeState,
    /// The option for which the client awaits the answer.
    option: u32,
    replies: u32,
    has_zeroes: bool,
    has_export: bool,
    agreed: ClientAgreement,
    listed: Vec<ListedExport>,
}

impl ClientHandshake {
    pub fn new(goal: ConnectGoal, export: &str, wants_tls: bool) -> ClientHandshake {
        ClientHandshake {
            goal,
            export: export.to_owned(),
            wants_tls,
            state: ClientHandshakeState::Greeting,
            option: 0,
            replies: 0,
            has_zeroes: true,
            has_export: false,
            agreed: ClientAgreement::default(),
            listed: Vec::new(),
        }
    }

    /// The number of bytes that the caller must read next; 0 when the haggling is over.
    pub fn wants(&self) -> usize {
        match self.state {
            ClientHandshakeState::Greeting => 18,
            ClientHandshakeState::ReplyHeader => option::REPLY_HEADER_BYTES,
            ClientHandshakeState::ReplyData { length, .. } => length,
            ClientHandshakeState::ExportName => 10,
            ClientHandshakeState::Zeroes => 124,
            ClientHandshakeState::Over => 0,
        }
    }

    /// Processes the bytes that [`wants`](Self::wants) requested.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<ClientHandshakeAction> {
        let mut actions = Vec::new();
        match self.state {
            ClientHandshakeState::Greeting => self.greeting(bytes, &mut actions),
            ClientHandshakeState::ReplyHeader => self.reply_header(bytes, &mut actions),
            ClientHandshakeState::ReplyData { reply, .. } => {
                self.state = ClientHandshakeState::ReplyHeader;
                self.reply(reply, bytes, &mut actions);
            }
            ClientHandshakeState::ExportName => {
                self.export_info(bytes);
                if self.has_zeroes {
                    self.state = ClientHandshakeState::Zeroes;
                } else {
                    self.agree(true, &mut actions);
                }
            }
            ClientHandshakeState::Zeroes => self.agree(true, &mut actions),
            ClientHandshakeState::Over => {}
        }
        let is_end = |action: &ClientHandshakeAction| {
            matches!(
                action,
                ClientHandshakeAction::Agreed { .. }
                    | ClientHandshakeAction::Listed(_)
                    | ClientHandshakeAction::Fail(..)
            )
        };
        if actions.iter().any(is_end) {
            self.state = ClientHandshakeState::Over;
        }
        actions
    }

    /// Records that the stream is encrypted from now on. Returns the next actions.
    pub fn encrypted(&mut self) -> Vec<ClientHandshakeAction> {
        let mut actions = Vec::new();
        self.begin(&mut actions);
        actions
    }

    fn greeting(&mut self, bytes: &[u8], actions: &mut Vec<ClientHandshakeAction>) {
        let mut reader = WireReader::new(bytes);
        let mut fail = |kind, message: &str| actions.push(ClientHandshakeAction::Fail(kind, message.to_owned()));
        let flags = match (reader.u64(), reader.u64(), reader.u16()) {
            (Some(MAGIC), Some(OPTION_MAGIC), Some(flags)) => flags,
            (Some(MAGIC), Some(OLD_STYLE_MAGIC), _) => {
                return fail(NbdErrorKind::Unsupported, "the server speaks the old style, which is not supported");
            }
            _ => return fail(NbdErrorKind::Protocol, "this is no NBD server: it does not begin as one"),
        };
        let is_fixed = flags & FIXED_NEWSTYLE != 0;
        if !is_fixed && (self.wants_tls || self.goal == ConnectGoal::List) {
            return fail(
                NbdErrorKind::Unsupported,
                "the server knows no fixed newstyle, and so neither TLS nor a list",
            );
        }
        let mine = flags & (FIXED_NEWSTYLE | NO_ZEROES);
        self.has_zeroes = mine & NO_ZEROES == 0;
        actions.push(ClientHandshakeAction::Send(u32::from(mine).to_be_bytes().to_vec()));
        match (is_fixed, self.wants_tls) {
            (true, true) => self.send(option::STARTTLS, &[], actions),
            (true, false) => self.begin(actions),
            (false, _) => self.send_export_name(actions),
        }
    }

    /// Sends the first option that the goal needs.
    fn begin(&mut self, actions: &mut Vec<ClientHandshakeAction>) {
        match self.goal {
            ConnectGoal::List => self.send(option::LIST, &[], actions),
            _ => self.send(option::EXTENDED_HEADERS, &[], actions),
        }
    }

    fn send(&mut self, option: u32, data: &[u8], actions: &mut Vec<ClientHandshakeAction>) {
        self.option = option;
        self.replies = 0;
        self.state = ClientHandshakeState::ReplyHeader;
        actions.push(ClientHandshakeAction::Send(option::encode(option, data)));
    }

    fn send_export_name(&mut self, actions: &mut Vec<ClientHandshakeAction>) {
        let name = self.export.clone();
        self.send(option::EXPORT_NAME, name.as_bytes(), actions);
        self.state = ClientHandshakeState::ExportName;
    }

    fn send_context(&mut self, actions: &mut Vec<ClientHandshakeAction>) {
        let data = ContextRequest { name: &self.export, queries: vec![ALLOCATION_CONTEXT] }.encode();
        self.send(option::SET_META_CONTEXT, &data, actions);
    }

    fn send_export(&mut self, actions: &mut Vec<ClientHandshakeAction>) {
        let requests = vec![info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
        let data = InfoRequest { name: &self.export, requests }.encode();
        let option = if self.goal == ConnectGoal::Info { option::INFO } else { option::GO };
        self.send(option, &data, actions);
    }

    fn reply_header(&mut self, bytes: &[u8], actions: &mut Vec<ClientHandshakeAction>) {
        let protocol = |message: String| ClientHandshakeAction::Fail(NbdErrorKind::Protocol, message);
        let name = option::name(self.option);
        let Some((option, reply, length)) = option::reply_header(bytes) else {
            return actions.push(protocol(format!("the answer to {name} does not begin with its magic number")));
        };
        self.replies += 1;
        if option != self.option {
            actions.push(protocol(format!("an answer to option {option}, expected one to {name}")));
        } else if length > OPTION_REPLY_BYTES_MAX {
            let bound = OPTION_REPLY_BYTES_MAX;
            actions.push(protocol(format!("an answer of {length} bytes to {name}, at most {bound} are taken")));
        } else if self.replies > OPTION_REPLIES_MAX {
            actions.push(protocol(format!("more than {OPTION_REPLIES_MAX} answers to {name}")));
        } else if length == 0 {
            self.reply(reply, &[], actions);
        } else {
            self.state = ClientHandshakeState::ReplyData { reply, length: length as usize };
        }
    }

    fn reply(&mut self, reply: u32, data: &[u8], actions: &mut Vec<ClientHandshakeAction>) {
        if reply & rep::IS_ERROR != 0 {
            return self.refused(reply, data, actions);
        }
        match (self.option, reply) {
            (option::STARTTLS, rep::ACK) => actions.push(ClientHandshakeAction::StartTls),
            (option::EXTENDED_HEADERS, rep::ACK) => {
                self.agreed.headers = HeaderFormat::Extended;
                self.send_context(actions);
            }
            (option::STRUCTURED_REPLY, rep::ACK) => {
                self.agreed.headers = HeaderFormat::Structured;
                self.send_context(actions);
            }
            (option::SET_META_CONTEXT, rep::META_CONTEXT) => {
                let mut reader = WireReader::new(data);
                if let Some(id) = reader.u32()
                    && reader.rest() == ALLOCATION_CONTEXT.as_bytes()
                {
                    self.agreed.allocation = Some(id);
                }
            }
            (option::SET_META_CONTEXT, rep::ACK) => self.send_export(actions),
            (option::INFO | option::GO, rep::INFO) => self.info(data, actions),
            (option::INFO | option::GO, rep::ACK) if self.has_export => {
                let in_transmission = self.option == option::GO;
                self.agree(in_transmission, actions);
            }
            (option::LIST, rep::SERVER) => self.server(data, actions),
            (option::LIST, rep::ACK) => {
                actions.push(ClientHandshakeAction::Send(option::encode(option::ABORT, &[])));
                actions.push(ClientHandshakeAction::Listed(std::mem::take(&mut self.listed)));
            }
            (option, reply) => {
                let message = format!("an answer of type {reply} to {}, which does not fit", option::name(option));
                actions.push(ClientHandshakeAction::Fail(NbdErrorKind::Protocol, message));
            }
        }
    }

    fn refused(&mut self, reply: u32, data: &[u8], actions: &mut Vec<ClientHandshakeAction>) {
        match (self.option, reply) {
            // The server accepts no option without TLS, so the connection fails.
            (_, rep::ERR_TLS_REQD) => {}
            (option::EXTENDED_HEADERS, _) => return self.send(option::STRUCTURED_REPLY, &[], actions),
            (option::STRUCTURED_REPLY, _) => return self.send_export(actions),
            (option::SET_META_CONTEXT, _) => {
                self.agreed.allocation = None;
                return self.send_export(actions);
            }
            // The older option cannot be used with extended headers.
            (option::INFO | option::GO, rep::ERR_UNSUP) if !self.agreed.headers.is_extended() => {
                return self.send_export_name(actions);
            }
            _ => {}
        }
        let said = message(data);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        let name = option::name(self.option);
        let (kind, message) = match reply {
            rep::ERR_TLS_REQD => {
                (NbdErrorKind::Refused, format!("the server wants TLS: write nbds:// for nbd://{said}"))
            }
            rep::ERR_UNKNOWN => (NbdErrorKind::Absent, format!("the server has no export \"{}\"{said}", self.export)),
            rep::ERR_POLICY => (NbdErrorKind::Refused, format!("the server refuses {name} by policy{said}")),
            rep::ERR_UNSUP | rep::ERR_PLATFORM => {
                (NbdErrorKind::Unsupported, format!("the server has no {name}{said}"))
            }
            rep::ERR_SHUTDOWN => (NbdErrorKind::Refused, format!("the server is shutting down{said}")),
            _ => {
                (NbdErrorKind::Protocol, format!("the server answers {name} with {}{said}", option::error_name(reply)))
            }
        };
        actions.push(ClientHandshakeAction::Fail(kind, message));
    }

    /// Reads the size and the flags of an export, which two kinds of replies contain.
    fn export_info(&mut self, bytes: &[u8]) -> bool {
        let mut reader = WireReader::new(bytes);
        match (reader.u64(), reader.u16()) {
            (Some(size_bytes), Some(flags)) if reader.is_empty() => {
                (self.agreed.size_bytes, self.agreed.flags) = (size_bytes, flags);
                true
            }
            _ => false,
        }
    }

    fn info(&mut self, data: &[u8], actions: &mut Vec<ClientHandshakeAction>) {
        let mut reader = WireReader::new(data);
        let kind = reader.u16();
        let payload = reader.rest();
        let string = || text(payload).ok().map(str::to_owned);
        let is_good = match kind {
            None => false,
            Some(info::EXPORT) => {
                self.has_export = self.export_info(payload);
                self.has_export
            }
            Some(info::NAME) => {
                self.agreed.name = string();
                self.agreed.name.is_some()
            }
            Some(info::DESCRIPTION) => {
                self.agreed.description = string();
                self.agreed.description.is_some()
            }
            Some(info::BLOCK_SIZE) => {
                let mut reader = WireReader::new(payload);
                match (reader.u32(), reader.u32(), reader.u32()) {
                    (Some(minimum), Some(preferred), Some(payload)) if reader.is_empty() => {
                        self.agreed.block_sizes = Some((minimum, preferred, payload));
                        let is_sound = minimum.is_power_of_two() && preferred.is_power_of_two() && minimum <= 1 << 16;
                        is_sound && preferred >= minimum && payload >= minimum
                    }
                    _ => false,
                }
            }
            // The protocol document says that clients ignore unknown types of information.
            Some(_) => true,
        };
        if !is_good {
            let message = format!("the server describes the export in a way that is not understood (type {kind:?})");
            actions.push(ClientHandshakeAction::Fail(NbdErrorKind::Protocol, message));
        }
    }

    fn server(&mut self, data: &[u8], actions: &mut Vec<ClientHandshakeAction>) {
        let mut reader = WireReader::new(data);
        match reader.string() {
            Some(Ok(name)) => {
                let description = message(reader.rest());
                let description = (!description.is_empty()).then_some(description);
                self.listed.push(ListedExport { name: name.to_owned(), description });
            }
            _ => {
                let message = "the server lists an export in a way that is not understood".to_owned();
                actions.push(ClientHandshakeAction::Fail(NbdErrorKind::Protocol, message));
            }
        }
    }

    fn agree(&mut self, in_transmission: bool, actions: &mut Vec<ClientHandshakeAction>) {
        if self.goal == ConnectGoal::Info && !in_transmission {
            actions.push(ClientHandshakeAction::Send(option::encode(option::ABORT, &[])));
        }
        if self.agreed.size_bytes > DEVICE_BYTES_MAX {
            let message = format!("the export has {} bytes; less than 8E are taken", self.agreed.size_bytes);
            return actions.push(ClientHandshakeAction::Fail(NbdErrorKind::Unsupported, message));
        }
        if self.option == option::EXPORT_NAME {
            self.agreed.block_sizes = None;
        }
        actions.push(ClientHandshakeAction::Agreed {
            agreed: Box::new(std::mem::take(&mut self.agreed)),
            in_transmission,
        });
    }
}
