//! One allocation from request to claim, top-down: [`Allocator::allocate`] is the entry, and its
//! helpers follow roughly in the order in which they are called.

use std::sync::Arc;

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_sync::{Backend, CpuSlot, MutexGuard};

use crate::aim::{self, Aim};
use crate::allocator::Allocator;
use crate::asked::{Asked, Rules};
use crate::claim::Claim;
use crate::error::{AllocError, NoSpace, Result};
use crate::events::{AllocEvent, EventKind};
use crate::extent::Extent;
use crate::group::Group;
use crate::policy::slots::{Search, SpaceRetries, StripeRule};
use crate::prealloc::Prealloc;
use crate::prealloc::inode::InodeAlloc;
use crate::prealloc::locality::LocalityGroup;
use crate::request::{BlockRequest, Mapping, RequestFlags};
use crate::search::context::Context;
use crate::search::take::part_of;
use crate::tunables::Tunable;

/// How many searches may follow a first one that failed. If the policy sets no limit, this bounds
/// only the searches with strict checks.
const RETRIES: u32 = 2;
/// How many passes may drop preallocations. Another pass follows only if some preallocations were
/// in use.
const DISCARD_PASSES: u32 = 3;

/// The locked locality group of the caller. A request for a small file takes the lock when it looks
/// for a preallocation in the locality group, and holds it until the request has been served.
type Locality<'a, B> = Option<MutexGuard<'a, LocalityGroup<B>, B>>;

/// A served request.
struct Served {
    /// The clusters for the caller, cut from `found` or from a preallocation.
    part: Extent,
    /// The whole extent found; `None` for a preallocation hit.
    found: Option<Extent>,
}

