//! A byte array that takes little memory if it is mostly zeroes. Tests use it as the model of a
//! file, which may be terabytes long.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};

/// The content that a file should have. Only written bytes take memory, and clones share them.
///
/// Invariants: pieces do not overlap, are not empty, and end at or before `len`.
#[derive(Clone, Debug, Default)]
pub struct SparseBytes {
    len: u64,
    /// Pieces by the offset of their first byte.
    pieces: BTreeMap<u64, Piece>,
}

/// Bytes of one write, or a part of them.
#[derive(Clone, Debug)]
struct Piece {
    bytes: Arc<[u8]>,
    part: Range<usize>,
}

impl Piece {
    fn len(&self) -> u64 {
        u64_from_usize(self.part.len())
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.part.clone()]
    }

    /// The first `at` bytes, and the rest.
    fn split(self, at: u64) -> (Self, Self) {
        let middle = self.part.start + usize_from_u64(at);
        let head = Self { bytes: Arc::clone(&self.bytes), part: self.part.start..middle };
        (head, Self { part: middle..self.part.end, ..self })
    }
}

impl SparseBytes {
    /// No bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes bytes at `at`; a gap before them becomes zeroes.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at + u64_from_usize(bytes.len());
        if at == end {
            return;
        }
        self.len = self.len.max(end);
        self.zero(at..end);
        self.pieces.insert(at, Piece { bytes: bytes.into(), part: 0..bytes.len() });
    }

    /// Sets the length: new bytes are zeroes.
    pub fn resize(&mut self, len: u64) {
        self.cut(len);
        drop(self.pieces.split_off(&len));
        self.len = len;
    }

    /// Grows to at least `len` bytes.
    pub fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Zeroes a range. The length does not change, even if the range extends past the end.
    pub fn zero(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        let behind = self.pieces.split_off(&range.end);
        drop(self.pieces.split_off(&range.start));
        self.pieces.extend(behind);
    }

    /// Removes a range: what follows moves down.
    ///
    /// # Panics
    /// When the range ends past the last byte.
    pub fn collapse(&mut self, range: Range<u64>) {
        assert!(range.end <= self.len, "{range:?} is not inside");
        self.zero(range.clone());
        let gone = range.end - range.start;
        let behind = self.pieces.split_off(&range.start);
        self.pieces.extend(behind.into_iter().map(|(at, piece)| (at - gone, piece)));
        self.len -= gone;
    }

    /// Inserts `len` zeroes at `at`: what follows moves up.
    ///
    /// # Panics
    /// When `at` is past the end.
    pub fn insert(&mut self, at: u64, len: u64) {
        assert!(at <= self.len, "{at} is not inside");
        self.cut(at);
        let behind = self.pieces.split_off(&at);
        self.pieces.extend(behind.into_iter().map(|(from, piece)| (from + len, piece)));
        self.len += len;
    }

    /// The bytes of a range; fewer if it extends past the last byte.
    #[must_use]
    pub fn read(&self, range: Range<u64>) -> Vec<u8> {
        let end = range.end.min(self.len);
        let mut bytes = vec![0; usize_from_u64(end.saturating_sub(range.start))];
        if bytes.is_empty() {
            return bytes;
        }
        let first = self.pieces.range(..=range.start).next_back().map_or(range.start, |(&at, _)| at);
        for (&at, piece) in self.pieces.range(first..end) {
            let (from, to) = (at.max(range.start), (at + piece.len()).min(end));
            if from < to {
                let source = &piece.as_slice()[usize_from_u64(from - at)..usize_from_u64(to - at)];
                bytes[usize_from_u64(from - range.start)..usize_from_u64(to - range.start)]
                    .copy_from_slice(source);
            }
        }
        bytes
    }

    /// The ranges that hold written bytes, ascending; adjacent ones are joined. The rest is zeroes.
    #[must_use]
    pub fn written(&self) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = Vec::new();
        for (&at, piece) in &self.pieces {
            match all.last_mut() {
                Some(last) if last.end == at => last.end += piece.len(),
                _ => all.push(at..at + piece.len()),
            }
        }
        all
    }

    /// Splits the piece that extends over `at`, if there is one.
    fn cut(&mut self, at: u64) {
        let Some((&first, piece)) = self.pieces.range(..at).next_back() else { return };
        if first + piece.len() > at {
            let (head, tail) = piece.clone().split(at - first);
            self.pieces.insert(first, head);
            self.pieces.insert(at, tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn it_holds_what_a_vector_would() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (mut sparse, mut plain) = (SparseBytes::new(), Vec::<u8>::new());
        for step in 0..20_000 {
            let size = u64_from_usize(plain.len());
            let at = rng.random_range(0..300);
            let len = rng.random_range(0..60);
            let (from, to) = (usize_from_u64(at.min(size)), usize_from_u64((at + len).min(size)));
            match rng.random_range(0..6) {
                0 => {
                    let bytes: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                    sparse.write(at, &bytes);
                    let end = usize_from_u64(at) + bytes.len();
                    if !bytes.is_empty() {
                        plain.resize(plain.len().max(end), 0);
                        plain[usize_from_u64(at)..end].copy_from_slice(&bytes);
                    }
                }
                1 => {
                    sparse.resize(at);
                    plain.resize(usize_from_u64(at), 0);
                }
                2 => {
                    sparse.zero(at..at + len);
                    plain[from..to].fill(0);
                }
                3 => {
                    sparse.collapse(u64_from_usize(from)..u64_from_usize(to));
                    plain.drain(from..to);
                }
                4 if size < 2000 => {
                    sparse.insert(u64_from_usize(from), len);
                    plain.splice(from..from, vec![0; usize_from_u64(len)]);
                }
                _ => assert_eq!(sparse.read(at..at + len), &plain[from..to], "step {step}"),
            }
            assert_eq!(sparse.len(), u64_from_usize(plain.len()));
            if step % 50 == 0 {
                assert_eq!(sparse.read(0..u64::MAX), plain, "step {step}");
                for (at, _) in plain.iter().enumerate().filter(|(_, byte)| **byte != 0) {
                    assert!(sparse.written().iter().any(|range| range.contains(&u64_from_usize(at))));
                }
            }
        }
    }

    #[test]
    fn terabytes_of_zeroes_take_no_memory() {
        let mut sparse = SparseBytes::new();
        sparse.write(1 << 47, b"far");
        sparse.insert(5, 1 << 40);
        assert_eq!(sparse.read((1 << 47) + (1 << 40)..u64::MAX), b"far");
        let start = (1 << 47) + (1 << 40);
        assert_eq!(sparse.written(), std::slice::from_ref(&(start..start + 3)));
    }
}
