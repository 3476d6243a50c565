//! Stand-in for the allocator crate: next fit from the goal under one lock. To be replaced when that crate lands.

use crate::Result;
use crate::groups::Groups;
use blockyard_disk::{BlockNr, GroupNr, TxnId, bitmap};
use blockyard_sync::{Mutex, rank};
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) struct Interim {
    groups: Arc<Groups>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bitmaps: HashMap<u32, Vec<u8>>,
    pending: Vec<(TxnId, u64, u64)>,
    free: i64,
    reserved: i64,
}

impl Interim {
    pub(crate) fn new(groups: Arc<Groups>, free: u64) -> Self {
        let state = State { free: free.cast_signed(), ..State::default() };
        Self { groups, state: Mutex::new(rank::LEAF, state) }
    }

    pub(crate) fn reserve(&self, n: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.free - state.reserved >= n.cast_signed() + 64;
        if fits {
            state.reserved += n.cast_signed();
        }
        fits
    }

    pub(crate) fn reserve_always(&self, n: u64) {
        self.state.lock().reserved += n.cast_signed();
    }

    pub(crate) fn unreserve(&self, n: u64) {
        self.state.lock().reserved -= n.cast_signed();
    }

    pub(crate) fn claim(
        &self,
        goal: BlockNr,
        clusters: u32,
        reserved: bool,
    ) -> Result<Option<(BlockNr, u32)>> {
        let geometry = *self.groups.geometry();
        if !reserved {
            let state = self.state.lock();
            if state.free - state.reserved < i64::from(clusters.min(1)) {
                return Ok(None);
            }
        }
        let goal = if geometry.contains(goal) { goal } else { geometry.first_data_block() };
        let (first, offset) = geometry.locate(goal);
        for step in 0..geometry.groups() + 1 {
            let group = GroupNr::new((first.raw() + step) % geometry.groups());
            let loaded = self.state.lock().bitmaps.contains_key(&group.raw());
            if !loaded {
                let mut bits = vec![0; geometry.block_size()];
                self.groups.copy_block_bitmap(group, &mut bits)?;
                bitmap::pad_from(&mut bits, geometry.clusters_in_group(group));
                self.state.lock().bitmaps.entry(group.raw()).or_insert(bits);
            }
            let from = if step == 0 { offset.raw() } else { 0 };
            let end = geometry.clusters_in_group(group);
            let mut state = self.state.lock();
            let Some(bits) = state.bitmaps.get_mut(&group.raw()) else { continue };
            let Some(start) = bitmap::next_clear(bits, from..end) else { continue };
            let stop = bitmap::next_set(bits, start..end).unwrap_or(end).min(start + clusters);
            bitmap::set_range(bits, start..stop);
            state.free -= i64::from(stop - start);
            return Ok(Some((self.groups.block_at(group, start), stop - start)));
        }
        Ok(None)
    }

    pub(crate) fn free(&self, first: BlockNr, blocks: u64, txn: Option<TxnId>) {
        let mut state = self.state.lock();
        let clusters = blocks >> self.groups.geometry().cluster_ratio_bits();
        state.free += clusters.cast_signed();
        match txn {
            Some(txn) => state.pending.push((txn, first.raw(), blocks)),
            None => self.clear(&mut state, first.raw(), blocks),
        }
    }

    fn clear(&self, state: &mut State, first: u64, blocks: u64) {
        let geometry = self.groups.geometry();
        let ratio = u64::from(geometry.cluster_ratio());
        for block in (first..first + blocks).step_by(usize::try_from(ratio).unwrap_or(1)) {
            let (group, offset) = geometry.locate(BlockNr::new(block));
            if let Some(bits) = state.bitmaps.get_mut(&group.raw()) {
                bitmap::clear(bits, offset.raw());
            }
        }
    }

    pub(crate) fn committed(&self, txn: TxnId) {
        let mut state = self.state.lock();
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.pending).into_iter().partition(|(tid, ..)| !tid.is_after(txn));
        state.pending = waiting;
        for (_, first, blocks) in ready {
            self.clear(&mut state, first, blocks);
        }
    }

    pub(crate) fn delayed_clusters(&self) -> u64 {
        self.state.lock().reserved.max(0).unsigned_abs()
    }

    pub(crate) fn pending(&self) -> bool {
        !self.state.lock().pending.is_empty()
    }
}
