//! Functions for fuzz targets: they run the state machines of client and server on arbitrary bytes.
//!
//! This module is not part of the public interface and changes without notice.

use std::sync::Arc;

use nectary_block::MemoryDevice;

use crate::client::handshake::{ClientHandshake, ClientHandshakeAction as ClientAction, ConnectGoal};
use crate::client::replies::{ExpectedReply, ReplyDecoder, ReplyStep};
use crate::server::handshake::{ServerHandshake, ServerHandshakeAction};
use crate::server::{Export, ExportTable, check};
use crate::wire::reply::{self, ChunkTarget};
use crate::wire::request::{self, WireRequestHeader};
use crate::wire::{CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, HeaderFormat, SIMPLE_REPLY_MAGIC};

/// The maximum number of bytes that one step of the protocol may read at once. It is higher than every limit on the
/// length of a part of a message.
const STEP_BYTES_MAX: usize = 32 << 20;

/// The input, from which each step of the protocol takes the bytes of the other side.
struct FuzzInput<'a>(&'a [u8]);

impl<'a> FuzzInput<'a> {
    fn next(&mut self, count: usize) -> Option<&'a [u8]> {
        assert!(count <= STEP_BYTES_MAX, "a machine wants {count} bytes at once");
        let (next, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(next)
    }
}

/// Runs a server's haggling and requests; returns the number of bytes that the server sends.
pub fn serve(input: &[u8], requires_tls: bool) -> usize {
    let export = |name| Export::new(name, "about it", Arc::new(MemoryDevice::new(1 << 20)), name == "b");
    let exports: Vec<Export> = ["a", "b"].into_iter().filter_map(|name| export(name).ok()).collect();
    let exports = Arc::new(ExportTable::new(exports).unwrap_or_default());
    let mut machine = ServerHandshake::new(exports, requires_tls);
    let (mut feed, mut sent) = (FuzzInput(input), 0);
    while let Some(bytes) = Some(machine.wants()).filter(|&wants| wants > 0).and_then(|wants| feed.next(wants)) {
        for action in machine.take(bytes) {
            match action {
                ServerHandshakeAction::Send(bytes) => sent += bytes.len(),
                ServerHandshakeAction::StartTls => machine.encrypted(),
                ServerHandshakeAction::End(_) => return sent,
                ServerHandshakeAction::Begin(agreed) => {
                    let headers = agreed.headers;
                    while let Some(bytes) = feed.next(request::header_bytes(headers)) {
                        let Ok(header) = WireRequestHeader::decode(bytes, headers) else { return sent };
                        // Encoding adds the flag of a payload.
                        let again = WireRequestHeader::decode(&header.encode(headers), headers);
                        assert!(
                            again.is_ok_and(|again| again.length == header.length && again.cookie == header.cookie)
                        );
                        if let Ok(command) = check(&header, &agreed) {
                            let inside = header.offset + header.length <= agreed.size_bytes;
                            assert!(inside, "{command:?} leaves the export");
                        }
                    }
                    return sent;
                }
            }
        }
    }
    sent
}

/// Runs a client's haggling. `goal` chooses the client's goal and may be any number.
pub fn haggle(input: &[u8], goal: u8) {
    let goals = [ConnectGoal::Transmit, ConnectGoal::Info, ConnectGoal::List];
    let mut machine = ClientHandshake::new(goals[usize::from(goal) % 3], "a", goal & 4 != 0);
    let mut feed = FuzzInput(input);
    while let Some(bytes) = Some(machine.wants()).filter(|&wants| wants > 0).and_then(|wants| feed.next(wants)) {
        let mut actions = machine.take(bytes);
        if actions.iter().any(|action| matches!(action, ClientAction::StartTls)) {
            actions = machine.encrypted();
        }
        for action in actions {
            if let ClientAction::Agreed { agreed, .. } = action
                && let Some((minimum, preferred, payload)) = agreed.block_sizes
            {
                assert!(minimum > 0 && minimum <= preferred && payload >= minimum, "{agreed:?}");
            }
        }
    }
}

