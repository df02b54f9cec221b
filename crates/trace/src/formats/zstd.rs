//! Decompresses zstd: any number of frames in sequence, including skippable ones.
//!
//! Owns: reading frame after frame, the bound on their windows, and the check of their checksums. Leaves to others: the
//! blocks within a frame (`ruzstd`).
//!
//! Source: RFC 8878.

use std::io::{self, BufRead, Cursor, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The largest window; frames that need a larger one are refused. *Units*: bytes. `zstd` itself has the same default
/// limit.
pub const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// The number of bytes that are decoded ahead of the reader.
const AHEAD_BYTES: usize = 128 << 10;

const MAGIC: u32 = 0xfd2f_b528;
const SKIPPABLE_MAGICS: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;

/// A reader that decompresses the bytes of `source`.
pub struct ZstdDecoder {
    source: Box<dyn BufRead + Send>,
    frame: Option<FrameDecoder>,
    has_failed: bool,
}

impl ZstdDecoder {
    /// A decoder that starts at the beginning of a frame.
    pub fn new(source: Box<dyn BufRead + Send>) -> ZstdDecoder {
        ZstdDecoder { source, frame: None, has_failed: false }
    }

    /// Begins the next frame; `None` at the end of the source.
    fn next_frame(&mut self) -> io::Result<Option<FrameDecoder>> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(None);
            }
            let mut header = Vec::with_capacity(18);
            let magic = u32::from_le_bytes(take(&mut self.source, &mut header)?);
            if SKIPPABLE_MAGICS.contains(&magic) {
                let bytes = u64::from(u32::from_le_bytes(take(&mut self.source, &mut header)?));
                let skipped = io::copy(&mut self.source.by_ref().take(bytes), &mut io::sink())?;
                if skipped < bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            if magic != MAGIC {
                return Err(damage(format!("magic {magic:#010x} where a frame of zstd should begin")));
            }
            let window_bytes = read_header(&mut self.source, &mut header)?;
            if window_bytes > WINDOW_BYTES_MAX {
                return Err(damage(format!("a zstd window of {window_bytes} bytes, {WINDOW_BYTES_MAX} are allowed")));
            }
            let mut frame = FrameDecoder::new();
            frame.init(Cursor::new(header)).map_err(|error| damage(error.to_string()))?;
            return Ok(Some(frame));
        }
    }

    fn read_frame(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.frame.is_none() {
                self.frame = self.next_frame()?;
            }
            let Some(frame) = &mut self.frame else { return Ok(0) };
            while frame.can_collect() == 0 && !frame.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBytes(AHEAD_BYTES);
                frame.decode_blocks(&mut self.source, strategy).map_err(|error| damage(error.to_string()))?;
            }
            let count = frame.read(to)?;
            if count > 0 {
                return Ok(count);
            }
            if let Some(stored) = frame.get_checksum_from_data()
                && frame.get_calculated_checksum() != Some(stored)
            {
                return Err(damage("a zstd frame whose checksum does not match".to_owned()));
            }
            self.frame = None;
        }
    }
}

impl Read for ZstdDecoder {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        if self.has_failed {
            return Err(damage("an earlier failure in zstd data".to_owned()));
        }
        let result = self.read_frame(to);
        self.has_failed = result.is_err();
        result
    }
}

/// Reads the rest of a frame's header after its magic into `header`. *Returns* the size of the frame's window.
fn read_header(source: &mut dyn Read, header: &mut Vec<u8>) -> io::Result<u64> {
    let [descriptor] = take(source, header)?;
    let is_single_segment = descriptor & 0x20 != 0;
    let mut window_bytes = 0;
    if !is_single_segment {
        let [window] = take(source, header)?;
        let base = 1_u64 << (10 + (window >> 3));
        window_bytes = base + (base >> 3) * u64::from(window & 7);
    }
    let dictionary_id_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    take_some(source, header, dictionary_id_bytes)?;
    let content_bytes = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        power => 1 << power,
    };
    take_some(source, header, content_bytes)?;
    if is_single_segment {
        let mut content = [0; 8];
        content[..content_bytes].copy_from_slice(&header[header.len() - content_bytes..]);
        window_bytes = u64::from_le_bytes(content).saturating_add(if content_bytes == 2 { 256 } else { 0 });
    }
    Ok(window_bytes)
}

fn take<const BYTES: usize>(source: &mut dyn Read, header: &mut Vec<u8>) -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    source.read_exact(&mut bytes)?;
    header.extend(bytes);
    Ok(bytes)
}

fn take_some(source: &mut dyn Read, header: &mut Vec<u8>, count: usize) -> io::Result<()> {
    let start = header.len();
    header.resize(start + count, 0);
    source.read_exact(&mut header[start..])
}

fn damage(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
