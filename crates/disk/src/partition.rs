//! Partition tables: where the partitions of a disk begin and end.
//!
//! There are two forms: the four entries of the boot sector (MBR) with the chain of logical
//! partitions, and the table of UEFI (GPT). This module only interprets bytes, and checks whether a
//! table is consistent in itself. `blockyard-device` reads the bytes and compares the table with
//! the size of the disk.

mod gpt;
mod mbr;

pub use gpt::{GptHeader, RawGptEntry, RawGptHeader};
pub use mbr::{BootSector, MbrEntry, RawMbrEntry};

/// What a partition is for, according to its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKind {
    /// The type byte of an MBR entry.
    Mbr(u8),
    /// The type GUID of a GPT entry, as on-disk bytes.
    Gpt([u8; 16]),
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1, as in Linux's names (`sda1`).
    pub number: u32,
    /// First byte on the disk.
    pub first_byte: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
    /// What it is for.
    pub kind: PartitionKind,
    /// Its name in a GPT; empty if it has none.
    pub name: String,
}

/// GUIDs of Linux partitions as on-disk bytes: file system data, /home, /srv, /var, the root
/// partitions of the common processors, and /usr of x86-64 (UAPI Group, Discoverable Partitions
/// Specification).
const LINUX_GUIDS: &[[u8; 16]] = &[
    gpt::guid(0x0FC6_3DAF, 0x8483, 0x4772, 0x8E79_3D69_D847_7DE4),
    gpt::guid(0x933A_C7E1, 0x2EB4, 0x4F13, 0xB844_0E14_E2AE_F915),
    gpt::guid(0x3B8F_8425, 0x20E0, 0x4F3B, 0x907F_1A25_A76F_98E8),
    gpt::guid(0x4D21_B016, 0xB534, 0x45C2, 0xA9FB_5C16_E091_FD2D),
    gpt::guid(0x4447_9540, 0xF297, 0x41B2, 0x9AF7_D131_D5F0_458A),
    gpt::guid(0x4F68_BCE3, 0xE8CD, 0x4DB1, 0x96E7_FBCA_F984_B709),
    gpt::guid(0x69DA_D710, 0x2CE4, 0x4E3C, 0xB16C_21A1_D49A_BED3),
    gpt::guid(0xB921_B045, 0x1DF0, 0x41C3, 0xAF44_4C6F_280D_3FAE),
    gpt::guid(0x8484_680C, 0x9521, 0x48C6, 0x9C11_B072_0656_F69E),
];

impl PartitionKind {
    /// Whether this is a type for Linux file systems.
    #[must_use]
    pub fn is_linux(&self) -> bool {
        match self {
            Self::Mbr(kind) => *kind == 0x83,
            Self::Gpt(guid) => LINUX_GUIDS.contains(guid),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Parses random bytes, first with the signature of a boot sector, then also with the
        /// signature of a GPT header. Nothing may panic, and the boot sector may have at most four
        /// entries in use.
        #[test]
        fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 512), sector in 9u32..13) {
            bytes[510..].copy_from_slice(&[0x55, 0xAA]);
            for entry in 0..4 {
                bytes[446 + entry * 16] &= 0x80;
            }
            let found = BootSector::parse(&bytes).map(|sector| sector.entries().count());
            prop_assert!(found.is_none_or(|count| count <= 4));
            bytes[..8].copy_from_slice(b"EFI PART");
            if let Some(header) = GptHeader::parse(&bytes) {
                let _ = header.partitions(&bytes, 1u64 << sector);
            }
        }
    }

    #[test]
    fn kinds_of_linux() {
        assert!(PartitionKind::Mbr(0x83).is_linux());
        assert!(!PartitionKind::Mbr(0x0C).is_linux());
        // 0FC63DAF-8483-4772-8E79-3D69D8477DE4, as sfdisk writes it.
        let data =
            [0xAF, 0x3D, 0xC6, 0x0F, 0x83, 0x84, 0x72, 0x47, 0x8E, 0x79, 0x3D, 0x69, 0xD8, 0x47, 0x7D, 0xE4];
        assert!(PartitionKind::Gpt(data).is_linux());
        assert!(!PartitionKind::Gpt([0; 16]).is_linux());
    }
}
