//! A request being served. Its length is clamped, its goal lies inside the file system, and the
//! policy has decided its kind. None of this changes afterwards.

use blockyard_disk::Geometry;
use blockyard_disk::num::{u32_from_u64, u64_from_u32, u64_from_usize};
use blockyard_sync::{Backend, CpuSlot};

use crate::extent::Extent;
use crate::group::table::GroupTable;
use crate::policy::Policy;
use crate::policy::slots::{ClosedFiles, Longest, Search, SmallFiles};
use crate::prealloc::inode::InodeAlloc;
use crate::request::{BlockRequest, Mapping, RequestFlags};
use crate::tunables::{Tunable, Tunables};

/// Flags that say how a search proceeds, and that change during the search. All other flags say
/// what kind of request it is.
pub(crate) const SEARCH_FLAGS: RequestFlags =
    RequestFlags::TRY_GOAL.union(RequestFlags::FIRST).union(RequestFlags::STRICT_CHECK);

/// What [`Asked::new`] looks at besides the request.
pub(crate) struct Rules<'a, B: Backend> {
    pub(crate) table: &'a GroupTable<B>,
    pub(crate) tunables: &'a Tunables<B>,
    pub(crate) policy: &'a Policy,
}

/// One request being served.
pub(crate) struct Asked<'a, B: Backend> {
    pub(crate) request: &'a BlockRequest,
    pub(crate) inode: &'a InodeAlloc<B>,
    /// The kind of request: what the caller says, and for data also what follows from the size and
    /// use of the file.
    pub(crate) kind: RequestFlags,
    /// What is asked for, clamped.
    pub(crate) extent: Extent,
    /// The inode may use groups below this number.
    pub(crate) groups: u32,
}

impl<'a, B: Backend> Asked<'a, B> {
    /// Clamps the request, makes the goal valid, and decides the kind: small file, stream, or exact
    /// length.
    pub(crate) fn new(
        rules: Rules<'_, B>,
        request: &'a BlockRequest,
        inode: &'a InodeAlloc<B>,
        clusters: u32,
    ) -> Self {
        let Rules { table, tunables, policy } = rules;
        let geometry = &table.geometry;
        let goal = if geometry.contains(request.goal) { request.goal } else { geometry.first_data_block() };
        let (group, start) = geometry.locate(goal);
        let ratio = geometry.cluster_ratio();
        let extent = Extent {
            group,
            start: start.raw(),
            len: most(policy, geometry).min(clusters),
            logical: request.logical.raw() / ratio * ratio,
        };
        assert!(extent.len > 0, "a request for nothing was admitted");
        let mut kind = request.flags.difference(SEARCH_FLAGS);
        if kind.contains(RequestFlags::DATA) && !kind.contains(RequestFlags::GOAL_ONLY) {
            let small_max = || match tunables.value(Tunable::GroupPrealloc) {
                0 => None,
                // Windows belong to files: there is no shared preallocation.
                _ if policy.search == Search::Windows => None,
                _ => Some(tunables.value(Tunable::StreamReq)),
            };
            let rules = SizeRules { small_max: small_max(), policy };
            kind |= data_kind(geometry, request, extent, rules, || table.contended());
        }
        Self { request, inode, kind, extent, groups: usable_groups(geometry, request.mapping) }
    }

    /// The caller's CPU slot.
    pub(crate) fn cpu(&self) -> CpuSlot {
        self.request.cpu
    }

    /// Whether the request is for data, and so may be served from preallocations.
    pub(crate) fn is_data(&self) -> bool {
        self.kind.contains(RequestFlags::DATA)
    }

    /// Whether the request names a mapped block of the file before or after the blocks asked for.
    pub(crate) fn has_neighbour(&self) -> bool {
        self.request.left.is_some() || self.request.right.is_some()
    }

    /// Whether the request is normalised.
    pub(crate) fn is_normalised(&self) -> bool {
        self.is_data() && !self.kind.intersects(RequestFlags::GOAL_ONLY | RequestFlags::NO_NORMALIZE)
    }
}

/// The most clusters that one request can get. Longer requests are cut to it.
fn most(policy: &Policy, geometry: &Geometry) -> u32 {
    match policy.longest {
        Longest::Group => geometry.clusters_per_group(),
        Longest::GroupLess10 => geometry.clusters_per_group().saturating_sub(10).max(1),
    }
}

