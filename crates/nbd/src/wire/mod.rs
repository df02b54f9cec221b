//! The bytes of the protocol: numbers, headers, options and replies, as the NBD protocol document defines them.
//!
//! Owns: encoding and decoding, big-endian, without I/O. Promises: no received length is used before it is compared
//! with the bytes that were received. Leaves to others: the answers (`server`) and the requests (`client`).

pub(crate) mod bytes;
pub(crate) mod errno;
pub(crate) mod option;
pub(crate) mod reply;
pub(crate) mod request;

/// The first eight bytes that a server sends.
pub(crate) const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The next eight bytes if options can be negotiated; they also begin each option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The next eight bytes from a server of the old style.
pub(crate) const OLD_STYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Begins a reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The longest string that the document allows, in bytes.
pub(crate) const STRING_BYTES_MAX: usize = 4096;

/// Handshake flag of a server: fixed newstyle.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag of a server: it can leave out the zeroes after `NBD_OPT_EXPORT_NAME`.
pub(crate) const NO_ZEROES: u16 = 2;

/// Transmission flags.
pub(crate) mod flag {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a command.
pub(crate) mod command_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// The only supported metadata context.
pub(crate) const ALLOCATION_CONTEXT: &str = "base:allocation";
/// In `base:allocation`: the extent is not allocated.
pub(crate) const STATE_HOLE: u32 = 1;
/// In `base:allocation`: the extent reads as zeroes.
pub(crate) const STATE_ZERO: u32 = 2;
