//! Freed clusters of one group that wait for their transaction's commit: records ordered by
//! position.
//!
//! There are two rules for merging adjacent records (slot `freed_merge`). Both merge only records
//! of one transaction and group:
//! - *after*: the new record absorbs the neighbour on each side that it touches;
//! - *before* (also under `by-group`): of the two neighbours, only the one that was inserted later
//!   is tested. (A walk down the kernel's tree ends there.) If it touches the new range, it is
//!   extended over the range, and then merged with the other neighbour if those two touch now.
//!   Otherwise the range becomes a record of its own, even if it touches the other neighbour.
//!
//! A record keeps its position in its transaction's list for its whole life. A record that was
//! absorbed has count 0.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockyard_disk::{GroupNr, TxnId};
use blockyard_sync::{Atomic, Backend, Ordering};

use crate::buddy::AlreadyFree;

/// One freed range. Start and count change only under the group's lock, which orders the accesses.
/// So relaxed is enough.
pub(crate) struct Record<B: Backend> {
    pub(crate) group: GroupNr,
    pub(crate) txn: TxnId,
    start: B::AtomicU32,
    count: B::AtomicU32,
    /// A number that rises with each record inserted in the tree: a newer record has a higher one.
    linked: u64,
}

impl<B: Backend> Record<B> {
    pub(crate) fn start(&self) -> u32 {
        self.start.load(Ordering::Relaxed)
    }

    /// Clusters; 0 once the record was absorbed or its transaction has committed.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    fn end(&self) -> u32 {
        self.start() + self.count()
    }

    fn set(&self, start: u32, count: u32) {
        self.start.store(start, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
    }
}

/// The result of adding a range.
pub(crate) enum Added<B: Backend> {
    /// A new record, to be put at the tail of its transaction's list; it absorbed `unlinked` old
    /// records.
    Linked { record: Arc<Record<B>>, unlinked: u32 },
    /// An old record was extended; `unlinked` records were absorbed.
    Grown { unlinked: u32 },
}

/// The records of one group.
pub(crate) struct PendingTree<B: Backend> {
    records: BTreeMap<u32, Arc<Record<B>>>,
    linked: u64,
}

impl<B: Backend> Default for PendingTree<B> {
    fn default() -> Self {
        Self { records: BTreeMap::new(), linked: 0 }
    }
}

type Neighbours<B> = (Option<Arc<Record<B>>>, Option<Arc<Record<B>>>);

impl<B: Backend> PendingTree<B> {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn neighbours(&self, start: u32, count: u32) -> Result<Neighbours<B>, AlreadyFree> {
        let left = self.records.range(..start).next_back().map(|(_, record)| Arc::clone(record));
        let right = self.records.range(start..).next().map(|(_, record)| Arc::clone(record));
        if left.as_ref().is_some_and(|left| left.end() > start) {
            return Err(AlreadyFree { at: start });
        }
        match &right {
            Some(right) if right.start() < start + count => Err(AlreadyFree { at: right.start() }),
            _ => Ok((left, right)),
        }
    }

    fn link(&mut self, group: GroupNr, txn: TxnId, start: u32, count: u32) -> Arc<Record<B>> {
        assert!(count > 0, "a record of no clusters in group {group}");
        self.linked += 1;
        let linked = self.linked;
        let record = Arc::new(B::on_line("freed record", || Record {
            group,
            txn,
            start: B::AtomicU32::new(start),
            count: B::AtomicU32::new(count),
            linked,
        }));
        let replaced = self.records.insert(start, Arc::clone(&record));
        assert!(replaced.is_none(), "two records of group {group} at cluster {start}");
        debug_assert!(self.stands_apart(&record), "the record at {start} overlaps another");
        record
    }

    /// Whether a record overlaps no other.
    fn stands_apart(&self, record: &Record<B>) -> bool {
        let (start, end) = (record.start(), record.end());
        let left = self.records.range(..start).next_back();
        let right = self.records.range(start + 1..).next();
        left.is_none_or(|(_, left)| left.end() <= start)
            && right.is_none_or(|(_, right)| end <= right.start())
    }

    fn move_to(&mut self, record: &Arc<Record<B>>, start: u32, count: u32) {
        self.remove(record);
        record.set(start, count);
        self.records.insert(start, Arc::clone(record));
        debug_assert!(self.stands_apart(record), "the record moved to {start} overlaps another");
    }

    fn remove(&mut self, record: &Arc<Record<B>>) {
        let removed = self.records.remove(&record.start());
        let is_same = removed.is_some_and(|removed| Arc::ptr_eq(&removed, record));
        assert!(
            is_same,
            "the record at cluster {} of group {} is not in its tree",
            record.start(),
            record.group
        );
    }

    fn drop_record(&mut self, record: &Arc<Record<B>>) {
        self.remove(record);
        record.set(0, 0);
    }

    /// Adds a range by the rule *after*.
    ///
    /// # Errors
    /// When the range overlaps a record: it was freed before.
    pub(crate) fn add_then_merge(
        &mut self,
        group: GroupNr,
        txn: TxnId,
        start: u32,
        count: u32,
    ) -> Result<Added<B>, AlreadyFree> {
        let (left, right) = self.neighbours(start, count)?;
        let mut range = (start, count);
        let mut unlinked = 0;
        if let Some(left) = left.filter(|left| left.txn == txn && left.end() == start) {
            range = (left.start(), range.1 + left.count());
            self.drop_record(&left);
            unlinked += 1;
        }
        if let Some(right) = right.filter(|right| right.txn == txn && right.start() == start + count) {
            range.1 += right.count();
            self.drop_record(&right);
            unlinked += 1;
        }
        Ok(Added::Linked { record: self.link(group, txn, range.0, range.1), unlinked })
    }

