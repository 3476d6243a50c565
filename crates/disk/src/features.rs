//! Feature flags of the superblock in their three classes, with the names that mke2fs and dumpe2fs
//! use.
//!
//! The class of a bit decides what an implementation must do if it does not know the bit. It may
//! ignore an unknown compat bit. It must not write an image with an unknown ro_compat bit. It must
//! refuse an image with an unknown incompat bit. Bits without a name print as `FEATURE_C13`,
//! `FEATURE_I20`, `FEATURE_R7`, as in dumpe2fs.

use core::fmt;

macro_rules! features {
    ($(#[$doc:meta])* $name:ident, $letter:literal { $( $(#$bit_doc:tt)* $bit:literal $constant:ident $text:literal, )+ }) => {
        bitflags::bitflags! {
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
            pub struct $name: u32 {
                $( $(#$bit_doc)* const $constant = $bit; )+
                const _ = !0;
            }
        }

        impl $name {
            /// Every bit that has a name, and the name.
            pub const NAMES: &'static [(Self, &'static str)] = &[ $( (Self::$constant, $text), )+ ];

            /// The feature that mke2fs calls `name`; `None` if this class has no such feature.
            #[must_use]
            pub fn from_feature_name(name: &str) -> Option<Self> {
                Self::NAMES.iter().find(|(_, text)| *text == name).map(|(bit, _)| *bit)
            }

            /// The bits that have no name.
            #[must_use]
            pub fn unnamed(self) -> Self {
                let named = Self::NAMES.iter().fold(0, |bits, (bit, _)| bits | bit.bits());
                Self::from_bits_retain(self.bits() & !named)
            }

            /// The names of all set bits in ascending order of bits.
            pub fn names(self) -> impl Iterator<Item = FeatureName> {
                (0..u32::BITS).filter(move |bit| self.bits() >> bit & 1 == 1).map(|bit| {
                    let known = Self::NAMES.iter().find(|(flag, _)| flag.bits() == 1 << bit);
                    known.map_or(FeatureName::Unnamed($letter, bit), |(_, text)| FeatureName::Named(text))
                })
            }
        }

        impl fmt::Display for $name {
            /// The names, separated by spaces.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for (position, name) in self.names().enumerate() {
                    let space = if position == 0 { "" } else { " " };
                    write!(f, "{space}{name}")?;
                }
                Ok(())
            }
        }
    };
}

/// How one feature bit prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureName {
    /// A name of mke2fs.
    Named(&'static str),
    /// The letter of the class and the bit number.
    Unnamed(char, u32),
}

impl fmt::Display for FeatureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Unnamed(class, bit) => write!(f, "FEATURE_{class}{bit}"),
        }
    }
}

features! {
    /// `s_feature_compat`: an unknown bit may be ignored, for reading and for writing.
    Compat, 'C' {
        /// Hint to preallocate directory blocks.
        0x1 DIR_PREALLOC "dir_prealloc",
        /// AFS inodes.
        0x2 IMAGIC_INODES "imagic_inodes",
        /// A journal exists.
        0x4 HAS_JOURNAL "has_journal",
        /// Extended attribute blocks may exist.
        0x8 EXT_ATTR "ext_attr",
        /// Inode 7 owns blocks reserved for descriptor growth.
        0x10 RESIZE_INODE "resize_inode",
        /// Directories may have a hash index.
        0x20 DIR_INDEX "dir_index",
        /// Never supported by Linux.
        0x40 LAZY_BG "lazy_bg",
        /// Never supported by Linux.
        0x100 SNAPSHOT_BITMAP "snapshot_bitmap",
        /// Superblock backups are only in the groups that `s_backup_bgs` names, at most two.
        0x200 SPARSE_SUPER2 "sparse_super2",
        /// The journal may have a fast-commit area.
        0x400 FAST_COMMIT "fast_commit",
        /// Inode numbers and UUID must not change.
        0x800 STABLE_INODES "stable_inodes",
        /// `s_orphan_file_inum` is the inode of a file that lists orphans.
        0x1000 ORPHAN_FILE "orphan_file",
    }
}

features! {
    /// `s_feature_incompat`: an unknown bit means that the image must not be touched.
    Incompat, 'I' {
        /// Never supported by Linux.
        0x1 COMPRESSION "compression",
        /// Directory entries carry the file type.
        0x2 FILETYPE "filetype",
        /// The journal must be replayed.
        0x4 RECOVER "needs_recovery",
        /// This device is an external journal.
        0x8 JOURNAL_DEV "journal_dev",
        /// From meta group `s_first_meta_bg` on, each meta group holds its own descriptor block.
        0x10 META_BG "meta_bg",
        /// Files may be mapped by extents.
        0x40 EXTENTS "extent",
        /// 64-bit block numbers.
        0x80 BIT64 "64bit",
        /// Multiple mount protection.
        0x100 MMP "mmp",
        /// The bitmaps and inode table of a group may be in other groups.
        0x200 FLEX_BG "flex_bg",
        /// A large attribute value may have an inode of its own.
        0x400 EA_INODE "ea_inode",
        /// Lustre's data in directory entries.
        0x1000 DIRDATA "dirdata",
        /// The checksum seed is stored instead of derived from the UUID.
        0x2000 CSUM_SEED "metadata_csum_seed",
        /// Directories may be larger than 2 GiB and have three index levels.
        0x4000 LARGE_DIR "large_dir",
        /// The content of small files and directories may be in the inode.
        0x8000 INLINE_DATA "inline_data",
        /// Encrypted files may exist.
        0x1_0000 ENCRYPT "encrypt",
        /// Case-insensitive directories may exist.
        0x2_0000 CASEFOLD "casefold",
    }
}

