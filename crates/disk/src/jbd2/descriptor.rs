//! Descriptor blocks: the tags that say where the logged blocks after them belong.
//!
//! | journal features | tag bytes | layout |
//! |---|---|---|
//! | v3 checksums | 16 | block lo, flags 32, block hi, checksum 32 |
//! | 64bit | 12 | block lo, checksum 16, flags 16, block hi |
//! | none | 8 | block lo, checksum 16, flags 16 |
//! | v2 checksums | 14 / 10 | as in the two rows above, then two unused bytes |
//!
//! A tag without `SAME_UUID` is followed by the 16 bytes of a UUID. [`tags`] skips these bytes, and
//! [`DescriptorBuilder`] leaves them zero.

use super::{BlockKind, JournalIncompat, LogFormat, MAGIC, RawHeader};
use crate::num::{high32, join32, low16, low32, u32_from_usize};
use crate::units::{BlockNr, TxnId};
use zerocopy::IntoBytes;

/// Bytes of the UUID after a tag without [`TagFlags::SAME_UUID`].
const UUID_BYTES: usize = 16;

bitflags::bitflags! {
    /// Flags of a tag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct TagFlags: u32 {
        /// The block begins with the journal's magic; the logged copy has zeroes there.
        const ESCAPE = 1;
        /// No UUID follows.
        const SAME_UUID = 2;
        /// Unused.
        const DELETED = 4;
        /// The last tag of its block.
        const LAST = 8;
        const _ = !0;
    }
}

/// Where one logged block belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The block of the file system; not verified.
    pub target: BlockNr,
    /// Flags.
    pub flags: TagFlags,
    /// Checksum of the logged block; its low half with v2, 0 without checksums.
    pub checksum: u32,
}

/// The layout of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagLayout {
    /// 8 bytes; with v2 checksums 10.
    Narrow {
        /// Whether the checksum field is used.
        has_v2: bool,
    },
    /// 12 bytes; with v2 checksums 14.
    Wide {
        /// Whether the checksum field is used.
        has_v2: bool,
    },
    /// 16 bytes.
    V3 {
        /// Whether the high half of the block number is used.
        is_64bit: bool,
    },
}

impl TagLayout {
    /// The layout that the features require.
    #[must_use]
    pub const fn of(features: JournalIncompat) -> Self {
        let is_64bit = features.contains(JournalIncompat::BIT64);
        let has_v2 = features.contains(JournalIncompat::CSUM_V2);
        match (features.contains(JournalIncompat::CSUM_V3), is_64bit) {
            (true, is_64bit) => Self::V3 { is_64bit },
            (false, true) => Self::Wide { has_v2 },
            (false, false) => Self::Narrow { has_v2 },
        }
    }

    /// Bytes of one tag, without a UUID.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Narrow { has_v2: false } => 8,
            Self::Narrow { has_v2: true } => 10,
            Self::Wide { has_v2: false } => 12,
            Self::Wide { has_v2: true } => 14,
            Self::V3 { .. } => 16,
        }
    }

    /// The bits of a block's checksum that a tag stores.
    pub(super) const fn checksum_mask(self) -> u32 {
        match self {
            Self::Narrow { has_v2: false } | Self::Wide { has_v2: false } => 0,
            Self::Narrow { has_v2: true } | Self::Wide { has_v2: true } => 0xFFFF,
            Self::V3 { .. } => !0,
        }
    }

    /// Reads a tag from exactly [`size`](Self::size) bytes.
    fn read(self, bytes: &[u8]) -> Tag {
        let half = |at: usize| u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let word = |at: usize| half(at) << 16 | half(at + 2);
        let (flags, hi, checksum) = match self {
            Self::Narrow { .. } => (half(6), 0, half(4)),
            Self::Wide { .. } => (half(6), word(8), half(4)),
            Self::V3 { is_64bit } => (word(4), if is_64bit { word(8) } else { 0 }, word(12)),
        };
        Tag {
            target: BlockNr::new(join32(hi, word(0))),
            flags: TagFlags::from_bits_retain(flags),
            checksum: checksum & self.checksum_mask(),
        }
    }

    /// Writes a tag into exactly [`size`](Self::size) bytes.
    fn write(self, tag: &Tag, bytes: &mut [u8]) {
        let checksum = tag.checksum & self.checksum_mask();
        bytes.fill(0);
        bytes[..4].copy_from_slice(&low32(tag.target.raw()).to_be_bytes());
        let hi = high32(tag.target.raw()).to_be_bytes();
        match self {
            Self::Narrow { .. } | Self::Wide { .. } => {
                bytes[4..6].copy_from_slice(&low16(checksum).to_be_bytes());
                bytes[6..8].copy_from_slice(&low16(tag.flags.bits()).to_be_bytes());
                if let Some(field) = bytes.get_mut(8..12) {
                    field.copy_from_slice(&hi);
                }
            }
            Self::V3 { is_64bit } => {
                bytes[4..8].copy_from_slice(&tag.flags.bits().to_be_bytes());
                if is_64bit {
                    bytes[8..12].copy_from_slice(&hi);
                }
                bytes[12..16].copy_from_slice(&checksum.to_be_bytes());
            }
        }
    }
}

