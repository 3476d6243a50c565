//! The names of one directory as runs of their [codes](super::alphabets): names that were made in the order of a rule have codes
//! one after the other, and so have their inodes.
//!
//! A million such names are a few runs, which stay in the CPU's cache. Names in any other order soon are too many runs, and go
//! to a [table](super::coded).

use blockyard_disk::InodeNr;
use blockyard_disk::num::{low32, u64_from_u32};

/// Most runs that are kept: a page of them.
const RUNS_MAX: usize = 256;
/// Runs that there is room for: one may be parted before somebody finds that there are too many.
const CAPACITY: usize = RUNS_MAX + 2;
/// Runs that names may have in any case.
const RUNS_FEW: usize = 16;
/// Names that a run has on average where there are more.
const NAMES_MIN: usize = 8;

/// In ascending order of code, without overlaps; neighbours that could be one are one.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
    names: usize,
}

/// `count` codes from `code` on, with inodes from `inode` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    code: u64,
    inode: u32,
    count: u32,
}

impl Run {
    /// Whether the code behind the run, with this inode, is its next.
    fn goes_on(&self, code: u64, inode: u32) -> bool {
        self.end() == code && self.inode.checked_add(self.count) == Some(inode)
    }

    /// The code behind the last.
    fn end(&self) -> u64 {
        self.code + u64_from_u32(self.count)
    }

    /// The inode of a code of the run.
    fn inode_of(&self, code: u64) -> u32 {
        self.inode + low32(code - self.code)
    }
}

impl Runs {
    /// Bytes of memory.
    pub(super) const MEMORY: usize = CAPACITY * size_of::<Run>();

    /// No names.
    pub(super) fn new() -> Self {
        Self { runs: Vec::with_capacity(CAPACITY), names: 0 }
    }

    /// Names.
    pub(super) const fn len(&self) -> usize {
        self.names
    }

    /// The inode of a code.
    #[inline]
    pub(super) fn find(&self, code: u64) -> Option<InodeNr> {
        let (_, run) = self.holder(code)?;
        Some(InodeNr::new(run.inode_of(code)))
    }

    /// The run of a code, and where it is.
    #[inline]
    fn holder(&self, code: u64) -> Option<(usize, Run)> {
        let at = self.behind(code).checked_sub(1)?;
        let run = self.runs[at];
        (code < run.end()).then_some((at, run))
    }

    /// The first run that begins behind a code.
    #[inline]
    fn behind(&self, code: u64) -> usize {
        self.runs.partition_point(|run| run.code <= code)
    }

    /// Enters a code, or has it stand for another inode. False when there are too many runs: all names belong into a table.
    #[must_use]
    pub(super) fn set(&mut self, code: u64, inode: InodeNr) -> bool {
        if self.find(code) == Some(inode) {
            return self.are_few();
        }
        let _ = self.remove(code);
        let inode = inode.raw();
        let at = self.behind(code);
        let joins_left = at > 0 && self.runs[at - 1].goes_on(code, inode);
        let new = Run { code, inode, count: 1 };
        let joins_right = self.runs.get(at).is_some_and(|right| new.goes_on(right.code, right.inode));
        match (joins_left, joins_right) {
            (true, true) => {
                let right = self.runs.remove(at);
                self.runs[at - 1].count += 1 + right.count;
            }
            (true, false) => self.runs[at - 1].count += 1,
            (false, true) => self.runs[at] = Run { count: self.runs[at].count + 1, ..new },
            (false, false) => self.runs.insert(at, new),
        }
        self.names += 1;
        self.are_few()
    }

    /// Whether there are so few runs that they are worth it.
    fn are_few(&self) -> bool {
        self.runs.len() <= RUNS_FEW.max(self.names / NAMES_MIN).min(RUNS_MAX)
    }

    /// Removes a code if it is there. False as for [`Self::set`].
    #[must_use]
    pub(super) fn remove(&mut self, code: u64) -> bool {
        let Some((at, run)) = self.holder(code) else { return self.are_few() };
        self.names -= 1;
        let before = low32(code - run.code);
        let left = Run { count: before, ..run };
        let right = Run {
            code: code + 1,
            inode: run.inode.wrapping_add(before).wrapping_add(1),
            count: run.count - before - 1,
        };
        let rest = [left, right].into_iter().filter(|run| run.count > 0);
        self.runs.splice(at..=at, rest);
        self.are_few()
    }

    /// Calls `visit` with every code and its inode, in ascending order of code.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u64, InodeNr)) {
        for run in &self.runs {
            for code in run.code..run.end() {
                visit(code, InodeNr::new(run.inode_of(code)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The runs that a map's entries make.
    fn runs_of(map: &BTreeMap<u64, u32>) -> usize {
        let entries: Vec<(u64, u32)> = map.iter().map(|(&code, &inode)| (code, inode)).collect();
        let breaks =
            entries.windows(2).filter(|pair| pair[0].0 + 1 != pair[1].0 || pair[0].1 + 1 != pair[1].1);
        usize::from(!map.is_empty()) + breaks.count()
    }

    proptest! {
        /// Runs agree with a map, are as few as they can be, and say when they are too many.
        #[test]
        fn agree_with_a_map(ops in proptest::collection::vec((0..8u8, 0..300u64, 1..5u32), 1..600)) {
            let (mut runs, mut map) = (Runs::new(), BTreeMap::new());
            for (op, code, spread) in ops {
                // Most inodes follow their codes.
                let inode = low32(code) + 10 + if op == 1 { spread } else { 0 };
                let few = if op == 0 { runs.remove(code) } else { runs.set(code, InodeNr::new(inode)) };
                if op == 0 { map.remove(&code) } else { map.insert(code, inode) };
                prop_assert_eq!(few, runs_of(&map) <= RUNS_FEW.max(map.len() / NAMES_MIN).min(RUNS_MAX));
                prop_assert_eq!(runs.find(code).map(InodeNr::raw), map.get(&code).copied());
                prop_assert_eq!((runs.runs.len(), runs.len()), (runs_of(&map), map.len()));
            }
            let mut all = BTreeMap::new();
            runs.for_each(|code, inode| assert!(all.insert(code, inode.raw()).is_none()));
            prop_assert_eq!(&all, &map);
            prop_assert!((0..300).all(|code| runs.find(code).map(InodeNr::raw) == map.get(&code).copied()));
        }
    }

    #[test]
    fn a_million_names_in_order_are_one_run() {
        let mut runs = Runs::new();
        for number in 0..1_000_000 {
            assert!(runs.set(u64_from_u32(number), InodeNr::new(number + 12)));
        }
        assert_eq!(runs.runs, [Run { code: 0, inode: 12, count: 1_000_000 }]);
        // Every other one removed: more runs than are kept.
        let kept = (0..2_000).step_by(2).take_while(|&number| runs.remove(number)).count();
        assert_eq!((kept, runs.runs.len(), runs.len()), (256, 257, 999_743));
    }
}
