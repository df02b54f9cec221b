//! Calls that the server does not take: it refuses the message, or the connection breaks whenever the call is sent. And
//! calls whose answer cannot be read.
//!
//! Owns: finding such a call, and failing it. Promises: only that call fails; an operation that the server has done does
//! not fail, unless its answer cannot be read. Leaves to others: sending calls again after each reconnection (`calls`).
//!
//! After a connection to the same server broke for no known reason, the calls without an answer are *probed*: sent one at
//! a time, the next one when the last one is answered. A call during which the connection breaks [`BLAMED_MAX`] times in
//! a row is refused as if the server had refused it. First come operations, and questions that wait for no other host;
//! newer calls wait until these are answered. Then newer calls of this kind are sent as usual, as another host may wait
//! for them, while questions that wait for other hosts are probed. Last, all other calls are sent. They have no contents
//! that a server could refuse.
//!
//! A refused operation may have been done before, on a connection that lost the reply; and its number must be used, as
//! the server does operations in the order of their numbers. So it is replaced by an operation that always fails. If
//! the answer is a success, it is the stored reply of the operation itself, and the caller gets it. Otherwise the
//! operation was not done, and now never is.
//!
//! *Circle*: a refused call is one of `calls`, and the state of `calls` has what is known of refusals.

use std::time::Duration;

use nectary_host::log::{LogLevel, LogThrottle};
use tokio::time::Instant;

use super::{CallAnswer, CallShare, PendingCall, SessionCalls, SharedSession};
use crate::protocol::{AnswerTerms, FileId, MetadataOperation, RefusalCode, ServerRefusal, VolumeMessage};

/// After this many breaks of the connection in a row, the call that was sent last is refused.
const BLAMED_MAX: u32 = 5;
/// The time for which a status names the last refused call.
const NAMED_FOR: Duration = Duration::from_secs(600);

/// What a session knows of refused calls, and of a connection that breaks.
#[derive(Default)]
pub(in crate::client) struct CallRefusals {
    /// Whether the last bulk connection broke, although the server gave no reason.
    pub is_broken: bool,
    /// While calls are probed.
    careful: Option<RefusalProbe>,
    /// The number of refused calls.
    pub count: u64,
    /// The last refusal: when, and why.
    last: Option<(Instant, String)>,
}

/// The state of probing.
#[derive(Clone, Copy)]
struct RefusalProbe {
    /// The calls below this number are probed.
    end: u64,
    /// Whether the calls that wait for no other host are answered.
    is_second: bool,
    /// The call that was sent last.
    probe: Option<u64>,
}

impl CallRefusals {
    /// Whether calls are probed.
    pub fn is_careful(&self) -> bool {
        self.careful.is_some()
    }

    /// Notes and logs a call that failed.
    fn note(&mut self, server: &str, words: String) {
        static REFUSED: LogThrottle = LogThrottle::every(Duration::from_secs(10));
        REFUSED.write(LogLevel::Error, "volume", format_args!("{server}: it does not take a call: {words}"));
        self.count += 1;
        self.last = Some((Instant::now(), words));
    }

    /// Returns the reason of the last refusal, if it is recent.
    pub fn recent(&self) -> Option<String> {
        self.last.as_ref().filter(|(at, _)| at.elapsed() < NAMED_FOR).map(|(_, words)| words.clone())
    }
}

/// A refused call, which waits until it is known whether it was done.
pub(in crate::client) struct RefusedCall {
    /// The refused message.
    message: VolumeMessage,
    failure: ServerRefusal,
}

impl PendingCall {
    /// Whether the server answers the call without waiting for another host or another call.
    fn is_prompt(&self) -> bool {
        matches!(self.share, CallShare::Operations | CallShare::Questions)
            && matches!(self.message, VolumeMessage::Operation { .. } | VolumeMessage::Question { .. })
    }

    /// Gives the caller the answer.
    pub fn answer(self, answer: Result<CallAnswer, ServerRefusal>) {
        let answer = match (self.refused, answer) {
            (None, answer) => answer,
            (Some(_), Ok(said)) => Ok(said),
            // The session has ended, and the operation may have been done: a dropped reply says so.
            (Some(_), Err(failure)) if failure.code == RefusalCode::Ended => return,
            (Some(refused), Err(_)) => Err(refused.failure),
        };
        // The caller may have stopped waiting.
        let _ = self.reply.send(answer);
    }

    /// Puts back the refused message, for a new server, which may take it.
    pub fn retry(&mut self) {
        self.blamed = 0;
        self.may_keep = None;
        if let Some(refused) = self.refused.take() {
            self.message = refused.message;
        }
    }
}

