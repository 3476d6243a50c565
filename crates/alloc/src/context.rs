//! The state of one request on its way from the caller to a claim, and the rules that set it up.

use blockyard_disk::num::{u32_from_u64, u64_from_u32, u64_from_usize};
use blockyard_disk::{BlockNr, Geometry, GroupNr};
use blockyard_sync::Backend;

use crate::error::AllocError;
use crate::events::EventExtent;
use crate::group::table::GroupTable;
use crate::prealloc::inode::InodeAlloc;
use crate::request::{BlockRequest, Mapping, RequestFlags};
use crate::search::Find;
use crate::search::candidates::{Selection, Status};
use crate::search::indexed::Trim;
use crate::search::prefetch::Prefetch;
use crate::stats::RequestStats;
use crate::tunables::{Tunable, Tunables};

/// A goal without an offset in its group.
pub(crate) const NO_OFFSET: u32 = u32::MAX;

/// A run of clusters in a group, and the logical block its first one stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    pub(crate) group: GroupNr,
    /// Cluster offset in the group, or [`NO_OFFSET`].
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) logical: u32,
}

impl Extent {
    pub(crate) fn event(self) -> EventExtent {
        EventExtent { group: self.group.raw(), start: self.start, len: self.len, logical: self.logical }
    }
}

/// One request being served.
pub(crate) struct Context<'a, B: Backend> {
    pub(crate) request: &'a BlockRequest,
    pub(crate) inode: &'a InodeAlloc<B>,
    pub(crate) flags: RequestFlags,
    /// What was asked for, clamped.
    pub(crate) original: Extent,
    /// What is searched for: normalised, moved to the stream goal, trimmed.
    pub(crate) goal: Extent,
    /// Clusters the normaliser wanted ("original goal length"): what trimming goes back to.
    pub(crate) want: u32,
    /// Order of the power-of-two criterion, 0 for none.
    pub(crate) order2: u32,
    /// Groups this inode may use.
    pub(crate) groups: u32,
    /// What the search found so far.
    pub(crate) selection: Selection,
    /// Groups scanned.
    pub(crate) scanned: u32,
    /// Criterion reached; 5 when all were exhausted.
    pub(crate) criterion: u32,
    /// Start of the next prefetch batch, size of the last one, batches started.
    pub(crate) prefetch: Prefetch,
    /// Criteria in which a pick was made already (`visit=choose`).
    pub(crate) picked: [bool; crate::stats::CRITERIA],
    pub(crate) stats: RequestStats,
    /// Bounds of the best-available criterion in this walk.
    pub(crate) trim: Trim,
    /// Shortest run that is accepted, while the cursor search is picky.
    pub(crate) floor: Option<u32>,
    /// The first group that could not be loaded: reported when nothing is found.
    pub(crate) first_error: Option<AllocError>,
    /// What the search claimed.
    pub(crate) find: Option<Find<B>>,
}

impl<'a, B: Backend> Context<'a, B> {
    /// Clamps the request, makes the goal valid, and decides the policy: small file, stream, or exact.
    pub(crate) fn new(
        table: &GroupTable<B>,
        tunables: &Tunables<B>,
        request: &'a BlockRequest,
        inode: &'a InodeAlloc<B>,
        clusters: u32,
    ) -> Self {
        let geometry = &table.geometry;
        let goal = if geometry.contains(request.goal) { request.goal } else { geometry.first_data_block() };
        let (group, start) = geometry.locate(goal);
        let ratio = geometry.cluster_ratio();
        let original = Extent {
            group,
            start: start.raw(),
            len: clusters.min(geometry.clusters_per_group()),
            logical: request.logical.raw() / ratio * ratio,
        };
        let mut context = Self {
            request,
            inode,
            flags: request.flags,
            original,
            goal: original,
            want: original.len,
            order2: 0,
            groups: usable_groups(geometry, request.mapping),
            selection: Selection::new(
                tunables.value(Tunable::MaxToScan),
                tunables.value(Tunable::MinToScan),
                request.flags.contains(RequestFlags::FIRST),
            ),
            scanned: 0,
            criterion: 0,
            prefetch: Prefetch::default(),
            picked: [false; crate::stats::CRITERIA],
            stats: RequestStats::default(),
            trim: Trim::EMPTY,
            floor: None,
            first_error: None,
            find: None,
        };
        context.decide_policy(table, tunables);
        context
    }

    fn decide_policy(&mut self, table: &GroupTable<B>, tunables: &Tunables<B>) {
        if !self.flags.contains(RequestFlags::DATA) || self.flags.contains(RequestFlags::GOAL_ONLY) {
            return;
        }
        let geometry = &table.geometry;
        let end = u64_from_u32(self.original.logical)
            + (u64_from_u32(self.original.len) << geometry.cluster_ratio_bits());
        let size = self.request.file_size.div_ceil(u64_from_usize(geometry.block_size()));
        let small = tunables.value(Tunable::GroupPrealloc) > 0
            && end.max(size) <= u64_from_u32(tunables.value(Tunable::StreamReq));
        let closed_tail = end == size && !self.request.writer_open && !table.contended();
        self.flags |= if small {
            RequestFlags::GROUP_ALLOC
        } else if closed_tail {
            RequestFlags::NO_NORMALIZE
        } else {
            RequestFlags::STREAM
        };
    }

    /// Forgets what an earlier, fruitless search of this request left.
    pub(crate) fn start_search(&mut self) {
        self.selection.status = Status::Continue;
        self.selection.best.len = 0;
        self.criterion = 0;
    }

    /// Whether the request may be served from, and grow into, preallocations.
    pub(crate) fn is_data(&self) -> bool {
        self.flags.contains(RequestFlags::DATA)
    }

    /// Whether the file has a block before or after the ones asked for.
    pub(crate) fn has_neighbour(&self) -> bool {
        self.request.left.is_some() || self.request.right.is_some()
    }

    /// Whether the request is normalised.
    pub(crate) fn is_normalised(&self) -> bool {
        self.is_data() && !self.flags.intersects(RequestFlags::GOAL_ONLY | RequestFlags::NO_NORMALIZE)
    }

    /// Points the goal at a block, which is inside the file system.
    pub(crate) fn set_goal(&mut self, geometry: &Geometry, block: BlockNr) {
        assert!(geometry.contains(block), "goal {block} outside the file system");
        let (group, start) = geometry.locate(block);
        self.goal.group = group;
        self.goal.start = start.raw();
    }
}

/// Groups that an inode of this mapping can address.
fn usable_groups(geometry: &Geometry, mapping: Mapping) -> u32 {
    match mapping {
        Mapping::Extents => geometry.groups(),
        Mapping::Indirect => {
            let addressable = ((1u64 << 32) - 1) / geometry.blocks_per_group();
            u32_from_u64(addressable.min(u64_from_u32(geometry.groups())))
        }
    }
}
