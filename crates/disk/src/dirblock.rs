//! One linear directory block: consecutive entries that fill it exactly, and the operations that
//! edit it in place.
//!
//! Bytes are never trusted: whatever looks for an entry walks the block with [`Entries`]. This walk
//! checks the structure of each entry before anything uses it, and ends with a [`DirDefect`] at the
//! first one that breaks a rule; the bytes of names are left to [`Entry::check_name`].
//! [`insert_at`] and [`set_inode`] take positions that such a walk found. A failed edit leaves the
//! block as it was.
//!
//! Layout of an entry: le32 inode, le16 rec_len, u8 name_len, u8 file_type, name. Without the
//! `filetype` feature the last two bytes before the name are one le16 name_len. With checksums the
//! last 12 bytes of a block are a tail that looks like an unused entry of type 0xDE and holds the
//! crc32c of everything before it.
//!
//! Invariant after every edit: the sum of rec_len over the entries is [`DirLayout::usable`].

pub use crate::defects::DirDefect;

use core::ops::Range;

use crate::checksum::object;
use crate::inode::FileType;

/// Bytes before the name of an entry.
pub const HEADER_LEN: usize = 8;
/// The shortest entry: a header and one to four bytes of name.
pub const ENTRY_LEN_MIN: usize = 12;
/// Bytes of the checksum tail.
pub const TAIL_LEN: usize = 12;
/// The longest name.
pub const NAME_LEN_MAX: usize = 255;
/// The file type that marks the checksum tail.
pub const TAIL_FILE_TYPE: u8 = 0xDE;

/// The layout of directory blocks of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirLayout {
    /// Bytes of a block, 1024..=65536.
    pub block_size: usize,
    /// Whether blocks end with a checksum tail (`metadata_csum`).
    pub tail: bool,
    /// Whether entries record file types (`filetype`).
    pub file_types: bool,
    /// `s_inodes_count`: the highest inode number an entry may hold.
    pub inodes_count: u32,
}

impl DirLayout {
    /// Bytes of a block that entries fill.
    #[inline]
    #[must_use]
    pub const fn usable(&self) -> usize {
        if self.tail { self.block_size - TAIL_LEN } else { self.block_size }
    }

    /// Bytes of an entry for a name of this length.
    #[inline]
    #[must_use]
    pub const fn entry_len(name_len: usize) -> usize {
        (HEADER_LEN + name_len + 3) & !3
    }
}

/// `rec_len` as bytes: in 64 KiB blocks 0 and 65535 stand for 65536.
#[inline]
#[must_use]
pub fn decode_rec_len(raw: u16, block_size: usize) -> usize {
    match raw {
        0 | 65535 if block_size == 65536 => 65536,
        _ => usize::from(raw),
    }
}

/// The on-disk form of a `rec_len`, which must be at most 65536.
#[inline]
fn encode_rec_len(rec_len: usize) -> [u8; 2] {
    u16::try_from(rec_len).unwrap_or(u16::MAX).to_le_bytes()
}

#[inline]
fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u16::from_le_bytes(*raw))
}

#[inline]
fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

/// Copies `data` to byte `at`. It fits: each caller has checked an entry there, or the bounds of
/// the block.
#[inline]
fn put(block: &mut [u8], at: usize, data: &[u8]) {
    block[at..at + data.len()].copy_from_slice(data);
}

/// A checked entry. `inode` 0 marks a free slot, whose name and type are meaningless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where the entry starts in the block.
    pub at: usize,
    /// Bytes to the next entry.
    pub rec_len: usize,
    /// Inode number, 0 for a free slot.
    pub inode: u32,
    /// The recorded type, raw: the checker judges unknown values. 0 without the `filetype` feature.
    pub file_type: u8,
    /// The name; 1..=255 bytes when the entry is used.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Bytes that a new entry could take from this one.
    #[inline]
    #[must_use]
    pub fn slack(&self) -> usize {
        if self.inode == 0 { self.rec_len } else { self.rec_len - DirLayout::entry_len(self.name.len()) }
    }

    /// Checks that the name of an entry in use can be part of a path: it holds neither a slash nor
    /// a zero byte.
    ///
    /// # Errors
    /// [`DirDefect::Name`].
    pub fn check_name(&self) -> Result<(), DirDefect> {
        if self.inode != 0 && self.name.iter().any(|&byte| byte == 0 || byte == b'/') {
            return Err(DirDefect::Name { at: self.at });
        }
        Ok(())
    }
}

