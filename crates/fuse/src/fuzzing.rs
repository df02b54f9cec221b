//! A function for the fuzz target: it decodes a whole request and checks every promise of `decode`.

use zerocopy::FromBytes;

use crate::decode::{WireFormat, decode};
use crate::negotiate::{InitAnswer, RequestedFeatures, answer};
use crate::protocol::arguments::{HEAD_BYTES, InHeader};
use crate::protocol::{NAME_BYTES_MAX, XATTR_BYTES_MAX, opcode};
use crate::request::RequestCall;

/// The size limit of a request.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Decodes a request as a worker does; panics if a promise is broken.
pub fn request(bytes: &[u8], has_wide_setxattr: bool) {
    let Ok((header, rest)) = InHeader::read_from_prefix(bytes) else { return };
    if header.opcode == opcode::INIT {
        if let InitAnswer::Agreed(agreed, out) =
            answer(rest, RequestedFeatures { features: u64::MAX, ..RequestedFeatures::default() }, 1 << 20)
        {
            assert!(agreed.request_bytes_max <= REQUEST_BYTES_MAX && out.pages_max <= 256 && out.minor <= 45);
        }
        return;
    }
    let is_write = header.opcode == opcode::WRITE;
    let data_bytes = bytes.len().saturating_sub(HEAD_BYTES);
    let arguments = if is_write { &bytes[size_of::<InHeader>()..bytes.len().min(HEAD_BYTES)] } else { rest };
    let form = WireFormat { has_wide_setxattr, looks_up_dots: has_wide_setxattr, request_bytes_max: REQUEST_BYTES_MAX };
    if let Some(call) = decode(&header, arguments, data_bytes, form) {
        check(&call, data_bytes, form);
    }
}

fn check(call: &RequestCall<'_>, data_bytes: usize, form: WireFormat) {
    let name_or_dots = |name: &std::ffi::CStr| {
        let bytes = name.to_bytes();
        assert!(!bytes.is_empty() && bytes.len() <= NAME_BYTES_MAX && !bytes.contains(&b'/') && !bytes.contains(&0));
    };
    let name = |name: &std::ffi::CStr| {
        name_or_dots(name);
        assert!(name.to_bytes() != b"." && name.to_bytes() != b"..");
    };
    let range = |offset: u64, length: u64| assert!(offset.checked_add(length).is_some_and(|end| end < 1 << 63));
    match *call {
        RequestCall::LookUp { name: one } if form.looks_up_dots => name_or_dots(one),
        RequestCall::LookUp { name: one }
        | RequestCall::Unlink { name: one }
        | RequestCall::RemoveDirectory { name: one } => name(one),
        RequestCall::MakeNode { name: one, .. }
        | RequestCall::MakeDirectory { name: one, .. }
        | RequestCall::Create { name: one, .. } => {
            name(one);
        }
        RequestCall::SymbolicLink { name: one, target } => {
            name(one);
            assert!(target.count_bytes() <= NAME_BYTES_MAX);
        }
        RequestCall::Link { new_name, .. } => name(new_name),
        RequestCall::Rename { name: one, new_name, .. } => {
            name(one);
            name(new_name);
        }
        RequestCall::Read(read) => {
            range(read.offset, read.size.into());
            assert!(read.size <= REQUEST_BYTES_MAX);
        }
        RequestCall::Write(write) => {
            range(write.offset, write.size.into());
            assert_eq!(write.size as usize, data_bytes);
        }
        RequestCall::SetXattr { name, value, .. } => assert!(!name.is_empty() && value.len() <= XATTR_BYTES_MAX),
        RequestCall::GetXattr { size, .. } | RequestCall::ListXattr { size } => {
            assert!(size as usize <= XATTR_BYTES_MAX)
        }
        RequestCall::ReadDirectory { size, .. } => assert!(size <= REQUEST_BYTES_MAX),
        RequestCall::Allocate { offset, length, .. } => range(offset, length),
        RequestCall::Copy(copy) => {
            range(copy.offset, copy.length);
            range(copy.to_offset, copy.length);
        }
        RequestCall::GetLock(lock) | RequestCall::SetLock { lock, .. } => {
            assert!(lock.start <= lock.end && lock.end < 1 << 63)
        }
        RequestCall::Ioctl { input, output_bytes_max, .. } => {
            assert!(output_bytes_max <= REQUEST_BYTES_MAX && input.len() <= data_bytes + HEAD_BYTES);
        }
        _ => {}
    }
}
