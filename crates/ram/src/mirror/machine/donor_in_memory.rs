//! A donor of the tests that drive the machine by hand: it answers every request at once, from memory.

use bytes::Bytes;

use crate::format::Stamp;
use crate::mirror::event::{DonorRequest, Reply};

/// Answers a request to a donor with this memory and this metadata area.
pub fn answer(memory: &mut [u8], area: &mut Vec<u8>, body: DonorRequest) -> Reply {
    match body {
        DonorRequest::Read { offset, bytes } => {
            Reply::Data(Bytes::copy_from_slice(&memory[offset as usize..(offset + bytes) as usize]))
        }
        DonorRequest::Write { offset, data, .. } => {
            memory[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
            Reply::Done
        }
        DonorRequest::WriteZeroes { offset, bytes, .. } | DonorRequest::Trim { offset, bytes } => {
            memory[offset as usize..(offset + bytes) as usize].fill(0);
            Reply::Done
        }
        DonorRequest::ReadMetadata => Reply::Metadata { area: Bytes::copy_from_slice(area), is_owned: false },
        DonorRequest::SwapMetadata { expected, .. } if Stamp::of(area) != expected => Reply::SwapRefused,
        DonorRequest::SwapMetadata { record, .. } => {
            *area = record.to_vec();
            Reply::Done
        }
    }
}
