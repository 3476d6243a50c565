//! The on-disk structures of ext2, ext3 and ext4, and of partition tables: bytes, checksums and
//! geometry arithmetic. No I/O.
//!
//! Each on-disk object has a file or folder of its own. `Raw*` types show bytes of an image as they
//! are. A `parse` or `verify` function checks the bytes, and usually returns a verified type. A
//! check that fails is usually reported as a documented [`CorruptionKind`], or as a defect that
//! converts into one, with the location as far as the parser knows it.

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
