//! What can be wrong with a list of entries in a block or an inode. A defect of one entry says
//! which entry it is.

/// What is wrong with a directory block, or with one of the two areas of entries that an inline
/// directory has. Offsets are bytes from the start of the block or area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DirDefect {
    /// The buffer is not as long as the layout says. An edit also returns this when no entry starts
    /// at the given position, or when the entries do not fit the block.
    #[error("directory block has the wrong size")]
    BlockSize,
    /// `rec_len` is below 12 or not a multiple of 4: the walk could stop advancing or lose
    /// alignment.
    #[error("entry at byte {at}: impossible rec_len")]
    RecLen {
        /// Where the entry starts.
        at: usize,
    },
    /// The entry reaches past the end of the entries: the end of the block, or the start of its
    /// checksum tail.
    #[error("entry at byte {at} reaches past the end of the block")]
    Overrun {
        /// Where the entry starts.
        at: usize,
    },
    /// A remainder too short for an entry. The last entry must end at the end of the block, or at
    /// the start of the checksum tail.
    #[error("entry at byte {at} leaves a remainder that no entry fits in")]
    Remainder {
        /// Where the entry before the remainder starts, or the remainder itself.
        at: usize,
    },
    /// The name does not fit in the entry.
    #[error("entry at byte {at}: name longer than the entry")]
    NameLen {
        /// Where the entry starts.
        at: usize,
    },
    /// A used entry has no name, or its name has NUL or `/` in it.
    #[error("entry at byte {at}: illegal name")]
    Name {
        /// Where the entry starts.
        at: usize,
    },
    /// The inode number is above `s_inodes_count`.
    #[error("entry at byte {at}: inode number out of range")]
    InodeNumber {
        /// Where the entry starts.
        at: usize,
    },
    /// `.` is missing or not first.
    #[error("first entry is not `.`")]
    Dot,
    /// `..` is missing or not second.
    #[error("second entry is not `..`")]
    DotDot,
    /// The file system keeps checksums, but the block has no tail for one.
    #[error("no checksum tail")]
    TailMissing,
}

/// What is wrong with an index block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HtreeDefect {
    /// The buffer is not as long as the layout says.
    #[error("index block has the wrong size")]
    BlockSize,
    /// The root does not begin with `.` (12 bytes) and `..` up to the end of the block.
    #[error("index root without `.` and `..` in place")]
    RootDots,
    /// The reserved word of the root is not zero.
    #[error("index root: reserved field set")]
    Reserved,
    /// The hash version is neither 0 to 2 nor 6 (SipHash).
    #[error("index root: hash version {0}")]
    HashVersion(u8),
    /// The info fields are not 8 bytes long, so the entries would begin elsewhere.
    #[error("index root: info length {0}")]
    InfoLength(u8),
    /// Bit 0 of the root's flags is set, which means an unknown format.
    #[error("index root: unknown flags {0:#04x}")]
    Flags(u8),
    /// More index levels than the features allow.
    #[error("index root: {0} indirect levels")]
    Levels(u8),
    /// A node does not begin with an unused entry that spans the whole block.
    #[error("index node does not begin with a free slot")]
    NodeHeader,
    /// `limit` is not what fits in the block.
    #[error("index limit {0} is not what fits in the block")]
    Limit(u16),
    /// `count` is 0 or above `limit`.
    #[error("index count {0} is zero or above the limit")]
    Count(u16),
    /// The key of this entry is below the key of the previous entry.
    #[error("index entry {0}: keys descend")]
    Order(usize),
    /// The entry points to no block of the directory, or to the root.
    #[error("index entry {0}: block outside the directory")]
    Block(usize),
    /// A leaf that must be split holds fewer than two names, or repeated splits made no room for a
    /// name. A split also returns this when the buffer of the new leaf is not one block.
    #[error("leaf cannot be split")]
    Leaf,
    /// A defect of a leaf, or of a linear block that is turned into an index root and a leaf.
    #[error(transparent)]
    Linear(#[from] DirDefect),
}

/// What is wrong with an attribute list. `at` is the offset of the entry from the start of the
/// area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum XattrDefect {
    /// The magic word is missing.
    #[error("attribute magic is not 0xEA020000")]
    Magic,
    /// `h_blocks` of a block is not 1.
    #[error("attribute block claims to span several blocks")]
    Blocks,
    /// `h_refcount` of a block is 0 or above 1024.
    #[error("attribute block has an impossible reference count")]
    Refcount,
    /// An entry or the end mark does not fit in the area.
    #[error("attribute entry at byte {at} does not fit")]
    Entry {
        /// Offset of the entry.
        at: usize,
    },
    /// A name with NUL in it, or an entry with neither index nor name.
    #[error("attribute entry at byte {at}: illegal name")]
    Name {
        /// Offset of the entry.
        at: usize,
    },
    /// The value lies outside of the area, or is longer than any value may be.
    #[error("attribute entry at byte {at}: value outside of its area, or too long")]
    Value {
        /// Offset of the entry.
        at: usize,
    },
    /// The value overlaps the entries or another value.
    #[error("attribute entry at byte {at}: value overlaps something else")]
    Overlap {
        /// Offset of the entry.
        at: usize,
    },
    /// The same name twice.
    #[error("attribute entry at byte {at}: duplicate name")]
    Duplicate {
        /// Offset of the entry.
        at: usize,
    },
    /// Entries of a block out of order: a search by order would miss names.
    #[error("attribute entry at byte {at}: out of order")]
    Order {
        /// Offset of the entry.
        at: usize,
    },
}
