//! Sending and receiving messages over streams.
//!
//! Owns: reading one message, and writing queued ones. Promises: no more bytes are read than the header says, within
//! its bound; queued frames are written together.

use tokio::io::{AsyncRead, WriteHalf};
use tokio::sync::mpsc;

use crate::net::{self, Stream};
use crate::protocol::{HEADER_BYTES, Header, Message};

/// The maximum number of bytes of one write, which joins queued frames.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// Reads a message. Returns `None` at the end of the stream.
pub(crate) async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Option<(Header, Message)>> {
    let body_bytes = |header: &[u8]| {
        Header::decode(header).map(|header| header.body_bytes as usize).map_err(|error| error.to_string())
    };
    let Some(frame) = net::read_frame(stream, HEADER_BYTES, body_bytes).await? else { return Ok(None) };
    let decoded = Message::decode(&frame);
    decoded.map(Some).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string()))
}

/// Writes frames from a channel until the channel or the stream ends.
pub(crate) async fn write_all(mut stream: WriteHalf<Stream>, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(mut bytes) = frames.recv().await {
        while bytes.len() < WRITE_BYTES_MAX
            && let Ok(more) = frames.try_recv()
        {
            bytes.extend(more);
        }
        if net::write_frames(&mut stream, &bytes).await.is_err() {
            return;
        }
    }
}