/// A walk over the entries of a block. It checks each (except the bytes of its name), and ends
/// after the first defect.
///
/// Bounded: every step advances by at least 12 bytes.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    block: &'a [u8],
    layout: DirLayout,
    end: usize,
    at: usize,
}

impl<'a> Entries<'a> {
    /// Starts at byte 0 of a block.
    ///
    /// # Errors
    /// [`DirDefect::BlockSize`].
    pub fn new(block: &'a [u8], layout: DirLayout) -> Result<Self, DirDefect> {
        if block.len() != layout.block_size || layout.block_size < 1024 {
            return Err(DirDefect::BlockSize);
        }
        Ok(Self { block, layout, end: layout.usable(), at: 0 })
    }

    /// Walks an area of any size, such as one of the two parts of an inline directory. The entries
    /// must fill the area exactly.
    #[must_use]
    pub fn in_area(area: &'a [u8], layout: DirLayout) -> Self {
        Self { block: area, layout, end: area.len(), at: 0 }
    }

    /// Where the next entry starts.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    #[inline]
    fn check(&self) -> Result<Entry<'a>, DirDefect> {
        let (at, left) = (self.at, self.end - self.at);
        if left < ENTRY_LEN_MIN {
            return Err(DirDefect::Remainder { at });
        }
        let rec_len = decode_rec_len(le16(self.block, at + 4), self.layout.block_size);
        if rec_len < ENTRY_LEN_MIN || !rec_len.is_multiple_of(4) {
            return Err(DirDefect::RecLen { at });
        }
        if rec_len > left {
            return Err(DirDefect::Overrun { at });
        }
        if rec_len < left && left - rec_len < ENTRY_LEN_MIN {
            return Err(DirDefect::Remainder { at });
        }
        let inode = le32(self.block, at);
        // Without `filetype`, byte 7 is the high byte of a 16-bit name length. No name needs it,
        // and Linux and e2fsck ignore it.
        let name_len = usize::from(self.block[at + 6]);
        let file_type = if self.layout.file_types { self.block[at + 7] } else { 0 };
        if HEADER_LEN + name_len > rec_len {
            return Err(DirDefect::NameLen { at });
        }
        if inode > self.layout.inodes_count {
            return Err(DirDefect::InodeNumber { at });
        }
        let name = &self.block[at + HEADER_LEN..at + HEADER_LEN + name_len];
        // The bytes of a name are not checked here. Whoever hands names out calls `check_name`.
        if inode != 0 && name.is_empty() {
            return Err(DirDefect::Name { at });
        }
        Ok(Entry { at, rec_len, inode, file_type, name })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, DirDefect>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let entry = self.check();
        self.at = entry.map_or(self.end, |entry| self.at + entry.rec_len);
        Some(entry)
    }
}

/// Checks a block: structure, legal names, and the tail if it must have one; not whether `.` and
/// `..` are there.
///
/// # Errors
/// The first [`DirDefect`] in block order.
pub fn verify(block: &[u8], layout: DirLayout) -> Result<(), DirDefect> {
    for entry in Entries::new(block, layout)? {
        let entry = entry?;
        entry.check_name()?;
    }
    if layout.tail && stored_checksum(block).is_none() {
        return Err(DirDefect::TailMissing);
    }
    Ok(())
}

/// `.` and `..` of a directory's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dots {
    /// The inode that `.` names; whether it is the directory itself is not checked.
    pub own: u32,
    /// The inode that `..` names.
    pub parent: u32,
    /// Where the `..` entry starts.
    pub dotdot_at: usize,
}

