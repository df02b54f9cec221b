//! The pieces of a body, and the change from the store to the origin in the middle of a stored body.
//!
//! Owns: reading a range of a stored object, or of a fill, up to the byte at which the store no longer gives it, and from
//! exactly that byte on what [`Resume`] gets. The store loses a body in four ways: its oldest part is overwritten, its
//! device fails or does not answer in time, the process gives the store up, or a client is too slow for a fill that is not
//! stored. Leaves to others: where the rest comes from, and the proof that it continues the same body (`service/rest`).

use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use nectary_store::{BodyReader, FillReader, StoredObject};

/// The reason why a body was cut short.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BodyError(pub String);

/// Pieces of a body as they arrive.
pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>>>>;

/// The bytes of a stored body that its reader did not get.
#[derive(Debug, Clone)]
pub(crate) struct LostRange {
    /// The offset of the first of them in the whole body.
    pub start: u64,
    /// The end of the wanted range; `None` for the end of the body.
    pub end: Option<u64>,
    /// The length of the whole body, if it is known.
    pub size_bytes: Option<u64>,
    /// Why the store does not give them.
    pub why: String,
}

/// Gets lost bytes from elsewhere: exactly these, or an error. *Errors*: nothing proves that the same body is there.
pub(crate) type Resume = Rc<dyn Fn(LostRange) -> Resuming>;
pub(crate) type Resuming = Pin<Box<dyn Future<Output = Result<Pieces, BodyError>>>>;

/// Where the next pieces come from.
enum PieceSupply {
    Object(BodyReader),
    Fill(FillReader),
    /// Nowhere yet, because the store lost an earlier part of the body for this reason.
    Lost(String),
    /// From elsewhere; the reason is that of `LostRange`.
    Resumed(Pieces, String),
}

/// A range of a stored body, which is read once from front to end.
pub(crate) struct StoredBody {
    supply: PieceSupply,
    position: u64,
    end: Option<u64>,
    size_bytes: Option<u64>,
    resume: Option<Resume>,
}

impl StoredBody {
    /// A range of an object.
    pub fn of_object(object: &StoredObject, range: Range<u64>, resume: Option<Resume>) -> StoredBody {
        let supply = PieceSupply::Object(object.reader(range.clone()));
        StoredBody::new(supply, range.start, Some(range.end), Some(object.body_bytes()), resume)
    }

    /// A range of an object whose store has just failed for this reason, so that it is not tried again.
    pub fn of_lost(object: &StoredObject, range: Range<u64>, resume: Option<Resume>, why: String) -> StoredBody {
        StoredBody::new(PieceSupply::Lost(why), range.start, Some(range.end), Some(object.body_bytes()), resume)
    }

    /// The bytes of a fill from `start` on: `length` bytes, or all. The reader may give more than that.
    pub fn of_fill(reader: FillReader, start: u64, length: Option<u64>, resume: Option<Resume>) -> StoredBody {
        StoredBody::new(PieceSupply::Fill(reader), start, length.map(|length| start + length), None, resume)
    }

    fn new(
        supply: PieceSupply,
        position: u64,
        end: Option<u64>,
        size_bytes: Option<u64>,
        resume: Option<Resume>,
    ) -> StoredBody {
        StoredBody { supply, position, end, size_bytes, resume }
    }

    /// The next piece; `None` at the end. *Errors*: the rest is nowhere; nothing may be read after that.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        let why = loop {
            let error = match &mut self.supply {
                PieceSupply::Resumed(pieces, _) => return pieces.next().await,
                PieceSupply::Lost(why) => break std::mem::take(why),
                PieceSupply::Object(reader) => match reader.next().await? {
                    Ok(piece) => return Some(Ok(self.passed(piece))),
                    Err(error) => error,
                },
                PieceSupply::Fill(reader) => match reader.next().await? {
                    Ok(piece) => return Some(Ok(self.passed(piece))),
                    // The origin broke the body off, so nobody has its rest.
                    Err(error) if reader.has_failed() => return Some(Err(BodyError(error.to_string()))),
                    Err(error) => {
                        self.size_bytes = reader.body_bytes();
                        error
                    }
                },
            };
            self.supply = PieceSupply::Lost(error.to_string());
        };
        let Some(resume) = &self.resume else { return Some(Err(BodyError(why))) };
        let lost = LostRange { start: self.position, end: self.end, size_bytes: self.size_bytes, why: why.clone() };
        let mut pieces = match resume(lost).await {
            Ok(pieces) => pieces,
            Err(error) => return Some(Err(error)),
        };
        let piece = pieces.next().await;
        self.supply = PieceSupply::Resumed(pieces, why);
        piece
    }

    /// Why the store failed, if it did.
    pub fn into_loss(self) -> Option<String> {
        match self.supply {
            PieceSupply::Object(_) | PieceSupply::Fill(_) => None,
            PieceSupply::Lost(why) | PieceSupply::Resumed(_, why) => Some(why),
        }
    }

    /// The pieces as a stream.
    pub fn into_pieces(self) -> Pieces {
        Box::pin(unfold(self, async |mut body| Some((body.next().await?, body))))
    }

    fn passed(&mut self, piece: Bytes) -> Bytes {
        self.position += piece.len() as u64;
        piece
    }
}