impl<B: Backend> Allocator<B> {
    /// Allocates clusters for one inode. The claim may be shorter than asked; it is never empty.
    ///
    /// # Errors
    /// - [`AllocError::NoSpace`] when this request may have none of the free clusters, or when the
    ///   search found nothing even after preallocations were dropped. (A request that takes only
    ///   its goal is searched for once, and drops no preallocations.)
    /// - [`AllocError::Load`] when nothing was found and a group could not be read, or when the
    ///   group of a preallocation could not be read.
    /// - [`AllocError::Corrupt`] when nothing was found and a group is corrupt.
    /// - [`AllocError::BadRequest`] when the request is for no clusters.
    pub fn allocate(&self, request: &BlockRequest, inode: &InodeAlloc<B>) -> Result<Claim<'_, B>> {
        if request.clusters == 0 {
            return Err(AllocError::BadRequest("no clusters asked for"));
        }
        let Some(clusters) = self.admission.admit(request.clusters, request.flags, request.cpu) else {
            return Err(self.no_space(request));
        };
        let claimed = self.claim_some(request, inode, clusters);
        let taken = claimed.as_ref().map_or(0, |claim| claim.as_ref().map_or(0, Claim::clusters));
        self.admission.end_admission(clusters, taken, request.flags, request.cpu);
        claimed?.ok_or_else(|| self.nothing_found(request))
    }

    /// Serves a request that was admitted for `clusters` clusters. `None` when no space was found.
    fn claim_some(
        &self,
        request: &BlockRequest,
        inode: &InodeAlloc<B>,
        clusters: u32,
    ) -> Result<Option<Claim<'_, B>>> {
        let rules = Rules { table: &self.table, tunables: &self.tunables, policy: &self.policy };
        let asked = Asked::new(rules, request, inode, clusters);
        let max_to_scan = self.tunables.value(Tunable::MaxToScan);
        let context = &mut Context::new(&asked, max_to_scan, self.tunables.value(Tunable::MinToScan));
        let (locality, served) = self.serve(context)?;
        drop(locality);
        self.finish_request(context, served.as_ref());
        debug_assert!(
            served.as_ref().is_none_or(|served| (1..=clusters).contains(&served.part.len)),
            "asked for {clusters} clusters, served none or more than that"
        );
        Ok(served.map(|served| self.claim(request.cpu, served.part)))
    }

    /// Tries preallocations first, then the search.
    fn serve(&self, context: &mut Context<'_, B>) -> Result<(Locality<'_, B>, Option<Served>)> {
        let asked = context.asked;
        let mut locality = None;
        if asked.is_data() {
            if let Some(part) = self.serve_from_inode(asked)? {
                return Ok((None, Some(Served { part, found: None })));
            }
            if asked.kind.contains(RequestFlags::GROUP_ALLOC) {
                let mut guard = self.locality[asked.cpu().index(self.locality.len())].lock();
                if let Some(part) = self.serve_from_locality(asked, &mut guard)? {
                    return Ok((Some(guard), Some(Served { part, found: None })));
                }
                locality = Some(guard);
            }
        }
        context.search.set_aim(self.aim(asked));
        self.search_or_make_room(context)?;
        let served = context.outcome.find.take().map(|find| {
            if let Some(prealloc) = find.prealloc {
                self.hand_over(asked, prealloc, locality.as_deref_mut());
            }
            Served { part: find.served, found: Some(find.found) }
        });
        Ok((locality, served))
    }

    /// Serves from the inode preallocation that covers the first block asked for, whatever the
    /// policy.
    fn serve_from_inode(&self, asked: &Asked<'_, B>) -> Result<Option<Extent>> {
        let geometry = &self.table.geometry;
        let wanted = asked.extent;
        let Some(prealloc) = asked.inode.candidate(wanted.logical) else { return Ok(None) };
        let ratio_bits = geometry.cluster_ratio_bits();
        let end = u64_from_u32(prealloc.logical()) + (u64_from_u32(prealloc.len) << ratio_bits);
        let group_first = geometry.group_first_block(prealloc.group).raw();
        let physical_end = group_first + (u64_from_u32(prealloc.start + prealloc.len) << ratio_bits);
        let addressable = asked.request.mapping == Mapping::Extents || physical_end < 1 << 32;
        if u64_from_u32(wanted.logical) >= end || prealloc.glance().free == 0 || !addressable {
            return Ok(None);
        }
        let group = self.pin(prealloc.group, asked.cpu())?;
        let (start, count) = part_of(&prealloc, wanted.logical, wanted.len, ratio_bits);
        let taken = prealloc.take_at(start, count);
        if taken == 0 {
            group.unpin();
            return Ok(None);
        }
        self.let_go(asked, &prealloc);
        Ok(Some(Extent { group: prealloc.group, start, len: taken, logical: wanted.logical }))
    }

    /// Serves from the nearest preallocation of the caller's CPU slot that holds the whole length.
    fn serve_from_locality(
        &self,
        asked: &Asked<'_, B>,
        locality: &mut LocalityGroup<B>,
    ) -> Result<Option<Extent>> {
        let geometry = &self.table.geometry;
        let wanted = asked.extent;
        let goal = if geometry.contains(asked.request.goal) {
            asked.request.goal
        } else {
            geometry.first_data_block()
        };
        let ties = self.policy.locality_ties;
        while let Some(prealloc) = locality.take_nearest(geometry, goal.raw(), wanted.len, ties) {
            let group = match self.pin(prealloc.group, asked.cpu()) {
                Ok(group) => group,
                Err(error) => {
                    self.put_back(asked.cpu(), prealloc, locality);
                    return Err(error);
                }
            };
            let Some(start) = prealloc.take_front(wanted.len) else {
                // Another thread ran out of space and deleted the preallocation.
                group.unpin();
                continue;
            };
            debug_assert!(
                start + wanted.len <= prealloc.start + prealloc.len,
                "the part from {start} ends after the preallocation"
            );
            let part = Extent { group: prealloc.group, start, len: wanted.len, logical: wanted.logical };
            self.park(asked.cpu(), prealloc, locality);
            return Ok(Some(part));
        }
        Ok(None)
    }

    /// Pins a group and loads it first if necessary.
    fn pin(&self, nr: GroupNr, cpu: CpuSlot) -> Result<&Group<B>> {
        let group = self.table.group(nr);
        while !group.pin() {
            self.table.load(nr, cpu, &*self.source)?;
        }
        Ok(group)
    }

    /// What the search for a request aims at.
    fn aim(&self, asked: &Asked<'_, B>) -> Aim {
        let ratio_bits = self.table.geometry.cluster_ratio_bits();
        let view = aim::View {
            policy: &self.policy,
            geometry: &self.table.geometry,
            locality_len: || match self.policy.stripe_rule {
                StripeRule::Exact if self.stripe > 1 => self.stripe,
                _ => self.tunables.value(Tunable::GroupPrealloc),
            },
            own: || asked.inode.borders(asked.extent.logical, ratio_bits),
        };
        view.aim(asked)
    }

    /// Searches. If that finds nothing, but a trim held clusters at some time during the search,
    /// takes the trimming lock and searches again: under this lock no clusters are held. A request
    /// that takes only its goal is searched for once.
    fn search_or_make_room(&self, context: &mut Context<'_, B>) -> Result<()> {
        let trims = self.trims.begun();
        self.search_with_retries(context)?;
        if context.outcome.find.is_none()
            && !context.asked.kind.contains(RequestFlags::GOAL_ONLY)
            && self.trims.held_since(trims)
        {
            let _none_held = self.trims.lock();
            self.search_with_retries(context)?;
        }
        Ok(())
    }

    /// Searches. If that finds nothing, drops preallocations and searches again. If dropping gave
    /// back no clusters, searches again with strict checks instead.
    ///
    /// There are at most two retries in all, unless `space_retries` sets no limit. Without a limit,
    /// the search is repeated as long as dropping gives back clusters, and at most twice with
    /// strict checks. A request that takes only its goal is searched for once.
    fn search_with_retries(&self, context: &mut Context<'_, B>) -> Result<()> {
        // The count of changes is read only after a search has failed: a request that finds space
        // must not read every CPU's count. Before the first strict search there is no earlier count
        // to compare with, so that search needs no change. The second strict search runs only if
        // the count has changed since.
        let mut changes = None;
        let (mut retries, mut strict_retries) = (0, 0);
        loop {
            match self.policy.search {
                Search::Ladder => self.search(context)?,
                Search::Cursor => self.search_cursor(context)?,
                Search::Windows => self.search_windows(context)?,
                Search::Code => self.search_by_code(context)?,
            }
            if context.outcome.find.is_some()
                || retries == RETRIES && self.policy.space_retries == SpaceRetries::Two
                || context.asked.kind.contains(RequestFlags::GOAL_ONLY)
            {
                break;
            }
            retries += 1;
            if self.discard_preallocations(context.asked.extent.len, context.cpu()) > 0 {
                continue;
            }
            let now = Some(self.changes.sum());
            if now == changes || strict_retries == RETRIES {
                break;
            }
            changes = now;
            strict_retries += 1;
            context.search.flags |= RequestFlags::STRICT_CHECK;
        }
        Ok(())
    }

    /// Drops preallocations group by group until `needed` clusters were given back, in at most
    /// [`DISCARD_PASSES`] passes over the groups. Returns how many clusters were given back.
    fn discard_preallocations(&self, needed: u32, cpu: CpuSlot) -> u64 {
        let mut freed = 0;
        for _ in 0..DISCARD_PASSES {
            let mut busy = false;
            for nr in self.table.geometry.all_groups() {
                if !self.table.group(nr).has_preallocs() {
                    continue;
                }
                let Ok(mut guard) = self.table.lock_loaded(nr, cpu, &*self.source) else { continue };
                let (returned, in_use) = guard.discard_preallocs();
                drop(guard);
                self.note_change(cpu);
                self.stats.add_discarded(cpu, returned);
                freed += u64_from_u32(returned);
                busy |= in_use;
                if freed >= u64_from_u32(needed) {
                    return freed;
                }
            }
            if !busy {
                break;
            }
        }
        freed
    }

    /// Gives a new preallocation to its owner.
    fn hand_over(
        &self,
        asked: &Asked<'_, B>,
        prealloc: Arc<Prealloc<B>>,
        locality: Option<&mut LocalityGroup<B>>,
    ) {
        match locality {
            Some(locality) => self.park(asked.cpu(), prealloc, locality),
            None => {
                asked.inode.insert(Arc::clone(&prealloc));
                self.let_go(asked, &prealloc);
            }
        }
    }

    /// Ends the use of a locality preallocation: what is left goes back to its bucket.
    fn park(&self, cpu: CpuSlot, prealloc: Arc<Prealloc<B>>, locality: &mut LocalityGroup<B>) {
        if prealloc.glance().free == 0 {
            prealloc.put();
            self.remove_if_used_up(cpu, &prealloc);
            return;
        }
        self.put_back(cpu, Arc::clone(&prealloc), locality);
        prealloc.put();
    }

    /// Puts a locality preallocation into its bucket. Preallocations that the bucket drops give
    /// their clusters back to their groups.
    fn put_back(&self, cpu: CpuSlot, prealloc: Arc<Prealloc<B>>, locality: &mut LocalityGroup<B>) {
        for dropped in &locality.insert(prealloc) {
            self.return_prealloc(dropped, cpu);
        }
    }

    /// Ends the use of an inode preallocation.
    fn let_go(&self, asked: &Asked<'_, B>, prealloc: &Arc<Prealloc<B>>) {
        if prealloc.put().free == 0 {
            asked.inode.remove(prealloc);
            self.remove_if_used_up(asked.cpu(), prealloc);
        }
    }

    fn remove_if_used_up(&self, cpu: CpuSlot, prealloc: &Prealloc<B>) {
        if prealloc.try_delete() {
            self.table.lock(prealloc.group, cpu).release_prealloc(prealloc);
        }
    }

    /// Gives the clusters left in a deleted preallocation back to its group.
    fn return_prealloc(&self, prealloc: &Prealloc<B>, cpu: CpuSlot) {
        // If the group cannot be loaded, the preallocation's clusters stay used in core until the
        // next open. Nothing is lost on disk.
        if let Ok(mut guard) = self.table.lock_loaded(prealloc.group, cpu, &*self.source) {
            let returned = guard.release_prealloc(prealloc);
            drop(guard);
            self.stats.add_discarded(cpu, returned);
        }
    }

    /// Drops all preallocations of an inode, and its window. Callers do this when the last writer
    /// has closed the file, when the inode is truncated or punched, and when it is evicted. During
    /// the call, the caller keeps other threads from allocating for this inode.
    pub fn discard_inode_preallocations(&self, inode: &InodeAlloc<B>, cpu: CpuSlot) {
        self.drop_window(inode);
        for prealloc in inode.take_all() {
            if prealloc.try_delete() {
                self.return_prealloc(&prealloc, cpu);
            }
        }
    }

    /// Counts the request and emits its event, with no lock held.
    fn finish_request(&self, context: &mut Context<'_, B>, served: Option<&Served>) {
        let cpu = context.cpu();
        if self.tunables.value(Tunable::Stats) != 0 {
            count(context, served);
            self.stats.add(cpu, &context.outcome.stats);
        }
        if let Some(sink) = &self.events {
            sink.emit(cpu, &event(context, served));
        }
    }

    fn claim(&self, cpu: CpuSlot, part: Extent) -> Claim<'_, B> {
        self.note_change(cpu);
        let first_use = self.table.group(part.group).summary().block_uninit();
        Claim::new(self, part.group, part.start, part.len, cpu, first_use)
    }

    /// Marks the clusters of a released claim free again.
    pub(crate) fn take_back(&self, group: GroupNr, start: u32, count: u32, cpu: CpuSlot) {
        // The claim's pin keeps the group loaded.
        let freed = self.table.lock(group, cpu).mark_free(start, count);
        assert!(freed.is_ok(), "clusters of a claim in group {group} were free: {freed:?}");
        self.table.group(group).unpin();
        self.admission.add_free(cpu, u64_from_u32(count));
        self.note_change(cpu);
    }

    /// Why a search found nothing although the counters promise space. If a group is corrupt, it
    /// may hold that space. Then the error is corruption, not "no space": a check can help.
    fn nothing_found(&self, request: &BlockRequest) -> AllocError {
        let mut groups = self.table.geometry.all_groups();
        match groups.find(|group| self.table.group(*group).summary().corrupt()) {
            Some(group) => AllocError::corrupt_group(group),
            None => self.no_space(request),
        }
    }

    fn no_space(&self, request: &BlockRequest) -> AllocError {
        AllocError::NoSpace(NoSpace {
            pending_clusters: self.frees.pending_clusters(request.cpu),
            claimable: self.admission.has_room(1, request.flags),
        })
    }
}

