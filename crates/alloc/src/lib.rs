//! Block and inode allocation of ext4: the mechanism, the search, and the policies that steer it.
//! The crate knows no files and no journal, and does no I/O of its own.
//!
//! The steps of one allocation: [`BlockRequest`] → admission → preallocation → normalise → goal →
//! ladder of criteria over groups → choose an extent in a group → claim it under that group's lock
//! → remember goals → [`AllocEvent`] → [`Claim`]. `allocate.rs` has these steps from top to bottom.
//! Each decision on this path is a slot, and a [`Policy`] says what fills each slot.
//!
//! All counts are in clusters. Bitmaps come from a [`GroupSource`]. With [`Claim::commit`] the
//! caller says that the claimed clusters are marked used in the on-disk bitmap. With
//! [`Allocator::commit`] the caller says that the clusters freed by a transaction may be used
//! again.

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
