//! The epochs in which metadata is marked as changed.

/// The time between two commits that wrote something. Changed objects are marked with the number
/// of the epoch; 0 marks an unchanged object.
///
/// An object marked with the running epoch may be changed in place. An object marked with an older
/// epoch belongs to the commit in progress, which may not have copied it yet: a writer first sets
/// the old state aside, where the commit finds it. There is one commit at a time, so one slot for
/// the old state is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u32);

impl Epoch {
    /// Marks an object without a change that a commit must still copy.
    pub(crate) const NONE: Self = Self(0);

    /// The mark as a number.
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    /// The mark from its number.
    pub(crate) const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    pub(crate) fn next(self) -> Self {
        let next = Self(self.0.wrapping_add(1).max(1));
        debug_assert!(next != Self::NONE && next != self, "epochs that cannot be told apart");
        next
    }
}
