//! Names as numbers.
//!
//! Names of large directories are mostly made by a rule, as `IMG_004711.jpg` and `part-0002a9f1` are: at each place of the
//! names of one length there are few different bytes, the place's *alphabet*. The *code* of a name is its number among all
//! names that its length's alphabets spell, counted through all lengths. It stands for this name and no other.
//!
//! Alphabets are learned from the names. A place that has two digits gets all of them, or all hexadecimal digits, as more are
//! to be expected: each lesson costs whoever keeps codes a new one for every name.

use super::segment::NAME_MAX;
use blockyard_disk::num::{low8, u32_from_usize, u64_from_usize, usize_from_u64};

/// Lengths that names may have: bounds the memory.
const LENGTHS_MAX: usize = 16;
/// Codes have fewer bits than this.
const BITS_MAX: u32 = 48;
/// The rank of a byte that a place does not have.
const NONE: u8 = u8::MAX;
/// Bytes that are expected all when two of them have come.
const CLASSES: [&[u8]; 3] = [b"0123456789", b"0123456789abcdef", b"0123456789ABCDEF"];

/// The alphabets of the names of one directory.
#[derive(Clone)]
pub(super) struct Alphabets {
    /// By length.
    lengths: Box<[Option<Box<Length>>; NAME_MAX + 1]>,
    /// Codes that there are.
    codes: u64,
}

/// The names of one length.
#[derive(Clone)]
struct Length {
    /// The first one's code.
    first: u64,
    /// How many there are.
    count: u64,
    places: Vec<Place>,
}

/// One place in them.
#[derive(Clone)]
struct Place {
    /// How many codes the next byte of the alphabet is further.
    weight: u64,
    /// The position of each byte in the alphabet, or [`NONE`].
    ranks: [u8; 256],
    /// The alphabet.
    bytes: Vec<u8>,
}

impl Alphabets {
    /// No names.
    pub(super) fn new() -> Self {
        Self { lengths: Box::new([const { None }; NAME_MAX + 1]), codes: 0 }
    }

    /// Codes are below this.
    pub(super) const fn codes(&self) -> u64 {
        self.codes
    }

    /// Bytes of memory, about.
    pub(super) fn memory(&self) -> usize {
        self.lengths.iter().flatten().map(|length| length.places.len() * size_of::<Place>()).sum()
    }

    /// The code of a name of at most [`NAME_MAX`] bytes, if the alphabets spell it.
    #[inline]
    pub(super) fn encode(&self, name: &[u8]) -> Option<u64> {
        let length = self.lengths[name.len()].as_deref()?;
        let mut code = length.first;
        let mut spelled = true;
        for (place, &byte) in length.places.iter().zip(name) {
            let rank = place.ranks[usize::from(byte)];
            spelled &= rank != NONE;
            code = code.wrapping_add(place.weight.wrapping_mul(u64::from(rank)));
        }
        spelled.then_some(code)
    }

    /// The name of a code, written into the buffer.
    pub(super) fn decode<'a>(&self, code: u64, name: &'a mut [u8; NAME_MAX]) -> &'a [u8] {
        let mut lengths = self.lengths.iter().flatten();
        let Some(length) = lengths.find(|length| code.wrapping_sub(length.first) < length.count) else {
            unreachable!("{code} is no code of {}", self.codes)
        };
        let mut rest = code - length.first;
        for (place, byte) in length.places.iter().zip(name.iter_mut()) {
            *byte = place.bytes[usize_from_u64(rest / place.weight)];
            rest %= place.weight;
        }
        &name[..length.places.len()]
    }

    /// Alphabets that spell other names of at most [`NAME_MAX`] bytes, too; `None` when there would be too many names.
    pub(super) fn learn<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut exact = self.clone();
        for name in names {
            let length = exact.lengths[name.len()].get_or_insert_with(|| Length::of(name.len()));
            for (place, &byte) in length.places.iter_mut().zip(name) {
                if !place.add(byte) {
                    return None;
                }
            }
        }
        let mut expecting = exact.clone();
        expecting.lengths.iter_mut().flatten().flat_map(|length| &mut length.places).for_each(Place::expect);
        [expecting, exact].into_iter().find_map(|mut new| new.count().then_some(new))
    }

    /// Numbers all names anew; false when there are too many of them, or of their lengths.
    fn count(&mut self) -> bool {
        let mut codes = 0u64;
        for length in self.lengths.iter_mut().flatten() {
            length.places.iter_mut().for_each(Place::sort);
            let mut count = 1u64;
            for place in length.places.iter_mut().rev() {
                place.weight = count;
                let Some(more) = count.checked_mul(u64_from_usize(place.bytes.len())) else { return false };
                count = more;
            }
            (length.first, length.count) = (codes, count);
            let Some(sum) = codes.checked_add(count) else { return false };
            codes = sum;
        }
        self.codes = codes;
        codes < 1 << BITS_MAX && self.lengths.iter().flatten().count() <= LENGTHS_MAX
    }
}

