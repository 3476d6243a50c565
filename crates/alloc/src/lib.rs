//! Block and inode allocation of ext4: mechanism, search and policies.
