//! The target of `nectary-fuse`: requests of the kernel, complete or truncated, with arbitrary fields.
//!
//! `nectary_fuse::fuzzing` checks that an accepted request keeps all promised bounds.

use super::choices;

/// The parts of requests.
pub const WORDS: &[&[u8]] = &[
    b"name\0",
    b"..\0",
    b"a/b\0",
    b"user.a\0",
    &[0xff; 8],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 16, 0],
    &[0, 0, 1, 0],
];

/// Decodes one request.
pub fn request(input: &[u8]) {
    let (choices, bytes) = choices(input);
    nectary_fuse::fuzzing::request(bytes, choices & 1 == 1);
}

/// Makes one request for each form of arguments.
pub fn request_seeds() -> Vec<Vec<u8>> {
    let with_name = |fixed: usize, names: &[u8]| [&vec![0; fixed][..], names].concat();
    let sized = |fixed: usize, at: usize, size: u32| {
        let mut arguments = vec![0; fixed];
        arguments[at..at + 4].copy_from_slice(&size.to_ne_bytes());
        arguments
    };
    let xattr = |fixed: usize| [&sized(fixed, 0, 2)[..], b"user.a\0vv"].concat();
    let mut init = [7u32, 38, 131_072, u32::MAX, u32::MAX].map(u32::to_ne_bytes).concat();
    init.resize(64, 0);
    let requests: Vec<(u32, Vec<u8>)> = vec![
        (1, b"name\0".to_vec()),
        (3, vec![0; 16]),
        (4, vec![0; 88]),
        (6, b"name\0target\0".to_vec()),
        (8, with_name(16, b"name\0")),
        (9, with_name(8, b"name\0")),
        (12, with_name(8, b"old\0new\0")),
        (14, vec![0; 8]),
        (15, sized(40, 16, 4096)),
        (16, [&sized(40, 16, 4)[..], b"data"].concat()),
        (18, vec![0; 24]),
        (20, vec![0; 16]),
        (21, xattr(8)),
        (22, with_name(8, b"user.a\0")),
        (23, sized(8, 0, 100)),
        (26, init),
        (31, vec![0; 48]),
        (35, with_name(16, b"name\0")),
        (39, [&sized(32, 24, 4)[..], b"data"].concat()),
        (40, vec![0; 24]),
        (43, vec![0; 32]),
        (44, sized(40, 16, 4096)),
        (45, with_name(16, b"old\0new\0")),
        (46, vec![0; 24]),
        (47, vec![0; 56]),
        (51, with_name(16, b"/\0")),
        (52, vec![0; 24]),
    ];
    let mut seeds: Vec<Vec<u8>> = requests.iter().map(|(opcode, arguments)| message(0, *opcode, arguments)).collect();
    seeds.push(message(1, 21, &xattr(16)));
    seeds
}

/// Makes an input: the first byte, which chooses the variant of the run, and a request with its header.
fn message(choices: u8, opcode: u32, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = vec![choices];
    bytes.extend((40 + arguments.len() as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(2u64.to_ne_bytes());
    bytes.extend(1u64.to_ne_bytes());
    bytes.extend([0; 16]);
    bytes.extend(arguments);
    bytes
}
