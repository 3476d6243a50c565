//! Every on-disk structure of ext2, ext3 and ext4, and of partition tables: bytes, checksums and
//! geometry arithmetic. No I/O.
//!
//! Each on-disk object has a file or folder of its own. `Raw*` types show bytes of an image as they
//! are. A `parse` or `verify` function turns them into a verified type. Except in quota files and
//! partition tables, a check that fails is reported as one documented `CorruptionKind`, with the
//! location as far as the parser knows it.

#![forbid(unsafe_code)]

pub mod bitmap;
pub mod checksum;
mod defects;
pub mod device_number;
pub mod dirblock;
pub mod dirhash;
pub mod error;
pub mod extent;
pub mod features;
pub mod geometry;
pub mod group_desc;
pub mod group_head;
pub mod htree;
pub mod indirect;
pub mod inline_data;
pub mod inode;
pub mod jbd2;
pub mod layout;
pub mod mmp;
pub mod num;
pub mod orphan_file;
pub mod partition;
pub mod quota;
pub mod superblock;
pub mod timestamp;
pub mod units;
pub mod whole_directory;
pub mod xattr;

pub use checksum::Checksums;
pub use error::{Corruption, CorruptionKind, Error, Place, Result};
pub use extent::{Extent, ExtentNode};
pub use features::{Compat, Feature, FeatureSet, Incompat, RoCompat};
pub use geometry::Geometry;
pub use group_desc::GroupDescriptor;
pub use inode::{FileType, Inode, InodeMap};
pub use superblock::Superblock;
pub use timestamp::Timestamp;
pub use units::{
    BlockCount, BlockNr, ClusterCount, ClusterNr, ClusterOffset, FlexNr, GroupNr, InodeNr, LogicalBlock,
    TxnId,
};
