//! Requests that two readers can understand differently, so that one of them sees a request that the other one does not.
//!
//! Owns: their bytes. `bench proxy` sends them through every proxy, and the tests of `nectary-proxy`, which have this file
//! as a module, show that Nectary refuses each of them. `@` stands for the target.

/// What is ambiguous in a head, and a request with it.
pub const AMBIGUOUS_HEADS: [(&str, &str); 25] = [
    ("both lengths", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    (
        "both lengths, the other way",
        "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    ),
    ("two lengths", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcd"),
    ("a list of lengths", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: 4, 4\r\n\r\nabcd"),
    ("a signed length", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: +4\r\n\r\nabcd"),
    ("an empty length", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\n"),
    ("a space before a colon", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length : 4\r\n\r\nabcd"),
    ("a space before another colon", "GET @ HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n"),
    ("an unknown coding", "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("a coding that only looks known", "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    (
        "two codings",
        "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    ),
    ("a coding in 1.0", "POST @ HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a folded line", "GET @ HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n"),
    ("a leading space", "GET @ HTTP/1.1\r\n host: a\r\n\r\n"),
    ("a bare LF in the start line", "GET @ HTTP/1.1\nhost: a\r\n\r\n"),
    ("a bare LF in a header", "GET @ HTTP/1.1\r\nhost: a\nx: y\r\n\r\n"),
    ("a bare LF at the end", "GET @ HTTP/1.1\r\nhost: a\r\n\n"),
    ("a bare CR in a value", "GET @ HTTP/1.1\r\nhost: a\r\nx: y\rz\r\n\r\n"),
    ("a bare CR in a name", "GET @ HTTP/1.1\r\nhost: a\r\nx\ry: z\r\n\r\n"),
    ("a NUL", "GET @ HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n"),
    ("no colon", "GET @ HTTP/1.1\r\nhost: a\r\nnonsense\r\n\r\n"),
    ("no version", "GET @\r\nhost: a\r\n\r\n"),
    ("a later version", "GET @ HTTP/2.0\r\nhost: a\r\n\r\n"),
    ("a space in the target", "GET @ x HTTP/1.1\r\nhost: a\r\n\r\n"),
    ("a control character in the method", "G\x01T @ HTTP/1.1\r\nhost: a\r\n\r\n"),
];

/// Bodies in chunks of which one is wrong, behind a head with `Transfer-Encoding: chunked`.
pub const WRONG_CHUNKS: [&str; 9] = [
    "x\r\n",
    "-1\r\n",
    "3\nabc\r\n",
    "3\r\nabcd\r\n",
    "3 \r\nabc\r\n",
    "0x3\r\nabc\r\n",
    "3;a\nb\r\nabc\r\n",
    "11111111111111111\r\n",
    "3\r\nabc\r\n0\r\nx: y\n\r\n",
];
