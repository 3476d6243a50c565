//! The fast-commit area: records of the transaction after the last full commit. They are
//! little-endian, unlike the rest of the journal.
//!
//! This module has only what is needed to see whether the area holds records, and to name them.

use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use crate::layout::on_disk;
use crate::units::TxnId;

on_disk! {
    /// Head of every record. The record's value follows.
    pub struct RawRecordHead[4] {
        /// [`RecordKind`].
        0 fc_tag: U16,
        /// Bytes of the value.
        2 fc_len: U16,
    }
}

on_disk! {
    /// Value of a `HEAD` record.
    pub struct RawHead[8] {
        /// Features; none is defined.
        0 fc_features: U32,
        /// The transaction of the records: the one after the last full commit.
        4 fc_tid: U32,
    }
}

/// The kinds of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// An extent was added to an inode.
    AddRange,
    /// A range of an inode was unmapped.
    DelRange,
    /// A name was created with its inode.
    Creat,
    /// A name was added to an inode.
    Link,
    /// A name was removed.
    Unlink,
    /// A whole inode, as it was when the record was written.
    Inode,
    /// Nothing, up to the end of the block.
    Pad,
    /// End of one fast commit, with its checksum.
    Tail,
    /// Start of the area.
    Head,
}

impl RecordKind {
    /// The kind of a raw `fc_tag`; `None` if it is unknown.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Option<Self> {
        Some(match raw {
            1 => Self::AddRange,
            2 => Self::DelRange,
            3 => Self::Creat,
            4 => Self::Link,
            5 => Self::Unlink,
            6 => Self::Inode,
            7 => Self::Pad,
            8 => Self::Tail,
            9 => Self::Head,
            _ => return None,
        })
    }

    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddRange => "ADD_RANGE",
            Self::DelRange => "DEL_RANGE",
            Self::Creat => "CREAT",
            Self::Link => "LINK",
            Self::Unlink => "UNLINK",
            Self::Inode => "INODE",
            Self::Pad => "PAD",
            Self::Tail => "TAIL",
            Self::Head => "HEAD",
        }
    }
}

/// The transaction of the records in the area, according to its first block. `None` if the block
/// does not begin with a `HEAD` record, or the record has features.
#[must_use]
pub fn head_of(first_block: &[u8]) -> Option<TxnId> {
    let (record, value) = RawRecordHead::ref_from_prefix(first_block).ok()?;
    let (head, _) = RawHead::ref_from_prefix(value).ok()?;
    let is_head = RecordKind::from_raw(record.fc_tag.get()) == Some(RecordKind::Head);
    (is_head && head.fc_features.get() == 0).then(|| TxnId::new(head.fc_tid.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_known_by_its_tag() {
        let mut block = vec![0; 1024];
        block[..12].copy_from_slice(&[9, 0, 8, 0, 0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(head_of(&block), Some(TxnId::new(0x1122_3344)));
        block[4] = 1;
        assert_eq!(head_of(&block), None, "an unknown feature");
        assert_eq!(head_of(&[0; 1024]), None);
        assert_eq!(RecordKind::from_raw(1).map(RecordKind::name), Some("ADD_RANGE"));
    }
}
