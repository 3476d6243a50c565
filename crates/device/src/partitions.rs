//! Reads the partition table of a disk. Nothing in the table is trusted: partitions that begin
//! beyond the end are left out, and the length of chains and tables is limited.

use blockyard_disk::num::{u64_from_u32, usize_from_u64};
use blockyard_disk::partition::{BootSector, GptHeader, Partition, PartitionKind};

use crate::{BlockDevice, Result};

/// Sector size of nearly every disk and disk image.
const SECTOR: u64 = 512;
/// Possible sector sizes.
const SECTORS: [u64; 2] = [SECTOR, 4096];
/// The most boot sectors that are read in a chain of logical partitions.
const LOGICAL_MAX: u32 = 128;

/// The form of a partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// The table in the boot sector.
    Mbr,
    /// The table of UEFI.
    Gpt,
}

impl TableKind {
    /// Its usual name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mbr => "MBR",
            Self::Gpt => "GPT",
        }
    }
}

/// The partitions of a disk, by number. Extended partitions, which only hold others, are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// Its form.
    pub kind: TableKind,
    /// The partitions it lists. Each begins on the disk, but may end beyond the disk's end.
    pub partitions: Vec<Partition>,
}

impl PartitionTable {
    /// Reads the table of a disk: a GPT if the boot sector points to one and one of its two copies
    /// is intact, else the entries of the boot sector. `Ok(None)` if there is no table.
    ///
    /// `sector_bytes` is the sector size. If it is not known, 512 is tried, and for a GPT also
    /// 4096.
    ///
    /// # Errors
    /// Those of reading the device.
    pub fn read(device: &dyn BlockDevice, sector_bytes: Option<u64>) -> Result<Option<Self>> {
        let mut first = [0; 512];
        if device.size() < SECTOR {
            return Ok(None);
        }
        device.read_at(0, &mut first)?;
        let Some(sector) = BootSector::parse(&first) else { return Ok(None) };
        if sector.is_protective() {
            for size in SECTORS.into_iter().filter(|size| sector_bytes.is_none_or(|known| known == *size)) {
                if let Some(partitions) = gpt(device, size)? {
                    return Ok(Some(Self::on(device, TableKind::Gpt, partitions)));
                }
            }
        }
        let partitions = mbr(device, &sector, sector_bytes.unwrap_or(SECTOR))?;
        Ok(Some(Self::on(device, TableKind::Mbr, partitions)))
    }

    fn on(device: &dyn BlockDevice, kind: TableKind, mut partitions: Vec<Partition>) -> Self {
        partitions.retain(|partition| partition.first_byte < device.size());
        Self { kind, partitions }
    }

    /// The partition that begins at a byte; `None` if none does.
    #[must_use]
    pub fn beginning_at(&self, byte: u64) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.first_byte == byte)
    }
}

/// The partitions of a GPT: by its first header or, if that or its list of entries is damaged, by
/// the header at the end of the disk. `None` if both fail.
fn gpt(device: &dyn BlockDevice, sector_bytes: u64) -> Result<Option<Vec<Partition>>> {
    let sectors = device.size() / sector_bytes;
    for lba in [1, sectors.saturating_sub(1)] {
        if lba >= sectors {
            continue;
        }
        let mut sector = vec![0; usize_from_u64(sector_bytes)];
        device.read_at(lba * sector_bytes, &mut sector)?;
        let Some(header) = GptHeader::parse(&sector).filter(|header| header.my_lba() == lba) else {
            continue;
        };
        let Some(at) = header.entries_lba().checked_mul(sector_bytes) else { continue };
        let is_on_disk = at.checked_add(header.entries_bytes()).is_some_and(|end| end <= device.size());
        if !is_on_disk {
            continue;
        }
        let mut entries = vec![0; usize_from_u64(header.entries_bytes())];
        device.read_at(at, &mut entries)?;
        if let Some(partitions) = header.partitions(&entries, sector_bytes) {
            return Ok(Some(partitions));
        }
    }
    Ok(None)
}

