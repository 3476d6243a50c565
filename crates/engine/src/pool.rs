//! Which clusters an allocation may take.

/// Which clusters an allocation may take when space is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// Clusters that are not reserved.
    Ordinary,
    /// Ordinary clusters and the file system's own reserve. For blocks of mappings without which
    /// space could not be freed, or accepted data could not be written.
    Reserve,
    /// Clusters reserved when the data was written, and the file system's own reserve.
    Reserved,
    /// As [`Pool::Reserved`], but without the file system's own reserve. Linux requests blocks like
    /// this when `fallocate` covers delayed data, and for the indirect blocks above delayed data
    /// (observed on 6.18).
    Delayed,
}

impl Pool {
    /// Whether the file system's own reserve may be used.
    pub(crate) fn has_reserve(self) -> bool {
        matches!(self, Self::Reserved | Self::Reserve)
    }
}
