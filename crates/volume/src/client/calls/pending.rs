//! A call without an answer.
//!
//! Owns: what is known of it until then. Leaves to others: when it is sent, also again (`calls`).

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::super::looks::PendingChange;
use super::refusals::RefusedCall;
use super::{CallAnswer, CallShare};
use crate::protocol::{MayKeep, ServerRefusal, VolumeMessage};

/// A call without an answer.
pub(in crate::client) struct PendingCall {
    pub message: VolumeMessage,
    pub number: Option<u64>,
    pub share: CallShare,
    /// When an operation was done whose answer follows and is not durable yet. *Units*: nanoseconds since 1970.
    pub done_at_ns: Option<i64>,
    /// How often in a row the connection broke during this call.
    pub blamed: u32,
    /// The refused call, if `message` replaces it.
    pub refused: Option<RefusedCall>,
    /// Whether its program has given it up, which the server was told.
    pub is_given_up: bool,
    /// Whether it requests a token that is used already.
    pub is_ahead: bool,
    pub reply: oneshot::Sender<Result<CallAnswer, ServerRefusal>>,
    /// What an operation changes is not kept before its answer, and what may be kept then.
    pub changing: Option<PendingChange>,
    pub may_keep: Option<MayKeep>,
    /// The call's share of the bound on calls; it is returned with the answer.
    pub _turn: OwnedSemaphorePermit,
}

impl PendingCall {
    /// Makes a call that is sent as it is, and changes nothing.
    pub fn new(
        message: VolumeMessage,
        share: CallShare,
        reply: oneshot::Sender<Result<CallAnswer, ServerRefusal>>,
        turn: OwnedSemaphorePermit,
    ) -> PendingCall {
        PendingCall {
            message,
            number: None,
            share,
            done_at_ns: None,
            blamed: 0,
            refused: None,
            is_given_up: false,
            is_ahead: false,
            reply,
            changing: None,
            may_keep: None,
            _turn: turn,
        }
    }
}
