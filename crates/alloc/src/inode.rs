//! Inode allocation: which group a new inode goes to, and the claim of a number inside it.
//!
//! A request is served in two steps. The *search* reads counts without any lock and names a group.
//! The *claim* takes that group's lock, finds a free bit, and moves on to the next group if there
//! is none. Counts may change between the two steps. Then the claim takes what the group still has,
//! as the kernel does.
//!
//! The counts of groups and flex groups are exact. The totals that the search reads (free inodes,
//! directories and free clusters of the file system) lag on purpose, as Linux's per-CPU counters
//! do. With one CPU slot and the same order of requests, the inode numbers should be the kernel's,
//! unless the search starts at random.
//!
//! Invariants for every group whose descriptor agreed with its bitmap at open:
//!
//! - A claim sets the bit of its inode in the in-core bitmap.
//! - The free count and the bits set in the in-core bitmap add up to the number of inodes in the
//!   group.
//! - In an [`InodeUpdate`], inodes of uncommitted claims count as free, because the bitmap on disk
//!   lacks them.

mod allocate;
mod allocator;
mod bitmap;
mod claim;
mod config;
mod counts;
mod error;
mod goal;
mod group;
mod search;
mod update;

use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};

pub use allocate::InodeDirAlloc;
pub use allocator::InodeAllocator;
pub use claim::InodeClaim;
pub use config::{BitmapLoad, InodeConfig, InodeGroupFacts, InodeRequest, InodeSource, RecentDeletion};
pub use counts::{ClusterCounts, FreeClusters};
pub use error::InodeError;
pub use goal::goal_for_inode;
pub use update::InodeUpdate;

pub use crate::policy::Switches;
pub use crate::policy::slots::{DirBlocks, InodeGroup};

/// The hash of the name of a new directory. Under a top directory, this hash says at which flex
/// group the search for the new directory's group starts. The hash is half-MD4 over signed
/// characters, whatever hash the directories use. If the parent is case-folded, pass the folded
/// name.
#[must_use]
pub fn top_name_hash(name: &[u8], seed: HashSeed) -> u32 {
    DirHasher::new(HashVersion::HalfMd4, seed).hash(name).major
}
