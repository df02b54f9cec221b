//! `INIT`: the negotiation of features between kernel and file system.
//!
//! Owns: the answer to the kernel's first request. Promises: only features that the kernel offers are used; the size
//! limit of requests is the highest that both the kernel and the memory of the connection allow.

use zerocopy::FromBytes;

use crate::decode::WireFormat;
use crate::protocol::answers::InitOut;
use crate::protocol::arguments::InitIn;
use crate::protocol::{MAJOR, MINOR, MINOR_MIN, PAGE_BYTES, features};

/// The maximum number of pages of a request without [`features::MAX_PAGES`].
const PAGES_WITHOUT_FEATURE: usize = 32;
/// The maximum number of pages of a request if the kernel does not report its limit. Every kernel with
/// [`features::MAX_PAGES`] allows this number.
const PAGES_EVERYWHERE: usize = 256;
/// The largest number of pages that the protocol's field can hold.
const PAGES_MAX: usize = u16::MAX as usize;
/// How many file systems may be stacked above each other if the kernel reads files of other file systems itself: those
/// below must not be stacked.
const STACK_DEPTH: u32 = 1;
/// The file with the kernel's limit on the pages of a request.
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// The kernel's size limit of one request on this machine, in bytes.
pub fn request_bytes_allowed() -> usize {
    let text = std::fs::read_to_string(PAGES_LIMIT).ok();
    let pages = text.and_then(|text| text.trim().parse().ok()).unwrap_or(PAGES_EVERYWHERE);
    pages.clamp(PAGES_WITHOUT_FEATURE, PAGES_MAX) * PAGE_BYTES
}

/// The features that a file system requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedFeatures {
    /// Bits of [`features`], in addition to [`features::ALWAYS`].
    pub features: u64,
    /// The maximum number of background requests in flight, such as those of asynchronous direct I/O.
    pub background_max: u16,
    /// The granularity of times. *Units*: nanoseconds.
    pub time_granularity_ns: u32,
}

impl Default for RequestedFeatures {
    fn default() -> RequestedFeatures {
        RequestedFeatures { features: 0, background_max: 64, time_granularity_ns: 1 }
    }
}

/// The result of the negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiationResult {
    /// The minor version of the protocol.
    pub minor: u32,
    /// The features that both sides use, as bits of [`features`].
    pub features: u64,
    /// The size limit of a read or a write, in bytes.
    pub request_bytes_max: u32,
}

impl NegotiationResult {
    /// Whether both sides use all given features, which are bits of the module [`features`].
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    pub(crate) fn form(&self) -> WireFormat {
        let has_wide_setxattr = self.has(features::SETXATTR_EXTENDED);
        let looks_up_dots = self.has(features::EXPORT);
        WireFormat { has_wide_setxattr, looks_up_dots, request_bytes_max: self.request_bytes_max }
    }
}

/// The outcome of an `INIT`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InitAnswer {
    /// The negotiation succeeded.
    Agreed(NegotiationResult, InitOut),
    /// The kernel must send `INIT` again, in this version.
    Again(InitOut),
    /// The kernel is too old, or the request is truncated.
    Refused,
}

