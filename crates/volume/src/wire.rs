//! Sending and receiving messages over streams.
//!
//! Owns: reading one message, and writing queued ones. Promises: a message has the bytes that its header says, within
//! its bound; queued frames are written together.

use std::io;

use tokio::io::{AsyncRead, BufReader, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use crate::format::FormatProblem;
use crate::journal::LeaderLease;
use crate::net::{self, Stream};
use crate::protocol::{HEADER_BYTES, MessageHeader, VolumeMessage};

/// The maximum number of bytes of one write, which joins queued frames.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// The receiving half of a stream. Frames that arrive together are received by one system call.
pub(crate) type FrameReader = BufReader<ReadHalf<Stream>>;

/// Why there is no next message.
pub(crate) enum MessageReadError {
    /// The stream failed, or its bytes are not those that were sent.
    Stream(io::Error),
    /// The message arrived as it was sent, but it is none that this program knows.
    Message {
        /// The number of the request.
        request: u64,
        /// The problem, for people.
        problem: String,
    },
}

impl From<io::Error> for MessageReadError {
    fn from(error: io::Error) -> MessageReadError {
        MessageReadError::Stream(error)
    }
}

impl From<MessageReadError> for io::Error {
    fn from(unread: MessageReadError) -> io::Error {
        match unread {
            MessageReadError::Stream(error) => error,
            MessageReadError::Message { problem, .. } => invalid(problem),
        }
    }
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// Reads a message. Returns `None` at the end of the stream.
pub(crate) async fn read_message(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<(MessageHeader, VolumeMessage)>, MessageReadError> {
    let mut too_long = None;
    let body_bytes = |bytes: &[u8]| match MessageHeader::decode(bytes) {
        Ok(header) => Ok(header.body_bytes as usize),
        Err(error) => {
            too_long = MessageHeader::request_of_too_long(bytes);
            Err(error.to_string())
        }
    };
    let frame = match (net::read_frame(stream, HEADER_BYTES, body_bytes).await, too_long) {
        (Ok(Some(frame)), _) => frame,
        (Ok(None), _) => return Ok(None),
        (Err(error), Some(request)) => return Err(MessageReadError::Message { request, problem: error.to_string() }),
        (Err(error), None) => return Err(MessageReadError::Stream(error)),
    };
    VolumeMessage::decode(&frame).map(Some).map_err(|error| match (error.problem, MessageHeader::decode(&frame)) {
        (FormatProblem::Checksum { .. }, _) | (_, Err(_)) => MessageReadError::Stream(invalid(error.to_string())),
        (_, Ok(header)) => MessageReadError::Message { request: header.request, problem: error.to_string() },
    })
}

/// Writes frames from a channel until the channel or the stream ends. A leader's frames leave only under its lease, which
/// is asked at the last moment; if the lease is over, the writing ends.
pub(crate) async fn write_all(
    mut stream: WriteHalf<Stream>,
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
    lease: Option<&LeaderLease>,
) {
    while let Some(mut bytes) = frames.recv().await {
        while bytes.len() < WRITE_BYTES_MAX
            && let Ok(more) = frames.try_recv()
        {
            bytes.extend(more);
        }
        if let Some(lease) = lease
            && !lease.wait().await
        {
            return;
        }
        if net::write_frames(&mut stream, &bytes).await.is_err() {
            return;
        }
    }
}
