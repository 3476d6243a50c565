//! What `mkfs` and `build` write to: its size, and whether it may be overwritten.

use anyhow::{Context, Result, bail};
use blockyard_device::{BlockDevice, FileDevice, ImagePath, PartitionTable};
use blockyard_engine::mkfs;

/// The file or device to write.
pub(in crate::commands) struct Target<'a> {
    image: &'a ImagePath,
    /// The size in bytes that the device has or will have.
    pub(in crate::commands) device_bytes: u64,
    /// The image is missing or shorter than wanted, and must be made `device_bytes` long.
    must_grow: bool,
    /// The present content, starting at the first byte of the image. `None` if there is none.
    now: Option<FileDevice>,
    /// The image begins inside a partitioned disk, but no partition begins there.
    is_astray: bool,
}

impl<'a> Target<'a> {
    pub(in crate::commands) fn inspect(image: &'a ImagePath, wanted: Option<u64>) -> Result<Self> {
        let (mut table, mut now) = (None, None);
        if image.file().exists() {
            let whole = FileDevice::open_read_only(image.file())?;
            if image.offset() > 0 {
                table = PartitionTable::read(&whole, whole.sector_bytes())?;
            }
            now = if image.offset() < whole.size() { Some(image.open_read_only()?) } else { None };
        }
        let partition = table.as_ref().map(|table| table.beginning_at(image.offset()));
        let is_astray = partition == Some(None);
        let bytes = now.as_ref().map_or(0, BlockDevice::size);
        let Some(wanted) = wanted else {
            if bytes == 0 {
                bail!("{}: no such file, or an empty one; give a size", image.display());
            }
            return Ok(Self { image, device_bytes: bytes, must_grow: false, now, is_astray });
        };
        let data = std::fs::metadata(image.file());
        if wanted > bytes && (partition.flatten().is_some() || data.is_ok_and(|data| !data.is_file())) {
            let what = if partition.flatten().is_some() { "partition" } else { "device" };
            bail!("{}: the {what} has {bytes} bytes, fewer than the {wanted} asked for", image.display());
        }
        Ok(Self { image, device_bytes: bytes.max(wanted), must_grow: wanted > bytes, now, is_astray })
    }

    pub(in crate::commands) fn refuse_occupied(&self) -> Result<()> {
        if self.is_astray {
            bail!(
                "{}: no partition begins there; write there nevertheless with --force (-F)",
                self.image.display()
            );
        }
        let Some(device) = &self.now else { return Ok(()) };
        if let Some(found) = mkfs::find_signature(device)? {
            return Err(mkfs::Error::Occupied(found)).with_context(|| self.image.display().to_string());
        }
        Ok(())
    }

    pub(in crate::commands) fn open(self) -> Result<FileDevice> {
        drop(self.now);
        Ok(if self.must_grow { self.image.create(self.device_bytes)? } else { self.image.open()? })
    }
}
