//! The decisions of the ladder: which criterion is first, how a pass reaches the groups, how far a
//! request is trimmed, and which criterion follows. They are pure functions of the policy and the
//! request.

use crate::criterion::Criterion;
use crate::policy::Policy;
use crate::policy::slots::{GoalGroup, IndirectScan, Ladder, Visit};
use crate::request::{Mapping, RequestFlags};

/// Where a search begins on the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Order of the power-of-two criterion, 0 for none.
    pub(crate) order2: u32,
    /// The first criterion.
    pub(crate) first: Criterion,
}

/// The plan for a request of `len` clusters. `order2_req` is the tunable, and `orders` is the
/// number of sets of an index.
pub(crate) fn plan(ladder: Ladder, len: u32, order2_req: u32, orders: u32) -> Plan {
    let bits = u32::BITS - len.leading_zeros();
    let two = len.is_power_of_two() && bits >= order2_req && bits <= orders;
    let order2 = if two { bits - 1 } else { 0 };
    debug_assert!(order2 < orders, "order {order2} of {orders}");
    let first = match ladder {
        Ladder::AnyOnly => Criterion::Any,
        Ladder::Slow => Criterion::GoalSlow,
        Ladder::Linux | Ladder::FourSteps if order2 > 0 => Criterion::PowerOfTwo,
        Ladder::Linux | Ladder::FourSteps => Criterion::GoalFast,
    };
    Plan { order2, first }
}

/// How a pass reaches the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// One after the other.
    Linear,
    /// Picked from the index one at a time.
    Choose,
    /// In index order.
    Indexed,
}

/// How a pass of a cheap criterion reaches the groups while optimised scanning is on.
pub(crate) fn walk(policy: &Policy, mapping: Mapping) -> Walk {
    let mapping_may = mapping == Mapping::Extents || policy.indirect_scan == IndirectScan::Optimized;
    match policy.visit {
        _ if !mapping_may => Walk::Linear,
        Visit::Choose => Walk::Choose,
        Visit::Scan => Walk::Indexed,
    }
}

/// Whether a pass that uses an index visits the goal's group first (slot `goal_group`). Only the
/// first pass of a search may do so.
pub(crate) fn visits_goal_first(
    policy: &Policy,
    kind: RequestFlags,
    criterion: Criterion,
    order2: u32,
) -> bool {
    let is_first = criterion == Criterion::PowerOfTwo || (criterion == Criterion::GoalFast && order2 == 0);
    let visits = match policy.goal_group {
        GoalGroup::Indexed => false,
        GoalGroup::First => kind.contains(RequestFlags::DATA),
        GoalGroup::All => true,
    };
    visits && is_first
}

/// The criterion after this one; `None` after the last.
pub(crate) fn after(ladder: Ladder, criterion: Criterion) -> Option<Criterion> {
    match (criterion.next(), ladder) {
        (Some(Criterion::BestAvail), Ladder::FourSteps) => Some(Criterion::GoalSlow),
        (next, _) => next,
    }
}

/// The criterion after `criterion`, if no group in its sets served the request. A request that is
/// not for file data skips the best-available criterion, because such a request was not enlarged
/// and cannot be shortened.
pub(crate) fn after_failed(ladder: Ladder, criterion: Criterion, kind: RequestFlags) -> Option<Criterion> {
    match criterion {
        Criterion::GoalFast if !kind.contains(RequestFlags::DATA) => Some(Criterion::GoalSlow),
        other => after(ladder, other),
    }
}

/// The lengths that the best-available criterion tries: those of the orders from `top` down to
/// `low`, by [`Self::len_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trim {
    pub(crate) top: u32,
    pub(crate) low: u32,
}

impl Trim {
    /// No length.
    pub(crate) const EMPTY: Self = Self { top: 0, low: 1 };

    /// Bounds for a goal of `len` clusters of which `asked` are needed, with a stripe of `stripe`
    /// clusters (or 0). The goal is shortened by at most `max_trim` orders.
    pub(crate) fn new(len: u32, asked: u32, stripe: u32, max_trim: u32) -> Self {
        let fl = |n: u32| u32::BITS - n.leading_zeros();
        let top = fl(len).saturating_sub(1);
        let mut low = top.saturating_sub(max_trim);
        if stripe > 0 && (1u32 << low) < stripe {
            low = fl(stripe) - 1;
        }
        if 1u32.checked_shl(low).is_some_and(|least| least < asked) {
            low = fl(asked);
        }
        Self { top, low }
    }