impl Length {
    fn of(len: usize) -> Box<Self> {
        Box::new(Self { first: 0, count: 0, places: vec![Place::new(); len] })
    }
}

impl Place {
    const fn new() -> Self {
        Self { weight: 0, ranks: [NONE; 256], bytes: Vec::new() }
    }

    /// Takes up the bytes that may be expected.
    fn expect(&mut self) {
        let class = CLASSES.iter().find(|class| self.bytes.iter().all(|byte| class.contains(byte)));
        if let Some(class) = class.filter(|_| self.bytes.len() > 1) {
            for &byte in *class {
                assert!(self.add(byte), "a class has few bytes");
            }
        }
    }

    /// Puts the alphabet in order: names made in the order of a rule have codes in this order.
    fn sort(&mut self) {
        self.bytes.sort_unstable();
        for (&byte, rank) in self.bytes.iter().zip(0..) {
            self.ranks[usize::from(byte)] = rank;
        }
    }

    /// False when there is no rank for the byte. Names without `/` and NUL have not so many, those of damaged directories may.
    #[must_use]
    fn add(&mut self, byte: u8) -> bool {
        if self.ranks[usize::from(byte)] == NONE {
            if self.bytes.len() == usize::from(NONE) {
                return false;
            }
            self.ranks[usize::from(byte)] = low8(u32_from_usize(self.bytes.len()));
            self.bytes.push(byte);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_digits_let_all_be_expected() {
        let alphabets = Alphabets::new().learn([&b"f00017.log"[..], b"f00003.log"].into_iter()).unwrap();
        assert_eq!(alphabets.codes(), 100);
        assert!(alphabets.encode(b"f00099.log").is_some());
        assert_eq!(alphabets.encode(b"f00100.log"), None);
        let alphabets = alphabets.learn(std::iter::once(&b"f0001a.log"[..])).unwrap();
        assert_eq!(alphabets.codes(), 160);
    }

    #[test]
    fn too_many_names_are_refused() {
        let random = [&b"0123456789abcdef"[..], b"123456789abcdef0"];
        // As two names they might be 2^16; sixteen hexadecimal digits each are 2^64.
        let alphabets = Alphabets::new().learn(random.into_iter()).unwrap();
        assert_eq!(alphabets.codes(), 1 << 16);
        let more: Vec<String> =
            (1..30u64).map(|n| format!("{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
        assert!(alphabets.learn(more.iter().map(String::as_bytes)).is_none());
        let lengths: Vec<Vec<u8>> = (1..=17).map(|len| vec![b'x'; len]).collect();
        assert!(Alphabets::new().learn(lengths[1..].iter().map(Vec::as_slice)).is_some());
        assert!(Alphabets::new().learn(lengths.iter().map(Vec::as_slice)).is_none());
    }

    /// A damaged directory may have names of any byte.
    #[test]
    fn a_byte_without_a_rank_is_refused() {
        let all: Vec<[u8; 1]> = (0..=u8::MAX).map(|byte| [byte]).collect();
        let most = Alphabets::new().learn(all[..255].iter().map(|name| &name[..])).unwrap();
        assert_eq!(most.codes(), 255);
        assert!(most.learn(std::iter::once(&all[255][..])).is_none());
    }

    proptest! {
        /// Each name has one code, below all that there are, which gives it back.
        #[test]
        fn codes_are_names(
            names in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..6usize), 1..30),
        ) {
            let mut alphabets = Alphabets::new();
            let mut learned = Vec::new();
            for name in &names {
                if let Some(more) = alphabets.learn(std::iter::once(&name[..])) {
                    alphabets = more;
                    learned.push(name);
                }
            }
            for name in learned {
                let code = alphabets.encode(name).unwrap();
                prop_assert!(code < alphabets.codes());
                let mut buffer = [0; NAME_MAX];
                prop_assert_eq!(alphabets.decode(code, &mut buffer), &name[..]);
            }
            let step = usize_from_u64(alphabets.codes() / 1000 + 1);
            for code in (0..alphabets.codes()).step_by(step) {
                let mut buffer = [0; NAME_MAX];
                prop_assert_eq!(alphabets.encode(alphabets.decode(code, &mut buffer)), Some(code));
            }
        }
    }
}
