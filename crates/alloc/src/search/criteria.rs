//! Whether a group can serve a request under a criterion.

use crate::buddy::ORDERS_MAX;
use crate::criterion::Criterion;
use crate::group::Summary;
use crate::policy::Policy;
use crate::policy::slots::{FirstGroups, FreshGroups};
use crate::request::RequestFlags;

/// What a group test needs to know of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) len: u32,
    pub(crate) order2: u32,
    /// If the power-of-two criterion must pass over the first group of each flex group, the number
    /// of groups in a flex group; otherwise `None`. The first groups are passed over for data of a
    /// regular file, if `first_groups=avoid` and flex groups have at least four groups.
    pub(crate) flex: Option<u32>,
    /// Whether the power-of-two criterion may use groups whose bitmap was never written.
    pub(crate) fresh: FreshGroups,
}

impl Need {
    /// What a request for `len` clusters needs. `flex` is the number of groups in a flex group.
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
