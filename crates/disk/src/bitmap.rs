//! Operations on a bitmap block: bit `n` is bit `n % 8` of byte `n / 8`, set when in use.
//!
//! Ranges are half-open bit numbers. Scans go by 64-bit words. A bit or range must lie inside the
//! bitmap: otherwise a function panics, or takes the missing bits as clear. So callers first check
//! numbers from disk against a verified [`crate::Geometry`].

use core::ops::Range;

use crate::num::usize_from_u32;

/// Whether a bit is set.
#[inline]
#[must_use]
pub fn test(bits: &[u8], bit: u32) -> bool {
    bits[usize_from_u32(bit / 8)] >> (bit % 8) & 1 == 1
}

/// Sets a bit.
#[inline]
pub fn set(bits: &mut [u8], bit: u32) {
    bits[usize_from_u32(bit / 8)] |= 1 << (bit % 8);
}

/// Clears a bit.
#[inline]
pub fn clear(bits: &mut [u8], bit: u32) {
    bits[usize_from_u32(bit / 8)] &= !(1 << (bit % 8));
}

/// Sets all bits of a range.
pub fn set_range(bits: &mut [u8], range: Range<u32>) {
    for_bytes(&range, |byte, mask| bits[byte] |= mask);
}

/// Clears all bits of a range.
pub fn clear_range(bits: &mut [u8], range: Range<u32>) {
    for_bytes(&range, |byte, mask| bits[byte] &= !mask);
}

/// Calls `f` for each byte that a range touches, with the index of the byte and the mask of the
/// range's bits in it.
fn for_bytes(range: &Range<u32>, mut f: impl FnMut(usize, u8)) {
    if range.is_empty() {
        return;
    }
    let (first, last) = (usize_from_u32(range.start / 8), usize_from_u32((range.end - 1) / 8));
    let head = 0xFF << (range.start % 8);
    let tail = 0xFF >> (7 - (range.end - 1) % 8);
    if first == last {
        f(first, head & tail);
        return;
    }
    f(first, head);
    for byte in first + 1..last {
        f(byte, 0xFF);
    }
    f(last, tail);
}

/// The first set bit of a range; `None` if there is none.
#[must_use]
pub fn next_set(bits: &[u8], range: Range<u32>) -> Option<u32> {
    next_set_of(bits, range, 0)
}

/// The first clear bit of a range; `None` if there is none.
#[must_use]
pub fn next_clear(bits: &[u8], range: Range<u32>) -> Option<u32> {
    next_set_of(bits, range, u64::MAX)
}

/// The first set bit of a range, after XORing every word with `flip`.
fn next_set_of(bits: &[u8], range: Range<u32>, flip: u64) -> Option<u32> {
    let mut at = range.start;
    while at < range.end {
        let word = (word_at(bits, at / 64) ^ flip) >> (at % 64);
        if word != 0 {
            let found = at + word.trailing_zeros();
            return (found < range.end).then_some(found);
        }
        at = (at / 64 + 1).checked_mul(64)?;
    }
    None
}

