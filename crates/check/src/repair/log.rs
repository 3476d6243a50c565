//! What a repair did and why, in the order of its decisions, which is the same for any number of
//! threads.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockyard_disk::{BlockNr, InodeNr};

use super::RepairOptions;
use super::wish::{Shared, Wish};
use crate::Report;
use crate::code::Code;
use crate::finding::Site;

/// The most ranges of a file that an action names.
const RANGES_MAX: usize = 64;
/// An upper bound for the size of a file in bytes: 2^32 blocks of 64 KiB.
const FILE_MAX: u64 = 1 << 48;

/// What a change costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cost {
    /// Nothing: only derived data changed.
    Nothing,
    /// A name or a place changed: everything is still there.
    Moved,
    /// Content may be another file's, or damaged.
    Doubtful,
    /// A part of the content or of the attributes is lost.
    Cut,
    /// A name or an inode is lost.
    Removed,
}

impl Cost {
    /// The cost in one word.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Moved => "moved",
            Self::Doubtful => "doubtful",
            Self::Cut => "cut",
            Self::Removed => "removed",
        }
    }
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The finding that asks for it.
    pub code: Code,
    /// Where it is done.
    pub site: Site,
    /// What is done.
    pub what: String,
    /// What it costs.
    pub cost: Cost,
    /// The path that the inode had before the repair, if it is known, or else the one that it has
    /// afterwards. If the action is about a name, the name's own path. A path that begins with
    /// `<N>` begins at the directory with inode number N, whose own path is unknown.
    pub path: Option<Vec<u8>>,
    /// The name in the directory `site.inode`, if the action is about a single name.
    pub name: Option<Vec<u8>>,
    /// The bytes of the file that the action is about, ascending. Ranges of lost content may
    /// include holes that the file had before. Empty if the action is about no bytes, or if they
    /// are unknown.
    pub ranges: Vec<Range<u64>>,
}

/// What happens to one name.
pub(crate) struct NameChange {
    pub(crate) name: Vec<u8>,
    pub(crate) what: String,
    pub(crate) cost: Cost,
}

/// What a remedy leaves of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Kept,
    /// The inode has a new map.
    Rewritten,
    Lost,
}

/// A kind of repair that is tried a few times before a harsher one is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tried {
    Inode,
    Shared,
    /// To find the table of a group.
    Table,
    /// To place an empty table for a group.
    EmptyTable,
    Directory,
    Quota,
}

/// What was decided so far.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) actions: Vec<Action>,
    /// Blocks that nobody used before the repair; they are written first.
    pub(crate) fresh: BTreeSet<u64>,
    tries: BTreeMap<(Tried, u32), u32>,
    /// The block of the backup that replaced the superblock.
    pub(crate) backup: Option<BlockNr>,
    /// How many errors the last round found, if that was more than were kept.
    pub(crate) crowd: Option<u64>,
    /// Whether bitmaps and counts of every group are written, because the superblock or descriptors
    /// were replaced or bitmaps moved.
    pub(crate) rewrite_all: RewriteAll,
    /// Whether a broken journal was removed, to be made again when the rest is clean.
    pub(crate) journal_dropped: JournalDropped,
    /// Whether superblock and descriptors are inferred from what is left.
    pub(crate) is_inferred: bool,
    /// Findings that are not repaired.
    pub(crate) declined: BTreeSet<Code>,
    /// The first inode found in a block of an inode table that is mostly garbage.
    pub(crate) garbage: Option<InodeNr>,
    /// Wishes of the user that remain to be carried out when nothing is wrong.
    pub(crate) wishes: BTreeSet<Wish>,
    /// What inodes get in place of shared blocks that another inode keeps.
    pub(crate) shared: Shared,
    /// Blocks that are free after the repair, from the end of the file system backwards: room for
    /// the redo log.
    pub(crate) spare: Vec<Range<u64>>,
    /// Names that directories lost, by inode.
    remembered: BTreeMap<u32, OldName>,
    /// Whether the names in lost directories are among the actions.
    pub(crate) has_listed_remains: bool,
}

/// A name that an inode had before the repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldName {
    /// The directory that had it; `None` if nobody can tell.
    pub(crate) directory: Option<InodeNr>,
    pub(crate) bytes: Vec<u8>,
}

/// Whether a journal is to be made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum JournalDropped {
    /// No journal was removed, or a new one was made.
    #[default]
    No,
    /// A new journal is to be made.
    Yes,
}