/// Reads `.` and `..` from a directory's first block.
///
/// # Errors
/// [`DirDefect::Dot`], [`DirDefect::DotDot`], or a structural defect of the first two entries.
pub fn dots(block: &[u8], layout: DirLayout) -> Result<Dots, DirDefect> {
    let mut entries = Entries::new(block, layout)?;
    let dot = entries.next().ok_or(DirDefect::Dot)??;
    if dot.inode == 0 || dot.name != b"." {
        return Err(DirDefect::Dot);
    }
    let dotdot = entries.next().ok_or(DirDefect::DotDot)??;
    if dotdot.inode == 0 || dotdot.name != b".." {
        return Err(DirDefect::DotDot);
    }
    Ok(Dots { own: dot.inode, parent: dotdot.inode, dotdot_at: dotdot.at })
}

/// Where a name was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where the entry starts.
    pub at: usize,
    /// The inode it names; never 0.
    pub inode: u32,
    /// The recorded type, raw.
    pub file_type: u8,
}

/// Where a new entry fits: the entry at `at` gives up what follows its own name, or all of its
/// bytes if it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    at: usize,
    /// Bytes that the entry at `at` keeps for itself: 0 when it is free.
    kept: usize,
    rec_len: usize,
}

impl Slot {
    /// What an entry can give up.
    fn of(entry: &Entry<'_>) -> Self {
        Self { at: entry.at, kept: entry.rec_len - entry.slack(), rec_len: entry.rec_len }
    }

    /// Bytes available for the new entry.
    const fn room(&self) -> usize {
        self.rec_len - self.kept
    }
}

/// Finds a name; `None` if no used entry has it.
///
/// # Errors
/// The first [`DirDefect`] up to the entry with the name.
pub fn find(block: &[u8], layout: DirLayout, name: &[u8]) -> Result<Option<Found>, DirDefect> {
    for entry in Entries::new(block, layout)? {
        let entry = entry?;
        if entry.inode != 0 && entry.name == name {
            return Ok(Some(Found { at: entry.at, inode: entry.inode, file_type: entry.file_type }));
        }
    }
    Ok(None)
}

/// The first slot that fits an entry with a name of `name_len` bytes; `None` if there is none.
/// Walks the whole block, so that nothing is entered into a damaged one.
///
/// # Errors
/// The first [`DirDefect`] of the block.
pub fn slot_for(block: &[u8], layout: DirLayout, name_len: usize) -> Result<Option<Slot>, DirDefect> {
    let needed = DirLayout::entry_len(name_len);
    let mut slot = None;
    for entry in Entries::new(block, layout)? {
        let entry = entry?;
        if slot.is_none() && entry.slack() >= needed {
            slot = Some(Slot::of(&entry));
        }
    }
    Ok(slot)
}

/// The content of a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry<'a> {
    /// Inode number, not 0.
    pub inode: u32,
    /// Type of the inode; written only with the `filetype` feature.
    pub file_type: FileType,
    /// 1..=255 bytes.
    pub name: &'a [u8],
}

fn write_entry(block: &mut [u8], layout: DirLayout, at: usize, rec_len: usize, entry: &NewEntry<'_>) {
    put(block, at, &entry.inode.to_le_bytes());
    put(block, at + 4, &encode_rec_len(rec_len));
    let name_len = u8::try_from(entry.name.len()).expect("callers refuse names over 255 bytes");
    let file_type = if layout.file_types { entry.file_type.dirent_byte() } else { 0 };
    put(block, at + 6, &[name_len, file_type]);
    put(block, at + HEADER_LEN, entry.name);
    // The padding after the name is zeroed, so that it holds no bytes of an older name.
    let used = HEADER_LEN + entry.name.len();
    block[at + used..at + DirLayout::entry_len(entry.name.len()).min(rec_len)].fill(0);
}

/// Writes an entry into a slot that [`slot_for`] found in this block, with no edit in between.
///
/// # Panics
/// When the name is empty, is longer than 255 bytes, or does not fit the slot (which was found for
/// a shorter name); when the slot lies beyond the block, or the buffer is not one block.
pub fn insert_at(block: &mut [u8], layout: DirLayout, slot: Slot, entry: &NewEntry<'_>) {
    let length = entry.name.len();
    assert!((1..=NAME_LEN_MAX).contains(&length) && DirLayout::entry_len(length) <= slot.room());
    assert!(slot.at + slot.rec_len <= layout.usable() && block.len() == layout.block_size);
    if slot.kept > 0 {
        put(block, slot.at + 4, &encode_rec_len(slot.kept));
    }
    write_entry(block, layout, slot.at + slot.kept, slot.room(), entry);
}

