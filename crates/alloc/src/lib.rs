//! Block and inode allocation of ext4: mechanism, search and policies.

#![forbid(unsafe_code)]

pub mod inode;
