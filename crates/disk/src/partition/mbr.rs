//! The boot sector with its four partition entries. The sectors that form the chain of logical
//! partitions are boot sectors of the same form.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::layout::on_disk;

on_disk! {
    /// One entry of a boot sector. The addresses by cylinder, head and sector are obsolete.
    pub struct RawMbrEntry[16] {
        /// 0x80 for the partition to boot from, else 0.
        0x00 status: u8,
        /// First sector by cylinder, head and sector.
        0x01 chs_first: [u8; 3],
        /// Type.
        0x04 kind: u8,
        /// Last sector by cylinder, head and sector.
        0x05 chs_last: [u8; 3],
        /// First sector. In the chain of logical partitions, the number of a partition's first
        /// sector is relative to the sector that lists it. The number of the next sector of the
        /// chain is relative to the start of the chain.
        0x08 lba: U32,
        /// Number of sectors.
        0x0C sectors: U32,
    }
}

/// Byte of the boot sector at which the entries begin.
const ENTRIES_AT: usize = 446;
/// Number of entries.
const ENTRIES: usize = 4;
/// The last two bytes of a boot sector.
const SIGNATURE: [u8; 2] = [0x55, 0xAA];
/// The type of the entry that marks a disk with a GPT.
const KIND_PROTECTIVE: u8 = 0xEE;
/// Types of an entry that contains the logical partitions.
const KINDS_EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];

/// A boot sector with a partition table.
#[derive(Clone, Debug)]
pub struct BootSector {
    entries: [RawMbrEntry; ENTRIES],
}

/// An entry that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MbrEntry {
    /// Its index in the sector, from 0.
    pub index: u32,
    /// Type.
    pub kind: u8,
    /// First sector.
    pub lba: u32,
    /// Number of sectors, at least 1.
    pub sectors: u32,
}

impl MbrEntry {
    /// Whether it contains logical partitions.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        KINDS_EXTENDED.contains(&self.kind)
    }
}

impl BootSector {
    /// The table in the first 512 bytes of `sector`; `None` if there is none. The boot sector of a
    /// file system has the same signature, but its boot code rarely looks like four entries with
    /// status 0 or 0x80.
    #[must_use]
    pub fn parse(sector: &[u8]) -> Option<Self> {
        if sector.get(510..512)? != SIGNATURE {
            return None;
        }
        let (entries, _) = <[RawMbrEntry; ENTRIES]>::read_from_prefix(sector.get(ENTRIES_AT..)?).ok()?;
        entries.iter().all(|entry| matches!(entry.status, 0 | 0x80)).then_some(Self { entries })
    }

    /// Whether an entry says that the disk has a GPT.
    #[must_use]
    pub fn is_protective(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == KIND_PROTECTIVE)
    }

    /// The entries in use, in their order.
    pub fn entries(&self) -> impl Iterator<Item = MbrEntry> {
        let used = |entry: &RawMbrEntry| entry.kind != 0 && entry.sectors.get() > 0;
        (0..).zip(self.entries).filter(move |(_, entry)| used(entry)).map(|(index, entry)| MbrEntry {
            index,
            kind: entry.kind,
            lba: entry.lba.get(),
            sectors: entry.sectors.get(),
        })
    }
}
