//! Inline data: the content of a small file or directory kept in its inode.
//!
//! The first 60 bytes of content are in `i_block`. The rest is the value of the in-inode attribute
//! `system.data`, which exists even if its value is empty. In a directory, the first four bytes are
//! the parent's inode number. The entries are in two areas: the rest of `i_block`, and the
//! attribute's value. `.` and `..` are not stored.
//!
//! Invariant of a checked directory: the entries of each area fill the area exactly.

use crate::CorruptionKind;
use crate::dirblock::{DirDefect, DirLayout, Entries, Packer, dots};
use crate::whole_directory::Name;
use crate::xattr::{self, Attribute, AttributeList, Home, Value};

/// Index of the attribute's name prefix (`system.`).
pub const XATTR_INDEX: u8 = 7;
/// The attribute's name.
pub const XATTR_NAME: &[u8] = b"data";
/// Bytes that `i_block` holds.
pub const HEAD_LEN: usize = 60;
/// Bytes at the head of an inline directory before its entries.
pub const DIR_HEADER_LEN: usize = 4;

/// The part of inline data that lies in the attributes of the inode; empty if there is none.
///
/// # Errors
/// A defect of the attribute list; [`CorruptionKind::InlineDataElsewhere`] when the value lies in
/// another inode.
pub fn tail_of(attributes: &[u8]) -> Result<&[u8], CorruptionKind> {
    if !xattr::has_magic(attributes) {
        return Ok(&[]);
    }
    let entries = xattr::parse(attributes, Home::Inode)?;
    let is_data = |entry: &&xattr::RawEntry<'_>| (entry.name_index, entry.name) == (XATTR_INDEX, XATTR_NAME);
    match entries.iter().find(is_data) {
        Some(entry) if entry.value_inode != 0 => Err(CorruptionKind::InlineDataElsewhere),
        entry => Ok(entry.map_or(&[], |entry| entry.value)),
    }
}

/// The most bytes of content that an inode with this attribute area can hold. These are the 60
/// bytes of `i_block`, and what the other attributes and an empty `system.data` leave free in the
/// area, rounded down to a multiple of 4. `None` if not even an empty `system.data` fits: then no
/// content, however short, can be inline.
///
/// # Errors
/// A defect of the attribute list.
pub fn room(attributes: &[u8]) -> Result<Option<usize>, CorruptionKind> {
    let mut list = attribute_list(attributes)?;
    list.set(tail_attribute(Vec::new()));
    let free = attributes.len().checked_sub(list.area_len(Home::Inode));
    Ok(free.map(|free| HEAD_LEN + (free & !3)))
}

/// Sets `system.data` to `tail` in an attribute area. Returns whether it fits; if not, nothing
/// changes.
///
/// # Errors
/// A defect of the attribute list.
pub fn set_tail(attributes: &mut [u8], tail: &[u8]) -> Result<bool, CorruptionKind> {
    let mut list = attribute_list(attributes)?;
    list.set(tail_attribute(tail.to_vec()));
    Ok(list.write_inode_area(attributes))
}

fn attribute_list(attributes: &[u8]) -> Result<AttributeList, CorruptionKind> {
    if !xattr::has_magic(attributes) {
        return Ok(AttributeList::default());
    }
    Ok(AttributeList::parse(attributes, Home::Inode)?)
}

fn tail_attribute(tail: Vec<u8>) -> Attribute {
    Attribute { index: XATTR_INDEX, name: XATTR_NAME.to_vec(), value: Value::Bytes(tail) }
}