/// What decides the kind by size.
struct SizeRules<'a> {
    /// The limit for small files, in blocks; the policy says whether a file of exactly this size is
    /// small. `None` where no file counts as small.
    small_max: Option<u32>,
    policy: &'a Policy,
}

/// The kind of a data request: for a small file, for the last blocks of a closed file, or for a
/// stream.
fn data_kind(
    geometry: &Geometry,
    request: &BlockRequest,
    asked: Extent,
    rules: SizeRules<'_>,
    contended: impl FnOnce() -> bool,
) -> RequestFlags {
    let end = u64_from_u32(asked.logical) + (u64_from_u32(asked.len) << geometry.cluster_ratio_bits());
    let block = u64_from_usize(geometry.block_size());
    let size = request.file_size.div_ceil(block);
    let is_small = rules.small_max.is_some_and(|most| match rules.policy.small_files {
        SmallFiles::UpTo => end.max(size) <= u64_from_u32(most),
        SmallFiles::Below => end.max(request.file_size / block) < u64_from_u32(most),
    });
    let is_exact = rules.policy.closed_files == ClosedFiles::Exact && end == size;
    if is_small {
        RequestFlags::GROUP_ALLOC
    } else if is_exact && !request.writer_open && !contended() {
        RequestFlags::NO_NORMALIZE
    } else {
        RequestFlags::STREAM
    }
}

/// The number of groups, from the first on, that an inode of this mapping can address.
fn usable_groups(geometry: &Geometry, mapping: Mapping) -> u32 {
    match mapping {
        Mapping::Extents => geometry.groups(),
        Mapping::Indirect => {
            let addressable = ((1u64 << 32) - 1) / geometry.blocks_per_group();
            u32_from_u64(addressable.min(u64_from_u32(geometry.groups())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBitmaps;
    use blockyard_disk::{GroupNr, InodeNr, LogicalBlock};

    /// The kind under the rules of `linux-6.18`; `size` is the file's size in blocks.
    fn kind(len: u32, size: u64, writer_open: bool, contended: bool) -> RequestFlags {
        kind_under("linux-6.18", len, size * 4096, writer_open, contended)
    }

    /// The kind of a request for `len` blocks of a file of `file_size` bytes, where the limit for
    /// small files is 16 blocks.
    fn kind_under(
        policy: &str,
        len: u32,
        file_size: u64,
        writer_open: bool,
        contended: bool,
    ) -> RequestFlags {
        let policy = Policy::parse(policy).unwrap();
        let geometry = MemoryBitmaps::plain_geometry(2, 0);
        let request = BlockRequest {
            file_size,
            writer_open,
            ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, len)
        };
        let asked = Extent { len, ..Extent::default() };
        let rules = SizeRules { small_max: Some(16), policy: &policy };
        data_kind(&geometry, &request, asked, rules, || contended)
    }

    #[test]
    fn the_kind_follows_size_and_use() {
        assert_eq!(kind(16, 16, true, false), RequestFlags::GROUP_ALLOC);
        assert_eq!(kind(16, 17, true, false), RequestFlags::STREAM, "the file is larger");
        assert_eq!(kind(20, 20, true, false), RequestFlags::STREAM, "a writer may go on");
        assert_eq!(kind(20, 20, false, false), RequestFlags::NO_NORMALIZE, "the tail of a closed file");
        assert_eq!(kind(20, 20, false, true), RequestFlags::STREAM, "on a busy file system");
        assert_eq!(kind(20, 30, false, false), RequestFlags::STREAM, "not the tail");
    }

    #[test]
    fn in_2008_fewer_files_were_small_and_the_tail_was_like_the_rest() {
        let old = |len, bytes| kind_under("ext4-2008", len, bytes, false, false);
        assert_eq!(old(15, 15 * 4096 + 1), RequestFlags::GROUP_ALLOC, "a started block does not count");
        assert_eq!(old(16, 16 * 4096), RequestFlags::STREAM);
        assert_eq!(old(20, 20 * 4096), RequestFlags::STREAM, "the tail of a closed file");
        assert_eq!(kind_under("linux-6.18", 15, 16 * 4096 + 1, true, false), RequestFlags::STREAM);
    }

    #[test]
    fn a_request_may_be_cut_to_less_than_a_group() {
        let geometry = MemoryBitmaps::plain_geometry(2, 0);
        let most = |policy: &str| most(&Policy::parse(policy).unwrap(), &geometry);
        assert_eq!((most("linux-6.18"), most("ext4-2008")), (32_768, 32_758));
    }
}
