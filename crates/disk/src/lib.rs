//! Every on-disk structure of ext2, ext3 and ext4: bytes, checksums and geometry arithmetic. No I/O.
//!
//! One file per on-disk object. Bytes from an image are `Raw*` (zerocopy, little-endian fields; big-endian for
//! jbd2) until a `parse`/`verify` step turns them into a verified type with private fields. Each check that such a
//! step makes has one documented `CorruptionKind` and names the place.

#![forbid(unsafe_code)]

mod crc;
pub mod dirblock;
pub mod dirhash;
pub mod geometry;
pub mod htree;
pub mod num;
pub mod units;

pub use geometry::Geometry;
pub use units::{
    BlockCount, BlockNr, ClusterCount, ClusterNr, ClusterOffset, FlexNr, GroupNr, InodeNr, LogicalBlock,
    TxnId,
};
