//! The metadata of stored responses, as bytes.
//!
//! Owns: writing and reading the layout of `docs/formats/http-metadata.md`. Reading never panics: for metadata that do
//! not follow that page it returns `None`, and the request becomes a miss. Reading copies nothing: values are slices of
//! the metadata.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use nectary_store::METADATA_BYTES_MAX;

use crate::rules::age::ExchangeTimes;

const MAGIC: [u8; 4] = *b"NHTM";
const VERSION: u16 = 1;
const KIND_RESPONSE: u16 = 1;
const KIND_MARKER: u16 = 2;
const HEAD_BYTES: usize = 40;

/// The header names that are stored as numbers. The number of a name is its position in this array plus one.
static NAMES: [HeaderName; 53] = [
    header::ACCEPT,
    header::ACCEPT_CHARSET,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::ACCEPT_RANGES,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_EXPOSE_HEADERS,
    header::ACCESS_CONTROL_MAX_AGE,
    header::ALLOW,
    header::ALT_SVC,
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CACHE_STATUS,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::CONTENT_SECURITY_POLICY,
    header::CONTENT_SECURITY_POLICY_REPORT_ONLY,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::DATE,
    header::ETAG,
    header::EXPIRES,
    header::HOST,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    header::ORIGIN,
    header::PRAGMA,
    header::PUBLIC_KEY_PINS,
    header::RANGE,
    header::REFERER,
    header::REFERRER_POLICY,
    header::REFRESH,
    header::RETRY_AFTER,
    header::SERVER,
    header::SET_COOKIE,
    header::STRICT_TRANSPORT_SECURITY,
    header::UPGRADE_INSECURE_REQUESTS,
    header::USER_AGENT,
    header::VARY,
    header::VIA,
    header::WARNING,
    header::WWW_AUTHENTICATE,
    header::X_CONTENT_TYPE_OPTIONS,
    header::X_DNS_PREFETCH_CONTROL,
    header::X_FRAME_OPTIONS,
    header::X_XSS_PROTECTION,
];

/// The fixed part of a stored response, before its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status of the response.
    pub status: StatusCode,
    /// The times at which the response was requested and received.
    pub times: ExchangeTimes,
    /// The age of the response when it was received, in milliseconds.
    pub initial_age_ms: u64,
}

/// The decoded metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectMetadata {
    /// A response.
    Response(ResponseHead, HeaderEntries),
    /// A marker: the names of the request headers by which a URL varies.
    Marker(Vec<HeaderName>),
}

/// The headers of a stored response, checked but still encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderEntries {
    bytes: Bytes,
    count: u16,
}

impl HeaderEntries {
    /// The headers in their order.
    pub fn iter(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        EntryIterator { bytes: &self.bytes, at: HEAD_BYTES, left: self.count }
            .map_while(|entry| entry.and_then(|entry| entry.header(&self.bytes)))
    }

    /// The headers as text, in their order. *Cost*: no allocation, and no change of a reference count.
    pub fn lines(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        EntryIterator { bytes: &self.bytes, at: HEAD_BYTES, left: self.count }
            .map_while(|entry| entry.and_then(|entry| entry.line(&self.bytes)))
    }

    /// The number of headers.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// The headers as a map.
    pub fn to_map(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(self.count());
        self.iter().for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }
}

/// Writes a response's metadata; `None` if the response exceeds a limit of the format.
pub fn encode_response(head: &ResponseHead, headers: &HeaderMap) -> Option<Bytes> {
    let mut out = Vec::with_capacity(HEAD_BYTES + headers.len() * 32);
    out.resize(HEAD_BYTES, 0);
    let mut count = 0u16;
    for (name, value) in headers {
        push_entry(&mut out, name, value.as_bytes())?;
        count = count.checked_add(1)?;
    }
    let ages = [head.times.request_ms, head.times.response_ms, head.initial_age_ms];
    finish(out, KIND_RESPONSE, head.status.as_u16(), count, ages)
}

/// Writes a marker; `None` if the marker exceeds a limit of the format.
pub fn encode_marker(names: &[HeaderName]) -> Option<Bytes> {
    let mut out = vec![0; HEAD_BYTES];
    for name in names {
        push_entry(&mut out, name, b"")?;
    }
    finish(out, KIND_MARKER, 0, u16::try_from(names.len()).ok()?, [0; 3])
}

