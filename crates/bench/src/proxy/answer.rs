//! One answer of a proxy while it arrives: its head, and the length and bytes of its body.
//!
//! Owns: the framing. Every body here has a length, because the origin gives one and no proxy has a reason to take it
//! away; an answer without one is an error.

use crate::Error;

/// The longest head of an answer, and the most fields in it. *Units*: bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
const FIELDS_MAX: usize = 64;
/// The field in which the origin numbers its answers.
pub(super) const SERIAL: &str = "X-Serial";

/// The head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerHead {
    /// The length of the head.
    pub head_bytes: usize,
    /// The status.
    pub status: u16,
    /// The length of the body.
    pub body_bytes: usize,
    /// The number that the origin gave to the answer; `None` if the proxy made it.
    pub serial: Option<u64>,
    /// Whether the connection ends behind it.
    pub is_last: bool,
}

/// The bytes of an answer that have arrived.
#[derive(Debug, Default)]
pub(super) struct AnswerBuffer {
    bytes: Vec<u8>,
    head: Option<AnswerHead>,
}

impl AnswerBuffer {
    /// Adds bytes; returns the head as soon as the answer is complete.
    ///
    /// *Errors*: the bytes are no answer with a length, or there are more than its length.
    pub fn push(&mut self, more: &[u8]) -> Result<Option<AnswerHead>, Error> {
        self.bytes.extend_from_slice(more);
        if self.head.is_none() {
            self.head = head_of(&self.bytes)?;
        }
        let Some(head) = self.head else { return Ok(None) };
        match self.bytes.len().cmp(&(head.head_bytes + head.body_bytes)) {
            std::cmp::Ordering::Less => Ok(None),
            std::cmp::Ordering::Equal => Ok(Some(head)),
            std::cmp::Ordering::Greater => Err(Error::failed("an answer", "it is longer than its length says")),
        }
    }

    /// The body as far as it has arrived.
    pub fn body(&self) -> &[u8] {
        self.head.map_or(&[], |head| &self.bytes[head.head_bytes.min(self.bytes.len())..])
    }

    /// Forgets the answer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.head = None;
    }
}

fn head_of(bytes: &[u8]) -> Result<Option<AnswerHead>, Error> {
    let failed = |how: String| Error::failed("an answer", how);
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut answer = httparse::Response::new(&mut fields);
    let head_bytes = match answer.parse(bytes).map_err(|error| failed(error.to_string()))? {
        httparse::Status::Complete(head_bytes) => head_bytes,
        httparse::Status::Partial if bytes.len() > HEAD_BYTES_MAX => {
            return Err(failed(format!("its head is longer than {HEAD_BYTES_MAX} bytes")));
        }
        httparse::Status::Partial => return Ok(None),
    };
    let status = answer.code.unwrap_or(0);
    let field = |name: &str| {
        let found = answer.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        found.map(|field| String::from_utf8_lossy(field.value).trim().to_owned())
    };
    let body_bytes = field("Content-Length").and_then(|length| length.parse().ok());
    let body_bytes = body_bytes.ok_or_else(|| failed(format!("status {status} without a length")))?;
    let serial = field(SERIAL).and_then(|serial| serial.parse().ok());
    let is_last = field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok(Some(AnswerHead { head_bytes, status, body_bytes, serial, is_last }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_complete_at_its_length() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nx-serial: 7\r\nConnection: close\r\n\r\nabc";
        for cut in 1..text.len() {
            let mut answer = AnswerBuffer::default();
            assert_eq!(answer.push(&text[..cut]).expect("a part"), None, "{cut}");
            let head = answer.push(&text[cut..]).expect("the rest").expect("all of it");
            assert_eq!((head.status, head.serial, head.is_last, answer.body()), (200, Some(7), true, &b"abc"[..]));
            answer.clear();
            assert!(answer.body().is_empty());
        }
    }

    #[test]
    fn answers_without_length_are_refused() {
        for wrong in ["nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"] {
            assert!(AnswerBuffer::default().push(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let endless = vec![b'a'; HEAD_BYTES_MAX + 1];
        assert!(AnswerBuffer::default().push(&[b"HTTP/1.1 200 OK\r\nA: ", &endless[..]].concat()).is_err());
    }
}
