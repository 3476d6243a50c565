//! What a search aims at: the request, grown into a window or to the length of a locality
//! preallocation, and the goal that follows from neighbouring extents. The decision is pure: it
//! changes nothing.

use blockyard_disk::{BlockNr, Geometry};
use blockyard_sync::Backend;

use crate::asked::Asked;
use crate::extent::Extent;
use crate::goals::lanes::lane;
use crate::normalize;
use crate::policy::Policy;
use crate::policy::slots::{Lanes, MergeGoal, Neighbour, Normalise};
use crate::prealloc::inode::OwnBorders;
use crate::request::RequestFlags;

/// What a search looks for, and where the search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aim {
    pub(crate) goal: Extent,
    /// The length wanted, in clusters (Linux: "original goal length"). If a search with a trimmed
    /// goal finds nothing, the goal gets this length.
    pub(crate) want: u32,
    /// Whether the goal is worth an exact try.
    pub(crate) try_goal: bool,
}

/// Inputs of the decision. Each closure is called only when its value matters.
pub(crate) struct View<'a, P, O> {
    pub(crate) policy: &'a Policy,
    pub(crate) geometry: &'a Geometry,
    /// Clusters of a locality preallocation.
    pub(crate) locality_len: P,
    /// The end of the inode's nearest preallocation to the left of the request, and the start of
    /// the nearest one to its right. The window stays between them.
    pub(crate) own: O,
}

impl<P: FnOnce() -> u32, O: FnOnce() -> OwnBorders> View<'_, P, O> {
    /// What the search for a request aims at.
    pub(crate) fn aim<B: Backend>(self, asked: &Asked<'_, B>) -> Aim {
        let mut aim = Aim { goal: asked.extent, want: asked.extent.len, try_goal: false };
        if self.policy.neighbour == Neighbour::Always
            && let Some(next) = continued(self.geometry, asked)
        {
            aim.point_at(self.geometry, next);
        }
        if self.policy.lanes == Lanes::Cpu && asked.is_data() && !asked.has_neighbour() {
            aim.goal.group = lane(self.geometry, aim.goal.group, asked.cpu());
        }
        if !asked.is_normalised() || self.policy.normalise == Normalise::Exact {
            return aim;
        }
        if asked.kind.contains(RequestFlags::GROUP_ALLOC) {
            if self.policy.normalise != Normalise::Streams {
                aim.goal.len = (self.locality_len)();
            }
            return aim;
        }
        let fixed = (self.policy.normalise == Normalise::Window).then_some(self.policy.window);
        let range = (asked.extent.logical, asked.extent.len);
        let window = normalize::window(self.geometry, asked.request, range, (self.own)(), fixed);
        aim.goal.logical = window.logical;
        aim.goal.len = window.len;
        aim.want = window.len;
        match (window.goal, self.policy.merge_goal) {
            (Some(goal), MergeGoal::Neighbour) => aim.point_at(self.geometry, goal),
            (Some(_), MergeGoal::Request) => aim.try_goal = true,
            (None, _) => {}
        }
        aim
    }
}

impl Aim {
    /// Points the goal at a block that is worth an exact try.
    fn point_at(&mut self, geometry: &Geometry, block: BlockNr) {
        assert!(geometry.contains(block), "goal {block} outside the file system");
        let (group, start) = geometry.locate(block);
        self.goal.group = group;
        self.goal.start = start.raw();
        self.try_goal = true;
    }
}

