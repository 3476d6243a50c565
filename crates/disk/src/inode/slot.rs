//! One slot of an inode table: the fixed inode, its extra fields, and the rest that holds
//! attributes.
//!
//! Invariant: the slot has at least 128 bytes. An extra field exists if the inode's `i_extra_isize`
//! covers it and the slot is long enough. The superblock is not consulted. Absent fields read as
//! zero (an absent creation time as `None`), and setting them does nothing.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::raw::{RawInode, RawInodeExtra};
use crate::num::{high32, join32, low32};
use crate::timestamp::Timestamp;

/// A view of one inode slot, from 128 bytes up to one block. Owns or borrows its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeSlot<B> {
    bytes: B,
}

/// Getter of a time in the fixed part with its extra word.
macro_rules! time {
    ($(#[$doc:meta])* $get:ident, $low:ident, $extra:ident) => {
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> Timestamp {
            let extra = self.extra_word(core::mem::offset_of!(RawInodeExtra, $extra));
            Timestamp::from_disk(self.raw().$low.get(), extra.unwrap_or(0))
        }
    };
}

/// The setter that belongs to [`time`].
macro_rules! set_time {
    ($(#[$doc:meta])* $set:ident, $low:ident, $extra:ident) => {
        $(#[$doc])*
        pub fn $set(&mut self, time: Timestamp) {
            let offset = core::mem::offset_of!(RawInodeExtra, $extra);
            let (low, extra) = time.to_disk();
            let wide = self.set_extra_word(offset, extra);
            self.raw_mut().$low = U32::new(if wide { low } else { time.to_disk_short() });
        }
    };
}

impl<B: AsRef<[u8]>> InodeSlot<B> {
    /// Views a slot; its length is the inode size of the file system.
    ///
    /// # Panics
    /// When it has fewer than 128 bytes.
    #[must_use]
    pub fn new(bytes: B) -> Self {
        assert!(bytes.as_ref().len() >= RawInode::SIZE, "an inode has at least 128 bytes");
        Self { bytes }
    }

    /// The whole slot.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The fixed part.
    #[must_use]
    pub fn raw(&self) -> &RawInode {
        RawInode::ref_from_bytes(&self.bytes()[..RawInode::SIZE]).expect("128 bytes, alignment 1")
    }

    /// `i_extra_isize`, 0 for a slot of 128 bytes. As stored: it may reach past the slot.
    #[must_use]
    pub fn extra_isize(&self) -> u16 {
        match self.bytes().get(RawInode::SIZE..RawInode::SIZE + 2) {
            Some(bytes) => u16::from_le_bytes([bytes[0], bytes[1]]),
            None => 0,
        }
    }

    /// The extra fields, with those beyond `i_extra_isize` zero; `None` for a slot of 128 bytes.
    #[must_use]
    pub fn extra(&self) -> Option<RawInodeExtra> {
        let there = self.bytes().get(RawInode::SIZE..).filter(|rest| !rest.is_empty())?;
        let valid = usize::from(self.extra_isize()).clamp(2, RawInodeExtra::SIZE).min(there.len());
        let mut extra = RawInodeExtra::zeroed();
        extra.as_mut_bytes().get_mut(..valid)?.copy_from_slice(there.get(..valid)?);
        Some(extra)
    }

    /// The room for in-inode attributes: the bytes after the extra fields. Empty if there are no
    /// such bytes, or if `i_extra_isize` reaches past the slot.
    #[must_use]
    pub fn attribute_area(&self) -> &[u8] {
        if self.bytes().len() <= RawInode::SIZE {
            return &[];
        }
        self.bytes().get(RawInode::SIZE + usize::from(self.extra_isize())..).unwrap_or(&[])
    }

    /// A word of the extra fields by its offset in [`RawInodeExtra`], if it exists.
    fn extra_word(&self, offset: usize) -> Option<u32> {
        if offset + 4 > usize::from(self.extra_isize()) {
            return None;
        }
        let start = RawInode::SIZE + offset;
        let bytes = self.bytes().get(start..start + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    time! {
        /// Time of the last access.
        accessed, i_atime, i_atime_extra
    }
    time! {
        /// Time of the last change of the inode.
        changed, i_ctime, i_ctime_extra
    }
    time! {
        /// Time of the last change of the content.
        modified, i_mtime, i_mtime_extra
    }

    /// Time of creation; `None` when the inode has no room for it.
    #[must_use]
    pub fn created(&self) -> Option<Timestamp> {
        let low = self.extra_word(core::mem::offset_of!(RawInodeExtra, i_crtime))?;
        let extra = self.extra_word(core::mem::offset_of!(RawInodeExtra, i_crtime_extra));
        Some(Timestamp::from_disk(low, extra.unwrap_or(0)))
    }

    /// Version: 64 bits if the inode has room for the high half, otherwise 32.
    #[must_use]
    pub fn version(&self) -> u64 {
        let hi = self.extra_word(core::mem::offset_of!(RawInodeExtra, i_version_hi));
        join32(hi.unwrap_or(0), self.raw().i_version.get())
    }

    /// Project id; 0 if the inode has no room for it.
    #[must_use]
    pub fn project(&self) -> u32 {
        self.extra_word(core::mem::offset_of!(RawInodeExtra, i_projid)).unwrap_or(0)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> InodeSlot<B> {
    /// The whole slot for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut()
    }

    /// The fixed part for writing.
    pub fn raw_mut(&mut self) -> &mut RawInode {
        RawInode::mut_from_bytes(&mut self.bytes.as_mut()[..RawInode::SIZE]).expect("128 bytes, alignment 1")
    }

    /// Sets `i_extra_isize`; does nothing for a slot of 128 bytes.
    pub fn set_extra_isize(&mut self, bytes: u16) {
        if let Some(field) = self.bytes.as_mut().get_mut(RawInode::SIZE..RawInode::SIZE + 2) {
            field.copy_from_slice(&bytes.to_le_bytes());
        }
    }

    /// Sets a word of the extra fields. If the inode does not have the word, returns `false` and
    /// changes nothing.
    fn set_extra_word(&mut self, offset: usize, word: u32) -> bool {
        if offset + 4 > usize::from(self.extra_isize()) {
            return false;
        }
        let start = RawInode::SIZE + offset;
        match self.bytes.as_mut().get_mut(start..start + 4) {
            Some(bytes) => {
                bytes.copy_from_slice(&word.to_le_bytes());
                true
            }
            None => false,
        }
    }

    set_time! {
        /// Sets the time of the last access.
        set_accessed, i_atime, i_atime_extra
    }
    set_time! {
        /// Sets the time of the last change of the inode.
        set_changed, i_ctime, i_ctime_extra
    }
    set_time! {
        /// Sets the time of the last change of the content.
        set_modified, i_mtime, i_mtime_extra
    }

    /// Sets the creation time; does nothing when the inode has no room for it.
    pub fn set_created(&mut self, time: Timestamp) {
        let (low, extra) = time.to_disk();
        let wide = self.set_extra_word(core::mem::offset_of!(RawInodeExtra, i_crtime_extra), extra);
        let low = if wide { low } else { time.to_disk_short() };
        self.set_extra_word(core::mem::offset_of!(RawInodeExtra, i_crtime), low);
    }

    /// Sets the version, without its high half if the inode has no room for that.
    pub fn set_version(&mut self, version: u64) {
        self.raw_mut().i_version = U32::new(low32(version));
        self.set_extra_word(core::mem::offset_of!(RawInodeExtra, i_version_hi), high32(version));
    }

    /// Sets the project id. Does nothing if the inode has no room for it.
    pub fn set_project(&mut self, project: u32) {
        self.set_extra_word(core::mem::offset_of!(RawInodeExtra, i_projid), project);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_fields_exist_as_far_as_the_inode_says() {
        let mut slot = InodeSlot::new(vec![0u8; 256]);
        let time = Timestamp { seconds: 1 << 33, nanoseconds: 5 };
        slot.set_modified(time);
        assert_eq!(slot.modified(), Timestamp::from_seconds(Timestamp::SECONDS_MAX_SHORT));
        slot.set_extra_isize(32);
        slot.set_modified(time);
        slot.set_created(time);
        slot.set_project(7);
        slot.set_version(1 << 40 | 3);
        assert_eq!((slot.modified(), slot.created()), (time, Some(time)));
        assert_eq!((slot.project(), slot.version()), (7, 1 << 40 | 3));
        assert_eq!(slot.attribute_area().len(), 256 - 160);
        slot.set_extra_isize(16);
        assert_eq!((slot.created(), slot.project()), (None, 0));
        assert_eq!(slot.extra().unwrap().i_projid.get(), 0);
    }

    #[test]
    fn a_short_slot_has_no_extra_fields() {
        let mut slot = InodeSlot::new([0u8; 128]);
        slot.set_extra_isize(32);
        slot.set_created(Timestamp::from_seconds(1));
        assert_eq!((slot.extra(), slot.created(), slot.extra_isize()), (None, None, 0));
        assert!(slot.attribute_area().is_empty());
    }

    #[test]
    fn an_oversized_extra_size_is_harmless() {
        let mut slot = InodeSlot::new([0xFFu8; 256]);
        assert!(slot.attribute_area().is_empty());
        slot.set_extra_isize(0xFFFC);
        assert!(slot.attribute_area().is_empty());
        assert!(slot.created().is_some());
    }
}
