//! The rank table: the order in which a thread may take locks, lowest number first.
//!
//! docs/locking.md explains each row and must list the same rows; a test compares the two. Numbers
//! leave gaps so that a row can be added without renumbering.

use core::fmt;

/// The position of a lock in the global order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    number: u16,
    name: &'static str,
}

impl Rank {
    /// The number. A thread takes locks in ascending order of their numbers.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.number
    }

    /// The name in docs/locking.md.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {})", self.name, self.number)
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        $($(#[$doc])* pub const $name: Rank = Rank { number: $number, name: stringify!($name) };)*

        /// Every rank, in ascending order.
        pub const ALL: &[Rank] = &[$($name),*];
    };
}

ranks! {
    /// Where the next read or write of an open file begins.
    FILE_POSITION = 90;
    /// Whether an instance (an open file system) is still open. Every operation through the library
    /// holds one shard of this lock shared; closing takes all shards in order of their numbers (the
    /// order key).
    INSTANCE = 100;
    /// Renames from one directory to another, one at a time in an instance.
    RENAME = 200;
    /// One inode. A thread takes several in the order of their keys: by inode number, but children,
    /// attribute value inodes and inodes being deleted come after all others.
    INODE = 300;
    /// Which blocks one inode has, for readers that do not hold the inode's lock.
    INODE_SHAPE = 310;
    /// Whose turn it is to commit. A thread never holds it while it waits for another lock.
    COMMIT_TURN = 370;
    /// One commit at a time.
    COMMIT = 380;
    /// The ring of the journal: which transactions are in it, its tail.
    JOURNAL_RING = 390;
    /// Membership of handles in the running transaction.
    JOURNAL_HANDLE = 400;
    /// The raw inode of one inode, and its mapping: extents or indirect blocks.
    MAPPING = 500;
    /// Data of one inode that waits for write-back.
    WAITING_DATA = 505;
    /// The cached dentries of one directory.
    NAMES = 510;
    /// Which directories have cached dentries: a ring that chooses whose dentries are dropped when
    /// there are too many.
    NAMES_RING = 515;
    /// The orphan list, or a block of the orphan file.
    ORPHANS = 520;
    /// A shard of the table of open inodes.
    INODE_TABLE = 540;
    /// Preallocations of one inode.
    PREALLOC_INODE = 600;
    /// Preallocations of one locality group.
    PREALLOC_LOCALITY = 610;
    /// Free clusters that are held while the device is told to discard them.
    TRIM = 630;
    /// The round-robin cursor of the whole file system, under policies that lock it.
    GOAL = 640;
    /// Inodes of one block group: bitmap, counts.
    GROUP_INODES = 680;
    /// One block group: bitmap, buddy, counts. A thread takes several in ascending group number
    /// (the order key). Where a policy lets groups share a lock, that lock comes before the group's
    /// own.
    GROUP = 700;
    /// Lists that index groups, where a policy keeps them under a lock.
    GROUP_INDEX = 720;
    /// The windows of files being written, if a policy has them.
    WINDOWS = 730;
    /// The pending frees of a transaction, where a policy keeps them under one lock.
    PENDING_FREES = 760;
    /// The descriptor of one block group and its pinned bitmaps, in the engine.
    GROUP_DESC = 780;
    /// A shard of the metadata cache.
    CACHE_SHARD = 800;
    /// One metadata buffer.
    BUFFER = 820;
    /// Where the journal has committed copies of blocks that are not written home yet.
    COMMITTED = 840;
    /// Lists of the running and the committing transaction.
    JOURNAL_STATE = 860;
    /// The superblock of an open file system.
    SUPERBLOCK = 870;
    /// The log of a recording device. Held during each change or flush of the device below, so that
    /// the log has the order of these calls.
    DEVICE_LOG = 880;
    /// A block device's own bookkeeping.
    DEVICE = 900;
    /// Event rings, statistics and other leaves: no lock is taken while one is held.
    LEAF = 990;
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn numbers_ascend() {
        assert!(ALL.windows(2).all(|pair| pair[0].number < pair[1].number));
    }

    #[test]
    fn the_document_lists_the_same_table() {
        let document = include_str!("../../../docs/locking.md");
        let rows: Vec<(u16, &str)> = document
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
                let number = cells.next()?.parse().ok()?;
                Some((number, cells.next()?.trim_matches('`')))
            })
            .collect();
        let table: Vec<(u16, &str)> = ALL.iter().map(|rank| (rank.number, rank.name)).collect();
        assert_eq!(rows, table, "docs/locking.md (left) and the rank table (right) differ");
    }
}
