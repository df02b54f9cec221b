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

use crate::error::ErrorKind;
use crate::limits::{OPTION_REPLIES_MAX, OPTION_REPLY_BYTES_MAX};
use crate::wire::bytes::{Reader, message, text};
use crate::wire::option::{self, ContextRequest, InfoRequest, info, rep};
use crate::wire::{ALLOCATION_CONTEXT, FIXED_NEWSTYLE, Headers, MAGIC, NO_ZEROES, OLD_STYLE_MAGIC, OPTION_MAGIC};

/// The purpose for which a client connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// To read and write.
    Transmit,
    /// To get the server's information about an export.
    Info,
    /// To list the exports.
    List,
}

/// The next step that the client must take.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Encrypt the stream, then call [`Handshake::encrypted`].
    StartTls,
    /// The goal is reached. If `in_transmission` is true, the server already waits for requests. This can happen even
    /// for [`Goal::Info`].
    Agreed { agreed: Box<Agreed>, in_transmission: bool },
    /// The list of exports.
    Listed(Vec<Listed>),
    /// The goal cannot be reached, for this reason.
    Fail(ErrorKind, String),
}

/// The features that client and server have agreed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub size_bytes: u64,
    pub flags: u16,
    pub headers: Headers,
    pub allocation: Option<u32>,
    pub name: Option<String>,
    pub description: Option<String>,
    /// The smallest block, the preferred block and the largest payload, in bytes.
    pub block_sizes: Option<(u32, u32, u32)>,
}

/// An export in a server's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The name of the export.
    pub name: String,
    /// The server's description of the export.
    pub description: Option<String>,
}

enum State {
    Greeting,
    ReplyHeader,
    ReplyData { reply: u32, length: usize },
    ExportName,
    Zeroes,
    Over,
}

/// The haggling of one connection.
pub(crate) struct Handshake {
    goal: Goal,
    export: String,
    wants_tls: bool,
    state: State,
    /// The option for which the client awaits the answer.
    option: u32,
    replies: u32,
    has_zeroes: bool,
    has_export: bool,
    agreed: Agreed,
    listed: Vec<Listed>,
}

impl Handshake {
    pub fn new(goal: Goal, export: &str, wants_tls: bool) -> Handshake {
        Handshake {
            goal,
            export: export.to_owned(),
            wants_tls,
            state: State::Greeting,
            option: 0,
            replies: 0,
            has_zeroes: true,
            has_export: false,
            agreed: Agreed::default(),
            listed: Vec::new(),
        }
    }

    /// The number of bytes that the caller must read next; 0 when the haggling is over.
    pub fn wants(&self) -> usize {
        match self.state {
            State::Greeting => 18,
            State::ReplyHeader => option::REPLY_HEADER_BYTES,
            State::ReplyData { length, .. } => length,
            State::ExportName => 10,
            State::Zeroes => 124,
            State::Over => 0,
        }
    }

