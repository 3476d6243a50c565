//! The kinds of image on which operations are tried while the device fails.

use blockyard_device::MemoryDevice;
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{DataMode, OpenOptions, mkfs};

/// A kind of image and how it is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) block: u32,
    cluster: u32,
    inode_size: u32,
    features: &'static str,
    size_mib: u64,
    data: DataMode,
    folios: bool,
    delayed: bool,
}

/// An image with blocks of 1 KiB, which make the deepest maps for the smallest files.
const SMALL: Image = Image {
    name: "1k",
    block: 1024,
    cluster: 1024,
    inode_size: 256,
    features: "",
    size_mib: 16,
    data: DataMode::Ordered,
    folios: false,
    delayed: true,
};

pub(crate) const IMAGES: &[Image] = &[
    SMALL,
    Image { name: "2k", block: 2048, ..SMALL },
    Image { name: "4k", block: 4096, size_mib: 32, ..SMALL },
    Image { name: "64k", block: 65536, size_mib: 160, ..SMALL },
    Image { name: "no journal", features: "^has_journal", ..SMALL },
    Image { name: "data=journal", data: DataMode::Journal, ..SMALL },
    Image { name: "data=writeback", data: DataMode::Writeback, ..SMALL },
    Image { name: "clusters", cluster: 8192, size_mib: 16, ..SMALL },
    Image { name: "4k clusters", block: 4096, cluster: 65536, size_mib: 64, ..SMALL },
    Image { name: "values", features: "ea_inode", ..SMALL },
    Image { name: "values, 128", features: "ea_inode", inode_size: 128, ..SMALL },
    Image { name: "values, logged", features: "ea_inode", data: DataMode::Journal, ..SMALL },
    Image { name: "inline", block: 4096, size_mib: 32, features: "inline_data", ..SMALL },
    Image { name: "block maps", features: "^extents,^64bit", ..SMALL },
    Image { name: "orphan file", features: "orphan_file", ..SMALL },
    Image { name: "no checksums", features: "^metadata_csum", ..SMALL },
    Image { name: "folios", block: 4096, size_mib: 32, folios: true, ..SMALL },
    Image { name: "16k folios", block: 16384, size_mib: 64, folios: true, ..SMALL },
    Image { name: "at once", delayed: false, ..SMALL },
];

impl Image {
    pub(crate) fn format(&self) -> MemoryDevice {
        let device = MemoryDevice::new(self.size_mib << 20);
        let mut options = mkfs::Options::ext4().block_size(self.block).inode_size(self.inode_size);
        options = options.features(self.features).inodes(1024).identity(1, 1);
        if self.cluster > self.block {
            options = options.cluster_size(self.cluster);
        }
        mkfs::format(&device, &options).unwrap();
        device
    }

    /// The options with which to open the image. If `eager`, each handle first commits earlier
    /// changes. Transactions may be as large as the log allows, so that a checkpoint, which reads
    /// the log, is often due.
    pub(crate) fn open_options(&self, eager: bool) -> OpenOptions {
        OpenOptions {
            data: self.data,
            cpus: 8,
            cache_bytes: self.block as usize * 1024,
            inodes_max: 64,
            commit_interval_seconds: if eager { 0 } else { 5 },
            delayed_allocation: self.delayed,
            instruments: Instruments {
                transaction_blocks: Some(usize::MAX),
                ..Instruments::page_cache_if(self.folios)
            },
            ..OpenOptions::default()
        }
    }

    pub(crate) fn has_extents(&self) -> bool {
        !self.has("^extents")
    }

    /// Whether a write goes folio by folio, as in Linux.
    pub(crate) fn writes_by_folio(&self) -> bool {
        self.folios
    }

    /// Whether freed blocks may be reused by another file before the free is durable, as in Linux.
    pub(crate) fn reuses_at_once(&self) -> bool {
        self.data == DataMode::Writeback
    }

    pub(crate) fn has_journal(&self) -> bool {
        !self.has("^has_journal")
    }

    pub(crate) fn has(&self, feature: &str) -> bool {
        self.features.split(',').any(|one| one == feature)
    }

    /// Block size in bytes.
    pub(crate) fn block(&self) -> u64 {
        self.block.into()
    }

    /// Alignment of collapse and insert range, in bytes.
    pub(crate) fn cluster(&self) -> u64 {
        self.cluster.max(self.block).into()
    }
}