/// The content of an inode with inline data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineData<'a> {
    /// `i_block`.
    pub head: &'a [u8; HEAD_LEN],
    /// The value of `system.data`.
    pub tail: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// Bytes of the two parts at their present lengths.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        HEAD_LEN + self.tail.len()
    }

    /// A copy of the first `size` bytes of content; fewer if [`Self::capacity`] is below `size`.
    #[must_use]
    pub fn content(&self, size: usize) -> Vec<u8> {
        let size = size.min(self.capacity());
        let mut content = Vec::with_capacity(size);
        content.extend_from_slice(&self.head[..size.min(HEAD_LEN)]);
        content.extend_from_slice(&self.tail[..size - content.len()]);
        content
    }

    /// The parent of an inline directory.
    #[must_use]
    pub const fn parent(&self) -> u32 {
        let [a, b, c, d, ..] = *self.head;
        u32::from_le_bytes([a, b, c, d])
    }

    /// The two areas of entries of an inline directory; the second may be empty.
    #[must_use]
    pub fn dir_runs(&self) -> [&'a [u8]; 2] {
        [&self.head[DIR_HEADER_LEN..], self.tail]
    }

    /// Walks the entries of an inline directory, with the checks of [`Entries`]. Offsets count from
    /// the start of an area. A defect in the first area does not end the walk: the entries of the
    /// second area follow.
    pub fn dir_entries(
        &self,
        layout: DirLayout,
    ) -> impl Iterator<Item = Result<crate::dirblock::Entry<'a>, DirDefect>> + use<'a> {
        self.dir_runs().into_iter().flat_map(move |run| Entries::in_area(run, layout))
    }

    /// Writes an inline directory as a linear block with `.` and `..`. Does not set the checksum of
    /// the block.
    ///
    /// # Errors
    /// The first [`DirDefect`] of the entries; [`DirDefect::BlockSize`] when they do not fit the
    /// block, or `block` is not one block.
    pub fn convert_dir(&self, own: u32, block: &mut [u8], layout: DirLayout) -> Result<(), DirDefect> {
        const DIRECTORY: u8 = crate::inode::FileType::Directory.dirent_byte();
        if block.len() != layout.block_size {
            return Err(DirDefect::BlockSize);
        }
        let mut packer = Packer::new(block, layout);
        let mut fits = packer.push(own, DIRECTORY, b".") && packer.push(self.parent(), DIRECTORY, b"..");
        for entry in self.dir_entries(layout) {
            let entry = entry?;
            fits = fits && (entry.inode == 0 || packer.push(entry.inode, entry.file_type, entry.name));
        }
        if fits { Ok(()) } else { Err(DirDefect::BlockSize) }
    }
}

/// An inline directory as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedDir {
    /// `i_block`.
    pub head: [u8; HEAD_LEN],
    /// The value of `system.data`.
    pub tail: Vec<u8>,
}

/// Builds an inline directory with the names of a linear block. The second area gets `tail_len`
/// bytes. Each name goes to the first area with room for it, as in Linux. `None` if a name fits in
/// neither area.
///
/// # Errors
/// The first [`DirDefect`] of the block.
pub fn pack_dir(block: &[u8], layout: DirLayout, tail_len: usize) -> Result<Option<PackedDir>, DirDefect> {
    let parent = dots(block, layout)?.parent;
    let mut used = Vec::new();
    for entry in Entries::new(block, layout)?.skip(2) {
        let entry = entry?;
        if entry.inode != 0 {
            used.push((entry.inode, entry.file_type, entry.name));
        }
    }
    Ok(pack(parent, used, layout, tail_len, Fill::FirstFit))
}

/// The inline directory with these names, in the given order. Its second area has the length that
/// [`names_tail_len`] computes.
#[must_use]
pub fn pack_names(parent: u32, names: &[Name<'_>], layout: DirLayout) -> PackedDir {
    let tail_len = names_tail_len(names.iter().map(|name| name.bytes.len()));
    let entries = names.iter().map(|name| (name.inode, name.file_type.dirent_byte(), name.bytes));
    let Some(packed) = pack(parent, entries, layout, tail_len, Fill::InOrder) else {
        unreachable!("the second run was made for what the first one does not hold")
    };
    packed
}

/// Bytes that names of these lengths, stored in this order, need in the second area of an inline
/// directory.
pub fn names_tail_len(lengths: impl IntoIterator<Item = usize>) -> usize {
    let (mut head, mut tail) = (0, 0);
    for len in lengths.into_iter().map(DirLayout::entry_len) {
        if tail == 0 && head + len <= HEAD_LEN - DIR_HEADER_LEN {
            head += len;
        } else {
            tail += len;
        }
    }
    tail
}

/// Which area an entry goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// The first area with room.
    FirstFit,
    /// The area of the previous entry if there is room, otherwise the area after it. So the entries
    /// keep their order.
    InOrder,
}

