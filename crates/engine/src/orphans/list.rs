//! The order of the orphan list, newest first, and which links changed.
//!
//! Every entry has a link to the next older one (0 for the oldest). So following the links from
//! [`List::head`] visits every entry once. The caller stores the links: [`List::push`] returns the
//! link of the new entry. A link changes when the older neighbour is removed;
//! [`List::take_relinked`] returns those changes.

use blockyard_disk::InodeNr;
use std::collections::{BTreeMap, BTreeSet};

/// The list, with a payload for each inode.
pub(super) struct List<T> {
    entries: BTreeMap<u64, (InodeNr, T)>,
    next_key: u64,
    relinked: BTreeSet<u64>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), next_key: 0, relinked: BTreeSet::new() }
    }
}

impl<T: Clone> List<T> {
    /// The newest inode; `None` if the list is empty.
    pub(super) fn head(&self) -> Option<InodeNr> {
        self.entries.last_key_value().map(|(_, (inode, _))| *inode)
    }

    /// Adds an inode as the newest. Returns its key and its link.
    pub(super) fn push(&mut self, inode: InodeNr, payload: T) -> (u64, InodeNr) {
        let older = self.head().unwrap_or(InodeNr::ZERO);
        let key = self.next_key;
        self.next_key += 1;
        let other = self.entries.insert(key, (inode, payload));
        debug_assert!(other.is_none(), "two notes under key {key}");
        (key, older)
    }

    /// Removes an inode. Returns the payload of its newer neighbour, whose link changes. `None` if
    /// the inode was the head: then the superblock must change.
    pub(super) fn remove(&mut self, key: u64) -> Option<T> {
        let gone = self.entries.remove(&key);
        debug_assert!(gone.is_some(), "note {key} is struck off twice");
        self.relinked.remove(&key);
        let (&newer, (_, payload)) = self.entries.range(key..).next()?;
        self.relinked.insert(newer);
        Some(payload.clone())
    }

    /// The entries whose link changed since the last call, with their new link.
    pub(super) fn take_relinked(&mut self) -> Vec<(T, InodeNr)> {
        let relinked = std::mem::take(&mut self.relinked);
        let entry = |key: u64| {
            let older = self.entries.range(..key).next_back().map_or(InodeNr::ZERO, |(_, (inode, _))| *inode);
            self.entries.get(&key).map(|(_, payload)| (payload.clone(), older))
        };
        relinked.into_iter().filter_map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::List;
    use blockyard_disk::InodeNr;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The inodes in the order in which one visits them from the head by the stored links.
    fn walk(head: Option<InodeNr>, links: &BTreeMap<u32, u32>) -> Vec<u32> {
        let mut seen = Vec::new();
        let mut at = head.map_or(0, InodeNr::raw);
        while at != 0 && seen.len() <= links.len() {
            seen.push(at);
            at = links[&at];
        }
        seen
    }

    proptest! {
        #[test]
        fn the_links_always_spell_the_list(steps in prop::collection::vec((any::<bool>(), 0usize..16, any::<bool>()), 1..80)) {
            let mut list = List::default();
            let mut links = BTreeMap::new();
            let mut model: Vec<(u32, u64)> = Vec::new();
            let mut number = 11;
            for (push, which, freeze) in steps {
                if push || model.is_empty() {
                    number += 1;
                    let (key, older) = list.push(InodeNr::new(number), number);
                    links.insert(number, older.raw());
                    model.push((number, key));
                } else {
                    let (gone, key) = model.remove(which % model.len());
                    list.remove(key);
                    links.remove(&gone);
                }
                if freeze {
                    for (inode, older) in list.take_relinked() {
                        links.insert(inode, older.raw());
                    }
                    let expected: Vec<u32> = model.iter().rev().map(|(number, _)| *number).collect();
                    prop_assert_eq!(walk(list.head(), &links), expected);
                }
            }
        }
    }
}
