//! The header of the PROXY protocol, with which a load balancer begins a connection to say whose it is.
//!
//! Owns: versions 1 and 2 of the header [1], its bounds, and reading it from a new connection. Promises: no byte after
//! the header is taken from the connection; a header that is cut, too long or wrong is an error, and never a client's
//! address. Of a header only the client's address counts: its other address and its further fields (TLVs) are ignored.
//! Leaves to others: who sends a header (`ProxyEntrance`), how long it may take, and what the client's address decides.
//!
//! Version 1 is a line, `PROXY TCP4 192.0.2.7 198.51.100.1 56324 443`. Version 2 is binary:
//!
//! ```text
//! offset  bytes
//!      0     12  the signature
//!     12      1  2 in the high half; in the low half 0 LOCAL (the sender itself) or 1 PROXY (a client's connection)
//!     13      1  addresses in the high half: 0 none, 1 IPv4, 2 IPv6, 3 Unix; in the low half 0 any, 1 TCP, 2 UDP
//!     14      2  the bytes that follow, big-endian
//!     16    12/36/216  source and destination: addresses, then ports
//!      …         TLVs
//! ```
//!
//! [1] <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::{FromStr, Split};

use tokio::io::AsyncReadExt;

use super::client_socket::ClientSocket;

/// The beginning of version 1.
const LINE_START: &[u8] = b"PROXY ";
/// The longest line of version 1, with its end.
const LINE_BYTES_MAX: usize = 107;
/// The beginning of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The bytes of version 2 before the addresses.
const FIXED_BYTES: usize = 16;
/// The longest header of version 2. The largest one that is in use, with the client's certificate, has less.
const HEADER_BYTES_MAX: usize = 4096;

/// Why a connection has no header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeaderFault {
    /// The peer closed or reset the connection before it sent anything.
    #[error("the connection ended before its first byte")]
    Absent,
    /// What the peer sent is no header.
    #[error("{0}")]
    Malformed(&'static str),
    /// The connection failed.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// Reads the header of a new connection, and no byte more. *Returns*: the client's address; `None` if the header names
/// no client, as that of a connection that the load balancer makes for itself.
///
/// *Cost*: a buffer of [`HEADER_BYTES_MAX`] while the header arrives, and two system calls for each part of it.
pub(crate) async fn read(stream: &mut ClientSocket) -> Result<Option<SocketAddr>, HeaderFault> {
    let mut header = vec![0; HEADER_BYTES_MAX];
    let mut taken = 0;
    loop {
        // No header is longer than the buffer, so there is room for more.
        let seen = match stream.peek(&mut header[taken..]).await {
            Ok(0) if taken == 0 => return Err(HeaderFault::Absent),
            Err(error) if taken == 0 && error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(HeaderFault::Absent);
            }
            Ok(0) => return Err(HeaderFault::Malformed("the connection ended within it")),
            Ok(seen) => seen,
            Err(error) => return Err(HeaderFault::Broken(error)),
        };
        match parse(&header[..taken + seen]).map_err(HeaderFault::Malformed)? {
            ParsedHeader::Part => {
                stream.read_exact(&mut header[taken..taken + seen]).await?;
                taken += seen;
            }
            ParsedHeader::Whole { header_bytes, client } => {
                stream.read_exact(&mut header[taken..header_bytes]).await?;
                return Ok(client);
            }
        }
    }
}

/// What the first bytes of a connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedHeader {
    /// A part of a header. All of them belong to it.
    Part,
    /// A header, and perhaps more.
    Whole {
        /// The length of the header.
        header_bytes: usize,
        /// The client that it names.
        client: Option<SocketAddr>,
    },
}

/// Reads the first bytes of a connection. A part is always shorter than the longest header. *Errors*: why they are no
/// header, whatever follows them.
pub fn parse(bytes: &[u8]) -> Result<ParsedHeader, &'static str> {
    if agree(bytes, &SIGNATURE) {
        parse_binary(bytes)
    } else if agree(bytes, LINE_START) {
        parse_line(bytes)
    } else {
        Err("it begins as no version does")
    }
}

/// Whether the shorter of two byte strings is the beginning of the other.
fn agree(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}