    /// Processes the bytes that [`wants`](Self::wants) requested.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Action> {
        let mut actions = Vec::new();
        match self.state {
            State::Greeting => self.greeting(bytes, &mut actions),
            State::ReplyHeader => self.reply_header(bytes, &mut actions),
            State::ReplyData { reply, .. } => {
                self.state = State::ReplyHeader;
                self.reply(reply, bytes, &mut actions);
            }
            State::ExportName => {
                self.export_info(bytes);
                if self.has_zeroes {
                    self.state = State::Zeroes;
                } else {
                    self.agree(true, &mut actions);
                }
            }
            State::Zeroes => self.agree(true, &mut actions),
            State::Over => {}
        }
        let is_end = |action: &Action| matches!(action, Action::Agreed { .. } | Action::Listed(_) | Action::Fail(..));
        if actions.iter().any(is_end) {
            self.state = State::Over;
        }
        actions
    }

    /// Records that the stream is encrypted from now on. Returns the next actions.
    pub fn encrypted(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.begin(&mut actions);
        actions
    }

    fn greeting(&mut self, bytes: &[u8], actions: &mut Vec<Action>) {
        let mut reader = Reader::new(bytes);
        let mut fail = |kind, message: &str| actions.push(Action::Fail(kind, message.to_owned()));
        let flags = match (reader.u64(), reader.u64(), reader.u16()) {
            (Some(MAGIC), Some(OPTION_MAGIC), Some(flags)) => flags,
            (Some(MAGIC), Some(OLD_STYLE_MAGIC), _) => {
                return fail(ErrorKind::Unsupported, "the server speaks the old style, which is not supported");
            }
            _ => return fail(ErrorKind::Protocol, "this is no NBD server: it does not begin as one"),
        };
        let is_fixed = flags & FIXED_NEWSTYLE != 0;
        if !is_fixed && (self.wants_tls || self.goal == Goal::List) {
            return fail(ErrorKind::Unsupported, "the server knows no fixed newstyle, and so neither TLS nor a list");
        }
        let mine = flags & (FIXED_NEWSTYLE | NO_ZEROES);
        self.has_zeroes = mine & NO_ZEROES == 0;
        actions.push(Action::Send(u32::from(mine).to_be_bytes().to_vec()));
        match (is_fixed, self.wants_tls) {
            (true, true) => self.send(option::STARTTLS, &[], actions),
            (true, false) => self.begin(actions),
            (false, _) => self.send_export_name(actions),
        }
    }

    /// Sends the first option that the goal needs.
    fn begin(&mut self, actions: &mut Vec<Action>) {
        match self.goal {
            Goal::List => self.send(option::LIST, &[], actions),
            _ => self.send(option::EXTENDED_HEADERS, &[], actions),
        }
    }

    fn send(&mut self, option: u32, data: &[u8], actions: &mut Vec<Action>) {
        self.option = option;
        self.replies = 0;
        self.state = State::ReplyHeader;
        actions.push(Action::Send(option::encode(option, data)));
    }

    fn send_export_name(&mut self, actions: &mut Vec<Action>) {
        let name = self.export.clone();
        self.send(option::EXPORT_NAME, name.as_bytes(), actions);
        self.state = State::ExportName;
    }

    fn send_context(&mut self, actions: &mut Vec<Action>) {
        let data = ContextRequest { name: &self.export, queries: vec![ALLOCATION_CONTEXT] }.encode();
        self.send(option::SET_META_CONTEXT, &data, actions);
    }

    fn send_export(&mut self, actions: &mut Vec<Action>) {
        let requests = vec![info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
        let data = InfoRequest { name: &self.export, requests }.encode();
        let option = if self.goal == Goal::Info { option::INFO } else { option::GO };
        self.send(option, &data, actions);
    }

    fn reply_header(&mut self, bytes: &[u8], actions: &mut Vec<Action>) {
        let protocol = |message: String| Action::Fail(ErrorKind::Protocol, message);
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
            self.state = State::ReplyData { reply, length: length as usize };
        }
    }

    fn reply(&mut self, reply: u32, data: &[u8], actions: &mut Vec<Action>) {
        if reply & rep::IS_ERROR != 0 {
            return self.refused(reply, data, actions);
        }
        match (self.option, reply) {
            (option::STARTTLS, rep::ACK) => actions.push(Action::StartTls),
            (option::EXTENDED_HEADERS, rep::ACK) => {
                self.agreed.headers = Headers::Extended;
                self.send_context(actions);
            }
            (option::STRUCTURED_REPLY, rep::ACK) => {
                self.agreed.headers = Headers::Structured;
                self.send_context(actions);
            }
            (option::SET_META_CONTEXT, rep::META_CONTEXT) => {
                let mut reader = Reader::new(data);
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
                actions.push(Action::Send(option::encode(option::ABORT, &[])));
                actions.push(Action::Listed(std::mem::take(&mut self.listed)));
            }
            (option, reply) => {
                let message = format!("an answer of type {reply} to {}, which does not fit", option::name(option));
                actions.push(Action::Fail(ErrorKind::Protocol, message));
            }
        }
    }

    fn refused(&mut self, reply: u32, data: &[u8], actions: &mut Vec<Action>) {
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
            rep::ERR_TLS_REQD => (ErrorKind::Refused, format!("the server wants TLS: write nbds:// for nbd://{said}")),
            rep::ERR_UNKNOWN => (ErrorKind::Absent, format!("the server has no export \"{}\"{said}", self.export)),
            rep::ERR_POLICY => (ErrorKind::Refused, format!("the server refuses {name} by policy{said}")),
            rep::ERR_UNSUP | rep::ERR_PLATFORM => (ErrorKind::Unsupported, format!("the server has no {name}{said}")),
            rep::ERR_SHUTDOWN => (ErrorKind::Refused, format!("the server is shutting down{said}")),
            _ => (ErrorKind::Protocol, format!("the server answers {name} with {}{said}", option::error_name(reply))),
        };
        actions.push(Action::Fail(kind, message));
    }

    /// Reads the size and the flags of an export, which two kinds of replies contain.
    fn export_info(&mut self, bytes: &[u8]) -> bool {
        let mut reader = Reader::new(bytes);
        match (reader.u64(), reader.u16()) {
            (Some(size_bytes), Some(flags)) if reader.is_empty() => {
                (self.agreed.size_bytes, self.agreed.flags) = (size_bytes, flags);
                true
            }
            _ => false,
        }
    }

    fn info(&mut self, data: &[u8], actions: &mut Vec<Action>) {
        let mut reader = Reader::new(data);
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
                let mut reader = Reader::new(payload);
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
            actions.push(Action::Fail(ErrorKind::Protocol, message));
        }
    }

    fn server(&mut self, data: &[u8], actions: &mut Vec<Action>) {
        let mut reader = Reader::new(data);
        match reader.string() {
            Some(Ok(name)) => {
                let description = message(reader.rest());
                let description = (!description.is_empty()).then_some(description);
                self.listed.push(Listed { name: name.to_owned(), description });
            }
            _ => {
                let message = "the server lists an export in a way that is not understood".to_owned();
                actions.push(Action::Fail(ErrorKind::Protocol, message));
            }
        }
    }

    fn agree(&mut self, in_transmission: bool, actions: &mut Vec<Action>) {
        if self.goal == Goal::Info && !in_transmission {
            actions.push(Action::Send(option::encode(option::ABORT, &[])));
        }
        if self.agreed.size_bytes > DEVICE_BYTES_MAX {
            let message = format!("the export has {} bytes; less than 8E are taken", self.agreed.size_bytes);
            return actions.push(Action::Fail(ErrorKind::Unsupported, message));
        }
        if self.option == option::EXPORT_NAME {
            self.agreed.block_sizes = None;
        }
        actions.push(Action::Agreed { agreed: Box::new(std::mem::take(&mut self.agreed)), in_transmission });
    }
}