/// The partitions of a boot sector, and the logical ones that its extended entries lead to.
fn mbr(device: &dyn BlockDevice, sector: &BootSector, sector_bytes: u64) -> Result<Vec<Partition>> {
    let mut found = Vec::new();
    for entry in sector.entries().filter(|entry| !entry.is_extended()) {
        found.push(Partition {
            number: entry.index + 1,
            first_byte: u64_from_u32(entry.lba) * sector_bytes,
            bytes: u64_from_u32(entry.sectors) * sector_bytes,
            kind: PartitionKind::Mbr(entry.kind),
            name: String::new(),
        });
    }
    for extended in sector.entries().filter(blockyard_disk::partition::MbrEntry::is_extended) {
        let start = u64_from_u32(extended.lba);
        let number = found.iter().map(|partition| partition.number + 1).fold(5, u32::max);
        found.extend(logical(device, start, number, sector_bytes)?);
    }
    Ok(found)
}

/// The logical partitions of a chain of boot sectors that begins at sector `start`. The position of
/// a partition counts from the boot sector that lists it. The position of the next boot sector
/// counts from `start`.
fn logical(
    device: &dyn BlockDevice,
    start: u64,
    first_number: u32,
    sector_bytes: u64,
) -> Result<Vec<Partition>> {
    let (mut at, mut found) = (start, Vec::new());
    for _ in 0..LOGICAL_MAX {
        let mut bytes = [0; 512];
        if (at + 1) * sector_bytes > device.size() {
            break;
        }
        device.read_at(at * sector_bytes, &mut bytes)?;
        let Some(link) = BootSector::parse(&bytes) else { break };
        for entry in link.entries().filter(|entry| entry.index < 2 && !entry.is_extended()) {
            found.push(Partition {
                number: first_number + blockyard_disk::num::u32_from_usize(found.len()),
                first_byte: (at + u64_from_u32(entry.lba)) * sector_bytes,
                bytes: u64_from_u32(entry.sectors) * sector_bytes,
                kind: PartitionKind::Mbr(entry.kind),
                name: String::new(),
            });
        }
        let next = link.entries().find(blockyard_disk::partition::MbrEntry::is_extended);
        let Some(next) = next.filter(|next| next.lba > 0) else { break };
        at = start + u64_from_u32(next.lba);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    /// A boot sector whose extended entry leads to itself is a chain without an end.
    #[test]
    fn a_chain_in_a_circle_ends() {
        let device = MemoryDevice::new(1 << 20);
        let mut sector = [0; 512];
        sector[510..].copy_from_slice(&[0x55, 0xAA]);
        // A partition of 8 sectors, and a chain that begins at sector 64. The boot sector there
        // leads to sector 128, and the one at sector 128 leads to itself.
        sector[446 + 4] = 0x83;
        sector[446 + 8] = 16;
        sector[446 + 12] = 8;
        sector[446 + 16 + 4] = 5;
        sector[446 + 16 + 8] = 64;
        sector[446 + 16 + 12] = 64;
        device.write_at(0, &sector).unwrap();
        device.write_at(64 * 512, &sector).unwrap();
        device.write_at(128 * 512, &sector).unwrap();
        let table = PartitionTable::read(&device, None).unwrap().unwrap();
        assert_eq!(table.kind, TableKind::Mbr);
        assert!(table.partitions.len() > 100, "{}", table.partitions.len());
        assert_eq!(table.beginning_at(16 * 512).unwrap().number, 1);
        assert_eq!(table.beginning_at(80 * 512).unwrap().number, 5);
    }

    #[test]
    fn no_table_is_found_in_nothing() {
        for size in [0, 100, 512, 1 << 20] {
            assert_eq!(PartitionTable::read(&MemoryDevice::new(size), None).unwrap(), None);
        }
    }
}
