//! Where the names of one leaf lie: a table beside the block in memory, so that a search looks at one place in the table
//! and at one entry instead of at half of the block.
//!
//! The block is the truth. A table is made from a block that was walked without a defect, and whoever changes the block
//! changes the table with it ([`super::leaf`]) or drops it; it also goes when the block leaves the cache. So a damaged
//! block has no table, and searching it ends with the error that a walk ends with.
//!
//! Open addressing: a slot is 16 bits, the entry's offset in units of 4 bytes below and bits of the name's hash above.
//! Entries are at least 12 bytes long, so the two highest offsets are no entry's: they mark free slots and removed names.
//! At most three quarters of the slots are taken. The gaps, entries with room for another one, are kept in the order of
//! the block, because a name goes to the first that it fits in, as on Linux.
//!
//! Memory: fewer than four slots of 2 bytes for each name that the table was made with, and 4 bytes for each gap, twice that
//! while the list grows: with the shortest names, half of them removed, three quarters of the block. With names of 13 bytes
//! it is an eighth.

use blockyard_disk::dirblock::{self, DirLayout, ENTRY_LEN_MIN, Entries, Entry, Found, Search, Slot};
use blockyard_disk::num::{high64, low16, low32, low64, u32_from_usize, u64_from_usize, usize_from_u64};

/// Entries lie at multiples of this.
const UNIT: usize = 4;
/// Slots of the smallest table.
const SLOTS_MIN: usize = 16;
/// A slot that was never taken: a search ends here.
const FREE: u16 = u16::MAX;
/// A slot whose name was removed: a search goes on.
const GONE: u16 = u16::MAX - 1;

/// The names and gaps of one leaf. See the module's text.
// What a search reads comes first, so that it lies beside what else it reads of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LeafNames {
    /// As many as a power of two.
    slots: Box<[u16]>,
    /// Bits of a slot that are the offset.
    offset_mask: u16,
    /// Slots that are not free.
    taken: u16,
    /// In ascending order of place.
    gaps: Vec<Gap>,
}

/// An entry with room for another, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    at: u16,
    room: u16,
}

/// What is looked for in the table.
#[derive(Clone, Copy)]
struct Key {
    /// Where the search begins, before it is cut to the table's length.
    start: usize,
    /// The upper bits of a slot.
    mark: u16,
}

impl LeafNames {
    /// The table of a block; `None` for a damaged one.
    pub(super) fn of(block: &[u8], layout: DirLayout) -> Option<Self> {
        let entries = || Entries::new(block, layout).ok();
        let mut names = 0;
        for entry in entries()? {
            names += usize::from(entry.ok()?.inode != 0);
        }
        let slots = (2 * names).next_power_of_two().max(SLOTS_MIN);
        let offset_mask = unit(block.len().next_power_of_two() - UNIT);
        let slots = vec![FREE; slots].into_boxed_slice();
        let mut table = Self { slots, offset_mask, taken: 0, gaps: Vec::new() };
        for entry in entries()?.flatten() {
            if entry.inode != 0 {
                table.enter(entry.name, entry.at);
            }
            if entry.slack() >= ENTRY_LEN_MIN {
                table.gaps.push(Gap::of(&entry));
            }
        }
        Some(table)
    }

    /// What [`dirblock::search`] finds in the block of this table; the first of several slots also when there is the name.
    pub(super) fn search(&self, block: &[u8], layout: DirLayout, name: &[u8]) -> Search {
        let found = self.find(block, layout, name);
        let slot = if found.is_some() { None } else { self.room_for(block, layout, name) };
        Search { found, slot, walked: 0 }
    }

    /// The first entry of that name in the order of the block.
    fn find(&self, block: &[u8], layout: DirLayout, name: &[u8]) -> Option<Found> {
        let key = self.key(name);
        let mut first: Option<Found> = None;
        for position in self.probe(key) {
            let slot = self.slots[position];
            if slot == FREE {
                break;
            }
            if slot & !self.offset_mask != key.mark {
                continue;
            }
            let at = self.offset(slot);
            let Ok(entry) = dirblock::entry_at(block, layout, at) else { continue };
            if entry.inode != 0 && entry.name == name && first.is_none_or(|first| at < first.at) {
                first = Some(Found { at, inode: entry.inode, file_type: entry.file_type });
            }
        }
        first
    }