    /// Adds a range by the rule *before*.
    ///
    /// # Errors
    /// When the range overlaps a record: it was freed before.
    pub(crate) fn merge_or_add(
        &mut self,
        group: GroupNr,
        txn: TxnId,
        start: u32,
        count: u32,
    ) -> Result<Added<B>, AlreadyFree> {
        let (left, right) = self.neighbours(start, count)?;
        let age = |record: &Option<Arc<Record<B>>>| record.as_ref().map_or(0, |record| record.linked);
        if age(&right) > age(&left) {
            if let Some(met) = right.filter(|met| met.txn == txn && met.start() == start + count) {
                self.move_to(&met, start, count + met.count());
                return Ok(Added::Grown { unlinked: self.join(left, &met) });
            }
        } else if let Some(met) = left.filter(|met| met.txn == txn && met.end() == start) {
            met.set(met.start(), met.count() + count);
            debug_assert!(self.stands_apart(&met), "the grown record at {} overlaps another", met.start());
            return Ok(Added::Grown { unlinked: self.join(right, &met) });
        }
        Ok(Added::Linked { record: self.link(group, txn, start, count), unlinked: 0 })
    }

    /// Merges the extended record `grown` into `other`, the record on its other side, if the two
    /// touch now and are of one transaction. Returns how many records left the tree, 0 or 1.
    fn join(&mut self, other: Option<Arc<Record<B>>>, grown: &Arc<Record<B>>) -> u32 {
        let Some(other) = other.filter(|other| other.txn == grown.txn) else { return 0 };
        let touches = other.end() == grown.start() || grown.end() == other.start();
        if !touches {
            return 0;
        }
        let start = other.start().min(grown.start());
        let count = other.count() + grown.count();
        self.drop_record(grown);
        self.move_to(&other, start, count);
        1
    }

    /// The first cluster of the range that is in a record; `None` if no cluster is.
    pub(crate) fn overlap(&self, start: u32, count: u32) -> Option<u32> {
        self.neighbours(start, count).err().map(|already| already.at)
    }

    /// Removes a record whose transaction has committed. Returns the record's start and count.
    pub(crate) fn finish(&mut self, record: &Arc<Record<B>>) -> (u32, u32) {
        let range = (record.start(), record.count());
        self.drop_record(record);
        range
    }

    /// The records that a commit of `txn` releases.
    pub(crate) fn due(&self, txn: TxnId) -> Vec<Arc<Record<B>>> {
        self.records.values().filter(|record| !record.txn.is_after(txn)).map(Arc::clone).collect()
    }

    /// Whether a record is pending whose transaction id has this parity.
    pub(crate) fn has_parity(&self, parity: u32) -> bool {
        self.records.values().any(|record| record.txn.raw() % 2 == parity)
    }

    /// Start and count of every record.
    #[cfg(test)]
    pub(crate) fn ranges(&self) -> Vec<(u32, u32)> {
        self.records.values().map(|record| (record.start(), record.count())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_sync::Native;

    const GROUP: GroupNr = GroupNr::ZERO;

    fn unlinked(added: &Added<Native>) -> (bool, u32) {
        match added {
            Added::Linked { unlinked, .. } => (true, *unlinked),
            Added::Grown { unlinked } => (false, *unlinked),
        }
    }

    /// Example E9 of `tests/series.rs`: free [0,10), [20,30), [10,20) in one transaction.
    #[test]
    fn the_bridging_free_of_the_example() {
        let txn = TxnId::new(4);
        let ranges = [(0, 10), (20, 10), (10, 10)];
        let mut old = PendingTree::<Native>::default();
        let after = ranges.map(|(start, n)| unlinked(&old.add_then_merge(GROUP, txn, start, n).unwrap()));
        assert_eq!(after, [(true, 0), (true, 0), (true, 2)], "holds 1, 1, 3");
        let mut new = PendingTree::<Native>::default();
        let before = ranges.map(|(start, n)| unlinked(&new.merge_or_add(GROUP, txn, start, n).unwrap()));
        assert_eq!(before, [(true, 0), (true, 0), (false, 1)], "holds 1, 1, 1");
        assert_eq!((old.ranges(), new.ranges()), (vec![(0, 30)], vec![(0, 30)]));
    }

    #[test]
    fn an_adjacent_record_on_the_other_side_stays_apart() {
        let txn = TxnId::new(4);
        let mut tree = PendingTree::<Native>::default();
        // Of the neighbours of [10,15), the record [30,40) was inserted later. So [0,10) is not
        // tested, although it touches [10,15).
        for (start, count) in [(0, 10), (30, 10), (10, 5)] {
            tree.merge_or_add(GROUP, txn, start, count).unwrap();
        }
        assert_eq!(tree.ranges(), [(0, 10), (10, 5), (30, 10)]);
    }

    #[test]
    fn transactions_do_not_merge_and_overlap_is_an_error() {
        let mut tree = PendingTree::<Native>::default();
        tree.merge_or_add(GROUP, TxnId::new(4), 0, 10).unwrap();
        tree.merge_or_add(GROUP, TxnId::new(5), 10, 10).unwrap();
        assert_eq!(tree.ranges(), [(0, 10), (10, 10)]);
        assert_eq!(tree.merge_or_add(GROUP, TxnId::new(5), 19, 2).err(), Some(AlreadyFree { at: 19 }));
        assert_eq!(tree.due(TxnId::new(4)).len(), 1);
    }
}
