//! Opening a file system: its volume, its orphan records, and the parts that work on the volume.

use super::FileSystem;
use super::cleanup::find_orphans;
#[cfg(doc)]
use crate::Error;
use crate::directories::Directories;
use crate::file::Files;
use crate::mapping::Mapping;
use crate::namespace::Namespace;
use crate::volume::Volume;
use crate::xattr::Xattrs;
use crate::{OpContext, OpenOptions, Result};
use blockyard_device::BlockDevice;
use std::sync::Arc;

impl FileSystem {
    /// Opens the image on a device.
    ///
    /// # Errors
    /// [`Error::UnsupportedFeatures`] with the names, [`Error::Corrupt`] with the location,
    /// [`Error::Refused`] with the reason, [`Error::DamagedLog`], [`Error::Orphan`],
    /// [`Error::Device`]. A refused image is unchanged, except that its log may have been replayed.
    /// Errors of the device, and of finishing orphans, may come after the first changes.
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions, ctx: &OpContext) -> Result<Self> {
        Self::open_volume(device, None, options, ctx)
    }

    /// As [`FileSystem::open`], for an image whose journal is on a separate device.
    ///
    /// # Errors
    /// As [`FileSystem::open`]; [`Error::Refused`] when `journal` is not the journal of this image.
    pub fn open_with_journal(
        device: Arc<dyn BlockDevice>,
        journal: Arc<dyn BlockDevice>,
        options: OpenOptions,
        ctx: &OpContext,
    ) -> Result<Self> {
        Self::open_volume(device, Some(journal), options, ctx)
    }

    fn open_volume(
        device: Arc<dyn BlockDevice>,
        external: Option<Arc<dyn BlockDevice>>,
        options: OpenOptions,
        ctx: &OpContext,
    ) -> Result<Self> {
        let volume = Arc::new(Volume::open(device, external, options, ctx)?);
        if volume.is_read_only() {
            return Ok(Self::over(volume));
        }
        // The orphan records must be read before the first write.
        let (orphans, found) = find_orphans(&volume, &Mapping::new(&volume))?;
        let mut volume = Arc::into_inner(volume).expect("the mapping that shared it is gone");
        volume.start_writing(ctx, orphans)?;
        let fs = Self::over(Arc::new(volume));
        fs.finish_orphans(ctx, found)?;
        Ok(fs)
    }

    /// A file system on a volume, with the parts that work on it.
    fn over(volume: Arc<Volume>) -> Self {
        let mapping = Arc::new(Mapping::new(&volume));
        let files = Arc::new(Files::new(&volume, &mapping));
        let xattrs = Arc::new(Xattrs::new(&volume, &files));
        let directories = Directories::new(&volume, &mapping, &files);
        let namespace = Namespace::new(&volume, &mapping, &files, directories, &xattrs);
        Self { volume, files, xattrs, namespace, has_ended: false }
    }
}
