//! Corrects the checksums of mutants, so that decoders read the fields behind them. A decoder must survive wrong fields
//! even if the checksum is right.
//!
//! Owns: the positions of checksums, as defined in `docs/formats/store.md`, `record.md` and `trace.md`. Half of the
//! inputs are decoded unchanged, half with corrected checksums.

/// The alignment of a store's units. *Units*: bytes.
const UNIT_BYTES: usize = 64;
const MAGICS: [&[u8; 4]; 7] = [b"NSUP", b"NSTA", b"NPRG", b"NCKH", b"NCKC", b"NAPP", b"NREC"];

/// Corrects the version, span, identity, address and checksums of every unit with a known magic in a store's image.
/// `start` is the position of the image on its span.
pub fn seal_store(image: &mut [u8], start: u64, identity: u128) {
    for at in (0..image.len()).step_by(UNIT_BYTES) {
        let unit = &mut image[at..];
        if unit.len() < UNIT_BYTES || !MAGICS.iter().any(|magic| unit.starts_with(*magic)) {
            continue;
        }
        unit[4..8].copy_from_slice(&[1, 0, 0, 0]);
        unit[16..32].copy_from_slice(&identity.to_le_bytes());
        unit[40..48].copy_from_slice(&(start + at as u64).to_le_bytes());
        let length = number(unit, 8) as usize;
        if unit.starts_with(b"NREC") && unit.len() > 104 {
            let end = length.saturating_add(number(unit, 100) as usize);
            if let Some(body) = unit.get(length..end) {
                let sum = crc32c::crc32c(body);
                unit[96..100].copy_from_slice(&sum.to_le_bytes());
            }
        }
        if (UNIT_BYTES..=unit.len()).contains(&length) {
            unit[12..16].fill(0);
            let sum = crc32c::crc32c(&unit[..length]);
            unit[12..16].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Corrects the head of a device's recording, and the events after it. Each event starts where the previous one ends.
pub fn seal_recording(bytes: &mut [u8]) {
    seal_head(bytes, 64);
    let Some(identity) = bytes.get(16..24).map(<[u8]>::to_vec) else { return };
    let (mut at, mut index) = (64, 0_u64);
    while let Some(event) = bytes.get_mut(at..).filter(|event| event.len() >= 64) {
        let data_bytes = number(event, 52) as usize;
        event[..6].copy_from_slice(b"NREV\x01\x00");
        event[8..16].copy_from_slice(&identity);
        event[16..24].copy_from_slice(&index.to_le_bytes());
        if let Some(data) = event[64..].get(..data_bytes) {
            let sum = crc32c::crc32c(data);
            event[56..60].copy_from_slice(&sum.to_le_bytes());
        }
        seal_head(event, 64);
        at = at.saturating_add(64).saturating_add(data_bytes);
        index += 1;
    }
}

/// Corrects the head of a file of block references, and the chunks after it. Each chunk starts where the previous one
/// ends, or one byte later if the previous chunk has no payload.
pub fn seal_trace(bytes: &mut [u8]) {
    seal_head(bytes, 64);
    let Some(identity) = bytes.get(16..24).map(<[u8]>::to_vec) else { return };
    let (mut at, mut index) = (64, 0_u32);
    while let Some(chunk) = bytes.get_mut(at..).filter(|chunk| chunk.len() >= 32) {
        // A payload that would end beyond the end of the file is shortened to the rest of the file.
        let payload_bytes = (number(chunk, 20) as usize).min(chunk.len() - 32);
        chunk[..8].copy_from_slice(b"NTCH\x01\x00\x00\x00");
        chunk[8..16].copy_from_slice(&identity);
        chunk[16..20].copy_from_slice(&index.to_le_bytes());
        chunk[20..24].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
        let sum = crc32c::crc32c(&chunk[32..32 + payload_bytes]);
        chunk[24..28].copy_from_slice(&sum.to_le_bytes());
        seal_head(chunk, 32);
        at += 32 + payload_bytes.max(1);
        index += 1;
    }
}

/// Corrects the checksum of a head: its last four bytes are the checksum of its other bytes.
fn seal_head(bytes: &mut [u8], length: usize) {
    if let Some(head) = bytes.get_mut(..length) {
        let sum = crc32c::crc32c(&head[..length - 4]);
        head[length - 4..].copy_from_slice(&sum.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |field| u32::from_le_bytes([field[0], field[1], field[2], field[3]]))
}
