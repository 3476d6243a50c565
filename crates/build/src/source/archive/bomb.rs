//! Refuses decompression bombs: compressed streams that are made to fill the disk of whoever
//! unpacks them.

use blockyard_disk::num::u64_from_usize;
use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

/// Any stream may decompress to this many bytes.
const FREE: u64 = 1 << 30;
/// A stream that yields more than [`FREE`] bytes may yield this many for each compressed byte,
/// counted from the start of the stream. Text and programs yield 3 to 20.
const RATIO_MAX: u64 = 250;

/// The most bytes of checksums and the like at the end of a stream. A decoder yields no content for
/// them, and then reads on to look for another stream.
const SUMS_MAX: usize = 64;

/// How much of a compressed stream the decoder has consumed, and how much is buffered for it.
#[derive(Debug, Default)]
pub(super) struct AtHand {
    /// Bytes that the decoder has consumed.
    taken: Cell<u64>,
    /// Bytes that were read and that the decoder has not consumed.
    waiting: Cell<usize>,
}

impl AtHand {
    /// Whether the decoder can probably produce more content from what is buffered. If the buffer
    /// ends within a compressed block, the decoder may have to read the stream first.
    pub(super) fn has_more(&self) -> bool {
        self.waiting.get() > SUMS_MAX
    }
}

/// The compressed stream. Counts what the decoder reads.
pub(super) struct Counted<R> {
    pub(super) inner: R,
    pub(super) at_hand: Rc<AtHand>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let n = there.len().min(into.len());
        into[..n].copy_from_slice(&there[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let there = self.inner.fill_buf()?;
        self.at_hand.waiting.set(there.len());
        Ok(there)
    }

    fn consume(&mut self, n: usize) {
        let AtHand { taken, waiting } = &*self.at_hand;
        debug_assert!(n <= waiting.get(), "no more than there was");
        taken.set(taken.get() + u64_from_usize(n));
        waiting.set(waiting.get() - n);
        self.inner.consume(n);
    }
}

/// The decompressed stream. It fails when [`FREE`] and [`RATIO_MAX`] are both exceeded.
pub(super) struct Expanding<R> {
    pub(super) inner: R,
    /// The state of the compressed stream.
    pub(super) compressed: Rc<AtHand>,
    /// Bytes decompressed so far.
    pub(super) bytes: u64,
}

impl<R: Read> Read for Expanding<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(into)?;
        self.bytes += u64_from_usize(n);
        if self.bytes > FREE && self.bytes / RATIO_MAX > self.compressed.taken.get() {
            let reason = "more than a GiB, and more than 250 times its compressed size: it looks like a bomb; decompress it first if it is not";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::{AtHand, Expanding, FREE};
    use std::cell::Cell;
    use std::io::{self, Read};
    use std::rc::Rc;

    fn grown(bytes: u64, compressed: u64) -> bool {
        let mut stream = Expanding {
            inner: io::repeat(0).take(bytes),
            compressed: Rc::new(AtHand { taken: Cell::new(compressed), ..AtHand::default() }),
            bytes: 0,
        };
        io::copy(&mut stream, &mut io::sink()).is_ok()
    }

    #[test]
    fn only_what_is_large_and_grew_much_is_refused() {
        assert!(grown(FREE, 100));
        assert!(!grown(FREE + 1, 100));
        assert!(grown(FREE + 1, FREE / 240));
    }
}
