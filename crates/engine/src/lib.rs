//! The file system: mkfs, cache, transactions, inodes, extents, directories.