/// Inserts an entry where there is room; `false` if there is none. Does not check whether the block
/// has the name already.
///
/// # Errors
/// The first [`DirDefect`] of the block, which is then unchanged.
///
/// # Panics
/// When there is room, but the name is empty or longer than 255 bytes.
pub fn insert(block: &mut [u8], layout: DirLayout, entry: &NewEntry<'_>) -> Result<bool, DirDefect> {
    let slot = slot_for(block, layout, entry.name.len())?;
    if let Some(slot) = slot {
        insert_at(block, layout, slot, entry);
    }
    Ok(slot.is_some())
}

/// Removes an entry: the previous entry takes its space. The first entry of a block becomes a free
/// slot instead.
///
/// # Errors
/// [`DirDefect::BlockSize`] when no entry starts where `found` says, or the first defect up to that
/// entry; the block is then unchanged.
pub fn remove_at(block: &mut [u8], layout: DirLayout, found: &Found) -> Result<(), DirDefect> {
    let mut previous = None;
    let mut here = None;
    for entry in Entries::new(block, layout)? {
        let Entry { at, rec_len, .. } = entry?;
        if at >= found.at {
            here = (at == found.at).then_some(rec_len);
            break;
        }
        previous = Some((at, rec_len));
    }
    let rec_len = here.ok_or(DirDefect::BlockSize)?;
    let Some((before, before_len)) = previous else {
        put(block, found.at, &0u32.to_le_bytes());
        block[found.at + 6..found.at + rec_len].fill(0);
        return Ok(());
    };
    put(block, before + 4, &encode_rec_len(before_len + rec_len));
    block[found.at..found.at + rec_len].fill(0);
    Ok(())
}

/// Points an existing entry at another inode (rename over a name, or a directory's `..`).
///
/// # Errors
/// [`DirDefect::BlockSize`] when the buffer is not one block, or no entry can start at `at`: it is
/// not aligned, or too near the end. The caller must know that an entry does start there.
pub fn set_inode(
    block: &mut [u8],
    layout: DirLayout,
    at: usize,
    inode: u32,
    file_type: FileType,
) -> Result<(), DirDefect> {
    if block.len() != layout.block_size || at + ENTRY_LEN_MIN > layout.usable() || !at.is_multiple_of(4) {
        return Err(DirDefect::BlockSize);
    }
    put(block, at, &inode.to_le_bytes());
    if layout.file_types {
        block[at + 7] = file_type.dirent_byte();
    }
    Ok(())
}