fn push_entry(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) -> Option<()> {
    match NAMES.iter().position(|known| known == name) {
        Some(position) => out.push(position as u8 + 1),
        None => {
            out.push(0);
            out.push(u8::try_from(name.as_str().len()).ok()?);
            out.extend_from_slice(name.as_str().as_bytes());
        }
    }
    out.extend_from_slice(&u16::try_from(value.len()).ok()?.to_le_bytes());
    out.extend_from_slice(value);
    Some(())
}

fn finish(mut out: Vec<u8>, kind: u16, status: u16, count: u16, numbers: [u64; 3]) -> Option<Bytes> {
    if out.len() > METADATA_BYTES_MAX {
        return None;
    }
    out[..4].copy_from_slice(&MAGIC);
    out[4..6].copy_from_slice(&VERSION.to_le_bytes());
    out[6..8].copy_from_slice(&kind.to_le_bytes());
    out[8..10].copy_from_slice(&status.to_le_bytes());
    out[10..12].copy_from_slice(&count.to_le_bytes());
    let rest = (out.len() - HEAD_BYTES) as u32;
    out[12..16].copy_from_slice(&rest.to_le_bytes());
    for (index, number) in numbers.iter().enumerate() {
        out[16 + index * 8..24 + index * 8].copy_from_slice(&number.to_le_bytes());
    }
    Some(Bytes::from(out))
}

/// Reads metadata; `None` if the bytes do not follow the format.
pub fn decode(bytes: &Bytes) -> Option<ObjectMetadata> {
    let u16_at = |at: usize| bytes.get(at..at + 2).map(|field| u16::from_le_bytes([field[0], field[1]]));
    let u64_at = |at: usize| bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map(u64::from_le_bytes);
    if bytes.len() > METADATA_BYTES_MAX || *bytes.get(..4)? != MAGIC || u16_at(4)? != VERSION {
        return None;
    }
    let (kind, status, count) = (u16_at(6)?, u16_at(8)?, u16_at(10)?);
    let rest = u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?);
    let numbers = [u64_at(16)?, u64_at(24)?, u64_at(32)?];
    if rest as usize != bytes.len() - HEAD_BYTES {
        return None;
    }
    let mut walk = EntryIterator { bytes, at: HEAD_BYTES, left: count };
    let mut names = Vec::new();
    for entry in walk.by_ref() {
        let (name, value) = entry?.header(bytes)?;
        if kind == KIND_MARKER {
            if !value.is_empty() {
                return None;
            }
            names.push(name);
        }
    }
    if walk.at != bytes.len() {
        return None;
    }
    match kind {
        KIND_RESPONSE if (200..600).contains(&status) => {
            let head = ResponseHead {
                status: StatusCode::from_u16(status).ok()?,
                times: ExchangeTimes { request_ms: numbers[0], response_ms: numbers[1] },
                initial_age_ms: numbers[2],
            };
            Some(ObjectMetadata::Response(head, HeaderEntries { bytes: bytes.clone(), count }))
        }
        KIND_MARKER if status == 0 && numbers == [0; 3] && !names.is_empty() => Some(ObjectMetadata::Marker(names)),
        _ => None,
    }
}

/// An iterator over entries. If the metadata are damaged, its last item is `None`.
struct EntryIterator<'a> {
    bytes: &'a Bytes,
    at: usize,
    left: u16,
}

/// The positions of an entry's name and value.
struct EntryPositions {
    number: u8,
    name: (usize, usize),
    value: (usize, usize),
}

impl EntryPositions {
    fn header(&self, bytes: &Bytes) -> Option<(HeaderName, HeaderValue)> {
        let name = match self.number {
            0 => HeaderName::from_bytes(&bytes[self.name.0..self.name.1]).ok()?,
            number => NAMES.get(usize::from(number) - 1)?.clone(),
        };
        let value = HeaderValue::from_maybe_shared(bytes.slice(self.value.0..self.value.1)).ok()?;
        Some((name, value))
    }

    /// The name and the value as text.
    fn line<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let name = match self.number {
            0 => &bytes[self.name.0..self.name.1],
            number => NAMES.get(usize::from(number) - 1)?.as_str().as_bytes(),
        };
        Some((name, &bytes[self.value.0..self.value.1]))
    }
}

