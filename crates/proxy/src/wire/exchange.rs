//! One request and its response, as the service sees the connection on which they go.
//!
//! Owns: the calls that the service makes while it works on a request, whatever the protocol. With HTTP/1 a connection
//! has one exchange at a time; with HTTP/2 each exchange is a [`Http2Stream`].

use std::rc::Rc;

use super::http1::framing::FramingViolation;
use super::http1::watch::ConnectionWatch;
use super::http2::Http2Stream;

/// The way to the client of a request.
#[derive(Debug, Clone)]
pub enum ClientExchange {
    /// A connection of HTTP/1.
    Http1(Rc<ConnectionWatch>),
    /// A stream of a connection of HTTP/2.
    Http2(Rc<Http2Stream>),
}

impl ClientExchange {
    /// Records that the response's body is over, with or without success.
    pub fn end(&self) {
        match self {
            ClientExchange::Http1(watch) => watch.end(),
            // It ends with its stream.
            ClientExchange::Http2(_) => {}
        }
    }

    /// Records that the answer is ready and will now be written.
    pub fn answered(&self) {
        match self {
            ClientExchange::Http1(watch) => watch.answered(),
            ClientExchange::Http2(stream) => stream.answered(),
        }
    }

    /// Sends an informational response before the answer under way. HTTP/2 sends none.
    pub fn announce(&self, response: &[u8]) {
        match self {
            ClientExchange::Http1(watch) => watch.announce(response),
            ClientExchange::Http2(_) => {}
        }
    }

    /// The reason why the client's bytes were refused; `None` if they were not.
    pub fn violation(&self) -> Option<FramingViolation> {
        match self {
            ClientExchange::Http1(watch) => watch.violation(),
            // It reads the framing itself, and ends a stream that violates it.
            ClientExchange::Http2(_) => None,
        }
    }

    /// The connection switches to another protocol after the answer under way. False if it cannot.
    pub fn switch(&self) -> bool {
        match self {
            ClientExchange::Http1(watch) => watch.switch(),
            ClientExchange::Http2(_) => false,
        }
    }

    /// Records that the request's body was polled, and whether the client has to send more of it.
    pub fn on_upload_polled(&self, waits: bool) {
        match self {
            // It knows from the framing of the bytes what is awaited.
            ClientExchange::Http1(_) => {}
            ClientExchange::Http2(stream) => stream.on_upload_polled(waits),
        }
    }

    /// The stream, if it is one of HTTP/2.
    pub fn stream(&self) -> Option<&Rc<Http2Stream>> {
        match self {
            ClientExchange::Http1(_) => None,
            ClientExchange::Http2(stream) => Some(stream),
        }
    }
}
