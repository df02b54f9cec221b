//! A donor of the tests that drive the machine by hand: it answers every request at once, from memory.

use bytes::Bytes;

use crate::format::RecordStamp;
use crate::group::{DonorReply, DonorRequest};

/// Answers a request to a donor with this memory and this metadata area.
pub fn answer(memory: &mut [u8], area: &mut Vec<u8>, body: DonorRequest) -> DonorReply {
    match body {
        DonorRequest::Read { offset, bytes } => {
            DonorReply::Data(Bytes::copy_from_slice(&memory[offset as usize..(offset + bytes) as usize]))
        }
        DonorRequest::Write { offset, data, .. } => {
            memory[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
            DonorReply::Done
        }
        DonorRequest::WriteZeroes { offset, bytes, .. } | DonorRequest::Trim { offset, bytes } => {
            memory[offset as usize..(offset + bytes) as usize].fill(0);
            DonorReply::Done
        }
        DonorRequest::ReadMetadata => DonorReply::Metadata { area: Bytes::copy_from_slice(area), is_owned: false },
        DonorRequest::SwapMetadata { expected, .. } if RecordStamp::of(area) != expected => DonorReply::SwapRefused,
        DonorRequest::SwapMetadata { record, .. } => {
            *area = record.to_vec();
            DonorReply::Done
        }
    }
}