/// Builds an inline directory with these entries; `None` if they do not fit into its two areas.
fn pack<'n>(
    parent: u32,
    entries: impl IntoIterator<Item = (u32, u8, &'n [u8])>,
    layout: DirLayout,
    tail_len: usize,
    fill: Fill,
) -> Option<PackedDir> {
    let (mut head, mut tail) = ([0; HEAD_LEN], vec![0; tail_len]);
    head[..DIR_HEADER_LEN].copy_from_slice(&parent.to_le_bytes());
    let mut runs: Vec<Packer<'_>> = [&mut head[DIR_HEADER_LEN..], &mut tail]
        .into_iter()
        .filter(|run| !run.is_empty())
        .map(|run| {
            let layout = DirLayout { block_size: run.len(), tail: false, ..layout };
            Packer::new(run, layout)
        })
        .collect();
    let mut first = 0;
    for (inode, file_type, name) in entries {
        let at = (first..runs.len()).find(|&at| runs[at].push(inode, file_type, name))?;
        if fill == Fill::InOrder {
            first = at;
        }
    }
    Some(PackedDir { head, tail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirblock;
    use crate::inode::FileType;
    use proptest::prelude::*;

    const LAYOUT: DirLayout = DirLayout { block_size: 1024, tail: true, file_types: true, inodes_count: 100 };

    fn run(length: usize, names: &[&[u8]]) -> Vec<u8> {
        let mut run = vec![0; length];
        let mut at = 0;
        for (n, name) in names.iter().enumerate() {
            let rec_len = if n + 1 == names.len() { length - at } else { DirLayout::entry_len(name.len()) };
            run[at] = 20;
            run[at + 4..at + 6].copy_from_slice(&u16::try_from(rec_len).unwrap().to_le_bytes());
            run[at + 6..at + 8].copy_from_slice(&[u8::try_from(name.len()).unwrap(), 1]);
            run[at + 8..at + 8 + name.len()].copy_from_slice(name);
            at += rec_len;
        }
        run
    }

    fn head(entries: &[u8]) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        head[0] = 2;
        head[4..].copy_from_slice(entries);
        head
    }

    #[test]
    fn content_is_head_then_tail() {
        let head: [u8; HEAD_LEN] = core::array::from_fn(|n| u8::try_from(n).unwrap());
        let data = InlineData { head: &head, tail: &[60, 61, 62] };
        for size in 0..=70usize {
            let content = data.content(size);
            assert_eq!(content.len(), size.min(63));
            assert!(content.iter().enumerate().all(|(n, &byte)| n == usize::from(byte)));
        }
    }

    #[test]
    fn a_directory_becomes_a_block_with_the_same_names() {
        let head = head(&run(56, &[b"one", b"two"]));
        let tail = run(36, &[b"three"]);
        let data = InlineData { head: &head, tail: &tail };
        let mut block = vec![7; 1024];
        data.convert_dir(15, &mut block, LAYOUT).unwrap();
        dirblock::verify(&block, LAYOUT).unwrap();
        let dots = dirblock::dots(&block, LAYOUT).unwrap();
        assert_eq!((dots.own, dots.parent), (15, 2));
        for name in [b"one".as_slice(), b"two", b"three"] {
            assert_eq!(dirblock::find(&block, LAYOUT, name).unwrap().unwrap().inode, 20);
        }
    }

    #[test]
    fn a_block_goes_back_into_the_inode_while_there_is_room() {
        for (names, tail_len, fits) in [
            (&[b"one".as_slice(), b"two"][..], 0, true),
            (&[b"one", b"two", b"three"], 36, true),
            (&[], 36, true),
            (&[b"0123456789012345678901234567890123456789", b"three"], 16, true),
            (&[b"0123456789012345678901234567890123456789", b"three"], 0, false),
        ] {
            let mut block = vec![7; 1024];
            dirblock::init_dots(&mut block, LAYOUT, 15, 2);
            for &name in names {
                let entry = dirblock::NewEntry { inode: 20, file_type: FileType::Regular, name };
                dirblock::insert(&mut block, LAYOUT, &entry).unwrap();
            }
            let Some(PackedDir { head, tail }) = pack_dir(&block, LAYOUT, tail_len).unwrap() else {
                assert!(!fits);
                continue;
            };
            assert!(fits);
            assert_eq!(tail.len(), tail_len);
            let data = InlineData { head: &head, tail: &tail };
            let found: Vec<&[u8]> = data
                .dir_entries(LAYOUT)
                .map(|entry| entry.unwrap())
                .filter(|entry| entry.inode != 0)
                .map(|entry| entry.name)
                .collect();
            assert_eq!((found, data.parent()), (names.to_vec(), 2));
        }
    }

    #[test]
    fn names_lie_in_an_inode_in_their_order() {
        let all: Vec<Vec<u8>> = (1..12).map(|len| vec![b'a'; len * 3]).collect();
        for count in 0..all.len() {
            let name = |bytes| Name { bytes, inode: 20, file_type: FileType::Directory };
            let names: Vec<Name<'_>> = all[..count].iter().map(|bytes| name(&**bytes)).collect();
            let PackedDir { head, tail } = pack_names(7, &names, LAYOUT);
            // Entries with names of 3, 6 and 9 bytes take 12, 16 and 20 bytes, so 8 of the 56 bytes
            // of the first area are left.
            assert_eq!(tail.is_empty(), count <= 3, "{count}");
            let data = InlineData { head: &head, tail: &tail };
            let entries = data.dir_entries(LAYOUT).map(Result::unwrap).filter(|entry| entry.inode != 0);
            let found: Vec<(&[u8], u8)> = entries.map(|entry| (entry.name, entry.file_type)).collect();
            let entered: Vec<(&[u8], u8)> = all[..count].iter().map(|bytes| (&**bytes, 2)).collect();
            assert_eq!((found, data.parent()), (entered, 7));
        }
    }

    #[test]
    fn a_short_name_goes_into_the_first_run_although_a_longer_one_did_not_fit_there() {
        let mut block = vec![7; 1024];
        dirblock::init_dots(&mut block, LAYOUT, 15, 2);
        for name in [[b'x'; 49].as_slice(), b"a"] {
            let entry = dirblock::NewEntry { inode: 20, file_type: FileType::Regular, name };
            dirblock::insert(&mut block, LAYOUT, &entry).unwrap();
        }
        let PackedDir { head, tail } = pack_dir(&block, LAYOUT, 60).unwrap().unwrap();
        let data = InlineData { head: &head, tail: &tail };
        let lengths: Vec<usize> = data.dir_entries(LAYOUT).map(|entry| entry.unwrap().name.len()).collect();
        assert_eq!(lengths, [1, 49]);
    }

    /// Compares [`room`] with the limits of Linux 6.18: first for inodes of 256 to 2048 bytes
    /// without other attributes, then for an inode of 256 bytes with another attribute. In the
    /// second part, also sets a tail of the greatest length.
    #[test]
    fn an_inode_holds_as_much_as_linux_puts_there() {
        let area = |inode_size: usize| vec![0_u8; inode_size - 128 - 32];
        for (inode_size, most) in [(256, 128), (512, 384), (1024, 896), (2048, 1920)] {
            assert_eq!(room(&area(inode_size)), Ok(Some(most)));
        }
        for (value_len, most) in [(1, Some(104)), (20, Some(88)), (48, Some(60)), (60, None)] {
            let mut area = area(256);
            let mut list = AttributeList::default();
            list.set(Attribute { index: 1, name: b"a".to_vec(), value: Value::Bytes(vec![1; value_len]) });
            assert!(list.write_inode_area(&mut area));
            assert_eq!(room(&area), Ok(most), "{value_len}");
            let Some(most) = most else { continue };
            assert_eq!(set_tail(&mut area, &vec![2; most - HEAD_LEN + 1]), Ok(false));
            assert_eq!((tail_of(&area), room(&area)), (Ok([].as_slice()), Ok(Some(most))));
            let tail = vec![2; most - HEAD_LEN];
            assert_eq!(set_tail(&mut area, &tail), Ok(true));
            assert_eq!((tail_of(&area), room(&area)), (Ok(tail.as_slice()), Ok(Some(most))));
        }
        assert_eq!(room(&[]), Ok(None));
    }

    #[test]
    fn runs_must_be_filled_exactly() {
        let mut head = head(&run(56, &[b"one"]));
        head[8] = 52;
        let data = InlineData { head: &head, tail: &[] };
        assert_eq!(data.dir_entries(LAYOUT).last(), Some(Err(DirDefect::Remainder { at: 0 })));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(head in proptest::array::uniform(any::<u8>()), tail in proptest::collection::vec(any::<u8>(), 0..300)) {
            let data = InlineData { head: &head, tail: &tail };
            let _ = data.content(1000);
            let _ = data.convert_dir(3, &mut [0; 1024], LAYOUT);
        }
    }
}