/// The tags of a descriptor block, up to the one marked last, or as many as the block holds. The
/// caller checks the block's header and checksum.
pub fn tags<'a>(format: &LogFormat, block: &'a [u8]) -> impl Iterator<Item = Tag> + use<'a> {
    let layout = format.tag_layout();
    let mut rest = block.get(RawHeader::SIZE..format.records_end());
    core::iter::from_fn(move || {
        let (bytes, after) = rest?.split_at_checked(layout.size())?;
        let tag = layout.read(bytes);
        let skip = if tag.flags.contains(TagFlags::SAME_UUID) { 0 } else { UUID_BYTES };
        rest = if tag.flags.contains(TagFlags::LAST) { None } else { after.get(skip..) };
        Some(tag)
    })
}

/// If the first word of a block to be logged is [`MAGIC`], sets the word to zero and returns true:
/// the block's tag then needs [`TagFlags::ESCAPE`]. Otherwise returns false.
pub fn escape(block: &mut [u8]) -> bool {
    let is_magic = block.get(..4).is_some_and(|word| word == MAGIC.to_be_bytes());
    if is_magic {
        block[..4].fill(0);
    }
    is_magic
}

/// Restores what [`escape`] removed.
pub fn unescape(block: &mut [u8]) {
    if let Some(word) = block.get_mut(..4) {
        word.copy_from_slice(&MAGIC.to_be_bytes());
    }
}

/// Fills descriptor blocks.
#[derive(Debug)]
pub struct DescriptorBuilder {
    format: LogFormat,
    block: Vec<u8>,
    used: usize,
    last_tag: usize,
}

impl DescriptorBuilder {
    /// An empty descriptor of a transaction.
    #[must_use]
    pub fn new(format: LogFormat, tid: TxnId) -> Self {
        let mut block = vec![0; format.block_size()];
        block[..RawHeader::SIZE].copy_from_slice(RawHeader::new(BlockKind::Descriptor, tid).as_bytes());
        Self { format, block, used: RawHeader::SIZE, last_tag: 0 }
    }

    /// Whether no further tag may be added. As in Linux, a descriptor is full when no room is left
    /// for a tag with a UUID, although only the first tag has a UUID.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let room = self.format.records_end() - self.used;
        self.last_tag != 0 && room < self.format.tag_layout().size() + UUID_BYTES
    }

    /// Adds a tag, with `SAME_UUID` unless it is the first. [`finish`](Self::finish) sets `LAST`.
    ///
    /// # Panics
    /// When the block [`is_full`](Self::is_full).
    pub fn push(&mut self, target: BlockNr, is_escaped: bool, checksum: u32) {
        assert!(!self.is_full(), "no room for a tag");
        let is_first = self.last_tag == 0;
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, is_escaped);
        flags.set(TagFlags::SAME_UUID, !is_first);
        let layout = self.format.tag_layout();
        let end = self.used + layout.size();
        layout.write(&Tag { target, flags, checksum }, &mut self.block[self.used..end]);
        self.last_tag = self.used;
        self.used = if is_first { end + UUID_BYTES } else { end };
    }

    /// The block, with [`TagFlags::LAST`] set in its last tag, and sealed with its checksum.
    ///
    /// # Panics
    /// When no tag was added.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        assert!(self.last_tag != 0, "a descriptor without tags");
        let layout = self.format.tag_layout();
        let bytes = &mut self.block[self.last_tag..self.last_tag + layout.size()];
        let mut tag = layout.read(bytes);
        tag.flags.insert(TagFlags::LAST);
        layout.write(&tag, bytes);
        self.format.seal_tail(&mut self.block);
        self.block
    }
}

