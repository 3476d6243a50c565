//! A run of clusters in a group, as the search passes it around.

use blockyard_disk::GroupNr;

use crate::events::EventExtent;

/// The `start` of a goal that names only a group.
pub(crate) const NO_OFFSET: u32 = u32::MAX;

/// A run of clusters in a group, and the logical block that its first cluster stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    pub(crate) group: GroupNr,
    /// Cluster offset in the group, or [`NO_OFFSET`].
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) logical: u32,
}

impl Extent {
    pub(crate) fn event(self) -> EventExtent {
        EventExtent { group: self.group.raw(), start: self.start, len: self.len, logical: self.logical }
    }
}
