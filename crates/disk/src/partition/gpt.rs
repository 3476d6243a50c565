//! The partition table of UEFI: a header with checksums, and an array of entries in sectors of its
//! own.

use zerocopy::FromBytes;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::{Partition, PartitionKind};
use crate::checksum::crc32;
use crate::layout::on_disk;
use crate::num::{u64_from_u32, usize_from_u32, usize_from_u64};

on_disk! {
    /// The header. One copy is in the second sector of the disk, one in the last.
    pub struct RawGptHeader[92] {
        /// `EFI PART`.
        0x00 signature: [u8; 8],
        /// 0x00010000.
        0x08 revision: U32,
        /// Bytes of the header that the checksum covers.
        0x0C header_size: U32,
        /// CRC-32 of the header, with this field as zero.
        0x10 header_crc32: U32,
        /// Zero.
        0x14 reserved: U32,
        /// The sector of this header.
        0x18 my_lba: U64,
        /// The sector of the other header.
        0x20 alternate_lba: U64,
        /// First sector that partitions may use.
        0x28 first_usable_lba: U64,
        /// Last sector that partitions may use.
        0x30 last_usable_lba: U64,
        /// GUID of the disk.
        0x38 disk_guid: [u8; 16],
        /// First sector of the entries.
        0x48 partition_entry_lba: U64,
        /// Number of entries, empty ones included.
        0x50 number_of_partition_entries: U32,
        /// Bytes of an entry: 128, or a larger power of two.
        0x54 size_of_partition_entry: U32,
        /// CRC-32 of all entries.
        0x58 partition_entry_array_crc32: U32,
    }
}

on_disk! {
    /// The first 128 bytes of an entry.
    pub struct RawGptEntry[128] {
        /// What the partition is for; zero if the entry is empty.
        0x00 partition_type_guid: [u8; 16],
        /// GUID of the partition.
        0x10 unique_partition_guid: [u8; 16],
        /// First sector.
        0x20 starting_lba: U64,
        /// Last sector.
        0x28 ending_lba: U64,
        /// Attributes.
        0x30 attributes: U64,
        /// Name in UTF-16.
        0x38 partition_name: [U16; 36],
    }
}

const SIGNATURE: [u8; 8] = *b"EFI PART";
/// The most bytes of entries that are accepted: 128 times the usual 16 KiB.
const ENTRIES_BYTES_MAX: u64 = 2 << 20;

/// The on-disk bytes of a GUID: three little-endian numbers, the rest as written.
pub(super) const fn guid(one: u32, two: u16, three: u16, rest: u64) -> [u8; 16] {
    let ([a, b, c, d], [e, f], [g, h]) = (one.to_le_bytes(), two.to_le_bytes(), three.to_le_bytes());
    let [i, j, k, l, m, n, o, p] = rest.to_be_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// A header whose checksum is right and whose entries have a valid size.
#[derive(Clone, Debug)]
pub struct GptHeader {
    raw: RawGptHeader,
}

impl GptHeader {
    /// The header at the start of `sector`, which is one whole sector. `None` if there is no
    /// header, if its checksum is wrong, if the size of the header or of an entry is impossible, or
    /// if all entries together have more than 2 MiB.
    #[must_use]
    pub fn parse(sector: &[u8]) -> Option<Self> {
        let (raw, _) = RawGptHeader::read_from_prefix(sector).ok()?;
        if raw.signature != SIGNATURE {
            return None;
        }
        let mut covered = sector.get(..usize_from_u32(raw.header_size.get()))?.to_vec();
        covered.get_mut(RawGptHeader::SIZE - 1)?;
        covered[0x10..0x14].fill(0);
        let size = raw.size_of_partition_entry.get();
        let is_readable = size.is_power_of_two() && usize_from_u32(size) >= RawGptEntry::SIZE;
        let header = Self { raw };
        (!crc32(!0, &covered) == raw.header_crc32.get()
            && is_readable
            && header.entries_bytes() <= ENTRIES_BYTES_MAX)
            .then_some(header)
    }

    /// First sector of the entries.
    #[must_use]
    pub const fn entries_lba(&self) -> u64 {
        self.raw.partition_entry_lba.get()
    }

    /// The sector that the header gives as its own.
    #[must_use]
    pub const fn my_lba(&self) -> u64 {
        self.raw.my_lba.get()
    }

    /// Bytes of all entries, at most 2 MiB.
    #[must_use]
    pub fn entries_bytes(&self) -> u64 {
        u64_from_u32(self.raw.number_of_partition_entries.get())
            * u64_from_u32(self.raw.size_of_partition_entry.get())
    }

    /// The partitions in the entries. `None` if `entries` is too short or its checksum is wrong.
    /// `sector_bytes` is the size of a sector. An entry that ends before it begins, or beyond 2^64
    /// bytes, is left out.
    #[must_use]
    pub fn partitions(&self, entries: &[u8], sector_bytes: u64) -> Option<Vec<Partition>> {
        let entries = entries.get(..usize_from_u64(self.entries_bytes()))?;
        if !crc32(!0, entries) != self.raw.partition_entry_array_crc32.get() {
            return None;
        }
        let each = entries.chunks_exact(usize_from_u32(self.raw.size_of_partition_entry.get()));
        Some((1..).zip(each).filter_map(|(number, bytes)| partition(number, bytes, sector_bytes)).collect())
    }
}

fn partition(number: u32, bytes: &[u8], sector_bytes: u64) -> Option<Partition> {
    let (entry, _) = RawGptEntry::read_from_prefix(bytes).ok()?;
    if entry.partition_type_guid.as_bytes() == [0; 16] {
        return None;
    }
    let (first, last) = (entry.starting_lba.get(), entry.ending_lba.get());
    let sectors = last.checked_sub(first)?.checked_add(1)?;
    let end = last.checked_add(1)?.checked_mul(sector_bytes);
    let letters = entry.partition_name.map(U16::get);
    let length = letters.iter().position(|letter| *letter == 0).unwrap_or(letters.len());
    end.map(|_| Partition {
        number,
        first_byte: first * sector_bytes,
        bytes: sectors * sector_bytes,
        kind: PartitionKind::Gpt(entry.partition_type_guid),
        name: String::from_utf16_lossy(&letters[..length]),
    })
}