    /// The first slot that an entry with that name fits in.
    pub(super) fn room_for(&self, block: &[u8], layout: DirLayout, name: &[u8]) -> Option<Slot> {
        let needed = DirLayout::entry_len(name.len()) / UNIT;
        let gap = self.gaps.iter().find(|gap| usize::from(gap.room) >= needed)?;
        Some(Slot::of(&dirblock::entry_at(block, layout, usize::from(gap.at) * UNIT).ok()?))
    }

    /// A name was written into a slot of the block. False when the table has no room for it: it must be dropped.
    #[must_use]
    pub(super) fn inserted(&mut self, block: &[u8], layout: DirLayout, slot: Slot, name: &[u8]) -> bool {
        if (usize::from(self.taken) + 1) * 4 > self.slots.len() * 3 {
            return false;
        }
        self.enter(name, slot.place());
        self.weigh(block, layout, slot.giver()) && self.weigh(block, layout, slot.place())
    }

    /// An entry is about to be removed from the block; who has its space then must be [weighed](Self::weigh). False when
    /// the table does not know it: it must be dropped.
    #[must_use]
    pub(super) fn forget(&mut self, entry: &Entry<'_>) -> bool {
        let key = self.key(entry.name);
        let wanted = key.mark | unit(entry.at);
        let known = self.probe(key).take_while(|&n| self.slots[n] != FREE).find(|&n| self.slots[n] == wanted);
        let Some(position) = known else { return false };
        self.slots[position] = GONE;
        if let Ok(gap) = self.gap(entry.at) {
            self.gaps.remove(gap);
        }
        true
    }

    /// Notes the room in the entry at a place; false when there is no entry.
    #[must_use]
    pub(super) fn weigh(&mut self, block: &[u8], layout: DirLayout, at: usize) -> bool {
        let Ok(entry) = dirblock::entry_at(block, layout, at) else { return false };
        match (self.gap(at), entry.slack() >= ENTRY_LEN_MIN) {
            (Ok(gap), true) => self.gaps[gap] = Gap::of(&entry),
            (Ok(gap), false) => {
                self.gaps.remove(gap);
            }
            (Err(gap), true) => self.gaps.insert(gap, Gap::of(&entry)),
            (Err(_), false) => {}
        }
        true
    }

    /// Where the gap of the entry at a place is, or would be.
    fn gap(&self, at: usize) -> Result<usize, usize> {
        self.gaps.binary_search_by_key(&unit(at), |gap| gap.at)
    }

    /// Enters a name that the table does not have; there is a free slot.
    fn enter(&mut self, name: &[u8], at: usize) {
        let key = self.key(name);
        let open = self.probe(key).find(|&position| self.slots[position] >= GONE);
        let position = open.expect("a quarter of the slots is free");
        self.taken += u16::from(self.slots[position] == FREE);
        self.slots[position] = key.mark | unit(at);
    }

    /// Every slot once, from the one where a search begins.
    fn probe(&self, key: Key) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len() - 1;
        (key.start..key.start + self.slots.len()).map(move |position| position & mask)
    }

    fn key(&self, name: &[u8]) -> Key {
        let hash = hash(name);
        let mark = low16(low32(hash >> 48)) & !self.offset_mask;
        Key { start: usize_from_u64(hash & 0xFFFF_FFFF), mark }
    }

    fn offset(&self, slot: u16) -> usize {
        usize::from(slot & self.offset_mask) * UNIT
    }
}

impl Gap {
    fn of(entry: &Entry<'_>) -> Self {
        Self { at: unit(entry.at), room: unit(entry.slack()) }
    }
}

/// A place or a length within a block of at most 64 KiB, in units.
fn unit(bytes: usize) -> u16 {
    low16(u32_from_usize(bytes / UNIT))
}

