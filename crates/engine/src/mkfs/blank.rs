//! A file system that is made around its content: it is planned, then the caller fills it, and then
//! it is completed.
//!
//! The caller takes blocks from [`Blank::free`] and inodes from [`Blank::first_inode`] on, and
//! writes data, directories and inode tables itself. Then [`Filled::finish`] writes everything
//! else, the superblock last.

use std::ops::Range;

use blockyard_device::BlockDevice;
use blockyard_disk::checksum::Checksums;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{BlockNr, FeatureSet, Geometry, GroupNr};

use super::content::Content;
use super::error::{Error, Result};
use super::feature::LARGE_FILE;
use super::identity::Identity;
use super::image;
use super::layout::Layout;
use super::options::{Options, UuidChoice};
use super::{Summary, inodes, summary, superblock};

/// A planned file system, not written yet.
#[derive(Debug)]
pub struct Blank {
    layout: Layout,
    options: Options,
}

/// A planned file system with room for its content, ready to be written.
#[derive(Debug)]
pub struct Filled {
    layout: Layout,
    options: Options,
    sb: RawSuperblock,
    checksums: Checksums,
}

impl Blank {
    /// Plans a file system for a device of `device_bytes` bytes. The root directory has no blocks
    /// yet.
    ///
    /// # Errors
    /// As [`super::plan`].
    pub fn plan(options: &Options, device_bytes: u64) -> Result<Self> {
        let mut layout = Layout::plan(options, device_bytes)?;
        let ratio = layout.params.cluster_ratio();
        for run in &layout.files.root.runs {
            layout.space.release(run.physical..run.physical + run.len.next_multiple_of(ratio));
        }
        Ok(Self { layout, options: options.clone() })
    }

    /// The figures of the planned file system, without content.
    #[must_use]
    pub fn summary(&self) -> Summary {
        summary(&self.layout, &self.options)
    }

    /// Sizes of blocks, clusters, groups and tables.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.layout.geometry
    }

    /// The features of the planned file system.
    #[must_use]
    pub const fn features(&self) -> FeatureSet {
        self.layout.params.features
    }

    /// The free blocks, whole clusters, in ascending order.
    #[must_use]
    pub fn free(&self) -> Vec<Range<u64>> {
        let end = self.layout.geometry.blocks_count().raw();
        let mut free = Vec::new();
        let mut at = self.layout.params.first_block.next_multiple_of(self.layout.params.cluster_ratio());
        for used in self.layout.space.ranges_in(at..end) {
            free.push(at..used.start);
            at = used.end;
        }
        free.push(at..end);
        free.retain(|range| !range.is_empty());
        free
    }

    /// The first inode that content may take.
    #[must_use]
    pub fn first_inode(&self) -> u32 {
        self.layout.own_inodes() + 1
    }

    /// Takes the blocks and inodes that the content needs.
    ///
    /// # Errors
    /// [`Error::Size`] when there are too few inodes.
    ///
    /// # Panics
    /// When a block of the content is not free.
    pub fn fill(mut self, content: Content) -> Result<Filled> {
        for range in &content.blocks {
            assert_eq!(self.layout.space.used_in(range.clone()), 0, "{range:?} is taken");
            self.layout.space.mark(range.clone());
        }
        let have = self.layout.geometry.inodes_count() - self.layout.own_inodes();
        if content.inodes > have {
            let needed = content.inodes;
            return Err(Error::Size(format!(
                "there are inodes for {have} files and {needed} are needed; raise -N"
            )));
        }
        if content.has_large_file {
            self.layout.params.features.set(LARGE_FILE, true);
        }
        self.layout.content = content;
        let (layout, options) = (self.layout, self.options);
        let sb = superblock::build(&layout, &options, &Identity::of(&options));
        Ok(Filled { checksums: Checksums::of(&sb), layout, options, sb })
    }
}

impl Filled {
    /// Sets the UUID. Call this before asking for anything with a checksum.
    #[must_use]
    pub fn with_uuid(mut self, uuid: [u8; 16]) -> Self {
        self.options.uuid = UuidChoice::Given(uuid);
        self.sb = superblock::build(&self.layout, &self.options, &Identity::of(&self.options));
        self.checksums = Checksums::of(&self.sb);
        self
    }

    /// The figures of the file system that will be made.
    #[must_use]
    pub fn summary(&self) -> Summary {
        summary(&self.layout, &self.options)
    }

    /// The superblock, without its checksum.
    #[must_use]
    pub const fn superblock(&self) -> &RawSuperblock {
        &self.sb
    }

    /// How many blocks all inode tables have together.
    #[must_use]
    pub fn inode_table_blocks(&self) -> u64 {
        u64::from(self.layout.geometry.groups()) * self.layout.geometry.inode_table_blocks()
    }

    /// The [`Checksums`] for the metadata of this file system.
    #[must_use]
    pub const fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    /// Where a group's inode table begins.
    #[must_use]
    pub fn inode_table(&self, group: GroupNr) -> BlockNr {
        self.layout.inode_table(group)
    }

    /// The raw inodes before [`Blank::first_inode`], as in a file system without content. The
    /// caller must replace the root directory's inode, because the block that this inode maps is
    /// free in a [`Blank`].
    #[must_use]
    pub fn own_inodes(&self) -> Vec<u8> {
        inodes::table(&self.layout, &self.options, &self.checksums)
    }

    /// Clears the device, so that blocks not written afterwards read as zeroes. Call this before
    /// anything else is written.
    ///
    /// With [`Options::no_discard`], clears only the places of old signatures (the first 4 KiB and
    /// the last 64 KiB of the file system). Clears the inode tables and the journal too, if the
    /// options say that they are not initialised lazily.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn clear(&self, device: &dyn BlockDevice) -> Result<()> {
        image::clear(device, &self.layout, &self.options)
    }

    /// Writes everything except the content, its directories, the root directory and the inode
    /// tables. The superblock comes last, then a flush.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn finish(&self, device: &dyn BlockDevice) -> Result<Summary> {
        image::write_around(device, &self.layout, &self.options)?;
        Ok(self.summary())
    }
}
