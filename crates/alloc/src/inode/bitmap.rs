//! Inode bitmaps as 64-bit words, and the search for a free bit, with the rule for recently deleted
//! inodes.

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};

use super::config::InodeSource;

/// Seconds for which the number of a deleted inode is passed over. The longer time applies while
/// the inode's table block is dirty.
const RECENT_SECONDS: u32 = 60;
const RECENT_SECONDS_DIRTY: u32 = 360;

/// What is needed to tell whether the inode of a free number was deleted recently. Used only for
/// mounts without a journal, where a crash could leave an old directory entry that names a reused
/// inode.
pub(super) struct Recency<'a> {
    pub(super) source: &'a dyn InodeSource,
    pub(super) group: GroupNr,
    /// Inodes from this index on were never used.
    pub(super) never_used_from: u32,
    pub(super) now: u32,
}

impl Recency<'_> {
    fn is_recent(&self, index: u32) -> bool {
        if index >= self.never_used_from {
            return false;
        }
        let Some(deletion) = self.source.deletion(self.group, index) else { return false };
        let window = if deletion.dirty { RECENT_SECONDS_DIRTY } else { RECENT_SECONDS };
        let at = deletion.deleted_at;
        // The sum wraps at 32 bits, as in the kernel.
        at != 0 && at < self.now && self.now < at.wrapping_add(window)
    }
}

/// A bitmap of `bits` free inodes.
pub(super) fn all_free(bits: u32) -> Box<[u64]> {
    vec![0; usize_from_u32(bits.div_ceil(64))].into_boxed_slice()
}

/// The first `bits` bits of `bytes` as a bitmap. Panics if `bytes` is shorter, or `bits` is 0.
pub(super) fn from_bytes(bytes: &[u8], bits: u32) -> Box<[u64]> {
    assert!(bits > 0, "a group without inodes");
    assert!(bytes.len() >= usize_from_u32(bits.div_ceil(8)), "an inode bitmap of {} bytes", bytes.len());
    let mut words = all_free(bits);
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut full = [0; 8];
        full[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(full);
    }
    words
}

/// Sets a bit; false if it was set already.
pub(super) fn set(words: &mut [u64], bit: u32) -> bool {
    let (word, mask) = place(bit);
    let was_clear = words[word] & mask == 0;
    words[word] |= mask;
    was_clear
}

/// Clears a bit; false if it was clear already.
pub(super) fn clear(words: &mut [u64], bit: u32) -> bool {
    let (word, mask) = place(bit);
    let was_set = words[word] & mask != 0;
    words[word] &= !mask;
    was_set
}

/// The lowest clear bit in `start..bits` whose inode was not deleted recently. If all clear bits
/// belong to recently deleted inodes, the highest of them.
pub(super) fn find_free(words: &[u64], start: u32, bits: u32, recency: Option<&Recency<'_>>) -> Option<u32> {
    let Some(recency) = recency else { return next_clear(words, start, bits) };
    let mut last_recent = None;
    let mut from = start;
    while let Some(bit) = next_clear(words, from, bits) {
        if !recency.is_recent(bit) {
            return Some(bit);
        }
        last_recent = Some(bit);
        from = bit + 1;
    }
    last_recent
}

fn next_clear(words: &[u64], start: u32, bits: u32) -> Option<u32> {
    let first = usize_from_u32(start / 64);
    // Bits before the start count as set.
    let mut hidden = (1u64 << (start % 64)) - 1;
    for (at, word) in words.iter().enumerate().skip(first) {
        let clear = !(word | hidden);
        hidden = 0;
        if clear != 0 {
            let bit = u32_from_usize(at) * 64 + clear.trailing_zeros();
            debug_assert!(bit >= start, "bit {bit} was found from {start} on");
            return (bit < bits).then_some(bit);
        }
    }
    None
}

fn place(bit: u32) -> (usize, u64) {
    (usize_from_u32(bit / 64), 1 << (bit % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::config::{BitmapLoad, RecentDeletion};

    #[test]
    fn bits_come_in_order_and_end_at_the_count() {
        let mut words = from_bytes(&[0xFF, 0x0F, 0, 0, 0, 0, 0, 0, 0xFF, 0x7F], 80);
        assert_eq!(next_clear(&words, 0, 80), Some(12));
        assert_eq!(next_clear(&words, 40, 80), Some(40));
        assert_eq!(next_clear(&words, 64, 80), Some(79));
        assert!(set(&mut words, 79));
        assert!(!set(&mut words, 79));
        assert_eq!(next_clear(&words, 64, 80), None);
        assert!(clear(&mut words, 70));
        assert!(!clear(&mut words, 70));
        assert_eq!(next_clear(&words, 64, 80), Some(70));
    }

    #[derive(Debug)]
    struct Deleted(Vec<Option<RecentDeletion>>);

    impl InodeSource for Deleted {
        fn load(
            &self,
            _group: GroupNr,
            _bits: &mut [u8],
        ) -> Result<BitmapLoad, Box<dyn std::error::Error + Send + Sync>> {
            Ok(BitmapLoad::Filled)
        }

        fn deletion(&self, _group: GroupNr, index: u32) -> Option<RecentDeletion> {
            self.0.get(usize_from_u32(index)).copied().flatten()
        }
    }

    fn recency(source: &Deleted, never_used_from: u32) -> Recency<'_> {
        Recency { source, group: GroupNr::ZERO, never_used_from, now: 1000 }
    }

    #[test]
    fn numbers_deleted_within_the_window_are_passed_over() {
        let at = |deleted_at, dirty| Some(RecentDeletion { deleted_at, dirty });
        let cases = [
            (at(0, false), false),
            (at(1000, false), false),
            (at(999, false), true),
            (at(941, false), true),
            (at(940, false), false),
            (at(940, true), true),
            (at(641, true), true),
            (at(640, true), false),
            (None, false),
        ];
        for (deletion, recent) in cases {
            let source = Deleted(vec![deletion]);
            assert_eq!(recency(&source, 8).is_recent(0), recent, "{deletion:?}");
            assert!(!recency(&source, 0).is_recent(0), "never used");
        }
    }

    #[test]
    fn when_all_are_recent_the_last_is_taken() {
        let source = Deleted(vec![Some(RecentDeletion { deleted_at: 990, dirty: false }); 8]);
        let words = from_bytes(&[0b1000_0001], 8);
        assert_eq!(find_free(&words, 0, 8, Some(&recency(&source, 8))), Some(6));
        assert_eq!(find_free(&words, 0, 8, Some(&recency(&source, 3))), Some(3));
        assert_eq!(find_free(&words, 0, 8, None), Some(1));
    }
}
