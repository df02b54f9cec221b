//! The bytes of the protocol: numbers, headers, options and replies, as the NBD protocol document defines them.
//!
//! Owns: encoding and decoding. Numbers are big-endian, and this module does no I/O. Promises: no received length is
//! used before it is compared with the number of received bytes. Leaves to others: the choice of answers (`server`) and
//! requests (`client`).

pub(crate) mod bytes;
pub(crate) mod errno;
pub(crate) mod option;
pub(crate) mod reply;
pub(crate) mod request;

/// The first eight bytes that a server sends.
pub(crate) const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The eight bytes after [`MAGIC`] from a server that negotiates options. They also begin each option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The eight bytes after [`MAGIC`] from a server of the old style, which has no options.
pub(crate) const OLD_STYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// The eight bytes that begin a reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The four bytes that begin a request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The four bytes that begin a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The four bytes that begin a chunk of a structured reply.
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The four bytes that begin a request with an extended header.
pub(crate) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// The four bytes that begin a chunk with an extended header.
pub(crate) const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// The headers of requests and replies that client and server have agreed on. The later ones can do all that the earlier
/// ones can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum HeaderFormat {
    /// Requests of 32-bit lengths, simple replies.
    #[default]
    Simple,
    /// The same requests; replies consist of chunks, except those without data.
    Structured,
    /// Requests of 64-bit lengths; all replies consist of chunks.
    Extended,
}

impl HeaderFormat {
    /// Whether the data of reads arrive in chunks.
    pub fn is_structured(self) -> bool {
        self != HeaderFormat::Simple
    }

    pub fn is_extended(self) -> bool {
        self == HeaderFormat::Extended
    }
}

/// The longest string that the protocol document allows, in bytes.
pub(crate) const STRING_BYTES_MAX: usize = 4096;

/// The server's handshake flag for fixed newstyle haggling (negotiation of options).
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
/// The server's handshake flag that says that it can leave out the zeroes after `NBD_OPT_EXPORT_NAME`.
pub(crate) const NO_ZEROES: u16 = 2;

/// The transmission flags of an export.
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

/// The flags of a command.
pub(crate) mod command_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: the length is that of the data behind the header.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// The only supported metadata context.
pub(crate) const ALLOCATION_CONTEXT: &str = "base:allocation";
/// In `base:allocation`: the extent is not allocated.
pub(crate) const STATE_HOLE: u32 = 1;
/// In `base:allocation`: the extent reads as zeroes.
pub(crate) const STATE_ZERO: u32 = 2;
