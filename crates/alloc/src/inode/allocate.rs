//! One inode from request to claim: the search names a group, the claim takes a number in it.

use blockyard_disk::{GroupNr, InodeNr};
use blockyard_sync::{Atomic, AtomicInt, Backend, Ordering};

use super::allocator::InodeAllocator;
use super::bitmap::Recency;
use super::claim::InodeClaim;
use super::config::InodeRequest;
use super::error::InodeError;
use super::group::GroupState;
use super::search::{self, wrapping_group};
use crate::policy::Switches;
use crate::policy::slots::InodeGroup;

/// What a directory remembers to place its children: the group that was chosen for the last child.
///
/// It lives in the directory's in-core inode, guarded by the directory's lock. It starts empty
/// whenever the directory is created or read from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeDirAlloc {
    last_group: Option<GroupNr>,
}

impl InodeDirAlloc {
    /// The group that the search, or a goal, chose for the last child; `None` before the first. It
    /// is group 0 after a search that found no group. The child may have got a number in another
    /// group.
    #[must_use]
    pub const fn last_group(&self) -> Option<GroupNr> {
        self.last_group
    }
}

impl<B: Backend> InodeAllocator<B> {
    /// Claims an inode for a child of a directory. Remembers in `parent` the group that was chosen,
    /// even if the number is found in another group.
    ///
    /// # Errors
    /// [`InodeError::NoInodes`] when no group has a free inode, or the placement rule finds no
    /// group; [`InodeError::Load`] when a bitmap could not be read.
    pub fn allocate(
        &self,
        request: &InodeRequest,
        parent: &mut InodeDirAlloc,
    ) -> Result<InodeClaim<'_, B>, InodeError> {
        let choice = self.first_choice(request, parent);
        // After a failed search, the directory remembers group 0, as observed on Linux 6.18.
        parent.last_group = Some(choice.map_or(GroupNr::ZERO, |(group, _)| group));
        let (first, start) = choice.ok_or(InodeError::NoInodes)?;
        debug_assert!(first.raw() < self.geometry.groups(), "the search chose group {first}");
        // One step more than there are groups. With a goal, the first step searches the goal's
        // group only from the goal on. So the last step searches that group again, from its start.
        // (Linux stops one step earlier. It says "no space" if the only free numbers lie in the
        // goal's group, below the goal.)
        for step in 0..=self.geometry.groups() {
            let group = GroupNr::new(wrapping_group(first, step, self.geometry.groups()));
            if self.counts.free_in_group(group) == 0 {
                continue;
            }
            let start = if step == 0 { start } else { 0 };
            if let Some(claim) = self.claim_in(group, start, request)? {
                return Ok(claim);
            }
        }
        Err(InodeError::NoInodes)
    }

    /// The group to try first and the first bit to consider there.
    fn first_choice(&self, request: &InodeRequest, parent: &InodeDirAlloc) -> Option<(GroupNr, u32)> {
        let tunable = self.goal.load(Ordering::Relaxed);
        let goal = request.goal.map_or(tunable, InodeNr::raw);
        if goal != 0 && goal <= self.geometry.inodes_count() {
            return Some(self.geometry.locate_inode(InodeNr::new(goal)));
        }
        let switches = match self.config.placement {
            InodeGroup::Orlov2009 => self.config.switches.or(Switches::OF_2009),
            _ => self.config.switches,
        };
        let search = search::Search {
            geometry: &self.geometry,
            switches: &switches,
            counts: &self.counts,
            clusters: &*self.clusters,
        };
        let family = search::Family {
            parent: request.parent,
            group: self.geometry.locate_inode(request.parent).0,
            last_group: parent.last_group,
        };
        let hash = request.name_hash.filter(|_| !switches.random_start);
        self.search(&search, &family, request, hash).map(|group| (group, 0))
    }

    /// The group that the placement rule names.
    fn search(
        &self,
        search: &search::Search<'_, B>,
        family: &search::Family,
        request: &InodeRequest,
        hash: Option<u32>,
    ) -> Option<GroupNr> {
        let is_top = request.directory && request.parent_is_top;
        match self.config.placement {
            InodeGroup::OrlovFlex | InodeGroup::Orlov2009 if is_top => {
                search.top_directory(family, hash.unwrap_or_else(|| self.draw()))
            }
            InodeGroup::OrlovFlex | InodeGroup::Orlov2009 if request.directory => {
                search.ordinary_directory(family)
            }
            InodeGroup::OrlovFlex | InodeGroup::Orlov2009 => search.other(family),
            InodeGroup::Flex2008 if self.geometry.flex_size() > 1 => search.flex_2008(family),
            InodeGroup::Flex2008Fallback if self.geometry.flex_size() > 1 => {
                search.flex_2008(family).or_else(|| search.other_in_groups(family))
            }
            InodeGroup::OldAlloc if request.directory => search.most_free_blocks(),
            // Without flex groups the first ext4 placed directories as ext3 did.
            InodeGroup::OrlovExt3 | InodeGroup::Flex2008 | InodeGroup::Flex2008Fallback if is_top => {
                search.top_directory_by_group(self.draw())
            }
            InodeGroup::OrlovExt3 | InodeGroup::Flex2008 | InodeGroup::Flex2008Fallback
                if request.directory =>
            {
                search.ordinary_directory_by_group(family)
            }
            InodeGroup::OldAlloc
            | InodeGroup::OrlovExt3
            | InodeGroup::Flex2008
            | InodeGroup::Flex2008Fallback => search.other_in_groups(family),
            InodeGroup::Parent => search.parent_onward(family),
        }
    }

    /// The next number of the seeded sequence (splitmix64).
    fn draw(&self) -> u32 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let count = self.draws.fetch_add(1, Ordering::Relaxed);
        let mut z = self.config.seed.wrapping_add(count.wrapping_add(1).wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        blockyard_disk::num::high32(z ^ (z >> 31))
    }

    fn claim_in(
        &self,
        group: GroupNr,
        start: u32,
        request: &InodeRequest,
    ) -> Result<Option<InodeClaim<'_, B>>, InodeError> {
        let Some(mut state) = self.loaded(group, request.slot)? else { return Ok(None) };
        let start = start.max(self.first_usable(group));
        let recency = self.config.without_journal.then(|| Recency {
            source: &*self.source,
            group,
            never_used_from: self.never_used_from(&state),
            now: request.now,
        });
        let per_group = self.geometry.inodes_per_group();
        let Some(index) = state.find_free(start, per_group, recency.as_ref()) else { return Ok(None) };
        assert!((start..per_group).contains(&index), "inode index {index} of {start}..{per_group}");
        state.claim(index, request.directory);
        self.counts.claimed(group, request.directory, request.slot);
        Ok(Some(InodeClaim::new(self, self.geometry.inode_at(group, index), request)))
    }

    /// Lowest bit of a group that may be handed out. Reserved inodes are never handed out, whatever
    /// the bitmap says.
    fn first_usable(&self, group: GroupNr) -> u32 {
        let before = group.raw() * self.geometry.inodes_per_group();
        (self.config.first_inode - 1).saturating_sub(before)
    }

    /// The index in a group's table where the never-used inodes begin. Only file systems with
    /// descriptor checksums record it; for others it is the end of the table.
    fn never_used_from(&self, state: &GroupState) -> u32 {
        let per_group = self.geometry.inodes_per_group();
        if self.config.descriptor_checksums { state.used_prefix(per_group) } else { per_group }
    }
}
