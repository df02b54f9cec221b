//! Several ranges in one response: `multipart/byteranges`.
//!
//! Owns: the text before, between and after the ranges: boundaries, and the headers of each part. *Source*: RFC 9110,
//! 14.6; RFC 2046, 5.1.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderValue;

/// A piece of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultipartSection {
    /// A boundary and the headers of a part.
    Text(Bytes),
    /// Bytes of the object.
    Object(Range<u64>),
}

/// A body of several parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultipartBody {
    /// Its media type.
    pub content_type: HeaderValue,
    /// Its pieces, in order.
    pub sections: Vec<MultipartSection>,
}

impl MultipartBody {
    /// Makes the body that has the ranges `parts` of an object of `size_bytes`.
    pub fn new(parts: &[Range<u64>], content_type: Option<&HeaderValue>, size_bytes: u64) -> MultipartBody {
        // The boundary is random, so that no origin or client can make an object that contains it.
        let boundary = format!("nectary-{:016x}{:016x}", random(), random());
        let mut sections = Vec::with_capacity(2 * parts.len() + 1);
        for part in parts {
            let mut head = format!("\r\n--{boundary}\r\n").into_bytes();
            if let Some(content_type) = content_type {
                head.extend_from_slice(b"content-type: ");
                head.extend_from_slice(content_type.as_bytes());
                head.extend_from_slice(b"\r\n");
            }
            let range = format!("content-range: bytes {}-{}/{size_bytes}\r\n\r\n", part.start, part.end - 1);
            head.extend_from_slice(range.as_bytes());
            sections.push(MultipartSection::Text(head.into()));
            sections.push(MultipartSection::Object(part.clone()));
        }
        sections.push(MultipartSection::Text(format!("\r\n--{boundary}--\r\n").into()));
        let content_type =
            HeaderValue::from_maybe_shared(Bytes::from(format!("multipart/byteranges; boundary={boundary}")));
        MultipartBody { content_type: content_type.expect("visible ASCII"), sections }
    }

    /// The length of the body, in bytes.
    pub fn body_bytes(&self) -> u64 {
        let of = |section: &MultipartSection| match section {
            MultipartSection::Text(text) => text.len() as u64,
            MultipartSection::Object(range) => range.end - range.start,
        };
        self.sections.iter().map(of).sum()
    }
}

/// A number that clients cannot guess.
fn random() -> u64 {
    getrandom::u64().expect("the kernel has random numbers")
}