impl SessionCalls {
    /// Begins to probe if the last connection, to the same server, broke. Returns a call that must be refused.
    pub fn after_break(&mut self, is_same_server: bool) -> Option<(u64, ServerRefusal)> {
        let probe = self.refusals.careful.take().and_then(|careful| careful.probe);
        if !std::mem::take(&mut self.refusals.is_broken) || !is_same_server {
            return None;
        }
        self.refusals.careful = Some(RefusalProbe { end: self.next_request, is_second: false, probe: None });
        let request = probe?;
        for (_, other) in self.waiting.iter_mut().filter(|(other, _)| **other != request) {
            other.blamed = 0;
        }
        let waiting = self.waiting.get_mut(&request)?;
        waiting.blamed += 1;
        let words = format!("the connection broke {BLAMED_MAX} times when this call was sent");
        let failure = ServerRefusal { code: RefusalCode::Malformed, errno: libc::EIO, words };
        (waiting.blamed >= BLAMED_MAX && waiting.refused.is_none()).then_some((request, failure))
    }

    /// Whether a new call is sent at once.
    pub fn is_sent_at_once(&self, waiting: &PendingCall) -> bool {
        if self.is_held_back(waiting) {
            return false;
        }
        let Some(careful) = self.refusals.careful else { return true };
        waiting.share == CallShare::Restart || (careful.is_second && waiting.is_prompt())
    }

    /// Sends the next call if calls are probed and the last one is answered.
    pub fn send_next(&mut self) {
        let (Some(bulk), Some(careful)) = (&self.bulk, &mut self.refusals.careful) else { return };
        if careful.probe.is_some_and(|request| self.waiting.contains_key(&request)) {
            return;
        }
        let send = |(request, waiting): (&u64, &PendingCall)| {
            let _ = bulk.send(waiting.message.encode(*request, self.epoch));
        };
        let mut probed = self.waiting.range(..careful.end);
        if !careful.is_second {
            if let Some(next) = probed.clone().find(|(_, waiting)| waiting.is_prompt()) {
                careful.probe = Some(*next.0);
                return send(next);
            }
            careful.is_second = true;
            self.waiting.iter().filter(|(_, waiting)| waiting.is_prompt()).for_each(send);
        }
        if let Some(next) = probed.find(|(_, waiting)| waiting.share == CallShare::Looks) {
            careful.probe = Some(*next.0);
            return send(next);
        }
        let is_left = |waiting: &PendingCall| {
            !waiting.is_prompt() && waiting.share != CallShare::Restart && !self.is_held_back(waiting)
        };
        self.waiting.iter().filter(|(_, waiting)| is_left(waiting)).for_each(send);
        self.refusals.careful = None;
        self.figures.trouble = None;
    }
}

impl SharedSession {
    /// Fails a call whose answer cannot be read. An operation may have been done: its dropped reply says so.
    pub fn unreadable(&self, request: u64, problem: &str) {
        let server = self.server();
        let mut state = self.state();
        let Some(waiting) = state.waiting.remove(&request) else { return };
        let words = format!("its answer cannot be read: {problem}");
        if matches!(waiting.message, VolumeMessage::Reclaim { .. }) {
            drop((waiting, state));
            return self.end(&format!("{server}: {words}"));
        }
        state.refusals.note(&server, words.clone());
        match (waiting.number, waiting.done_at_ns) {
            // It succeeded; a new server must do it, or it misses a number.
            (Some(_), Some(now_ns)) => {
                state.keep_unstored(request, waiting.message, now_ns, &Ok(CallAnswer::Found(None)))
            }
            (Some(number), None) => drop(state.open_numbers.remove(&number)),
            (None, _) => waiting.answer(Err(ServerRefusal { code: RefusalCode::Malformed, errno: libc::EIO, words })),
        }
    }

    /// Fails a call that the server does not take. The calls that were sent after it must be sent again.
    pub fn refuse(&self, request: u64, failure: ServerRefusal) {
        let server = self.server();
        let mut state = self.state();
        if state.unstored.has(request) {
            drop(state);
            return self.end(&format!("{server} does not take what another server did: {}", failure.words));
        }
        let Some(mut waiting) = state.waiting.remove(&request) else { return };
        let words = failure.words.clone();
        let is_vital = waiting.refused.is_some() || matches!(waiting.message, VolumeMessage::Reclaim { .. });
        if is_vital {
            drop((waiting, state));
            return self.end(&format!("{server} does not take what every server must: {words}"));
        }
        state.refusals.note(&server, words);
        match waiting.number {
            Some(number) => {
                // There is no inode 0.
                let operation = MetadataOperation::Truncate { file: FileId::default(), size: 0 };
                let terms = AnswerTerms::Durable;
                let other = VolumeMessage::Operation { session: state.session, number, terms, operation };
                let message = std::mem::replace(&mut waiting.message, other);
                waiting.refused = Some(RefusedCall { message, failure });
                state.waiting.insert(request, waiting);
            }
            None => waiting.answer(Err(failure)),
        }
    }
}
