//! What a target already holds: known signatures of file systems, partition tables and volume
//! managers.
//!
//! Looks only for well-known magic numbers at fixed positions. A device without any may still hold
//! data.

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

/// Bytes from the start that contain all signatures.
const WINDOW: usize = 0x1_0048;

/// Names what the device holds: `an ext4 file system labelled "x"`, or `None` if nothing is
/// recognised.
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
    Ok(found.map(|(name, ..)| (*name).to_owned()))
}

/// Names the generation and the label of an ext file system.
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
    fn a_tiny_device_holds_nothing() {
        assert_eq!(find_signature(&MemoryDevice::new(100)).unwrap(), None);
    }
}
