//! Policies are data. A policy says what fills each slot, that is, how each decision of the
//! allocator is made. A preset is a policy with a name.
//!
//! A policy on the command line is `preset` or `preset:slot=value:slot=value`. Tunables are set
//! like slots (`mb_max_to_scan=50`). Commas separate policies. This module refuses combinations
//! that the mechanism cannot serve, so the search need not handle them.

mod best_fit;
pub mod code;
mod composition;
mod era;
mod ext3;
mod ext4_2008;
mod ext4_2009;
mod first_fit;
mod inode_cursor;
mod linux_6_16;
mod linux_6_18;
mod parse;
mod presets;
mod rotalloc_v1;
mod rralloc;
mod rralloc_v2;
mod rralloc_v3_regular;
pub mod slots;
mod yard;

pub use composition::{Cursor, Policy, Switches};
pub use era::NotServed;
pub use parse::{PolicyError, SlotHelp};
pub use presets::{PRESETS, Preset};
