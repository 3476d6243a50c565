//! Where the search for one request stands.

use crate::aim::Aim;
use crate::asked::SEARCH_FLAGS;
use crate::extent::Extent;
use crate::request::RequestFlags;
use crate::search::candidates::{Selection, Status};
use crate::stats::CRITERIA;

/// The state of a search. All of it may change during the search.
pub(crate) struct SearchState {
    /// What is searched for: the request as asked, until [`Self::set_aim`] sets the aim. The search
    /// may then move the goal, for example to the stream goal, and shorten (trim) it.
    pub(crate) goal: Extent,
    /// Clusters aimed at. If the best-available criterion, which trims the goal, finds nothing, the
    /// goal gets this length again.
    pub(crate) want: u32,
    /// Which of [`SEARCH_FLAGS`] hold now.
    pub(crate) flags: RequestFlags,
    /// The least order of a chunk under the power-of-two criterion; 0 if that criterion is not
    /// used.
    pub(crate) order2: u32,
    /// The best candidate so far, and how many candidates were counted.
    pub(crate) selection: Selection,
    /// Groups scanned.
    pub(crate) scanned: u32,
    /// The number of the criterion reached. With `visit=scan`, 5 after the last criterion found
    /// nothing.
    pub(crate) criterion: u32,
    pub(crate) prefetch: Prefetch,
    /// The criteria under which a group was already picked from the index (`visit=choose`).
    pub(crate) picked: [bool; CRITERIA],
    /// The shortest run that is accepted now; `None` for the rule of the criterion.
    pub(crate) floor: Option<u32>,
}

/// The state of prefetch. At the start of a walk, the cursor is the walk's first group, and there
/// is no batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefetch {
    /// Group at which the next batch starts.
    pub(crate) cursor: u32,
    /// Number of groups in the last batch.
    pub(crate) batch: u32,
    /// Reads started in this request, by all of its walks.
    pub(crate) started: u32,
}

impl SearchState {
    /// A search that has not begun, for a request as it was asked.
    pub(crate) fn new(asked: Extent, flags: RequestFlags, selection: Selection) -> Self {
        Self {
            goal: asked,
            want: asked.len,
            flags: flags.intersection(SEARCH_FLAGS),
            order2: 0,
            selection,
            scanned: 0,
            criterion: 0,
            prefetch: Prefetch::default(),
            picked: [false; CRITERIA],
            floor: None,
        }
    }

    /// Sets what is searched for.
    pub(crate) fn set_aim(&mut self, aim: Aim) {
        self.goal = aim.goal;
        self.want = aim.want;
        self.flags.set(RequestFlags::TRY_GOAL, aim.try_goal || self.flags.contains(RequestFlags::TRY_GOAL));
    }

    /// Resets the status, best candidate and criterion, which an earlier, fruitless search of this
    /// request may have set. The rest of the state stays.
    pub(crate) fn start(&mut self) {
        self.selection.status = Status::Continue;
        self.selection.best.len = 0;
        self.criterion = 0;
    }

    /// Makes the search take the next candidate, whatever its length.
    pub(crate) fn take_first(&mut self) {
        self.selection.first = true;
        self.flags |= RequestFlags::FIRST;
    }

    /// Whether no further group needs to be visited.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.selection.status != Status::Continue
    }
}

impl Prefetch {
    /// Notes that a walk begins at `group`.
    pub(crate) fn start_walk(&mut self, group: u32) {
        *self = Self { cursor: group, batch: 0, started: self.started };
    }
}