/// The pieces of a stream that must have exactly `length` bytes. *Errors*: those of the stream, and one at its end or at
/// the first piece that is too long.
pub(crate) fn exactly(pieces: Pieces, length: u64) -> Pieces {
    Box::pin(unfold(Some((pieces, length)), async |state| {
        let (mut pieces, left) = state?;
        let wrong = |what: &str| Some((Err(BodyError(format!("the rest of the body is {what} than announced"))), None));
        match pieces.next().await {
            None if left > 0 => wrong("shorter"),
            None => None,
            Some(Err(error)) => Some((Err(error), None)),
            Some(Ok(piece)) => match left.checked_sub(piece.len() as u64) {
                None => wrong("longer"),
                Some(left) => Some((Ok(piece), Some((pieces, left)))),
            },
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use futures_util::stream;
    use nectary_block::MemoryDevice;
    use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store};

    use super::*;

    fn pieces(texts: &[&'static str]) -> Pieces {
        let pieces: Vec<_> = texts.iter().map(|text| Ok(Bytes::from_static(text.as_bytes()))).collect();
        Box::pin(stream::iter(pieces))
    }

    async fn collected(mut pieces: Pieces) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => bytes.extend_from_slice(&piece),
                Err(_) => return (bytes, false),
            }
        }
        (bytes, true)
    }

    #[tokio::test]
    async fn a_rest_of_another_length_fails() {
        assert_eq!(collected(exactly(pieces(&["ab", "", "c"]), 3)).await, (b"abc".to_vec(), true));
        assert_eq!(collected(exactly(pieces(&["ab", "c"]), 4)).await, (b"abc".to_vec(), false));
        assert_eq!(collected(exactly(pieces(&["ab", "cd"]), 3)).await, (b"ab".to_vec(), false));
        assert_eq!(collected(exactly(pieces(&[]), 1)).await, (Vec::new(), false));
    }

    /// A store on a device that loses everything behind its areas when the test says so, with an object of this body.
    async fn lossy(body: &[u8]) -> (Arc<MemoryDevice>, Store, StoredObject) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
        let open = || Store::open(device.clone(), OpenOptions { warm_up: false, ..OpenOptions::default() });
        let (key, store) = (KeyRef::new(b"a", b""), open().await.expect("open"));
        store.put(key, Bytes::new(), Bytes::copy_from_slice(body)).await.expect("put");
        store.close().await.expect("closed");
        drop(store);
        let store = open().await.expect("open");
        let object = store.get(key).await.expect("stored");
        (device, store, object)
    }

    async fn lose(device: &MemoryDevice) {
        use nectary_block::BlockDevice;
        let size = device.geometry().size_bytes;
        for offset in (0..size).step_by(1 << 20) {
            let zeroes = vec![nectary_block::Buffer::zeroed(1 << 20)];
            device.write_at(offset, zeroes, Default::default(), Default::default()).await.expect("written");
        }
    }

    #[tokio::test]
    async fn resume_starts_at_lost_byte() {
        let body: Vec<u8> = (0..8u32 << 20).map(|at| (at >> 9) as u8).collect();
        for (range, taken) in [(0..8 << 20, 0), (0..8 << 20, 3), (5..(4 << 20) + 7, 2)] {
            let (device, _store, object) = lossy(&body).await;
            let asked = Rc::new(RefCell::new(Vec::<LostRange>::new()));
            let (heard, whole) = (asked.clone(), body.clone());
            let resume: Resume = Rc::new(move |lost: LostRange| {
                heard.borrow_mut().push(lost.clone());
                let rest = whole[lost.start as usize..lost.end.expect("an end") as usize].to_vec();
                Box::pin(async move { Ok(Box::pin(stream::once(async { Ok(rest.into()) })) as Pieces) })
            });
            let mut read = StoredBody::of_object(&object, range.clone(), Some(resume));
            let mut bytes = Vec::new();
            for _ in 0..taken {
                bytes.extend_from_slice(&read.next().await.expect("a piece").expect("stored"));
            }
            lose(&device).await;
            let (rest, is_whole) = collected(read.into_pieces()).await;
            bytes.extend_from_slice(&rest);
            assert!(is_whole && bytes == body[range.start as usize..range.end as usize], "{range:?} {taken}");
            let asked = asked.take();
            assert!(asked.len() == 1 && asked[0].start >= range.start && asked[0].end == Some(range.end), "{asked:?}");
            assert_eq!(asked[0].size_bytes, Some(body.len() as u64));
        }
    }
}
