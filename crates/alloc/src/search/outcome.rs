//! The result of a search: claimed clusters, the first failure, and the counts.

use std::sync::Arc;

use blockyard_sync::Backend;

use crate::error::{AllocError, Result};
use crate::extent::Extent;
use crate::prealloc::Prealloc;
use crate::stats::RequestStats;

/// What a search claimed. The group of the clusters is pinned once, for the claim.
pub(crate) struct Find<B: Backend> {
    /// The whole extent found.
    pub(crate) found: Extent,
    /// The part that serves the request.
    pub(crate) served: Extent,
    /// The preallocation that keeps the rest. The group's list contains it already; the list of its
    /// owner (the inode or the locality group) does not yet.
    pub(crate) prealloc: Option<Arc<Prealloc<B>>>,
}

/// The result of a request so far.
pub(crate) struct Outcome<B: Backend> {
    /// What the search claimed.
    pub(crate) find: Option<Find<B>>,
    /// The error of the first group that could not be loaded. Reported only if nothing is found.
    pub(crate) first_error: Option<AllocError>,
    pub(crate) stats: RequestStats,
}

impl<B: Backend> Outcome<B> {
    pub(crate) fn new() -> Self {
        Self { find: None, first_error: None, stats: RequestStats::default() }
    }

    /// Keeps the error of a group that could not be loaded, if it is the first such error.
    pub(crate) fn note_failure(&mut self, error: AllocError) {
        self.first_error.get_or_insert(error);
    }

    /// The first error, if nothing was found.
    pub(crate) fn result(&mut self) -> Result<()> {
        match (&self.find, self.first_error.take()) {
            (None, Some(error)) => Err(error),
            _ => Ok(()),
        }
    }
}