/// The block right after the extent that a data request continues. `None` if the request continues
/// no extent, or if that block lies outside the file system.
fn continued<B: Backend>(geometry: &Geometry, asked: &Asked<'_, B>) -> Option<BlockNr> {
    let left = asked.request.left.filter(|_| asked.is_data())?;
    let next = BlockNr::new(left.physical.raw() + 1);
    let continues = left.logical.raw() + 1 == asked.extent.logical && geometry.contains(next);
    continues.then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBitmaps;
    use crate::prealloc::inode::InodeAlloc;
    use crate::request::{BlockRequest, Neighbour as Left};
    use blockyard_disk::{GroupNr, InodeNr, LogicalBlock};
    use blockyard_sync::{CpuSlot, Native};

    /// A request for 20 blocks from logical block `logical` on. Its goal is the start of group 1.
    fn request(logical: u32) -> BlockRequest {
        BlockRequest {
            goal: BlockNr::new(32_768),
            file_size: 4096 * u64::from(logical + 20),
            ..BlockRequest::data(InodeNr::new(12), GroupNr::new(1), LogicalBlock::new(logical), 20)
        }
    }

    /// The aim as (group, start, length, wanted length, exact try), with locality preallocations of
    /// 512 clusters.
    fn aim(policy: &str, request: &BlockRequest, kind: RequestFlags) -> (u32, u32, u32, u32, bool) {
        let geometry = MemoryBitmaps::plain_geometry(40, 4);
        let policy = Policy::parse(policy).unwrap();
        let inode = InodeAlloc::<Native>::new();
        let (group, start) = geometry.locate(request.goal);
        let logical = request.logical.raw();
        let extent = Extent { group, start: start.raw(), len: request.clusters, logical };
        let kind = RequestFlags::DATA | kind;
        let asked = Asked { request, inode: &inode, kind, extent, groups: 40 };
        let view =
            View { policy: &policy, geometry: &geometry, locality_len: || 512, own: OwnBorders::default };
        let aim = view.aim(&asked);
        (aim.goal.group.raw(), aim.goal.start, aim.goal.len, aim.want, aim.try_goal)
    }

    #[test]
    fn small_files_ask_for_a_preallocation_and_streams_for_a_window() {
        let small = aim("linux-6.18", &request(0), RequestFlags::GROUP_ALLOC);
        assert_eq!(small, (1, 0, 512, 20, false), "what is wanted stays what was asked");
        assert_eq!(aim("linux-6.18", &request(0), RequestFlags::STREAM), (1, 0, 32, 32, false));
        for (policy, kind) in [
            ("linux-6.18", RequestFlags::NO_NORMALIZE),
            ("linux-6.18", RequestFlags::GOAL_ONLY),
            ("linux-6.18:normalise=exact", RequestFlags::STREAM),
        ] {
            assert_eq!(aim(policy, &request(0), kind), (1, 0, 20, 20, false), "{policy} {kind:?}");
        }
    }

    #[test]
    fn a_neighbour_is_worth_an_exact_try() {
        let left = Left { logical: LogicalBlock::new(63), physical: BlockNr::new(70_000) };
        let after = BlockRequest { left: Some(left), ..request(64) };
        let next = 70_001 - 2 * 32_768;
        let exact = RequestFlags::NO_NORMALIZE;
        assert_eq!(aim("linux-6.18", &after, exact), (1, 0, 20, 20, false), "neighbour=window");
        assert_eq!(aim("linux-6.18:neighbour=always", &after, exact), (2, next, 20, 20, true));
        let apart = BlockRequest { left: Some(left), ..request(100) };
        assert_eq!(
            aim("linux-6.18:neighbour=always", &apart, exact),
            (1, 0, 20, 20, false),
            "a hole between"
        );
        let (group, start, .., try_goal) = aim("linux-6.18", &after, RequestFlags::STREAM);
        assert_eq!((group, start, try_goal), (2, next, true), "the window touches it");
    }

    /// If the window can continue a neighbour, ext4 of 2008 tried the request's own goal, with the
    /// length of the window.
    #[test]
    fn a_merge_is_tried_at_the_goal_of_the_request_in_2008() {
        let left = Left { logical: LogicalBlock::new(63), physical: BlockNr::new(70_000) };
        let after = BlockRequest { left: Some(left), ..request(64) };
        let (group, start, len, _, try_goal) = aim("ext4-2008", &after, RequestFlags::STREAM);
        assert_eq!((group, start, try_goal), (1, 0, true));
        assert_eq!(len, aim("linux-6.18", &after, RequestFlags::STREAM).2);
    }

    #[test]
    fn a_lane_moves_new_files_only() {
        let kind = RequestFlags::NO_NORMALIZE;
        let on_cpu = |request: BlockRequest| BlockRequest { cpu: CpuSlot::new(3), ..request };
        assert_eq!(aim("linux-6.18:lanes=cpu", &on_cpu(request(0)), kind).0, 4);
        let left = Left { logical: LogicalBlock::new(9), physical: BlockNr::new(70_000) };
        let grown = BlockRequest { left: Some(left), ..request(64) };
        assert_eq!(aim("linux-6.18:lanes=cpu", &on_cpu(grown), kind).0, 1);
    }
}
