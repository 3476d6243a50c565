//! The codes of findings: e2fsck's code if it has one for the fault, or else one of our own.
//!
//! e2fsck's codes are `0xPPNNNN`, with the pass (0 to 6) in the high byte. Ours are `0xF0PPNN`,
//! again with the pass that they belong to. A code is an error when `e2fsck -n` calls a file system
//! with such a finding unclean, and a note otherwise. Three kinds of findings are notes:
//! - those that e2fsck can leave unrepaired and still call the file system clean;
//! - most of what e2fsck finds before pass 1, because it does not affect e2fsck's verdict;
//! - what e2fsck does not look at.
//!
//! The verdict depends on errors only.

/// Whether a finding makes the file system unclean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file system is not clean.
    Error,
    /// Worth knowing. A file system with only notes is clean, for e2fsck, too.
    Note,
}

/// Number of a kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u32);

macro_rules! codes {
    ($( $name:ident $number:literal $severity:ident $text:literal; )+) => {
        #[allow(missing_docs, reason = "the text in the table says it")]
        impl Code {
            $( pub const $name: Self = Self($number); )+

            /// Every code.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )+ ];

            /// Whether findings with this code make the file system unclean.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self.0 { $( $number => Severity::$severity, )+ _ => Severity::Error }
            }

            /// What is wrong, in one phrase.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 { $( $number => $text, )+ _ => "unknown" }
            }
        }
    };
}

/// The codes of the faults that `e2fsck -p` repairs without asking, because nothing of value is
/// lost. They are in ascending order.
#[rustfmt::skip]
const SAFE: &[u32] = &[
    0x00_000a, 0x00_000f, 0x00_0015, 0x00_0016, 0x00_0017, 0x00_001a, 0x00_0031, 0x00_0032, 0x00_0033,
    0x00_0035, 0x00_0036, 0x00_0038, 0x00_0039, 0x00_003b, 0x00_003c, 0x00_003d, 0x00_003e, 0x00_0041,
    0x00_0042, 0x00_0043, 0x00_0046, 0x00_0047, 0x00_0048, 0x00_004a, 0x00_004b, 0x01_0002, 0x01_0003,
    0x01_0004, 0x01_0005, 0x01_0006, 0x01_000c, 0x01_000d, 0x01_001b, 0x01_001c, 0x01_001d, 0x01_001e,
    0x01_001f, 0x01_0020, 0x01_0021, 0x01_0023, 0x01_0030, 0x01_0032, 0x01_0033, 0x01_0034, 0x01_0035,
    0x01_0047, 0x01_0048, 0x01_0049, 0x01_004a, 0x01_004b, 0x01_004c, 0x01_004f, 0x01_0050, 0x01_0051,
    0x01_0052, 0x01_0053, 0x01_0054, 0x01_005c, 0x01_0062, 0x01_0063, 0x01_0064, 0x01_0068, 0x01_006f,
    0x01_0073, 0x01_0076, 0x01_007f, 0x01_0082, 0x01_0083, 0x01_0085, 0x01_0086, 0x01_0087, 0x01_008d,
    0x01_008e, 0x01_008f, 0x01_0090, 0x01_0092, 0x01_4006, 0x01_4007, 0x02_0003, 0x02_0027, 0x02_0029,
    0x02_0033, 0x02_0039, 0x02_003c, 0x02_003d, 0x02_003e, 0x02_003f, 0x02_0046, 0x02_0047, 0x02_0048,
    0x02_0049, 0x02_004a, 0x02_004c, 0x02_004d, 0x03_0004, 0x04_0001, 0x04_0003, 0x04_0005, 0x04_0007,
    0x04_0008, 0x05_0001, 0x05_0002, 0x05_0003, 0x05_0004, 0x05_0005, 0x05_0006, 0x05_0007, 0x05_0008,
    0x05_0009, 0x05_000a, 0x05_000b, 0x05_000c, 0x05_000d, 0x05_000e, 0x05_000f, 0x05_0014, 0x05_0015,
    0x05_0016, 0x05_0017, 0x05_0018, 0x05_0019, 0x05_001a, 0x05_001b, 0x06_0001, 0x06_0002, 0x06_0007,
    0x06_0009, 0x06_000c, 0x06_000d, 0x06_000e,
];