/// Whether every bitmap and descriptor is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RewriteAll {
    /// Only where something is wrong.
    #[default]
    No,
    /// All of them.
    Yes,
}

impl Log {
    /// The log of a repair that has decided nothing, with what the user declines and wants.
    pub(super) fn of(options: &RepairOptions, before: &Report) -> Self {
        let wishes: BTreeSet<Wish> =
            options.wishes.iter().copied().filter(|wish| wish.is_due(before)).collect();
        // A user who wants all files to have their own blocks does not want files cut.
        let shared = if wishes.contains(&Wish::UnshareBlocks) { Shared::Clone } else { options.shared };
        Self { declined: options.declined.clone(), wishes, shared, ..Self::default() }
    }

    pub(crate) fn add(&mut self, code: Code, site: Site, cost: Cost, what: impl Into<String>) {
        self.actions.push(Action {
            code,
            site,
            what: what.into(),
            cost,
            path: None,
            name: None,
            ranges: Vec::new(),
        });
    }

    /// As [`add`](Self::add), about one name in a directory.
    pub(crate) fn add_name(&mut self, code: Code, directory: InodeNr, change: NameChange) {
        let NameChange { name, what, cost } = change;
        let site = Site::inode(directory);
        self.actions.push(Action {
            code,
            site,
            what,
            cost,
            path: None,
            name: Some(name),
            ranges: Vec::new(),
        });
    }

    /// Says which bytes of a file the last action is about. If there are more than [`RANGES_MAX`]
    /// ranges, the last one that is kept reaches to the end of all. Does nothing if the ranges end
    /// past the largest size that a file can have.
    pub(crate) fn set_ranges(&mut self, mut ranges: Vec<Range<u64>>) {
        debug_assert!(ranges.is_sorted_by_key(|range| range.start), "ranges out of order");
        if ranges.last().is_some_and(|range| range.end > FILE_MAX) {
            return;
        }
        if let Some(end) = ranges.last().map(|range| range.end).filter(|_| ranges.len() > RANGES_MAX) {
            ranges.truncate(RANGES_MAX);
            ranges[RANGES_MAX - 1].end = end;
        }
        let last = self.actions.last_mut().expect("an action was just added");
        last.ranges = ranges;
    }

    /// Remembers the name of an inode in a directory that loses it.
    pub(crate) fn remember(&mut self, inode: u32, directory: Option<InodeNr>, name: &[u8]) {
        self.remembered.entry(inode).or_insert_with(|| OldName { directory, bytes: name.to_vec() });
    }

    /// The name of an inode that a directory lost in this repair.
    pub(crate) fn remembered(&self, inode: u32) -> Option<&OldName> {
        self.remembered.get(&inode)
    }

    /// All inodes whose names directories lost in this repair, and one name of each.
    pub(crate) fn all_remembered(&self) -> impl Iterator<Item = (u32, &OldName)> {
        self.remembered.iter().map(|(inode, name)| (*inode, name))
    }

    /// Whether a finding is to be repaired at all.
    pub(crate) fn accepts(&self, code: Code) -> bool {
        !self.declined.contains(&code)
    }

    /// As [`add`](Self::add), about something that cannot be repaired. The same action is added
    /// only once, because a repair goes on until a round adds no action.
    pub(crate) fn give_up(&mut self, code: Code, site: Site, what: &str) {
        debug_assert!(!what.is_empty(), "nothing is said about {site:?}");
        let is_known = |action: &Action| action.code == code && action.site == site && action.what == what;
        if !self.actions.iter().any(is_known) {
            self.add(code, site, Cost::Nothing, what);
        }
    }

    /// Forgets the tries at an inode that is cleared or made anew.
    pub(crate) fn forget_tries(&mut self, inode: InodeNr) {
        for what in [Tried::Inode, Tried::Shared, Tried::Directory] {
            self.tries.remove(&(what, inode.raw()));
        }
    }

    /// How often something was tried.
    pub(crate) fn tries(&self, what: Tried, inode: InodeNr) -> u32 {
        self.tries.get(&(what, inode.raw())).copied().unwrap_or(0)
    }

    /// Counts one more try at something; returns how many there were before.
    pub(crate) fn try_again(&mut self, what: Tried, inode: InodeNr) -> u32 {
        let tries = self.tries.entry((what, inode.raw())).or_default();
        *tries += 1;
        *tries - 1
    }
}
