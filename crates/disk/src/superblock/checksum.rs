//! The superblock's checksum, and what the superblock says about all other checksums.

use zerocopy::little_endian::U32;
use zerocopy::transmute_ref;

use super::raw::RawSuperblock;
use crate::checksum::{Checksums, compare, crc32c_raw, object};
use crate::error::{Corruption, CorruptionKind};
use crate::features::{FeatureSet, Incompat};

impl Checksums {
    /// Which checksums a file system with this superblock has: crc32c with metadata_csum, else
    /// crc16 with uninit_bg, else none.
    #[must_use]
    pub fn of(sb: &RawSuperblock) -> Self {
        let features = FeatureSet { compat: sb.compat(), incompat: sb.incompat(), ro_compat: sb.ro_compat() };
        if features.has_metadata_csum() {
            let stored = features.incompat.contains(Incompat::CSUM_SEED);
            let fs_seed = if stored { sb.s_checksum_seed.get() } else { crc32c_raw(!0, &sb.s_uuid) };
            Self::Crc32c { fs_seed }
        } else if features.has_group_checksum() {
            Self::Crc16 { uuid: sb.s_uuid }
        } else {
            Self::None
        }
    }

    /// Compares a superblock copy's checksum.
    ///
    /// # Errors
    /// [`CorruptionKind::SuperblockChecksum`].
    pub fn verify_superblock(&self, sb: &RawSuperblock) -> Result<(), Corruption> {
        let matches =
            self.fs_seed().is_none() || sb.s_checksum.get() == object::superblock(transmute_ref!(sb));
        compare(matches, CorruptionKind::SuperblockChecksum)
    }

    /// Stores a superblock copy's checksum.
    pub fn seal_superblock(&self, sb: &mut RawSuperblock) {
        if self.fs_seed().is_some() {
            sb.s_checksum = U32::new(object::superblock(transmute_ref!(sb)));
        }
    }
}