/// Answers an `INIT` with these arguments. `request_bytes` is the maximum length of a request's data, in bytes.
pub(crate) fn answer(arguments: &[u8], wishes: RequestedFeatures, request_bytes: usize) -> InitAnswer {
    let Ok((asked, rest)) = InitIn::read_from_prefix(arguments) else { return InitAnswer::Refused };
    if asked.major > MAJOR {
        return InitAnswer::Again(InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() });
    }
    if asked.major < MAJOR || asked.minor < MINOR_MIN {
        return InitAnswer::Refused;
    }
    let mut offered = u64::from(asked.flags);
    if offered & features::INIT_EXTENDED != 0 {
        offered |= u32::read_from_prefix(rest).map_or(0, |(high, _)| u64::from(high) << 32);
    }
    let features = offered & (features::ALWAYS | wishes.features);
    let pages_max = if features & features::MAX_PAGES != 0 { PAGES_MAX } else { PAGES_WITHOUT_FEATURE };
    let pages = (request_bytes / PAGE_BYTES).clamp(1, pages_max);
    let agreed =
        NegotiationResult { minor: asked.minor.min(MINOR), features, request_bytes_max: (pages * PAGE_BYTES) as u32 };
    let out = InitOut {
        major: MAJOR,
        minor: agreed.minor,
        read_ahead_bytes_max: asked.read_ahead_bytes_max,
        flags: features as u32,
        flags2: (features >> 32) as u32,
        background_max: wishes.background_max,
        congestion_threshold: wishes.background_max,
        write_bytes_max: agreed.request_bytes_max,
        time_granularity_ns: wishes.time_granularity_ns.max(1),
        pages_max: pages as u16,
        stack_depth_max: if features & features::PASSTHROUGH != 0 { STACK_DEPTH } else { 0 },
        ..InitOut::default()
    };
    InitAnswer::Agreed(agreed, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn init(major: u32, minor: u32, flags: u64, is_long: bool) -> Vec<u8> {
        let low = InitIn { major, minor, read_ahead_bytes_max: 131_072, flags: flags as u32 };
        let mut bytes = low.as_bytes().to_vec();
        if is_long {
            bytes.extend(((flags >> 32) as u32).to_ne_bytes());
            bytes.resize(64, 0);
        }
        bytes
    }

    fn agreed(bytes: &[u8], wishes: RequestedFeatures, request_bytes: usize) -> (NegotiationResult, InitOut) {
        match answer(bytes, wishes, request_bytes) {
            InitAnswer::Agreed(agreed, out) => (agreed, out),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_offered_features_are_negotiated() {
        let wishes = RequestedFeatures {
            features: features::DIRECT_IO_ALLOW_MMAP | features::FLOCK,
            ..RequestedFeatures::default()
        };
        let (none, out) = agreed(&init(7, 31, 0, false), wishes, 1 << 20);
        assert_eq!((none.features, out.flags, out.flags2, none.request_bytes_max), (0, 0, 0, 128 << 10));
        let (all, out) = agreed(&init(7, 60, u64::MAX, true), wishes, 1 << 20);
        assert_eq!(all.features, features::ALWAYS | wishes.features);
        assert_eq!((out.minor, out.flags2, out.pages_max, out.stack_depth_max), (MINOR, 16, 256, 0));
        let passes = RequestedFeatures { features: features::PASSTHROUGH, ..wishes };
        let depth = |offered| agreed(&init(7, 60, offered, true), passes, 1 << 20).1.stack_depth_max;
        assert_eq!((depth(u64::MAX), depth(!features::PASSTHROUGH)), (1, 0));
        // A kernel without `INIT_EXTENDED` offers no features of the second word of flags, even if it sends this word.
        let (low, _) = agreed(&init(7, 36, !features::INIT_EXTENDED, true), wishes, 1 << 20);
        assert!(!low.has(features::DIRECT_IO_ALLOW_MMAP) && low.has(features::FLOCK));
    }

    #[test]
    fn request_size_is_smaller_limit() {
        let bytes = |request_bytes| agreed(&init(7, 38, u64::MAX, true), RequestedFeatures::default(), request_bytes).1;
        assert_eq!((bytes(1 << 20).write_bytes_max, bytes(1 << 20).pages_max), (1 << 20, 256));
        assert_eq!((bytes(16 << 20).write_bytes_max, bytes(16 << 20).pages_max), (16 << 20, 4096));
        assert_eq!(bytes(usize::MAX).pages_max, u16::MAX);
        assert_eq!(bytes(0).pages_max, 1);
        assert!(request_bytes_allowed() >= 128 << 10);
    }

    #[test]
    fn unsupported_kernel_versions_are_refused() {
        assert!(
            matches!(answer(&init(8, 0, 0, false), RequestedFeatures::default(), 1 << 20), InitAnswer::Again(out) if out.major == 7)
        );
        for bytes in [init(6, 99, 0, false), init(7, 30, 0, false), init(7, 31, 0, false)[..15].to_vec()] {
            assert_eq!(answer(&bytes, RequestedFeatures::default(), 1 << 20), InitAnswer::Refused);
        }
    }
}