    /// The length at an order: the power of two, rounded up to whole stripes.
    pub(crate) fn len_at(order: u32, stripe: u32) -> u32 {
        let len = 1u32 << order;
        if stripe > 0 { len.next_multiple_of(stripe) } else { len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_stops_at_what_is_asked() {
        assert_eq!(Trim::new(512, 100, 0, 3), Trim { top: 9, low: 7 }, "c4");
        assert_eq!(Trim::new(512, 385, 0, 3), Trim { top: 9, low: 9 }, "c5");
        assert_eq!(Trim::new(2000, 16, 0, 3), Trim { top: 10, low: 7 }, "E7");
        assert_eq!(Trim::new(8, 1, 48, 3), Trim { top: 3, low: 5 }, "below a stripe: empty");
    }

    #[test]
    fn powers_of_two_begin_one_step_lower() {
        let plan_of = |ladder, len| plan(ladder, len, 2, 14);
        assert_eq!(plan_of(Ladder::Linux, 512), Plan { order2: 9, first: Criterion::PowerOfTwo });
        assert_eq!(plan_of(Ladder::Linux, 500), Plan { order2: 0, first: Criterion::GoalFast });
        assert_eq!(
            plan_of(Ladder::Linux, 1),
            Plan { order2: 0, first: Criterion::GoalFast },
            "mb_order2_req"
        );
        assert_eq!(plan_of(Ladder::Linux, 1 << 13).order2, 13, "the largest order");
        assert_eq!(plan_of(Ladder::Linux, 1 << 14).order2, 0, "beyond the orders");
        assert_eq!(plan_of(Ladder::Slow, 512), Plan { order2: 9, first: Criterion::GoalSlow });
        assert_eq!(plan_of(Ladder::AnyOnly, 3).first, Criterion::Any);
    }

    #[test]
    fn the_index_serves_extents_and_since_6_17_all() {
        let new = Policy::parse("linux-6.18").unwrap();
        let old = Policy::parse("linux-6.16").unwrap();
        assert_eq!(walk(&new, Mapping::Extents), Walk::Indexed);
        assert_eq!(walk(&new, Mapping::Indirect), Walk::Indexed);
        assert_eq!(walk(&old, Mapping::Extents), Walk::Choose);
        assert_eq!(walk(&old, Mapping::Indirect), Walk::Linear);
    }

    #[test]
    fn the_goal_comes_first_once_and_for_what_the_policy_says() {
        let (data, metadata) = (RequestFlags::DATA, RequestFlags::METADATA);
        let yard = Policy::parse("linux-6.18:goal_group=first").unwrap();
        assert!(visits_goal_first(&yard, data, Criterion::PowerOfTwo, 4));
        assert!(visits_goal_first(&yard, data, Criterion::GoalFast, 0));
        assert!(!visits_goal_first(&yard, data, Criterion::GoalFast, 4), "the second pass");
        assert!(!visits_goal_first(&yard, metadata, Criterion::GoalFast, 0));
        assert!(!visits_goal_first(&Policy::default(), data, Criterion::GoalFast, 0));
        let all = Policy::parse("linux-6.18:goal_group=all").unwrap();
        assert!(visits_goal_first(&all, metadata, Criterion::GoalFast, 0));
        assert!(!visits_goal_first(&all, metadata, Criterion::GoalSlow, 0));
    }

    #[test]
    fn metadata_is_not_shortened() {
        let after_failed = |criterion, kind| after_failed(Ladder::Linux, criterion, kind);
        assert_eq!(after_failed(Criterion::GoalFast, RequestFlags::METADATA), Some(Criterion::GoalSlow));
        assert_eq!(after_failed(Criterion::GoalFast, RequestFlags::DATA), Some(Criterion::BestAvail));
        assert_eq!(after_failed(Criterion::Any, RequestFlags::DATA), None);
    }

    #[test]
    fn four_steps_are_without_the_best_available() {
        let mut steps = vec![plan(Ladder::FourSteps, 512, 2, 14).first];
        while let Some(next) = after(Ladder::FourSteps, steps[steps.len() - 1]) {
            steps.push(next);
        }
        use Criterion::{Any, GoalFast, GoalSlow, PowerOfTwo};
        assert_eq!(steps, [PowerOfTwo, GoalFast, GoalSlow, Any]);
    }
}
