//! What is known of one leaf beside its block in memory: where there is room, and where its names lie.
//!
//! The block is the truth. A table is made from a block that was walked without a defect, and whoever changes the block
//! changes the table with it ([`super::leaf`]) or drops it; it also goes when the block leaves the cache. So a damaged
//! block has no table, and searching it ends with the error that a walk ends with.
//!
//! The gaps, entries with room for another one, are kept in the order of the block, because a name goes to the first that
//! it fits in, as on Linux. They are all that entering a name takes. The places of the names come with the first search
//! that walked far, so that the next looks at one place and at one entry instead of at half of the block.
//!
//! Places: open addressing; a slot is 16 bits, the entry's offset in units of 4 bytes below and bits of the name's hash
//! above. Entries are at least 12 bytes long, so the two highest offsets are no entry's: they mark free slots and removed
//! names. At most three quarters of the slots are taken.
//!
//! Memory: fewer than four slots of 2 bytes for each name that the places were noted with, and 4 bytes for each gap, twice
//! that while the list grows: with the shortest names, half of them removed, three quarters of the block. With names of 13
//! bytes it is an eighth. A leaf that names were only entered into has one gap, which lies in the buffer.

use blockyard_disk::dirblock::{self, DirLayout, ENTRY_LEN_MIN, Entries, Entry, Found, Search, Slot};
use blockyard_disk::num::{high64, low16, low32, low64, u32_from_usize, u64_from_usize, usize_from_u64};
use smallvec::SmallVec;

/// Entries lie at multiples of this.
const UNIT: usize = 4;
/// Gaps that lie in the table itself.
const GAPS_INLINE: usize = 4;
/// Slots of the smallest table.
const SLOTS_MIN: usize = 16;
/// A slot that was never taken: a search ends here.
const FREE: u16 = u16::MAX;
/// A slot whose name was removed: a search goes on.
const GONE: u16 = u16::MAX - 1;

/// The gaps of one leaf, and the places of its names once they were looked for. See the module's text.
// What entering a name reads comes first, so that it lies beside what else it reads of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LeafNames {
    /// In ascending order of place.
    gaps: SmallVec<[Gap; GAPS_INLINE]>,
    places: Option<Places>,
}

/// The places of all names of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Places {
    /// As many as a power of two.
    slots: Box<[u16]>,
    /// Bits of a slot that are the offset.
    offset_mask: u16,
    /// Slots that are not free.
    taken: u16,
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
    /// The gaps of a block; `None` for a damaged one.
    pub(super) fn gaps_of(block: &[u8], layout: DirLayout) -> Option<Self> {
        let mut gaps = SmallVec::new();
        for entry in Entries::new(block, layout).ok()? {
            let entry = entry.ok()?;
            if entry.slack() >= ENTRY_LEN_MIN {
                gaps.push(Gap::of(&entry));
            }
        }
        Some(Self { gaps, places: None })
    }

    /// Notes the places of all names of the block, unless they are known.
    pub(super) fn with_places(mut self, block: &[u8], layout: DirLayout) -> Option<Self> {
        if self.places.is_none() {
            self.places = Some(Places::of(block, layout)?);
        }
        Some(self)
    }

    /// What [`dirblock::search`] finds in the block of this table; the first of several slots also when there is the name.
    /// `None` where places are not known.
    pub(super) fn search(&self, block: &[u8], layout: DirLayout, name: &[u8]) -> Option<Search> {
        let found = self.places.as_ref()?.find(block, layout, name);
        let slot = if found.is_some() { None } else { self.room_for(block, layout, name) };
        Some(Search { found, slot, walked: 0 })
    }

    /// The first slot that an entry with that name fits in.
    pub(super) fn room_for(&self, block: &[u8], layout: DirLayout, name: &[u8]) -> Option<Slot> {
        Some(Slot::of(&dirblock::entry_at(block, layout, self.place_for(name)?).ok()?))
    }

    /// Where the entry starts that has [room for](Self::room_for) a name.
    pub(super) fn place_for(&self, name: &[u8]) -> Option<usize> {
        let needed = DirLayout::entry_len(name.len()) / UNIT;
        let gap = self.gaps.iter().find(|gap| usize::from(gap.room) >= needed)?;
        Some(usize::from(gap.at) * UNIT)
    }

    /// A name was written into a slot of the block. False when the table is not true any more: it must be dropped.
    #[must_use]
    pub(super) fn inserted(&mut self, block: &[u8], layout: DirLayout, slot: Slot, name: &[u8]) -> bool {
        self.places.take_if(|places| !places.enter(name, slot.place()));
        self.weigh(block, layout, slot.giver()) && self.weigh(block, layout, slot.place())
    }

    /// An entry is about to be removed from the block; who has its space then must be [weighed](Self::weigh). False when
    /// the table does not know it: it must be dropped.
    #[must_use]
    pub(super) fn forget(&mut self, entry: &Entry<'_>) -> bool {
        if !self.places.as_mut().is_none_or(|places| places.forget(entry)) {
            return false;
        }
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
        debug_assert!(self.gaps.is_sorted_by(|one, next| one.at < next.at), "gaps out of order");
        true
    }

    /// Where the gap of the entry at a place is, or would be.
    fn gap(&self, at: usize) -> Result<usize, usize> {
        self.gaps.binary_search_by_key(&unit(at), |gap| gap.at)
    }
}

