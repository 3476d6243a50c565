//! One request on its way to a claim: what is asked, where the search stands, and the result.

use blockyard_sync::{Backend, CpuSlot};

use crate::asked::Asked;
use crate::request::RequestFlags;
use crate::search::candidates::Selection;
use crate::search::outcome::Outcome;
use crate::search::state::SearchState;

/// The three parts of one request in flight.
pub(crate) struct Context<'a, B: Backend> {
    pub(crate) asked: &'a Asked<'a, B>,
    pub(crate) search: SearchState,
    pub(crate) outcome: Outcome<B>,
}

impl<'a, B: Backend> Context<'a, B> {
    /// A request whose search has not begun, with its limits on candidates.
    pub(crate) fn new(asked: &'a Asked<'a, B>, max_to_scan: u32, min_to_scan: u32) -> Self {
        let flags = asked.request.flags;
        let selection = Selection::new(max_to_scan, min_to_scan, flags.contains(RequestFlags::FIRST));
        let search = SearchState::new(asked.extent, flags, selection);
        Self { asked, search, outcome: Outcome::new() }
    }

    /// The caller's CPU slot.
    pub(crate) fn cpu(&self) -> CpuSlot {
        self.asked.cpu()
    }

    /// The flags of the request's kind and of its search, as events show them.
    pub(crate) fn flags(&self) -> RequestFlags {
        self.asked.kind | self.search.flags
    }
}
