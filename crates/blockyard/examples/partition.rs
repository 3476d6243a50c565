//! Reads the partitions of a disk image: finds them in the partition table, and lists their files.

use blockyard::device::{BlockDevice, FileDevice, PartitionTable};
use blockyard::{FileType, ImageOptions, Result};
use std::path::Path;

/// Lists the regular files of every partition, and returns how many there are. Fails if a
/// partition holds no ext file system.
fn list(disk: &Path) -> Result<usize> {
    let device = FileDevice::open_read_only(disk).expect("the disk image can be opened");
    let table = PartitionTable::read(&device, None).expect("its table can be read").expect("it has one");
    let mut files = 0;
    for partition in &table.partitions {
        println!("partition {}: {} MiB", partition.number, partition.bytes >> 20);
        let fs = ImageOptions::new().read_only(true).offset(partition.first_byte).open(disk)?;
        for entry in fs.walk("/")? {
            let entry = entry?;
            if entry.file_type()? == FileType::Regular {
                println!("  {} {}", entry.metadata()?.len(), entry.path().display());
                files += 1;
            }
        }
    }
    Ok(files)
}

/// Makes a disk with one partition, and lists it.
///
/// # Errors
/// Any error of the library or of the host's file system.
pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let disk = folder.path().join("disk.img");
    let (first, bytes) = (1 << 20, 32 << 20);
    // An MBR partition table with one Linux partition. The table counts in sectors of 512 bytes.
    let device = FileDevice::create(&disk, first + bytes)?;
    let mut sector = [0; 512];
    sector[446 + 4] = 0x83;
    sector[446 + 8..446 + 12].copy_from_slice(&u32::try_from(first / 512)?.to_le_bytes());
    sector[446 + 12..446 + 16].copy_from_slice(&u32::try_from(bytes / 512)?.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    device.write_at(0, &sector)?;
    drop(device);
    let fs = ImageOptions::new().offset(first).make(&disk, bytes)?;
    fs.create_dir_all("boot/loader")?;
    fs.write("boot/loader/entry", "linux /vmlinuz\n")?;
    fs.close()?;
    assert_eq!(list(&disk)?, 1);
    Ok(())
}