/// Whether a block holds no names but `.` and `..` (for rmdir).
///
/// # Errors
/// The first [`DirDefect`], unless a name other than `.` and `..` comes before it.
pub fn is_empty(block: &[u8], layout: DirLayout) -> Result<bool, DirDefect> {
    for entry in Entries::new(block, layout)? {
        let entry = entry?;
        if entry.inode != 0 && entry.name != b"." && entry.name != b".." {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes `block` an empty directory block: one free slot, and the tail if it must have one
/// (checksum unset).
///
/// # Panics
/// When the buffer is not one block.
pub fn init_empty(block: &mut [u8], layout: DirLayout) {
    assert_eq!(block.len(), layout.block_size);
    block.fill(0);
    put(block, 4, &encode_rec_len(layout.usable()));
    if layout.tail {
        init_tail(block);
    }
}

/// Makes `block` the first block of a new directory: `.`, and `..` with all the remaining space.
///
/// # Panics
/// When the buffer is not one block.
pub fn init_dots(block: &mut [u8], layout: DirLayout, own: u32, parent: u32) {
    init_empty(block, layout);
    let directory = FileType::Directory;
    let dot = NewEntry { inode: own, file_type: directory, name: b"." };
    write_entry(block, layout, 0, ENTRY_LEN_MIN, &dot);
    let dotdot = NewEntry { inode: parent, file_type: directory, name: b".." };
    write_entry(block, layout, ENTRY_LEN_MIN, layout.usable() - ENTRY_LEN_MIN, &dotdot);
}

/// Copies the entries of `from`, from the entry at byte `first` on, to the start of the empty block
/// `to`, slack included. `last` is where the last entry of `from` starts. Its copy gets the
/// remaining space of `to`.
pub(crate) fn copy_entries(from: &[u8], (first, last): (usize, usize), to: &mut [u8], layout: DirLayout) {
    let end = layout.usable();
    to[..end - first].copy_from_slice(&from[first..end]);
    to[end - first..end].fill(0);
    put(to, last - first + 4, &encode_rec_len(end - (last - first)));
}

/// Fills a block with entries one after another. The last one gets the remaining space.
#[derive(Debug)]
pub struct Packer<'a> {
    block: &'a mut [u8],
    layout: DirLayout,
    last: Option<usize>,
    at: usize,
}

impl<'a> Packer<'a> {
    /// Empties the block and starts at its beginning.
    ///
    /// # Panics
    /// When the buffer is not one block.
    #[must_use]
    pub fn new(block: &'a mut [u8], layout: DirLayout) -> Self {
        init_empty(block, layout);
        Self { block, layout, last: None, at: 0 }
    }

    /// Appends an entry with a raw type; `false` (and nothing changed) when it does not fit.
    ///
    /// # Panics
    /// When the name is empty or longer than 255 bytes.
    #[must_use]
    pub fn push(&mut self, inode: u32, file_type: u8, name: &[u8]) -> bool {
        assert!((1..=NAME_LEN_MAX).contains(&name.len()));
        let length = DirLayout::entry_len(name.len());
        if self.at + length > self.layout.usable() {
            return false;
        }
        let entry = NewEntry { inode, file_type: FileType::Regular, name };
        if let Some(last) = self.last {
            put(self.block, last + 4, &encode_rec_len(self.at - last));
        }
        write_entry(self.block, self.layout, self.at, self.layout.usable() - self.at, &entry);
        if self.layout.file_types {
            self.block[self.at + 7] = file_type;
        }
        self.last = Some(self.at);
        self.at += length;
        true
    }

    /// Bytes taken by entries so far.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.at
    }
}

/// Writes the bytes of an empty checksum tail.
fn init_tail(block: &mut [u8]) {
    let at = block.len() - TAIL_LEN;
    block[at..].fill(0);
    put(block, at + 4, &encode_rec_len(TAIL_LEN));
    block[at + 7] = TAIL_FILE_TYPE;
}

fn tail_range(block: &[u8]) -> Option<Range<usize>> {
    let at = block.len().checked_sub(TAIL_LEN)?;
    let tail = &block[at..];
    (le32(tail, 0) == 0 && le16(tail, 4) == 12 && tail[6] == 0 && tail[7] == TAIL_FILE_TYPE)
        .then_some(at..block.len())
}

/// The checksum in the tail of a block; `None` if it has no tail.
#[must_use]
pub fn stored_checksum(block: &[u8]) -> Option<u32> {
    tail_range(block).map(|tail| le32(block, tail.start + 8))
}

/// The crc32c that a block's tail should hold; `inode_seed` is that of the directory.
#[must_use]
pub fn checksum(block: &[u8], inode_seed: u32) -> u32 {
    object::dir_leaf(inode_seed, block)
}

/// Writes the checksum into the tail.
///
/// # Errors
/// [`DirDefect::TailMissing`] when the block has none.
pub fn set_checksum(block: &mut [u8], inode_seed: u32) -> Result<(), DirDefect> {
    let tail = tail_range(block).ok_or(DirDefect::TailMissing)?;
    let sum = checksum(block, inode_seed);
    put(block, tail.start + 8, &sum.to_le_bytes());
    Ok(())
}

/// Bytes that the used entries of a block would need without slack.
///
/// # Errors
/// The first [`DirDefect`] of the block.
pub fn packed_len(block: &[u8], layout: DirLayout) -> Result<usize, DirDefect> {
    Entries::new(block, layout)?.try_fold(0, |sum, entry| {
        let entry = entry?;
        Ok(if entry.inode == 0 { sum } else { sum + DirLayout::entry_len(entry.name.len()) })
    })
}

#[cfg(test)]
mod tests;
