//! The five criteria: from picky and cheap to content with anything.

use crate::buddy::ORDERS_MAX;
use crate::group::Summary;
use crate::policy::Policy;
use crate::policy::slots::{FirstGroups, FreshGroups};
use crate::request::RequestFlags;

/// A criterion of the ladder, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Criterion {
    /// A group with a free chunk of the request's power of two.
    PowerOfTwo,
    /// A group whose average free run holds the request.
    GoalFast,
    /// As before, for a request that is shortened step by step.
    BestAvail,
    /// A group with enough free clusters.
    GoalSlow,
    /// Any free cluster.
    Any,
}

impl Criterion {
    /// Every criterion, in order.
    pub const ALL: [Self; crate::stats::CRITERIA] =
        [Self::PowerOfTwo, Self::GoalFast, Self::BestAvail, Self::GoalSlow, Self::Any];

    /// Position in the ladder: the number that events carry.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::PowerOfTwo => 0,
            Self::GoalFast => 1,
            Self::BestAvail => 2,
            Self::GoalSlow => 3,
            Self::Any => 4,
        }
    }

    /// Index in arrays of counts by criterion.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::PowerOfTwo => 0,
            Self::GoalFast => 1,
            Self::BestAvail => 2,
            Self::GoalSlow => 3,
            Self::Any => 4,
        }
    }

    /// The criterion after this one; `None` after the last.
    pub(crate) fn next(self) -> Option<Self> {
        Self::ALL.get(self.index() + 1).copied()
    }

    /// Whether it uses the group indexes and avoids loading groups.
    pub(crate) fn is_cheap(self) -> bool {
        self <= Self::BestAvail
    }
}

/// What a group test needs to know of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) len: u32,
    pub(crate) order2: u32,
    /// Data of a regular file that must leave the first group of a flex group (size given) alone.
    pub(crate) flex: Option<u32>,
    /// What powers of two do with groups whose bitmap was never written.
    pub(crate) fresh: FreshGroups,
}

impl Need {
    /// What a request of `len` clusters needs on flex groups of `flex`.
    pub(crate) fn new(policy: &Policy, len: u32, order2: u32, kind: RequestFlags, flex: u32) -> Self {
        debug_assert!(order2 < u32::try_from(ORDERS_MAX).unwrap_or(u32::MAX));
        let leaves_first = policy.first_groups == FirstGroups::Avoid && flex >= 4;
        let avoids_first = kind.contains(RequestFlags::DATA) && leaves_first;
        Self { len, order2, flex: avoids_first.then_some(flex), fresh: policy.fresh_groups }
    }
}

/// Whether a group can serve the request under a criterion, by its summary.
#[inline]
pub(crate) fn suits(criterion: Criterion, group: u32, summary: Summary, need: Need) -> bool {
    if summary.corrupt() || summary.free == 0 || summary.fragments == 0 {
        return false;
    }
    match criterion {
        Criterion::PowerOfTwo => {
            need.flex.is_none_or(|flex| !group.is_multiple_of(flex))
                && summary.free >= need.len
                && !(need.fresh == FreshGroups::Pass && summary.block_uninit())
                && summary.largest_order() >= need.order2.cast_signed()
        }
        Criterion::GoalFast | Criterion::BestAvail => summary.free / summary.fragments >= need.len,
        Criterion::GoalSlow => summary.free >= need.len,
        Criterion::Any => true,
    }
}