fn parse_line(bytes: &[u8]) -> Result<ParsedHeader, &'static str> {
    let possible = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', possible) else {
        let may_end = bytes.len() < LINE_BYTES_MAX;
        return if may_end { Ok(ParsedHeader::Part) } else { Err("its line is longer than 107 bytes") };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or("its line does not end with CR and LF")?;
    let words = line.strip_prefix(LINE_START).and_then(|words| std::str::from_utf8(words).ok());
    let mut words = words.ok_or("its line is no text")?.split(' ');
    let client = match words.next() {
        // The rest of the line has no meaning.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(line_client::<Ipv4Addr>(words).ok_or("its IPv4 addresses or ports are wrong")?),
        Some("TCP6") => Some(line_client::<Ipv6Addr>(words).ok_or("its IPv6 addresses or ports are wrong")?),
        _ => return Err("its protocol is none of TCP4, TCP6 and UNKNOWN"),
    };
    Ok(ParsedHeader::Whole { header_bytes: end + 1, client })
}

/// Reads `SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT`, and returns the source.
fn line_client<A: FromStr + Into<IpAddr>>(mut words: Split<'_, char>) -> Option<SocketAddr> {
    let source: A = words.next()?.parse().ok()?;
    let _destination: A = words.next()?.parse().ok()?;
    let source_port = decimal_port(words.next()?)?;
    decimal_port(words.next()?)?;
    words.next().is_none().then(|| SocketAddr::new(source.into(), source_port))
}

/// Reads a port as a header writes it: without a sign, and without zeroes before it.
fn decimal_port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_plain { text.parse().ok() } else { None }
}

fn parse_binary(bytes: &[u8]) -> Result<ParsedHeader, &'static str> {
    let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else { return Ok(ParsedHeader::Part) };
    let [.., version_and_command, family_and_protocol, high, low] = *fixed;
    let header_bytes = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    let is_proxied = match version_and_command {
        0x20 => false,
        0x21 => true,
        _ => return Err("its version is not 2, or it is neither LOCAL nor PROXY"),
    };
    if header_bytes > HEADER_BYTES_MAX {
        return Err("it is longer than 4096 bytes");
    }
    let Some(following) = bytes.get(FIXED_BYTES..header_bytes) else { return Ok(ParsedHeader::Part) };
    let client = if is_proxied { binary_client(family_and_protocol, following)? } else { None };
    Ok(ParsedHeader::Whole { header_bytes, client })
}