impl Code {
    /// Whether `-p` repairs findings with this code without asking.
    #[must_use]
    pub fn is_safe(self) -> bool {
        SAFE.binary_search(&self.0).is_ok() || matches!(self, Self::ORPHAN_UNFINISHED | Self::EXTENT_DEPTH)
    }

    /// The number.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The pass the code belongs to.
    #[must_use]
    pub const fn pass(self) -> u8 {
        let [high, middle, low, _] = (self.0 << 8).to_be_bytes();
        let _ = low;
        if high == 0xF0 { middle } else { high }
    }

    /// Whether e2fsck stops at a finding with this code, with exit code 8, although the superblock
    /// is usable.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        matches!(self, Self::JOURNAL_SHARED) || self.is_about_external_journal()
    }

    /// Whether the fault is that an external journal is missing or unusable.
    #[must_use]
    pub const fn is_about_external_journal(self) -> bool {
        matches!(self, Self::EXTERNAL_JOURNAL | Self::EXTERNAL_JOURNAL_BAD | Self::EXTERNAL_JOURNAL_OTHER)
    }

    /// Whether the number is one of e2fsck's.
    #[must_use]
    pub const fn is_e2fsck(self) -> bool {
        self.0 < 0xF0_0000
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

codes! {
    // ---- superblock and descriptors ----
    BLOCK_BITMAP_PLACE 0x00_0001 Error "block bitmap is outside its allowed range";
    INODE_BITMAP_PLACE 0x00_0002 Error "inode bitmap is outside its allowed range";
    INODE_TABLE_PLACE 0x00_0003 Error "inode table is outside its allowed range";
    SUPERBLOCK_BAD 0x00_0004 Error "superblock is unusable";
    DEVICE_SHORT 0x00_0005 Error "the file system is larger than the device";
    SUPERBLOCK_CONSTANT 0x00_000b Error "superblock constant out of range";
    INODES_COUNT 0x00_000d Error "inode count is not groups times inodes per group";
    HURD_FILETYPE 0x00_000e Note "filetype is set, but the Hurd made the file system and does not support it";
    JOURNAL_INODE 0x00_000f Error "journal inode is unusable";
    JOURNAL_SHARED 0x00_0010 Error "external journal serves several file systems";
    EXTERNAL_JOURNAL 0x00_0011 Error "external journal was not given";
    EXTERNAL_JOURNAL_BAD 0x00_0012 Error "external journal has no usable superblock";
    EXTERNAL_JOURNAL_OTHER 0x00_0013 Error "external journal belongs to another file system";
    JOURNAL_SUPERBLOCK 0x00_0015 Error "journal superblock is corrupt";
    JOURNAL_WITHOUT_FEATURE 0x00_0016 Note "a journal is named although the feature is off";
    RECOVER_WITHOUT_JOURNAL 0x00_0017 Error "recovery is asked for although there is no journal";
    LOG_NOT_EMPTY 0x00_0018 Note "the journal has content although the recovery flag is clear";
    REVISION_LOW 0x00_001a Note "features are set in a revision 0 superblock";
    ORPHAN_PENDING 0x00_0020 Note "inode waits on the orphan list";
    ORPHAN_HEAD 0x00_0023 Note "head of the orphan list is no inode";
    ORPHAN_LINK 0x00_0024 Note "link of the orphan list is no inode";
    JOURNAL_BACKUP 0x00_002d Note "copy of the journal inode in the superblock is stale";
    RESERVED_GDT_WITHOUT_FEATURE 0x00_002e Note "blocks reserved for descriptors although resize_inode is off";
    RESIZE_WITHOUT_FEATURE 0x00_002f Note "resize inode in use although the feature is off";
    RESIZE_INODE 0x00_0030 Note "resize inode has the wrong structure";
    MOUNT_TIME_FUTURE 0x00_0031 Note "last mount lies in the future";
    WRITE_TIME_FUTURE 0x00_0032 Note "last write lies in the future";
    HASH_SIGNEDNESS 0x00_0034 Note "signedness of directory hashes is not recorded";
    GROUP_CHECKSUM 0x00_0035 Note "group descriptor checksum does not match";
    UNINIT_WITHOUT_FEATURE 0x00_0036 Note "group is marked uninitialised although the feature is off";
    ITABLE_UNUSED 0x00_0038 Note "more never-used inodes than the group has";
    LAST_GROUP_UNINIT 0x00_0039 Note "last group is marked BLOCK_UNINIT";
    LOG_CORRUPT 0x00_003a Error "the journal holds a corrupt transaction";
    TEST_FILESYSTEM 0x00_003b Note "marked as a file system for tests";
    MMP_BLOCK 0x00_0042 Error "MMP block is out of range";
    MMP_MAGIC 0x00_0043 Error "MMP magic is wrong";
    DESCRIPTORS_BACKUP 0x00_0045 Note "group descriptors are unusable, a backup is taken";
    BOTH_CHECKSUMS 0x00_0046 Note "metadata_csum and uninit_bg are both set";
    MMP_CHECKSUM 0x00_0047 Error "MMP checksum does not match";
    WIDE_WITHOUT_EXTENTS 0x00_0048 Note "64bit without extents";
    FIRST_META_BG 0x00_0049 Error "first meta group is beyond the descriptors";
    SEED_WITHOUT_CHECKSUMS 0x00_004b Note "checksum seed without metadata_csum";
    MIN_EXTRA_ISIZE 0x00_004d Note "minimal extra inode size is impossible";
    WANT_EXTRA_ISIZE 0x00_004e Note "wanted extra inode size is impossible";
    QUOTA_INODE 0x00_004f Note "quota inode number is impossible";
    RESIZE_WITH_META_BG 0x00_0051 Note "resize_inode and meta_bg are both set";
    ORPHAN_FILE_HOLE 0x00_0052 Error "orphan file has a hole";
    ORPHAN_FILE_MAGIC 0x00_0053 Error "orphan file block has the wrong magic";
    ORPHAN_FILE_CHECKSUM 0x00_0054 Error "orphan file block checksum does not match";
    ORPHAN_FILE_SIZE 0x00_0055 Error "orphan file has an impossible size";

    // ---- inodes ----
    ROOT_NOT_DIRECTORY 0x01_0001 Error "root is not a directory";
    ROOT_DTIME 0x01_0002 Error "root has a deletion time";
    RESERVED_MODE 0x01_0003 Error "reserved inode has a mode";
    UNUSED_NO_DTIME 0x01_0004 Error "deleted inode has no deletion time";
    USED_DTIME 0x01_0005 Error "inode in use has a deletion time";
    DIRECTORY_EMPTY 0x01_0006 Error "directory without a block";
    BLOCK_BITMAP_CONFLICT 0x01_0007 Error "block bitmap overlaps other metadata";
    INODE_BITMAP_CONFLICT 0x01_0008 Error "inode bitmap overlaps other metadata";
    INODE_TABLE_CONFLICT 0x01_0009 Error "inode table overlaps other metadata";
    BAD_BLOCK_BITMAP 0x01_000a Error "a block bitmap is listed as bad";
    BAD_INODE_BITMAP 0x01_000b Error "an inode bitmap is listed as bad";
    SIZE_WRONG 0x01_000c Error "i_size is wrong";
    BLOCKS_WRONG 0x01_000d Error "i_blocks is wrong";
    ILLEGAL_BLOCK 0x01_000e Error "block map points outside of the file system";
    BAD_PRIMARY 0x01_0017 Error "primary superblock or descriptors are listed as bad";
    IMAGIC 0x01_002f Error "imagic flag without the feature";
    SPECIAL_IMMUTABLE 0x01_0030 Note "special file is immutable or append-only";
    SPECIAL_SIZE 0x01_0032 Error "special file has a size";
    LARGE_REVISION 0x01_0033 Note "large files need revision 1";
    JOURNAL_INODE_IN_USE 0x01_0034 Error "journal inode in use although there is no journal";
    JOURNAL_MODE 0x01_0035 Error "journal inode is not a regular file";
    LOW_DTIME 0x01_0036 Error "deletion time looks like a link of the orphan list";
    XATTR_BLOCK_READ 0x01_0039 Error "attribute block cannot be read";
    XATTR_BLOCK_MAGIC 0x01_003a Error "attribute block has the wrong magic";
    XATTR_REFCOUNT 0x01_003c Error "attribute block reference count is wrong";
    XATTR_SPANS 0x01_003e Error "attribute block claims to span several blocks";
    XATTR_OVERLAP 0x01_0040 Error "attribute block: entries overlap";
    XATTR_NAME 0x01_0041 Error "attribute block: illegal name";
    XATTR_VALUE 0x01_0042 Error "attribute block: value outside";
    SIZE_TOO_LARGE 0x01_0043 Error "size is beyond what the map can hold";
    INDEX_WITHOUT_FEATURE 0x01_0047 Error "index flag without dir_index";
    INDEX_NOT_DIRECTORY 0x01_0048 Error "index flag on something other than a directory";
    HTREE_ROOT 0x01_0049 Error "index root cannot be read";
    HTREE_VERSION 0x01_004a Error "index root names an unknown hash";
    BAD_LIST_PLACE 0x01_007b Error "the inode of the bad-blocks list lies in a bad block";
    HTREE_SIPHASH_MISSING 0x01_008d Error "index of an encrypted directory with case folding has another hash than SipHash";
    HTREE_SIPHASH 0x01_008e Error "index has SipHash, which only encrypted directories with case folding have";
    HTREE_FLAGS 0x01_004b Error "index root has unknown flags";
    HTREE_DEPTH 0x01_004c Error "index is too deep";
    EXTRA_ISIZE 0x01_004f Error "extra inode size is impossible";
    INODE_XATTR_NAME 0x01_0050 Error "attribute in inode: name does not fit";
    INODE_XATTR_OFFSET 0x01_0051 Error "attribute in inode: value outside";
    INODE_XATTR_SIZE 0x01_0053 Error "attribute in inode: impossible value size";
    XATTR_HASH 0x01_0054 Error "attribute hash does not match";
    EXTENT_TREE_READ 0x01_0056 Error "extent tree cannot be read";
    EXTENT_START 0x01_0058 Error "extent starts outside of the file system";
    EXTENT_END 0x01_0059 Error "extent ends past the file system";
    EXTENTS_WITHOUT_FEATURE 0x01_005a Error "extents flag without the feature";
    EXTENTS_UNFLAGGED 0x01_005c Error "extent header without the extents flag";
    SYMLINK_EXTENTS 0x01_005d Error "short symbolic link with the extents flag";
    EXTENT_ORDER 0x01_005e Error "extents are out of order";
    EXTENT_HEADER 0x01_005f Error "extent node header is invalid";
    EXTENT_EMPTY 0x01_0060 Error "extent of length zero";
    QUOTA_MODE 0x01_0062 Error "quota inode is not a regular file";
    QUOTA_INODE_IN_USE 0x01_0063 Error "quota inode in use although there is no such quota";
    BAD_BLOCKS_INODE 0x01_0065 Error "bad-blocks inode looks invalid";
    INODE_GARBAGE 0x01_0067 Error "inode is garbage";
    INODE_CHECKSUM 0x01_0068 Error "inode checksum does not match";
    INODE_XATTR_OVERLAP 0x01_0069 Error "attributes in inode overlap";
    EXTENT_CHECKSUM 0x01_006a Error "extent block checksum does not match";
    XATTR_CHECKSUM 0x01_006c Error "attribute block checksum does not match";
    EXTENT_INDEX_KEY 0x01_006d Error "extent index key is not the first key below";
    EXTENT_BEYOND_PARENT 0x01_006e Error "extent reaches past its parent's range";
    INLINE_UNDECLARED 0x01_006f Error "inline data and its attribute, but without the feature";
    INLINE_WITHOUT_FEATURE 0x01_0070 Error "inline data flag without the attribute and the feature";
    MAP_IN_METADATA 0x01_0071 Error "block of a map lies in metadata";
    DIRECTORY_HOLE 0x01_0072 Error "hole in a directory's map";
    DIRECTORY_UNWRITTEN 0x01_0073 Error "directory block is marked unwritten";
    CLUSTER_MISALIGNED 0x01_0074 Error "blocks of a cluster are not mapped to one cluster at the same offsets";
    INLINE_NO_ATTRIBUTE 0x01_0075 Error "inline data without its attribute";
    SPECIAL_FLAGS 0x01_0076 Error "special file with extents or inline data flag";
    INLINE_BUT_EXTENTS 0x01_0077 Error "inline data flag over an extent header";
    BOTH_MAP_FLAGS 0x01_007a Error "extents and inline data flags together";
    EXTENT_OVERLAP 0x01_007d Error "extents overlap";
    MAP_ON_BIGALLOC 0x01_0080 Error "block map on a bigalloc file system";
    EXTENTS_NO_HEADER 0x01_0081 Error "extents flag without an extent header";
    EA_INODE_BAD 0x01_0083 Error "inode of an attribute value is unusable";
    EA_INODE_UNFLAGGED 0x01_0085 Error "inode of an attribute value lacks its flag";
    CASEFOLD_NOT_DIRECTORY 0x01_0088 Error "casefold flag on something other than a directory";
    CASEFOLD_WITHOUT_FEATURE 0x01_0089 Error "casefold flag without the feature";
    ENCRYPT_NO_ATTRIBUTE 0x01_008a Error "encrypt flag without its attribute";
    ENCRYPT_CONTEXT 0x01_008b Error "encryption attribute is corrupt";
    ORPHAN_FILE_MODE 0x01_008f Error "orphan file is not a regular file";
    ORPHAN_FILE_IN_USE 0x01_0090 Error "orphan file although the feature is off";
    EA_FLAG_NOT_REGULAR 0x01_0091 Note "attribute-value flag on something other than a file";
    EA_FLAG_WITHOUT_FEATURE 0x01_0092 Note "attribute-value inode without the feature";
    SHARED_BLOCKS 0x01_1002 Error "inode claims blocks that others claim too";

    // ---- directories ----
    DOT_INODE 0x02_0001 Error "`.` names another inode";
    ENTRY_INODE 0x02_0002 Error "entry names an impossible inode";
    ENTRY_UNUSED 0x02_0003 Error "entry names an unused inode";
    ENTRY_SELF 0x02_0004 Error "entry names its own directory";
    ENTRY_BAD_BLOCK 0x02_0005 Error "entries name an inode that lies in a bad block";
    SECOND_LINK 0x02_0006 Error "second link to a directory";
    ENTRY_ROOT 0x02_0007 Error "entry names the root";
    NAME_CHARACTER 0x02_0008 Error "illegal character in a name";
    DOT_MISSING 0x02_0009 Error "`.` is missing";
    DOTDOT_MISSING 0x02_000a Error "`..` is missing";
    FADDR 0x02_000d Error "i_faddr is not zero";
    XATTR_WITHOUT_FEATURE 0x02_000e Error "attribute block without the feature";
    DIR_SIZE_HIGH 0x02_000f Error "high half of a directory's size is not zero";
    MODE_INVALID 0x02_0012 Error "mode names no type of file";
    ENTRY_CORRUPT 0x02_0013 Error "directory entry is corrupt";
    NAME_TOO_LONG 0x02_0014 Error "name does not fit its entry";
    DIRECTORY_BLOCK_HOLE 0x02_0015 Error "hole in a directory";
    DOT_UNTERMINATED 0x02_0016 Error "no zero byte follows `.`";
    DOTDOT_UNTERMINATED 0x02_0017 Error "no zero byte follows `..`";
    CHAR_DEVICE 0x02_0018 Note "character device has an impossible map";
    BLOCK_DEVICE 0x02_0019 Note "block device has an impossible map";
    DUPLICATE_DOT 0x02_001a Error "second `.`";
    DUPLICATE_DOTDOT 0x02_001b Error "second `..`";
    DIRECTORY_READ 0x02_0020 Error "directory block cannot be read";
    DOT_SLACK 0x02_0024 Note "`.` has room for another entry";
    FIFO 0x02_0025 Note "named pipe has an impossible map";
    SOCKET 0x02_0026 Note "socket has an impossible map";
    TYPE_UNSET 0x02_0027 Note "entry does not record the type";
    TYPE_WRONG 0x02_0028 Error "entry records the wrong type";
    TYPE_WITHOUT_FEATURE 0x02_0029 Error "entry records a type although the feature is off";
    NAME_EMPTY 0x02_0030 Error "empty name";
    SYMLINK 0x02_0031 Error "symbolic link is impossible";
    XATTR_BLOCK_PLACE 0x02_0032 Error "attribute block is outside of the file system";
    LARGE_FILE_FEATURE 0x02_0033 Error "large file although the feature is off";
    HTREE_UNREFERENCED 0x02_0034 Error "index does not refer to a block";
    HTREE_TWICE 0x02_0035 Error "index refers to a block twice";
    HTREE_BELOW_MINIMUM 0x02_0036 Error "name hashes below its leaf";
    HTREE_ABOVE_MAXIMUM 0x02_0037 Error "name hashes above its leaf";
    HTREE_OUTSIDE 0x02_003a Error "index points outside of the directory";
    HTREE_ROOT_STRUCTURE 0x02_003c Error "index root is invalid";
    HTREE_LIMIT 0x02_003d Error "index limit is wrong";
    HTREE_COUNT 0x02_003e Error "index count is wrong";
    HTREE_ORDER 0x02_003f Error "index keys do not ascend";
    HTREE_LEAF_DEPTH 0x02_0040 Error "leaves of the index lie at different depths";
    DUPLICATE_ENTRY 0x02_0041 Error "the same entry twice";
    DUPLICATE_NAME 0x02_0042 Error "the same name twice";
    BLOCKS_HIGH 0x02_0044 Error "high bits of i_blocks without huge_file";
    UNINIT_INODE 0x02_0046 Error "entry names an inode of an uninitialised group";
    UNUSED_AREA_INODE 0x02_0047 Error "entry names an inode in the never-used part of its table";
    FILE_ACL_HIGH 0x02_0048 Error "high bits of the attribute block without 64bit";
    HTREE_ROOT_CHECKSUM 0x02_0049 Error "index root checksum does not match";
    HTREE_NODE_CHECKSUM 0x02_004a Error "index node checksum does not match";
    LEAF_NO_TAIL 0x02_004c Error "directory block has no room for its checksum";
    LEAF_CHECKSUM 0x02_004d Error "directory block checksum does not match";
    INLINE_DIR_SIZE 0x02_004e Error "inline directory has the wrong size";
    ENCRYPTED_NAME_SHORT 0x02_0050 Error "encrypted name is too short";
    ENCRYPTED_NOT 0x02_0051 Error "encrypted directory names an inode that is not encrypted";
    ENCRYPTED_OTHERWISE 0x02_0052 Error "encrypted directory names an inode with another policy";
    ENTRY_EA_INODE 0x02_0055 Note "entry names the inode of an attribute value";

    // ---- connectivity and links ----
    NO_ROOT 0x03_0001 Error "there is no root directory";
    UNCONNECTED 0x03_0003 Error "directory is not connected";
    LOST_FOUND_MISSING 0x03_0004 Note "lost+found is missing";
    DOTDOT_WRONG 0x03_0005 Error "`..` names another directory than the one above";
    LOST_FOUND_NOT_DIRECTORY 0x03_0017 Note "lost+found is not a directory";
    LOST_FOUND_INLINE 0x03_0018 Note "lost+found has inline data";
    DIRECTORY_LOOP 0x03_001d Error "directory loop";
    UNATTACHED_EMPTY 0x04_0001 Error "unattached inode without content";
    UNATTACHED 0x04_0002 Error "unattached inode";
    LINK_COUNT 0x04_0003 Error "link count is wrong";
    EA_REFCOUNT 0x04_0005 Error "reference count of an attribute value is wrong";
    DIR_NLINK_NEEDED 0x04_0006 Error "directory with too many links needs dir_nlink";
    DIR_LINK_COUNT_ONE 0x04_0007 Error "link count of a directory is 1 although the real count fits";

    EA_FLAG_ON_FILE 0x04_0008 Note "attribute-value flag on an inode that no attribute refers to";

    // ---- bitmaps and counts ----
    INODE_BITMAP_PADDING 0x05_0001 Error "padding of the inode bitmap is not set";
    BLOCK_BITMAP_PADDING 0x05_0002 Error "padding of the block bitmap is not set";
    BLOCKS_MARKED_FREE_RANGE 0x05_0014 Error "blocks are marked used and are free";
    BLOCKS_MARKED_USED_RANGE 0x05_0015 Error "blocks are marked free and are used";
    INODES_MARKED_RANGE 0x05_0016 Error "inodes are marked used and are free";
    INODES_UNMARKED_RANGE 0x05_0017 Error "inodes are marked free and are used";
    FREE_INODES_GROUP 0x05_000b Error "free inode count of the group is wrong";
    USED_DIRS_GROUP 0x05_000c Error "directory count of the group is wrong";
    FREE_INODES_TOTAL 0x05_000d Note "free inode count of the superblock is wrong";
    FREE_BLOCKS_GROUP 0x05_000e Error "free block count of the group is wrong";
    FREE_BLOCKS_TOTAL 0x05_000f Note "free block count of the superblock is wrong";
    BLOCK_UNINIT_USED 0x05_0018 Error "group marked BLOCK_UNINIT has blocks in use";
    INODE_UNINIT_USED 0x05_0019 Error "group marked INODE_UNINIT has inodes in use";
    INODE_BITMAP_CHECKSUM 0x05_001a Error "inode bitmap checksum does not match";
    BLOCK_BITMAP_CHECKSUM 0x05_001b Error "block bitmap checksum does not match";
    QUOTA_USAGE 0x06_0002 Error "quota file does not match what is used";
    ORPHAN_FILE_NO_JOURNAL 0x06_0007 Error "orphan file without a journal";
    ORPHAN_FILE_ENTRY 0x06_000c Error "orphan file names an inode on a clean file system";
    ORPHAN_PRESENT_EMPTY 0x06_000d Error "orphan_present is set and the orphan file is empty";
    ORPHAN_PRESENT_NO_FILE 0x06_000e Error "orphan_present is set without an orphan file";

    // ---- ours ----
    JOURNAL_REPLAYED 0xF0_0001 Note "the journal was replayed in memory";
    BACKUP_SUPERBLOCK 0xF0_0002 Note "backup superblock differs";
    BACKUP_DESCRIPTORS 0xF0_0003 Note "backup of the group descriptors differs";
    METADATA_READ 0xF0_0004 Error "metadata cannot be read";
    SUPERBLOCK_CHECKSUM 0xF0_0005 Error "superblock checksum does not match";
    ORPHAN_UNFINISHED 0xF0_0006 Error "deletion or truncation of the inode was not finished";
    MMP_SEQUENCE 0xF0_0009 Note "MMP sequence is not that of a closed file system";
    MMP_IN_USE 0xF0_0007 Error "MMP says that the file system is in use or was not closed";
    RESIZE_REST 0xF0_000F Note "resize inode has the wrong structure where e2fsck does not look";
    QUOTA_IS_ROOT 0xF0_0008 Error "a quota file is said to be the root directory";
    EXTENT_DEPTH 0xF0_010A Note "extent node names another depth than its place in the tree";
    EXTENT_ROOT_DEPTH 0xF0_010B Note "empty extent tree is deeper than Linux reads";
    EXTENT_TREE_LOOSE 0xF0_010C Note "extent tree could be shorter or narrower";
    MAP_OLD 0xF0_010D Note "block map could be an extent tree";
    INLINE_SIZE 0xF0_0109 Note "size is beyond the inline data";
    SUPERBLOCK_BACKUP 0xF0_000B Note "superblock is unusable, a backup is taken";
    DESCRIPTORS_NARROW 0xF0_000C Note "group descriptors are too small for 64bit, and Linux does not mount the file system";
    STRAY_JOURNAL_DEVICE 0xF0_0011 Error "a journal device is named although there is no journal";
    NOT_REPLAYED 0xF0_000A Error "the journal asks for recovery and cannot be replayed";
    LOG_UNSUPPORTED 0xF0_000D Error "the journal holds what only Linux or e2fsck can replay";
    METADATA_CONFLICT 0xF0_0101 Error "metadata overlaps";
    INODE_TABLE_READ 0xF0_0102 Error "inode table cannot be read";
    MAP_READ 0xF0_0103 Error "block of a map cannot be read";
    MAP_LOOP 0xF0_0104 Error "map uses the same block twice";
    BUDGET 0xF0_0105 Error "maps of this group are larger than the file system";
    XATTR_NAME_NUL 0xF0_0106 Note "attribute name with NUL in it";
    XATTR_ORDER 0xF0_0107 Note "attributes of a block are out of order";
    XATTR_DUPLICATE 0xF0_0108 Note "the same attribute twice";
    NAME_REPEATED 0xF0_0201 Note "the same name in another block of the directory";
    HTREE_LOST 0xF0_0202 Note "name hashes above its leaf where e2fsck does not mind, and Linux does not find it";
    DIRECTORY_LOOSE 0xF0_0203 Note "directory could be packed, or in hash order";
    BITMAP_UNINIT_METADATA 0xF0_0502 Note "block bitmap lacks metadata of uninitialised groups";
    QUOTA_MAGIC 0xF0_0601 Note "quota file has a wrong magic number, and Linux does not use it";
    BITMAP_READ 0xF0_0501 Error "bitmap cannot be read";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_come_from_the_number() {
        assert_eq!(Code::EXTENT_ORDER.pass(), 1);
        assert_eq!(Code::FREE_BLOCKS_GROUP.pass(), 5);
        assert_eq!(Code::BITMAP_READ.pass(), 5);
        assert_eq!(Code::JOURNAL_REPLAYED.pass(), 0);
        assert_eq!(Code::EXTENT_ORDER.to_string(), "0x01005e");
    }

    #[test]
    fn safe_codes_ascend() {
        assert!(SAFE.is_sorted_by(|a, b| a < b));
        assert!(Code::FREE_BLOCKS_GROUP.is_safe() && !Code::SHARED_BLOCKS.is_safe());
    }

    #[test]
    fn numbers_are_distinct() {
        let mut numbers: Vec<u32> = Code::ALL.iter().map(|code| code.raw()).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
