//! Block and inode allocation of ext4: the mechanism, the search, and the policies that steer it.
//! The crate knows no files and no journal, and does no I/O of its own.
//!
//! The steps of one allocation: [`BlockRequest`] → admission → preallocation → normalise → goal →
//! ladder of criteria over groups → choose an extent in a group → claim it under that group's lock
//! → remember goals → [`AllocEvent`] → [`Claim`]. `allocate.rs` has these steps from top to bottom.
//! Each decision on this path is a slot, and a [`Policy`] says what fills each slot.
//!
//! Counts are in clusters, unless a name says blocks ([`Claim::blocks`]). Bitmaps come from a
//! [`GroupSource`]. With [`Claim::commit`] the caller says that the claimed clusters are marked
//! used in the on-disk bitmap. With [`Allocator::commit`] the caller says that the clusters freed
//! by a transaction may be used again.
//!
//! Block, group and inode numbers are types of `blockyard-disk`; the CPU slot of a request is one
//! of `blockyard-sync`. [`memory`] has bitmaps for allocation without an image:
//!
//! ```
//! use blockyard_alloc::memory::MemoryBitmaps;
//! use blockyard_alloc::{AllocConfig, AllocError, Allocator, BlockRequest, FreeContext, InodeAlloc};
//! use blockyard_disk::{GroupNr, InodeNr, LogicalBlock};
//!
//! # fn main() -> blockyard_alloc::Result<()> {
//! // 8 groups, in one flex group of 16. The first 100 clusters of each group are metadata.
//! let geometry = MemoryBitmaps::plain_geometry(8, 4);
//! let bitmaps = MemoryBitmaps::new(geometry.clone(), 100);
//! let config = AllocConfig::new(geometry.clone());
//! // The type is written out so that the default backend (locks and atomics of the host) is chosen.
//! let allocator: Allocator = Allocator::open(&config, bitmaps.clone(), &bitmaps.facts())?;
//! // Load all groups, because the first criteria of a search pass over most groups that were never
//! // loaded. (Linux loads groups in the background.)
//! allocator.initialise(0, geometry.groups())?;
//!
//! let group = GroupNr::new(5);
//! let inode = InodeAlloc::new();
//! let request = BlockRequest {
//!     goal: geometry.group_first_block(group),
//!     ..BlockRequest::data(InodeNr::new(12), group, LogicalBlock::ZERO, 8)
//! };
//! let claim = allocator.allocate(&request, &inode)?;
//! let (first, blocks) = (claim.first_block(), claim.blocks().raw());
//! assert_eq!((claim.group(), claim.clusters()), (group, 8));
//! bitmaps.commit(claim);
//! allocator.discard_inode_preallocations(&inode, request.cpu);
//!
//! // Free the blocks. Their bits are cleared before the blocks can be handed out again.
//! let freed = allocator.free_with(first, blocks, FreeContext::default(), |part| {
//!     bitmaps.write(part.group, part.start, part.count, false);
//!     Ok::<(), AllocError>(())
//! })?;
//! assert_eq!(freed, 8);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod admission;
mod aim;
mod allocate;
mod allocator;
mod asked;
mod buddy;
mod claim;
mod config;
mod criterion;
mod cursor;
mod error;
mod events;
mod extent;
mod free;
mod frees;
pub mod goals;
mod group;
mod index;
pub mod inode;
mod lock_model;
mod md;
pub mod memory;
mod normalize;
mod pending;
pub mod policy;
mod prealloc;
mod request;
mod search;
#[cfg(test)]
mod shuttle_tests;
mod stats;
mod trim;
mod trims;
mod tunables;
mod windows;

pub use admission::{FreeClusters, Room};
pub use allocator::Allocator;
pub use claim::Claim;
pub use config::{AllocConfig, GroupFacts, GroupSource, InitMode};
pub use criterion::Criterion;
pub use error::{AllocError, NoSpace, Result, SourceError};
pub use events::{AllocEvent, EventExtent, EventKind, EventRings, EventSink};
pub use frees::{FreeContext, FreedExtent};
#[doc(hidden)]
pub use lock_model::LockModel;
pub use policy::Policy;
pub use prealloc::inode::InodeAlloc;
pub use request::{BlockRequest, Mapping, Neighbour, RequestFlags};
pub use stats::{CRITERIA, GroupLine, LockCensus, MbStats, StructsSummary};
pub use tunables::{ChosenTunables, Tunable};