/// Reads the client's address out of what follows the fixed part. `None` if it is none of TCP.
fn binary_client(family_and_protocol: u8, following: &[u8]) -> Result<Option<SocketAddr>, &'static str> {
    const SHORT: &str = "it is too short for its addresses";
    let (family, protocol) = (family_and_protocol >> 4, family_and_protocol & 15);
    if family > 3 || protocol > 2 {
        return Err("its kind of address or its protocol has no meaning");
    }
    match family {
        1 => {
            let [a, b, c, d, _, _, _, _, high, low, _, _] = *following.first_chunk::<12>().ok_or(SHORT)?;
            let source = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
            Ok((protocol == 1).then_some(source))
        }
        2 => {
            let addresses = following.first_chunk::<36>().ok_or(SHORT)?;
            let source = addresses.first_chunk::<16>().ok_or(SHORT)?;
            let source = SocketAddr::from((*source, u16::from_be_bytes([addresses[32], addresses[33]])));
            Ok((protocol == 1).then_some(source))
        }
        3 if following.len() < 216 => Err(SHORT),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    const LONGEST_LINE: &str = "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
                                ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";

    fn binary(command: u8, kind: u8, following: &[u8]) -> Vec<u8> {
        let length = u16::try_from(following.len()).expect("a length").to_be_bytes();
        [&SIGNATURE[..], &[command, kind], &length, following].concat()
    }

    fn ipv4() -> Vec<u8> {
        vec![192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 1, 187]
    }

    fn ipv6() -> Vec<u8> {
        let source: Ipv6Addr = "2001:db8::7".parse().expect("an address");
        [&source.octets()[..], &[0; 16], &[0, 80, 1, 187]].concat()
    }

    async fn connected() -> (TcpStream, ClientSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let sender = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        (sender, ClientSocket::Tcp(listener.accept().await.expect("a connection").0))
    }

    /// Valid headers, and the clients that they name.
    fn valid() -> Vec<(Vec<u8>, Option<&'static str>)> {
        let line = |text: &str| text.as_bytes().to_vec();
        let tlvs: &[u8] = &[0x04, 0, 3, 0, 0, 0, 0x30, 0, 2, b'n', b's'];
        let with_tlvs = |addresses: Vec<u8>| [&addresses[..], tlvs].concat();
        let longest = [ipv4(), vec![7; HEADER_BYTES_MAX - FIXED_BYTES - 12]].concat();
        vec![
            (line("PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"), Some("192.0.2.7:56324")),
            (line("PROXY TCP4 255.255.255.255 255.255.255.255 65535 0\r\n"), Some("255.255.255.255:65535")),
            (line("PROXY TCP6 2001:db8::7 ::1 80 443\r\n"), Some("[2001:db8::7]:80")),
            (line("PROXY TCP6 ::ffff:192.0.2.7 ::1 80 443\r\n"), Some("[::ffff:192.0.2.7]:80")),
            (line("PROXY UNKNOWN\r\n"), None),
            (line("PROXY UNKNOWN and  what follows\r\n"), None),
            (line(LONGEST_LINE), None),
            (binary(0x21, 0x11, &ipv4()), Some("192.0.2.7:56324")),
            (binary(0x21, 0x11, &with_tlvs(ipv4())), Some("192.0.2.7:56324")),
            (binary(0x21, 0x21, &ipv6()), Some("[2001:db8::7]:80")),
            (binary(0x21, 0x21, &with_tlvs(ipv6())), Some("[2001:db8::7]:80")),
            (binary(0x21, 0x11, &longest), Some("192.0.2.7:56324")),
            (binary(0x20, 0x00, &[]), None),
            (binary(0x20, 0x11, &ipv4()), None),
            (binary(0x20, 0x55, &[1]), None),
            (binary(0x21, 0x00, &[]), None),
            (binary(0x21, 0x00, &[1, 2, 3]), None),
            (binary(0x21, 0x12, &ipv4()), None),
            (binary(0x21, 0x22, &ipv6()), None),
            (binary(0x21, 0x31, &[0; 216]), None),
            (binary(0x21, 0x32, &[0; 220]), None),
        ]
    }

    #[test]
    fn unfinished_header_line_is_bounded() {
        let line = |bytes: usize| [LINE_START, &vec![b'x'; bytes - LINE_START.len()]].concat();
        assert_eq!(parse(&line(LINE_BYTES_MAX - 1)), Ok(ParsedHeader::Part));
        assert!(parse(&line(LINE_BYTES_MAX)).is_err());
    }

    #[test]
    fn header_names_its_client_once_whole() {
        for (header, client) in valid() {
            let client = client.map(|client| client.parse().expect("an address"));
            let text = String::from_utf8_lossy(&header);
            let whole = Ok(ParsedHeader::Whole { header_bytes: header.len(), client });
            assert_eq!(parse(&header), whole, "{text}");
            let with_more = [&header[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
            assert_eq!(parse(&with_more), whole, "{text}");
            for length in 0..header.len() {
                assert_eq!(parse(&header[..length]), Ok(ParsedHeader::Part), "{length} bytes of {text}");
            }
        }
    }

    #[test]
    fn no_header_is_refused() {
        let long = format!("{}\r\n", "PROXY UNKNOWN ".to_owned() + &"x".repeat(LINE_BYTES_MAX - 15));
        let lines = [
            "GET / HTTP/1.1\r\n",
            "proxy UNKNOWN\r\n",
            "PROXY\r\n",
            "PROXY \r\n",
            "PROXY UNKNOWN\n",
            "PROXY  TCP4 192.0.2.7 198.51.100.1 1 2\r\n",
            "PROXY TCP5 192.0.2.7 198.51.100.1 1 2\r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 1\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 1 2 \r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 1 2 3\r\n",
            "PROXY TCP4 192.0.2.7  1 2\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 65536 2\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 1 65536\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 +1 2\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 01 2\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 -1 2\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1  \r\n",
            "PROXY TCP4 192.0.2.256 198.51.100.1 1 2\r\n",
            "PROXY TCP4 192.0.2.07 198.51.100.1 1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n",
            "PROXY TCP6 ::1%lo ::1 1 2\r\n",
            long.as_str(),
        ];
        let mut wrong: Vec<Vec<u8>> = lines.map(|line| line.as_bytes().to_vec()).to_vec();
        wrong.push(b"PROXY UNKNOWN \xff\r\n".to_vec());
        wrong.push(b"\x16\x03\x01\x02\0".to_vec());
        for command in [0x00, 0x11, 0x22, 0x2f, 0x31] {
            wrong.push(binary(command, 0x11, &ipv4()));
        }
        for kind in [0x01, 0x11, 0x13, 0x1f, 0x21, 0x31, 0x41, 0xf1] {
            // Of these only the first needs no addresses.
            let following = if kind == 0x01 { vec![0; HEADER_BYTES_MAX - FIXED_BYTES + 1] } else { vec![0; 11] };
            wrong.push(binary(0x21, kind, &following));
        }
        wrong.push(binary(0x21, 0x21, &[0; 35]));
        wrong.push(binary(0x21, 0x31, &[0; 215]));
        for bytes in wrong {
            assert!(parse(&bytes).is_err(), "{}", String::from_utf8_lossy(&bytes));
        }
        assert_eq!(parse(&[b'x'; 1]), Err("it begins as no version does"), "at the first byte");
        // A length beyond the bound is refused before the bytes come.
        assert!(parse(&[&SIGNATURE[..], &[0x21, 0x11, 0xff, 0xff]].concat()).is_err());
        assert_eq!(LONGEST_LINE.len(), LINE_BYTES_MAX);
    }

    /// What comes after the header belongs to TLS or to a request.
    #[tokio::test]
    async fn read_takes_the_header_alone() {
        for (header, client) in valid() {
            let is_long = header.len() > 300;
            let (mut sender, mut stream) = connected().await;
            sender.set_nodelay(true).expect("an option");
            let sending = async {
                for part in header.chunks(if is_long { 500 } else { 1 }) {
                    sender.write_all(part).await.expect("room");
                    tokio::task::yield_now().await;
                }
                sender.write_all(b"rest").await.expect("room");
                sender.shutdown().await.expect("its side");
            };
            let reading = async {
                let found = tokio::time::timeout(Duration::from_secs(20), read(&mut stream)).await.expect("in time");
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.expect("the rest");
                (found.expect("a header"), rest)
            };
            let ((found, rest), ()) = tokio::join!(reading, sending);
            assert_eq!(found, client.map(|client| client.parse().expect("an address")));
            assert_eq!(rest, b"rest");
        }
    }

    #[tokio::test]
    async fn unix_header_is_read_alone() {
        for (header, client) in valid() {
            let (mut sender, stream) = UnixStream::pair().expect("two ends");
            let mut stream = ClientSocket::Unix(stream);
            let sending = async {
                for part in header.chunks(500) {
                    sender.write_all(part).await.expect("room");
                    tokio::task::yield_now().await;
                }
                sender.write_all(b"rest").await.expect("room");
            };
            let reading = async {
                let found = tokio::time::timeout(Duration::from_secs(20), read(&mut stream)).await.expect("in time");
                let mut rest = [0; 4];
                stream.read_exact(&mut rest).await.expect("the rest");
                (found.expect("a header"), rest)
            };
            let ((found, rest), ()) = tokio::join!(reading, sending);
            assert_eq!((found, &rest), (client.map(|client| client.parse().expect("an address")), b"rest"));
        }
    }

    #[tokio::test]
    async fn cut_header_is_no_header() {
        for (sent, expected) in [(&b""[..], "before its first byte"), (b"PROXY TCP4 192.0.2.7", "ended within it")] {
            let (mut sender, mut stream) = connected().await;
            sender.write_all(sent).await.expect("room");
            sender.shutdown().await.expect("its side");
            let fault = read(&mut stream).await.expect_err("no header").to_string();
            assert!(fault.contains(expected), "{fault}");
        }
    }
}