/// A hash of a name, for tables in memory only: eight bytes at a time, one multiplication each, of which both halves count.
/// Names that were chosen to collide cost a walk over the names of one leaf, which is what a search without a table costs.
pub(super) fn hash(name: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |state: u64, word: u64| {
        let product = u128::from(state ^ word) * u128::from(FACTOR);
        low64(product) ^ high64(product)
    };
    let (words, rest) = name.as_chunks::<8>();
    let start = u64_from_usize(name.len()).wrapping_mul(FACTOR);
    let state = words.iter().fold(start, |state, word| mix(state, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(mix(state, u64::from_le_bytes(last)), FACTOR)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::as_conversions)]

    use super::*;
    use blockyard_disk::dirblock::NewEntry;
    use blockyard_disk::inode::FileType;
    use proptest::prelude::*;

    fn layout(block_size: usize, tail: bool) -> DirLayout {
        DirLayout { block_size, tail, file_types: true, inodes_count: u32::MAX }
    }

    fn name(number: u16, len: u8) -> Vec<u8> {
        let mut name = format!("{number}").into_bytes();
        name.resize(usize::from(len).clamp(name.len(), 255), b'_');
        name
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A table that is kept true says what a walk says, and what a table made afresh says.
        #[test]
        fn agrees_with_a_walk(
            ops in proptest::collection::vec((any::<bool>(), 0..400u16, 1..60u8), 1..600),
            size in 0..4usize,
            tail: bool,
        ) {
            let layout = layout([1024, 2048, 4096, 65536][size], tail);
            let mut block = vec![0; layout.block_size];
            dirblock::init_empty(&mut block, layout);
            let mut table = LeafNames::of(&block, layout).unwrap();
            for (insert, number, len) in ops {
                let name = name(number, if insert { len } else { 1 });
                let walked = dirblock::search(&block, layout, &name).unwrap();
                let searched = table.search(&block, layout, &name);
                prop_assert_eq!(searched.found, walked.found);
                match (walked.found, walked.slot) {
                    (Some(found), _) => {
                        prop_assert!(table.forget(&dirblock::entry_at(&block, layout, found.at).unwrap()));
                        let heir = dirblock::remove_at(&mut block, layout, &found).unwrap();
                        prop_assert!(table.weigh(&block, layout, heir));
                    }
                    (None, slot) => {
                        prop_assert_eq!(searched.slot, slot);
                        let Some(slot) = slot.filter(|_| insert) else { continue };
                        let entry = NewEntry { inode: 12, file_type: FileType::Regular, name: &name };
                        dirblock::insert_at(&mut block, layout, slot, &entry);
                        if !table.inserted(&block, layout, slot, &name) {
                            table = LeafNames::of(&block, layout).unwrap();
                        }
                    }
                }
                let fresh = LeafNames::of(&block, layout).unwrap();
                prop_assert_eq!(&table.gaps, &fresh.gaps);
                prop_assert!(usize::from(table.taken) * 4 <= table.slots.len() * 3);
            }
            for entry in Entries::new(&block, layout).unwrap().flatten().filter(|entry| entry.inode != 0) {
                prop_assert_eq!(table.find(&block, layout, entry.name).unwrap().at, entry.at);
            }
        }
    }

    /// Of two entries with one name, which only damage makes, the first one counts, as in a walk.
    #[test]
    fn the_first_of_two_equal_names_counts() {
        let layout = layout(1024, true);
        let mut block = vec![0; 1024];
        dirblock::init_empty(&mut block, layout);
        for inode in [20, 21, 22] {
            let entry = NewEntry { inode, file_type: FileType::Regular, name: b"twice" };
            assert!(dirblock::insert(&mut block, layout, &entry).unwrap());
        }
        let table = LeafNames::of(&block, layout).unwrap();
        assert_eq!(table.search(&block, layout, b"twice").found.unwrap().inode, 20);
    }

    #[test]
    fn a_damaged_block_has_no_table() {
        let layout = layout(1024, true);
        let mut block = vec![0; 1024];
        dirblock::init_dots(&mut block, layout, 12, 2);
        assert!(LeafNames::of(&block, layout).is_some());
        block[16] = 3;
        assert_eq!(LeafNames::of(&block, layout), None);
        assert_eq!(LeafNames::of(&block[..1000], layout), None);
    }

    /// A full leaf of the shortest names, the largest block and many removals: the table stays small.
    #[test]
    fn a_table_is_bounded_by_its_block() {
        for size in [1024, 4096, 65536] {
            let layout = layout(size, false);
            let mut block = vec![0; size];
            dirblock::init_empty(&mut block, layout);
            for number in 0..size / 12 {
                let name = format!("{number:04x}");
                let entry = NewEntry { inode: 9, file_type: FileType::Regular, name: name.as_bytes() };
                assert!(dirblock::insert(&mut block, layout, &entry).unwrap());
            }
            let table = LeafNames::of(&block, layout).unwrap();
            assert!(table.slots.len() * 2 <= size * 3 / 4, "{} slots", table.slots.len());
            for number in 0..size / 12 {
                assert!(table.find(&block, layout, format!("{number:04x}").as_bytes()).is_some());
            }
        }
    }
}