impl Places {
    /// The places of a block's names; `None` for a damaged one.
    fn of(block: &[u8], layout: DirLayout) -> Option<Self> {
        let entries = || Entries::new(block, layout).ok();
        let mut names = 0;
        for entry in entries()? {
            names += usize::from(entry.ok()?.inode != 0);
        }
        let slots = (2 * names).next_power_of_two().max(SLOTS_MIN);
        let offset_mask = unit(block.len().next_power_of_two() - UNIT);
        let mut places = Self { slots: vec![FREE; slots].into_boxed_slice(), offset_mask, taken: 0 };
        for entry in entries()?.flatten().filter(|entry| entry.inode != 0) {
            let entered = places.enter(entry.name, entry.at);
            debug_assert!(entered, "at most half of the slots is taken");
        }
        Some(places)
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

    /// Enters a name that is not there; false when there is no room for it.
    #[must_use]
    fn enter(&mut self, name: &[u8], at: usize) -> bool {
        if (usize::from(self.taken) + 1) * 4 > self.slots.len() * 3 {
            return false;
        }
        let key = self.key(name);
        let open = self.probe(key).find(|&position| self.slots[position] >= GONE);
        let position = open.expect("a quarter of the slots is free");
        self.taken += u16::from(self.slots[position] == FREE);
        self.slots[position] = key.mark | unit(at);
        true
    }

    /// Forgets the name of an entry; false when it is not known.
    #[must_use]
    fn forget(&mut self, entry: &Entry<'_>) -> bool {
        let key = self.key(entry.name);
        let wanted = key.mark | unit(entry.at);
        let known = self.probe(key).take_while(|&n| self.slots[n] != FREE).find(|&n| self.slots[n] == wanted);
        known.inspect(|&position| self.slots[position] = GONE).is_some()
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
    debug_assert!(bytes.is_multiple_of(UNIT), "{bytes} bytes are not in units");
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

    fn table_of(block: &[u8], layout: DirLayout) -> Option<LeafNames> {
        LeafNames::gaps_of(block, layout)?.with_places(block, layout)
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
            let mut table = table_of(&block, layout).unwrap();
            let mut rooms = LeafNames::gaps_of(&block, layout).unwrap();
            for (insert, number, len) in ops {
                let name = name(number, if insert { len } else { 1 });
                let walked = dirblock::search(&block, layout, &name).unwrap();
                let searched = table.search(&block, layout, &name).unwrap();
                prop_assert_eq!(rooms.search(&block, layout, &name), None);
                prop_assert_eq!(searched.found, walked.found);
                match (walked.found, walked.slot) {
                    (Some(found), _) => {
                        let entry = dirblock::entry_at(&block, layout, found.at).unwrap();
                        prop_assert!(table.forget(&entry) && rooms.forget(&entry));
                        let heir = dirblock::remove_at(&mut block, layout, &found).unwrap();
                        prop_assert!(table.weigh(&block, layout, heir) && rooms.weigh(&block, layout, heir));
                    }
                    (None, slot) => {
                        prop_assert_eq!(searched.slot, slot);
                        prop_assert_eq!(rooms.room_for(&block, layout, &name), slot);
                        let Some(slot) = slot.filter(|_| insert) else { continue };
                        let entry = NewEntry { inode: 12, file_type: FileType::Regular, name: &name };
                        dirblock::insert_at(&mut block, layout, slot, &entry);
                        prop_assert!(table.inserted(&block, layout, slot, &name));
                        prop_assert!(rooms.inserted(&block, layout, slot, &name));
                        // The places go when they are full.
                        table = table.with_places(&block, layout).unwrap();
                    }
                }
                prop_assert_eq!(&table.gaps, &rooms.gaps);
                prop_assert_eq!(&rooms, &LeafNames::gaps_of(&block, layout).unwrap());
                let places = table.places.as_ref().unwrap();
                prop_assert!(usize::from(places.taken) * 4 <= places.slots.len() * 3);
            }
            for entry in Entries::new(&block, layout).unwrap().flatten().filter(|entry| entry.inode != 0) {
                let places = table.places.as_ref().unwrap();
                prop_assert_eq!(places.find(&block, layout, entry.name).unwrap().at, entry.at);
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
        let table = table_of(&block, layout).unwrap();
        assert_eq!(table.search(&block, layout, b"twice").unwrap().found.unwrap().inode, 20);
    }

    #[test]
    fn a_damaged_block_has_no_table() {
        let layout = layout(1024, true);
        let mut block = vec![0; 1024];
        dirblock::init_dots(&mut block, layout, 12, 2);
        let gaps = LeafNames::gaps_of(&block, layout).unwrap();
        assert!(gaps.clone().with_places(&block, layout).is_some());
        block[16] = 3;
        for block in [&block, &block[..1000]] {
            assert_eq!(LeafNames::gaps_of(block, layout), None);
            assert_eq!(gaps.clone().with_places(block, layout), None);
        }
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
            let table = Places::of(&block, layout).unwrap();
            assert!(table.slots.len() * 2 <= size * 3 / 4, "{} slots", table.slots.len());
            for number in 0..size / 12 {
                assert!(table.find(&block, layout, format!("{number:04x}").as_bytes()).is_some());
            }
        }
    }
}
