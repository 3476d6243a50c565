//! Whether an inode holds the value that an attribute refers to, as in Linux (observed on 6.18).

use super::{entry_hash_of_inode_value, entry_hash_of_inode_value_signed};
use crate::InodeNr;
use crate::inode::RawInode;

/// What an attribute and its inode say about a value in another inode.
#[derive(Clone, Copy, Debug)]
pub struct ValueReference<'a> {
    /// The attribute's name, without its prefix.
    pub name: &'a [u8],
    /// The hash in the attribute's entry.
    pub entry_hash: u32,
    /// The inode that has the attribute.
    pub owner: InodeNr,
    /// The generation of `owner`.
    pub generation: u32,
}

impl ValueReference<'_> {
    /// Whether the inode `holder` holds the attribute's value. `hash` is the hash of the content of
    /// `holder`. One of two things must be true:
    ///
    /// - `hash` matches the hashes stored in the entry and in `holder` (`i_atime`).
    /// - `holder` stores the number and generation of `owner` (in `i_mtime` and `i_generation`), as
    ///   value inodes did before they had hashes.
    #[must_use]
    pub fn is_to(&self, holder: &RawInode, hash: u32) -> bool {
        let is_entrys = [entry_hash_of_inode_value, entry_hash_of_inode_value_signed]
            .iter()
            .any(|hash_of| hash_of(self.name, hash) == self.entry_hash);
        let names_owner =
            holder.i_mtime.get() == self.owner.raw() && holder.i_generation.get() == self.generation;
        (is_entrys && holder.i_atime.get() == hash) || names_owner
    }
}
