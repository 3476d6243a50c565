//! Inode allocation: which group a new inode goes to, and the claim of a number inside it.
//!
//! A request is served in two steps. The *search* reads counts without any lock and
//! names a group. The *claim* takes that group's lock, finds a free bit, and moves on to the next
//! group if there is none. Counts may change between the two; the claim then takes what the group
//! still has, as the kernel does.
//!
//! Some inputs are approximate on purpose: the three file-system totals lag as Linux's per-CPU
//! counters do, while the counts of groups and flex groups are exact. With one CPU slot and the
//! same order of requests, the inode numbers equal the kernel's.
//!
//! Invariants, for every group: `free count + bits set in the bitmap = inodes per group`; a bit is
//! set from the claim on; the descriptor that [`InodeUpdate`] reports counts uncommitted claims as
//! free.

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

/// The hash of the name of a new directory. Under a top directory, the search for its group starts
/// at this hash. It is half-MD4 over signed characters, whatever hash the directories use. For a
/// case-folded directory, pass the folded name.
#[must_use]
pub fn top_name_hash(name: &[u8], seed: HashSeed) -> u32 {
    DirHasher::new(HashVersion::HalfMd4, seed).hash(name).major
}
