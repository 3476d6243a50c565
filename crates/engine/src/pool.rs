//! Whose clusters an allocation may take.

/// Whose clusters may be taken when space is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// What is reserved for nobody.
    Ordinary,
    /// From the file system's own reserve, too: for the blocks that giving space back needs.
    Reserve,
    /// What was reserved when the data was written.
    Reserved,
    /// As [`Pool::Reserved`], but nothing of the file system's own reserve: Linux allocates ahead
    /// like this where data waits for its place (observed on 6.18).
    Delayed,
}

impl Pool {
    /// Whether the file system's own reserve may be used.
    pub(crate) fn has_reserve(self) -> bool {
        matches!(self, Self::Reserved | Self::Reserve)
    }
}
