//! Profiles and usage types: the defaults of mke2fs's configuration file, as data.
//!
//! The figures are those of the `mke2fs.conf` of e2fsprogs 1.47. The file itself is not read, so
//! the same options give the same image on every machine.

use blockyard_disk::features::{Feature, FeatureSet};

use super::feature;

/// Which file system's defaults to start from (`-t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// No journal, block maps.
    Ext2,
    /// A journal, block maps.
    Ext3,
    /// Journal, extents, flex groups, metadata checksums, 64-bit block numbers.
    #[default]
    Ext4,
}

/// How the file system will be used (`-T`); by default the size decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Below 3 MiB: 1 KiB blocks, one inode per 8 KiB.
    Floppy,
    /// Below 512 MiB: 1 KiB blocks, one inode per 4 KiB.
    Small,
    /// From 512 MiB. Overrides nothing: the file system gets 4 KiB blocks and one inode per 16 KiB,
    /// unless an earlier type sets other values.
    Default,
    /// From 4 TiB: one inode per 32 KiB.
    Big,
    /// From 16 TiB: one inode per 64 KiB.
    Huge,
    /// One inode per 4 KiB.
    News,
    /// 4 KiB blocks, one inode per 1 MiB.
    Largefile,
    /// 4 KiB blocks, one inode per 4 MiB.
    Largefile4,
    /// 4 KiB blocks, 128-byte inodes.
    Hurd,
}

/// What a usage type overrides; `None` keeps the value of the type before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overrides {
    pub(super) block_size: Option<u32>,
    pub(super) bytes_per_inode: Option<u32>,
    pub(super) inode_size: Option<u32>,
}

/// What every profile starts from: block size, bytes per inode and inode size.
pub(super) const DEFAULTS: (u32, u32, u32) = (4096, 16384, 256);

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

impl Profile {
    /// The name that `-t` takes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
        }
    }

    /// The profile with this name; `None` for an unknown one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ext2, Self::Ext3, Self::Ext4].into_iter().find(|profile| profile.name() == name)
    }

    /// The features of an image of this profile, before edits.
    #[must_use]
    pub fn features(self) -> FeatureSet {
        let mut set = feature::set_of(&[
            feature::SPARSE_SUPER,
            feature::LARGE_FILE,
            feature::FILETYPE,
            feature::RESIZE_INODE,
            feature::DIR_INDEX,
            feature::EXT_ATTR,
        ]);
        let more: &[Feature] = match self {
            Self::Ext2 => &[],
            Self::Ext3 => &[feature::HAS_JOURNAL],
            Self::Ext4 => &[
                feature::HAS_JOURNAL,
                feature::EXTENT,
                feature::HUGE_FILE,
                feature::FLEX_BG,
                feature::METADATA_CSUM,
                feature::BIT64,
                feature::DIR_NLINK,
                feature::EXTRA_ISIZE,
            ],
        };
        more.iter().for_each(|&feature| set.set(feature, true));
        set
    }
}

const USAGES: &[(&str, Usage)] = &[
    ("floppy", Usage::Floppy),
    ("small", Usage::Small),
    ("default", Usage::Default),
    ("big", Usage::Big),
    ("huge", Usage::Huge),
    ("news", Usage::News),
    ("largefile", Usage::Largefile),
    ("largefile4", Usage::Largefile4),
    ("hurd", Usage::Hurd),
];

impl Usage {
    /// The usage type with this name (`-T`); `None` for an unknown one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        USAGES.iter().find(|(known, _)| *known == name).map(|(_, usage)| *usage)
    }

    /// The names that `-T` takes, for messages.
    #[must_use]
    pub fn names() -> String {
        let names: Vec<&str> = USAGES.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }

    /// The usage type for a file system of this many bytes.
    #[must_use]
    pub const fn for_size(bytes: u64) -> Self {
        if bytes < 3 * MIB {
            Self::Floppy
        } else if bytes < 512 * MIB {
            Self::Small
        } else if bytes < 4 * TIB {
            Self::Default
        } else if bytes < 16 * TIB {
            Self::Big
        } else {
            Self::Huge
        }
    }

    pub(super) fn overrides(self) -> Overrides {
        let ratio =
            |bytes: u32| Overrides { block_size: None, bytes_per_inode: Some(bytes), inode_size: None };
        match self {
            Self::Floppy => with_blocks(1024, 8192),
            Self::Small => with_blocks(1024, 4096),
            Self::Default => Overrides { block_size: None, bytes_per_inode: None, inode_size: None },
            Self::Big => ratio(32768),
            Self::Huge => ratio(65536),
            Self::News => ratio(4096),
            // mke2fs.conf leaves the block size to a heuristic here, which results in 4 KiB for
            // files and common disks.
            Self::Largefile => with_blocks(4096, 1 << 20),
            Self::Largefile4 => with_blocks(4096, 4 << 20),
            Self::Hurd => Overrides { block_size: Some(4096), bytes_per_inode: None, inode_size: Some(128) },
        }
    }
}

const fn with_blocks(block_size: u32, bytes_per_inode: u32) -> Overrides {
    Overrides { block_size: Some(block_size), bytes_per_inode: Some(bytes_per_inode), inode_size: None }
}

#[cfg(test)]
mod tests {
    use super::{MIB, TIB, Usage};

    #[test]
    fn the_size_classes_change_where_the_manual_says() {
        let cases = [
            (3 * MIB - 1, Usage::Floppy),
            (3 * MIB, Usage::Small),
            (512 * MIB - 1, Usage::Small),
            (512 * MIB, Usage::Default),
            (4 * TIB - 1, Usage::Default),
            (4 * TIB, Usage::Big),
            (16 * TIB - 1, Usage::Big),
            (16 * TIB, Usage::Huge),
        ];
        for (bytes, usage) in cases {
            assert_eq!(Usage::for_size(bytes), usage, "{bytes} bytes");
        }
    }
}