/// Tags that fit one descriptor block by the rule of [`DescriptorBuilder::is_full`].
#[must_use]
pub fn tags_per_block(format: &LogFormat) -> u32 {
    let room = format.records_end() - RawHeader::SIZE - UUID_BYTES;
    let size = format.tag_layout().size();
    // A block is full when no room is left for a tag with a UUID.
    u32_from_usize((room - UUID_BYTES) / size)
}

#[cfg(test)]
mod tests {
    use super::super::JournalFeatures;
    use super::*;

    fn format(incompat: JournalIncompat, block_size: usize) -> LogFormat {
        LogFormat::new(block_size, JournalFeatures { incompat, ..JournalFeatures::NONE }, &[9; 16])
    }

    fn all_layouts() -> [(JournalIncompat, usize); 6] {
        let (v2, v3, wide) = (JournalIncompat::CSUM_V2, JournalIncompat::CSUM_V3, JournalIncompat::BIT64);
        [(JournalIncompat::empty(), 8), (wide, 12), (v2, 10), (v2 | wide, 14), (v3, 16), (v3 | wide, 16)]
    }

    #[test]
    fn tags_come_back_in_every_layout() {
        for (features, size) in all_layouts() {
            let format = format(features, 1024);
            assert_eq!(format.tag_layout().size(), size);
            let mut builder = DescriptorBuilder::new(format, TxnId::new(5));
            let mut expected = Vec::new();
            while !builder.is_full() {
                let number = u64::try_from(expected.len()).unwrap();
                let high = if format.is_64bit() { number << 32 } else { 0 };
                let target = BlockNr::new(high | 0xFFFF_0000 | number);
                builder.push(target, number % 3 == 0, 0xABCD_0000 | low32(number));
                expected.push((target, number % 3 == 0));
            }
            let block = builder.finish();
            assert!(format.verify_tail(&block));
            let read: Vec<Tag> = tags(&format, &block).collect();
            let seen: Vec<_> =
                read.iter().map(|tag| (tag.target, tag.flags.contains(TagFlags::ESCAPE))).collect();
            assert_eq!(seen, expected);
            assert_eq!(u32_from_usize(read.len()), tags_per_block(&format));
            assert!(!read[0].flags.contains(TagFlags::SAME_UUID));
            assert!(read[1..].iter().all(|tag| tag.flags.contains(TagFlags::SAME_UUID)));
            assert_eq!(read.iter().filter(|tag| tag.flags.contains(TagFlags::LAST)).count(), 1);
        }
    }

    #[test]
    fn a_4k_descriptor_with_v3_holds_253_tags() {
        assert_eq!(tags_per_block(&format(JournalIncompat::CSUM_V3, 4096)), 253);
    }

    #[test]
    fn a_block_without_a_last_tag_ends_where_no_tag_fits() {
        let format = format(JournalIncompat::CSUM_V3, 1024);
        let mut block = vec![0xFF; 1024];
        // SAME_UUID everywhere, LAST nowhere.
        for tag in block[RawHeader::SIZE..].chunks_exact_mut(16) {
            tag[4..8].copy_from_slice(&2u32.to_be_bytes());
        }
        assert_eq!(tags(&format, &block).count(), (1024 - 12 - 4) / 16);
        // Every tag has a UUID, but the UUID of the last tag does not fit.
        block[RawHeader::SIZE..].fill(0);
        assert_eq!(tags(&format, &block).count(), 32);
    }

    #[test]
    fn v3_without_64bit_ignores_the_high_word() {
        let mut block = vec![0; 1024];
        block[RawHeader::SIZE..RawHeader::SIZE + 12].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1]);
        let target = |features| tags(&format(features, 1024), &block).next().map(|tag| tag.target.raw());
        assert_eq!(target(JournalIncompat::CSUM_V3), Some(1));
        assert_eq!(target(JournalIncompat::CSUM_V3 | JournalIncompat::BIT64), Some(1 << 32 | 1));
    }

    #[test]
    fn the_magic_is_escaped_and_put_back() {
        let mut block = MAGIC.to_be_bytes().to_vec();
        block.extend([1, 2, 3]);
        let original = block.clone();
        assert!(escape(&mut block));
        assert_eq!(block, [0, 0, 0, 0, 1, 2, 3]);
        assert!(!escape(&mut block));
        unescape(&mut block);
        assert_eq!(block, original);
    }
}