impl EntryIterator<'_> {
    fn entry(&mut self) -> Option<EntryPositions> {
        let bytes = self.bytes;
        let number = *bytes.get(self.at)?;
        let mut at = self.at + 1;
        let mut name = (0, 0);
        if number == 0 {
            let length = usize::from(*bytes.get(at)?);
            name = (at + 1, at + 1 + length);
            at = name.1;
        }
        let length = bytes.get(at..at + 2).map(|field| usize::from(u16::from_le_bytes([field[0], field[1]])))?;
        let value = (at + 2, at + 2 + length);
        if value.1 > bytes.len() {
            return None;
        }
        self.at = value.1;
        Some(EntryPositions { number, name, value })
    }
}

impl Iterator for EntryIterator<'_> {
    type Item = Option<EntryPositions>;

    fn next(&mut self) -> Option<Option<EntryPositions>> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.entry();
        if entry.is_none() {
            self.left = 0;
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    fn sample() -> (ResponseHead, HeaderMap) {
        let head = ResponseHead {
            status: StatusCode::OK,
            times: ExchangeTimes { request_ms: 0x0102_0304, response_ms: 0x0102_0405 },
            initial_age_ms: 7,
        };
        (head, headers(&[("etag", "\"a\""), ("x-mine", "1"), ("x-mine", ""), ("x-xss-protection", "0")]))
    }

    #[test]
    fn metadata_bytes_match_format_page() {
        let (head, headers) = sample();
        let expected = [
            &b"NHTM\x01\x00\x01\x00\xc8\x00\x04\x00\x1f\x00\x00\x00"[..],
            b"\x04\x03\x02\x01\x00\x00\x00\x00\x05\x04\x02\x01\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00",
            b"\x1b\x03\x00\"a\"",
            b"\x00\x06x-mine\x01\x001",
            b"\x00\x06x-mine\x00\x00",
            b"\x35\x01\x000",
        ]
        .concat();
        assert_eq!(encode_response(&head, &headers).expect("small"), expected);
        let marker = encode_marker(&[header::ACCEPT]).expect("small");
        assert_eq!(&marker[..16], b"NHTM\x01\x00\x02\x00\x00\x00\x01\x00\x03\x00\x00\x00");
        assert_eq!(&marker[40..], b"\x01\x00\x00");
    }

    #[test]
    fn what_is_written_is_read() {
        let (head, headers) = sample();
        let bytes = encode_response(&head, &headers).expect("small");
        let Some(ObjectMetadata::Response(found, entries)) = decode(&bytes) else { panic!("a response") };
        assert_eq!((found, entries.to_map()), (head, headers));
        let names = vec![header::ACCEPT, HeaderName::from_static("x-mine")];
        assert_eq!(decode(&encode_marker(&names).expect("small")), Some(ObjectMetadata::Marker(names)));
    }

    /// Damaged bytes decode to no metadata.
    #[test]
    fn damaged_metadata_never_panics() {
        let (head, headers) = sample();
        let bytes = encode_response(&head, &headers).expect("small");
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes.slice(..length)), None, "cut to {length}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(decode(&longer.into()), None);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << bit;
                // The store's checksums detect damage. This test only shows that reading damaged metadata does not
                // panic.
                if let Some(ObjectMetadata::Response(_, entries)) = decode(&damaged.into()) {
                    assert!(entries.iter().count() <= 4);
                }
            }
        }
        assert_eq!(decode(&encode_marker(&[]).expect("small")), None);
    }

    #[test]
    fn oversized_metadata_is_not_written() {
        let (head, _) = sample();
        let of = |length: usize| headers(&[("a", &"x".repeat(length)), ("b", &"x".repeat(length))]);
        let fits = (METADATA_BYTES_MAX - HEAD_BYTES - 10) / 2;
        assert!(encode_response(&head, &of(fits)).is_some_and(|bytes| decode(&bytes).is_some()));
        assert!(encode_response(&head, &of(fits + 1)).is_none());
        let long_name = "x".repeat(256);
        assert!(encode_response(&head, &headers(&[(&long_name, "1")])).is_none());
    }
}