/// Completes the counts of one request.
fn count<B: Backend>(context: &mut Context<'_, B>, served: Option<&Served>) {
    let stats = &mut context.outcome.stats;
    stats.requests[0] = 1;
    stats.groups_scanned[0] = context.search.scanned;
    stats.extents_scanned_total[0] = context.search.selection.found;
    stats.breaks[0] = u32::from(context.search.selection.exceeded());
    let Some(served) = served else { return };
    let at_goal =
        served.part.group == context.search.goal.group && served.part.start == context.search.goal.start;
    stats.success[0] = u32::from(served.part.len >= context.asked.extent.len);
    stats.goal_hits[0] = u32::from(at_goal);
    stats.len_goal_hits[0] = u32::from(served.found.is_some_and(|found| found.len == context.search.want));
}

fn event<B: Backend>(context: &Context<'_, B>, served: Option<&Served>) -> AllocEvent {
    let kind = match served {
        None => EventKind::NoSpace,
        Some(Served { found: None, .. }) => EventKind::Prealloc,
        Some(_) => EventKind::Search,
    };
    let result = served.map_or(Extent::default(), |served| served.found.unwrap_or(served.part));
    AllocEvent {
        original: context.asked.extent.event(),
        goal: context.search.goal.event(),
        result: result.event(),
        inode: context.asked.request.inode.raw(),
        found: context.search.selection.found,
        scanned: blockyard_disk::num::low16(context.search.scanned),
        flags: blockyard_disk::num::low16(context.flags().bits()),
        criterion: blockyard_disk::num::low8(context.search.criterion),
        kind,
        cpu: blockyard_disk::num::low16(blockyard_disk::num::u32_from_usize(
            context.cpu().index(usize_from_u32(1 << 16)),
        )),
    }
}