/// Runs a client that receives replies to a read of 64 KiB, a request for extents and a flush, with the cookies 1, 2
/// and 3. `form` chooses the headers of the replies and may be any number.
pub fn replies(input: &[u8], form: u8) {
    const LENGTH: u32 = 64 << 10;
    let headers = FORMS[usize::from(form) % FORMS.len()];
    let mut machine = ReplyDecoder::new(headers, headers.is_structured().then_some(1));
    machine.expect(1, 4096, ExpectedReply::Data { offset: 4096, length: LENGTH });
    machine.expect(2, 0, ExpectedReply::Status);
    machine.expect(3, 0, ExpectedReply::Nothing);
    // Each byte of the data may arrive only once.
    let mut seen = vec![false; LENGTH as usize];
    let mut note = |at: u32, length: u32| {
        for byte in &mut seen[at as usize..(at + length) as usize] {
            assert!(!std::mem::replace(byte, true), "a byte has come twice");
        }
    };
    let mut feed = FuzzInput(input);
    let mut done = std::collections::BTreeSet::new();
    while let Some(bytes) = feed.next(machine.wants()) {
        let Ok(mut step) = machine.take(bytes) else { return };
        loop {
            match step {
                ReplyStep::More => break,
                ReplyStep::Data { cookie, at, length } => {
                    assert_eq!(cookie, 1);
                    note(at, length);
                    if feed.next(length as usize).is_none() {
                        return;
                    }
                }
                ReplyStep::Hole { cookie, at, length } => {
                    assert_eq!(cookie, 1);
                    note(at, length);
                }
                ReplyStep::Done(cookie, _) => {
                    assert!(done.insert(cookie), "request {cookie} has ended twice");
                    break;
                }
            }
            match machine.data_taken() {
                Ok(next) => step = next,
                Err(_) => return,
            }
        }
    }
}

/// The forms of headers, in the order in which [`reply_seeds`] has their seeds.
const FORMS: [HeaderFormat; 3] = [HeaderFormat::Simple, HeaderFormat::Structured, HeaderFormat::Extended];

/// Valid replies, simple, structured and extended, as seeds for mutations.
pub fn reply_seeds() -> Vec<Vec<u8>> {
    FORMS.iter().map(|&headers| if headers.is_structured() { chunks(headers) } else { simple() }).collect()
}

fn simple() -> Vec<u8> {
    let mut simple = Vec::new();
    reply::simple(&mut simple, 0, 3);
    reply::simple(&mut simple, 5, 2);
    reply::simple(&mut simple, 0, 1);
    simple
}

fn chunks(headers: HeaderFormat) -> Vec<u8> {
    let mut out = Vec::new();
    let to = |cookie, offset| ChunkTarget { headers, cookie, offset };
    for (offset, length, flags) in [(4096 + 512, 256u32, 0), (4096, 512, 0)] {
        reply::chunk(&mut out, to(1, 4096), flags, reply::OFFSET_DATA, 8 + length);
        out.extend(u64::to_be_bytes(offset));
        out.extend(vec![7; length as usize]);
    }
    reply::chunk(&mut out, to(1, 4096), 0, reply::OFFSET_HOLE, 12);
    out.extend(u64::to_be_bytes(4096 + 768));
    out.extend(u32::to_be_bytes((64 << 10) - 768));
    reply::chunk(&mut out, to(1, 4096), reply::DONE, reply::NONE, 0);
    if headers.is_extended() {
        reply::chunk(&mut out, to(2, 0), reply::DONE, reply::BLOCK_STATUS_EXT, 8 + 32);
        out.extend([1u32, 2].map(u32::to_be_bytes).concat());
        out.extend([4096u64, 0, 1 << 40, 3].map(u64::to_be_bytes).concat());
    } else {
        reply::chunk(&mut out, to(2, 0), reply::DONE, reply::BLOCK_STATUS, 4 + 16);
        out.extend([1u32, 4096, 0, 8192, 3].map(u32::to_be_bytes).concat());
    }
    reply::error(&mut out, to(3, 0), 28, "no room");
    out
}

/// The magic numbers of replies.
pub fn reply_words() -> [[u8; 4]; 3] {
    [SIMPLE_REPLY_MAGIC, CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC].map(u32::to_be_bytes)
}