/// Word `index` of the bitmap. Bits past its end are 0.
fn word_at(bits: &[u8], index: u32) -> u64 {
    let start = usize_from_u32(index) * 8;
    let rest = &bits[start..];
    if let Some(word) = rest.first_chunk::<8>() {
        return u64::from_le_bytes(*word);
    }
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

/// The number of set bits of a range.
#[must_use]
pub fn count_set(bits: &[u8], range: Range<u32>) -> u32 {
    if range.is_empty() {
        return 0;
    }
    let (first, last) = (range.start / 64, (range.end - 1) / 64);
    let head = u64::MAX << (range.start % 64);
    let tail = u64::MAX >> (63 - (range.end - 1) % 64);
    let mut sum = 0;
    for index in first..=last {
        let mut word = word_at(bits, index);
        if index == first {
            word &= head;
        }
        if index == last {
            word &= tail;
        }
        sum += word.count_ones();
    }
    sum
}

/// The number of clear bits of a range.
#[must_use]
pub fn count_clear(bits: &[u8], range: Range<u32>) -> u32 {
    range.end.saturating_sub(range.start) - count_set(bits, range)
}

/// The maximal runs of clear bits inside a range, ascending.
pub fn clear_runs(bits: &[u8], range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let mut at = range.start;
    core::iter::from_fn(move || {
        let start = next_clear(bits, at..range.end)?;
        let end = next_set(bits, start..range.end).unwrap_or(range.end);
        at = end;
        Some(start..end)
    })
}

/// Sets every bit from `from` to the end of the block: the padding after the last meaningful bit.
pub fn pad_from(bits: &mut [u8], from: u32) {
    let total = crate::num::u32_from_usize(bits.len() * 8);
    set_range(bits, from..total);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(bits: &[u8]) -> Vec<bool> {
        (0..bits.len() * 8).map(|n| bits[n / 8] >> (n % 8) & 1 == 1).collect()
    }

    fn bitmap_and_range() -> impl Strategy<Value = (Vec<u8>, Range<u32>)> {
        let byte = prop_oneof![Just(0u8), Just(0xFF), any::<u8>()];
        proptest::collection::vec(byte, 1..70).prop_flat_map(|bits| {
            let total = u32::try_from(bits.len() * 8).unwrap();
            (Just(bits), 0..=total, 0..=total).prop_map(|(bits, a, b)| (bits, a.min(b)..a.max(b)))
        })
    }

    proptest! {
        #[test]
        fn scans_agree_with_a_vector_of_bools((bits, range) in bitmap_and_range()) {
            let model = model(&bits);
            let inside = |n: &u32| range.contains(n);
            let is_set = |n: u32| model[usize_from_u32(n)];
            let all: Vec<u32> = (0..u32::try_from(model.len()).unwrap()).filter(inside).collect();
            prop_assert_eq!(next_set(&bits, range.clone()), all.iter().copied().find(|n| is_set(*n)));
            prop_assert_eq!(next_clear(&bits, range.clone()), all.iter().copied().find(|n| !is_set(*n)));
            let set = u32::try_from(all.iter().filter(|n| is_set(**n)).count()).unwrap();
            prop_assert_eq!(count_set(&bits, range.clone()), set);
            prop_assert_eq!(count_clear(&bits, range.clone()), u32::try_from(all.len()).unwrap() - set);
            let runs: Vec<u32> = clear_runs(&bits, range.clone()).flatten().collect();
            prop_assert_eq!(runs, all.iter().copied().filter(|n| !is_set(*n)).collect::<Vec<_>>());
        }

        #[test]
        fn ranges_change_their_bits_and_no_others((bits, range) in bitmap_and_range()) {
            let before = model(&bits);
            let (mut marked, mut cleared) = (bits.clone(), bits);
            set_range(&mut marked, range.clone());
            clear_range(&mut cleared, range.clone());
            for n in 0..u32::try_from(before.len()).unwrap() {
                let index = usize_from_u32(n);
                prop_assert_eq!(test(&marked, n), before[index] || range.contains(&n));
                prop_assert_eq!(test(&cleared, n), before[index] && !range.contains(&n));
            }
        }

        #[test]
        fn runs_are_maximal_and_apart((bits, range) in bitmap_and_range()) {
            let runs: Vec<Range<u32>> = clear_runs(&bits, range).collect();
            prop_assert!(runs.iter().all(|run| !run.is_empty()));
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }

    #[test]
    fn single_bits() {
        let mut bits = [0u8; 2];
        set(&mut bits, 9);
        assert_eq!(bits, [0, 2]);
        clear(&mut bits, 9);
        pad_from(&mut bits, 12);
        assert_eq!(bits, [0, 0xF0]);
    }
}
