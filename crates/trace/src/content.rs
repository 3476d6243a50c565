//! The content of the files of a trace. It is computed from path, offset and seed. So a trace
//! stores no data, and the content of a block shows to which file and offset it belongs.
//!
//! Each aligned 8-byte word is a hash of the file's key (a hash of seed and path) and the word's
//! position. So the content does not depend on how it is split into writes.

/// The content of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    key: u64,
}

impl Content {
    /// The content of the file that was opened as `path`.
    #[must_use]
    pub fn of(path: &str, seed: u64) -> Self {
        let key =
            path.bytes().fold(mix(seed ^ 0x6A09_E667_F3BC_C908), |key, byte| mix(key ^ u64::from(byte)));
        Self { key }
    }

    /// Fills `out` with the bytes at `offset` of the file.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let word = self.word(at / 8).to_le_bytes();
            let skip = usize::try_from(at % 8).expect("below eight");
            let take = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(take);
            now.copy_from_slice(&word[skip..skip + take]);
            at += u64::try_from(take).expect("at most eight");
            rest = later;
        }
    }

    /// The bytes at `offset`.
    #[must_use]
    pub fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.fill(offset, &mut out);
        out
    }

    fn word(&self, index: u64) -> u64 {
        mix(self.key ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// The finaliser of SplitMix64: every input bit affects every output bit.
fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_depend_on_how_it_is_cut() {
        let content = Content::of("/a/b", 7);
        let whole = content.bytes(3, 1000);
        for cut in [1, 5, 8, 13, 999] {
            let mut parts = content.bytes(3, cut);
            parts.extend(content.bytes(3 + u64::try_from(cut).unwrap(), 1000 - cut));
            assert_eq!(parts, whole);
        }
    }

    #[test]
    fn content_differs_by_path_seed_and_offset() {
        let base = Content::of("/a", 1).bytes(0, 64);
        for other in [
            Content::of("/b", 1).bytes(0, 64),
            Content::of("/a", 2).bytes(0, 64),
            Content::of("/a", 1).bytes(64, 64),
        ] {
            assert_ne!(base, other);
        }
    }
}
