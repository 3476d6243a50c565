//! Feature words of the journal superblock.

use core::fmt;

use crate::error::{Corruption, CorruptionKind, Error};

bitflags::bitflags! {
    /// `s_feature_compat` of the journal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct JournalCompat: u32 {
        /// Commit blocks carry a crc32 over descriptors and logged data (checksum v1).
        const CHECKSUM = 0x1;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// `s_feature_incompat` of the journal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct JournalIncompat: u32 {
        /// Revoke blocks may exist. Recovery honours them even without the bit.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// A commit block may have been written before the blocks it commits.
        const ASYNC_COMMIT = 0x4;
        /// Every metadata block has a crc32c. A tag stores the low half of its block's checksum.
        const CSUM_V2 = 0x8;
        /// Every metadata block has a crc32c. A tag stores its block's whole checksum.
        const CSUM_V3 = 0x10;
        /// The fast-commit area may hold records.
        const FAST_COMMIT = 0x20;
        const _ = !0;
    }
}

/// The feature words of one journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct JournalFeatures {
    /// Features that may be ignored if unknown.
    pub compat: JournalCompat,
    /// Features that must be known to read the journal.
    pub incompat: JournalIncompat,
    /// Features that must be known to write; none exists.
    pub ro_compat: u32,
}

/// Every known incompatible bit with the name that dumpe2fs prints.
const INCOMPAT_NAMES: [(JournalIncompat, &str); 6] = [
    (JournalIncompat::REVOKE, "journal_incompat_revoke"),
    (JournalIncompat::BIT64, "journal_64bit"),
    (JournalIncompat::ASYNC_COMMIT, "journal_async_commit"),
    (JournalIncompat::CSUM_V2, "journal_checksum_v2"),
    (JournalIncompat::CSUM_V3, "journal_checksum_v3"),
    (JournalIncompat::FAST_COMMIT, "fast_commit"),
];

impl JournalFeatures {
    /// No features.
    pub const NONE: Self =
        Self { compat: JournalCompat::empty(), incompat: JournalIncompat::empty(), ro_compat: 0 };

    /// Refuses unknown incompatible and read-only-compatible bits by name, and more than one kind
    /// of checksum.
    ///
    /// # Errors
    /// [`Error::UnsupportedFeatures`]; [`CorruptionKind::JournalFeatures`].
    pub fn verify(self) -> Result<(), Error> {
        let known = INCOMPAT_NAMES.iter().fold(0, |bits, (bit, _)| bits | bit.bits());
        let unknown_incompat = self.incompat.bits() & !known;
        if unknown_incompat != 0 || self.ro_compat != 0 {
            let unknown = Self {
                compat: JournalCompat::empty(),
                incompat: JournalIncompat::from_bits_retain(unknown_incompat),
                ro_compat: self.ro_compat,
            };
            return Err(Error::UnsupportedFeatures(format!("journal: {unknown}")));
        }
        let kinds = [
            self.compat.contains(JournalCompat::CHECKSUM),
            self.incompat.contains(JournalIncompat::CSUM_V2),
            self.incompat.contains(JournalIncompat::CSUM_V3),
        ];
        if kinds.iter().filter(|present| **present).count() > 1 {
            return Err(Corruption::new(CorruptionKind::JournalFeatures).into());
        }
        Ok(())
    }
}

impl fmt::Display for JournalFeatures {
    /// The names that dumpe2fs prints, separated by spaces; `(none)` if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Vec::new();
        for bit in (0..u32::BITS).filter(|bit| self.compat.bits() >> bit & 1 == 1) {
            names.push(if bit == 0 { "journal_checksum".to_owned() } else { format!("FEATURE_C{bit}") });
        }
        for bit in (0..u32::BITS).filter(|bit| self.incompat.bits() >> bit & 1 == 1) {
            let known = INCOMPAT_NAMES.iter().find(|(flag, _)| flag.bits() == 1 << bit);
            names.push(known.map_or_else(|| format!("FEATURE_I{bit}"), |(_, name)| (*name).to_owned()));
        }
        for bit in (0..u32::BITS).filter(|bit| self.ro_compat >> bit & 1 == 1) {
            names.push(format!("FEATURE_R{bit}"));
        }
        if names.is_empty() {
            return f.write_str("(none)");
        }
        f.write_str(&names.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_refused_by_name() {
        let features = JournalFeatures {
            incompat: JournalIncompat::from_bits_retain(0x41),
            ro_compat: 4,
            ..JournalFeatures::NONE
        };
        assert_eq!(
            features.verify(),
            Err(Error::UnsupportedFeatures("journal: FEATURE_I6 FEATURE_R2".to_owned()))
        );
    }

    #[test]
    fn one_kind_of_checksum_at_most() {
        let features = JournalFeatures {
            compat: JournalCompat::CHECKSUM,
            incompat: JournalIncompat::CSUM_V3,
            ro_compat: 0,
        };
        let expected = Corruption::new(CorruptionKind::JournalFeatures);
        assert_eq!(features.verify(), Err(Error::Corrupt(expected)));
        let features = JournalFeatures {
            incompat: JournalIncompat::CSUM_V3 | JournalIncompat::BIT64,
            ..JournalFeatures::NONE
        };
        assert_eq!(features.verify(), Ok(()));
        assert_eq!(features.to_string(), "journal_64bit journal_checksum_v3");
    }
}
