//! What a target already holds: known signatures of file systems, partition tables and volume
//! managers.
//!
//! Looks only for well-known magic numbers at fixed positions. A device without these magic numbers
//! may still hold data. An ext file system is also recognised by the first backup of its
//! superblock, because a file system whose first superblock is damaged can be repaired if it is not
//! overwritten.

use blockyard_device::BlockDevice;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use super::error::Result;

/// A magic number: its meaning, its position in bytes, and its bytes.
type Signature = (&'static str, usize, &'static [u8]);

const SIGNATURES: &[Signature] = &[
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("a swap area", 4086, b"SWAPSPACE2"),
    ("a LUKS volume", 0, b"LUKS\xBA\xBE"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an EROFS file system", 1024, &[0xE2, 0xE1, 0xF5, 0xE0]),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xF5, 0xF2]),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x52, b"FAT32   "),
    ("a FAT file system", 0x36, b"FAT1"),
    ("a tar archive", 257, b"ustar"),
    ("a DOS partition table", 510, &[0x55, 0xAA]),
];

/// How many bytes from the start of the device contain all signatures.
const WINDOW: usize = 0x1_0048;

/// log2 of the block sizes for which a backup is searched: the usual ones.
const BACKUP_BLOCK_BITS: std::ops::RangeInclusive<u32> = 10..=12;
/// Bytes of a superblock.
const SUPERBLOCK: usize = 1024;

/// Describes what the device holds, such as `an ext4 file system labelled "x"`; `None` if nothing
/// is recognised.
///
/// # Errors
/// Those of reading the device.
pub fn find_signature(device: &dyn BlockDevice) -> Result<Option<String>> {
    let len = usize_from_u64(device.size().min(u64_from_usize(WINDOW)));
    let mut bytes = vec![0; len];
    device.read_at(0, &mut bytes)?;
    if bytes.get(1024 + 0x38..1024 + 0x3A) == Some(&[0x53, 0xEF]) {
        return Ok(Some(describe_ext(&bytes[1024..])));
    }
    let found = SIGNATURES.iter().find(|(_, at, magic)| bytes.get(*at..at + magic.len()) == Some(*magic));
    match found {
        Some((name, ..)) => Ok(Some((*name).to_owned())),
        None => find_backup(device),
    }
}

/// Describes an ext file system by the backup of its superblock in group 1. Looks only at the
/// position that this backup has if groups have the default size.
fn find_backup(device: &dyn BlockDevice) -> Result<Option<String>> {
    let mut sb = [0; SUPERBLOCK];
    for bits in BACKUP_BLOCK_BITS {
        let block = (8u64 << bits) + u64::from(bits == 10);
        let at = block << bits;
        if at + u64_from_usize(SUPERBLOCK) > device.size() {
            continue;
        }
        device.read_at(at, &mut sb)?;
        if is_first_backup(&sb, bits) {
            let what = describe_ext(&sb);
            return Ok(Some(format!(
                "{what} whose first superblock is damaged (`blockyard check -y` may repair it)"
            )));
        }
    }
    Ok(None)
}

/// Whether these bytes are the superblock copy in group 1 of a file system with blocks of 2^`bits`
/// bytes.
fn is_first_backup(sb: &[u8; SUPERBLOCK], bits: u32) -> bool {
    sb[0x38..0x3A] == [0x53, 0xEF] && sb[0x18..0x1C] == (bits - 10).to_le_bytes() && sb[0x5A..0x5C] == [1, 0]
}

/// Describes an ext file system by its kind (ext2, ext3 or ext4) and label.
fn describe_ext(sb: &[u8]) -> String {
    let word = |at: usize| sb.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (compat, incompat) = (word(0x5C), word(0x60));
    let kind = match (incompat & 0x40 != 0, compat & 4 != 0) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    };
    let label: Vec<u8> = sb.iter().skip(0x78).take(16).copied().take_while(|byte| *byte != 0).collect();
    match String::from_utf8_lossy(&label).into_owned() {
        label if label.is_empty() => format!("an {kind} file system"),
        label => format!("an {kind} file system labelled {label:?}"),
    }
}

#[cfg(test)]
mod tests {
    use blockyard_device::{BlockDevice, MemoryDevice};

    use super::{SIGNATURES, find_signature};
    use crate::mkfs::{Options, format};

    #[test]
    fn every_signature_is_found() {
        for (name, at, magic) in SIGNATURES {
            let device = MemoryDevice::new(1 << 20);
            assert_eq!(find_signature(&device).unwrap(), None);
            device.write_at(u64::try_from(*at).unwrap(), magic).unwrap();
            assert_eq!(find_signature(&device).unwrap().as_deref(), Some(*name));
        }
    }

    #[test]
    fn own_images_are_named_with_their_label() {
        let device = MemoryDevice::new(8 << 20);
        format(&device, &Options::ext3().label("disk")).unwrap();
        assert_eq!(find_signature(&device).unwrap().unwrap(), "an ext3 file system labelled \"disk\"");
    }

    #[test]
    fn a_damaged_superblock_is_found_by_its_backup() {
        for (block_size, bytes) in [(1024, 16 << 20), (2048, 64 << 20), (4096, 256 << 20)] {
            let device = MemoryDevice::new(bytes);
            format(&device, &Options::ext2().block_size(block_size).label("disk")).unwrap();
            device.write_at(1024, &[0; 1024]).unwrap();
            let found = find_signature(&device).unwrap().unwrap();
            assert!(found.starts_with("an ext2 file system labelled \"disk\" whose first"), "{found}");
        }
    }

    #[test]
    fn a_tiny_device_holds_nothing() {
        assert_eq!(find_signature(&MemoryDevice::new(100)).unwrap(), None);
    }
}