features! {
    /// `s_feature_ro_compat`: an unknown bit means that the image must not be written.
    RoCompat, 'R' {
        /// Superblock backups are only in group 1 and in groups whose numbers are powers of 3, 5
        /// or 7.
        0x1 SPARSE_SUPER "sparse_super",
        /// Files of 2 GiB or more may exist.
        0x2 LARGE_FILE "large_file",
        /// `i_blocks` has 48 bits and may count file system blocks.
        0x8 HUGE_FILE "huge_file",
        /// Descriptors have crc16 checksums, and groups may be uninitialised.
        0x10 GDT_CSUM "uninit_bg",
        /// Directories may have more than 64998 subdirectories.
        0x20 DIR_NLINK "dir_nlink",
        /// Inodes reserve at least `s_min_extra_isize` bytes for fields after the first 128 bytes.
        0x40 EXTRA_ISIZE "extra_isize",
        /// Quota files are hidden inodes.
        0x100 QUOTA "quota",
        /// Space is allocated in clusters of blocks.
        0x200 BIGALLOC "bigalloc",
        /// crc32c on nearly all metadata.
        0x400 METADATA_CSUM "metadata_csum",
        /// Never supported by Linux.
        0x800 REPLICA "replica",
        /// The image must not be written.
        0x1000 READONLY "read-only",
        /// Project ids.
        0x2000 PROJECT "project",
        /// Files may share blocks.
        0x4000 SHARED_BLOCKS "shared_blocks",
        /// Files with Merkle trees may exist.
        0x8000 VERITY "verity",
        /// The orphan file may hold entries.
        0x1_0000 ORPHAN_PRESENT "orphan_present",
    }
}

/// A feature of any class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A feature of `s_feature_compat`.
    Compat(Compat),
    /// A feature of `s_feature_incompat`.
    Incompat(Incompat),
    /// A feature of `s_feature_ro_compat`.
    RoCompat(RoCompat),
}

impl Feature {
    /// Looks a name up in all classes; `None` if no class has it. Also accepts the alternative
    /// names `extents` and `gdt_csum`, as mke2fs does.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = match name {
            "extents" => "extent",
            "gdt_csum" => "uninit_bg",
            other => other,
        };
        Compat::from_feature_name(name)
            .map(Self::Compat)
            .or_else(|| Incompat::from_feature_name(name).map(Self::Incompat))
            .or_else(|| RoCompat::from_feature_name(name).map(Self::RoCompat))
    }
}

/// The three classes of one file system together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FeatureSet {
    /// Features that may be ignored if unknown.
    pub compat: Compat,
    /// Features that must be known to read the image.
    pub incompat: Incompat,
    /// Features that must be known to write the image.
    pub ro_compat: RoCompat,
}

impl FeatureSet {
    /// Whether group descriptors have a checksum: crc16 with uninit_bg, crc32c with metadata_csum.
    /// Without one, the UNINIT flags have no meaning.
    #[must_use]
    pub const fn has_group_checksum(&self) -> bool {
        self.ro_compat.intersects(RoCompat::GDT_CSUM.union(RoCompat::METADATA_CSUM))
    }

    /// Whether metadata has crc32c checksums.
    #[must_use]
    pub const fn has_metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Adds or removes one feature.
    pub fn set(&mut self, feature: Feature, on: bool) {
        match feature {
            Feature::Compat(bits) => self.compat.set(bits, on),
            Feature::Incompat(bits) => self.incompat.set(bits, on),
            Feature::RoCompat(bits) => self.ro_compat.set(bits, on),
        }
    }

    /// Whether a feature is in the set.
    #[must_use]
    pub const fn contains(&self, feature: Feature) -> bool {
        match feature {
            Feature::Compat(bits) => self.compat.contains(bits),
            Feature::Incompat(bits) => self.incompat.contains(bits),
            Feature::RoCompat(bits) => self.ro_compat.contains(bits),
        }
    }
}

impl fmt::Display for FeatureSet {
    /// All names in dumpe2fs's order: compat, incompat, ro_compat.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self
            .compat
            .names()
            .chain(self.incompat.names())
            .chain(self.ro_compat.names())
            .map(|name| name.to_string())
            .collect();
        f.write_str(&names.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_dumpe2fs_prints_them() {
        let set = FeatureSet {
            compat: Compat::HAS_JOURNAL | Compat::from_bits_retain(0x80),
            incompat: Incompat::EXTENTS | Incompat::BIT64 | Incompat::CSUM_SEED,
            ro_compat: RoCompat::from_bits_retain(0x84) | RoCompat::GDT_CSUM,
        };
        assert_eq!(
            set.to_string(),
            "has_journal FEATURE_C7 extent 64bit metadata_csum_seed FEATURE_R2 uninit_bg FEATURE_R7"
        );
        assert_eq!(set.ro_compat.unnamed().bits(), 0x84);
    }

    #[test]
    fn names_are_found_in_every_class() {
        assert_eq!(Feature::from_name("extents"), Some(Feature::Incompat(Incompat::EXTENTS)));
        assert_eq!(Feature::from_name("orphan_file"), Some(Feature::Compat(Compat::ORPHAN_FILE)));
        assert_eq!(Feature::from_name("bigalloc"), Some(Feature::RoCompat(RoCompat::BIGALLOC)));
        assert_eq!(Feature::from_name("bigalloc2"), None);
    }
}
