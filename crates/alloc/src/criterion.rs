//! The five criteria, from the strictest and cheapest to the one that takes anything.

use crate::stats::CRITERIA;

/// A criterion of the ladder. A stricter criterion compares as less than a laxer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Criterion {
    /// For a request whose length is a power of two: a group with a free chunk of at least that
    /// length.
    PowerOfTwo,
    /// A group whose average free run holds the request.
    GoalFast,
    /// As [`Self::GoalFast`], with the request shortened step by step.
    BestAvail,
    /// A group with enough free clusters.
    GoalSlow,
    /// Any free cluster.
    Any,
}

impl Criterion {
    /// Every criterion, in order.
    pub const ALL: [Self; CRITERIA] =
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

    /// Whether the criterion may use the group indexes, and may pass over groups that were never
    /// loaded.
    pub(crate) fn is_cheap(self) -> bool {
        self <= Self::BestAvail
    }
}
