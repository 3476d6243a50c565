//! A compressed stream that grows beyond all measure is refused: it was made to fill whoever
//! unpacks it.

use blockyard_disk::num::u64_from_usize;
use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

/// Bytes that any stream may have.
const FREE: u64 = 1 << 30;
/// Bytes that a longer one may have for each byte that it is compressed to. Text and programs have
/// 3 to 20.
const RATIO_MAX: u64 = 250;

/// Counts what is read.
pub(super) struct Counted<R> {
    pub(super) inner: R,
    pub(super) bytes: Rc<Cell<u64>>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(into)?;
        self.bytes.set(self.bytes.get() + u64_from_usize(n));
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.bytes.set(self.bytes.get() + u64_from_usize(n));
        self.inner.consume(n);
    }
}

/// What a stream holds, up to the measure.
pub(super) struct Expanding<R> {
    pub(super) inner: R,
    /// Bytes that were read of the compressed stream.
    pub(super) compressed: Rc<Cell<u64>>,
    /// Bytes that came out.
    pub(super) bytes: u64,
}

impl<R: Read> Read for Expanding<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(into)?;
        self.bytes += u64_from_usize(n);
        if self.bytes > FREE && self.bytes / RATIO_MAX > self.compressed.get() {
            let reason = "more than a GiB, and more than 250 times its compressed size: it looks like a bomb; decompress it first if it is none";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::{Expanding, FREE};
    use std::cell::Cell;
    use std::io::{self, Read};
    use std::rc::Rc;

    fn grown(bytes: u64, compressed: u64) -> bool {
        let mut stream = Expanding {
            inner: io::repeat(0).take(bytes),
            compressed: Rc::new(Cell::new(compressed)),
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
