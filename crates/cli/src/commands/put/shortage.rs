//! How much space a full image lacks.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use blockyard_disk::num::{count_as_f64, u64_from_u32};
use blockyard_inspect::units;
use walkdir::WalkDir;

use super::Copy;

/// The space that names need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    names: u64,
    inodes: u64,
    /// Content in whole clusters; one cluster for a directory.
    bytes: u64,
}

impl Need {
    /// Adds a further name of an inode.
    pub(super) const fn add_name(&mut self) {
        self.names += 1;
    }

    /// Adds an inode with its first name.
    pub(super) fn add(&mut self, metadata: &Metadata, cluster: u64) {
        self.names += 1;
        self.inodes += 1;
        let content = match () {
            () if metadata.is_dir() => cluster,
            // Holes take no space.
            () if metadata.is_file() => metadata.size().min(metadata.blocks().saturating_mul(512)),
            () => 0,
        };
        self.bytes += content.next_multiple_of(cluster);
    }
}

impl Copy<'_, '_> {
    /// Cluster size of the image in bytes.
    pub(super) fn cluster(&self) -> u64 {
        let geometry = self.volume.fs.geometry();
        1 << (geometry.block_bits() + geometry.cluster_ratio_bits())
    }

    /// Says what was copied, what was not, and how much space is missing.
    pub(super) fn shortage(&self, sources: &[OsString]) -> String {
        let all = self.need_of(sources);
        let names = all.names.saturating_sub(self.copied.names);
        let bytes = all.bytes.saturating_sub(self.copied.bytes);
        let inodes = all.inodes.saturating_sub(self.copied.inodes);
        let free = self.volume.fs.statistics();
        let short = bytes.saturating_sub(free.blocks_free * u64_from_u32(free.block_size));
        let mut told = format!(
            "{} ({}) were copied, {names} ({}) were not",
            units::counted(self.copied.names, "name"),
            shown_bytes(self.copied.bytes),
            shown_bytes(bytes)
        );
        // If content and inodes would fit, block mappings or large directories do not: name at
        // least one cluster.
        let short_inodes = inodes.saturating_sub(free.inodes_free);
        if short > 0 || short_inodes == 0 {
            told += &format!("; about {} more are needed", shown_bytes(short.max(self.cluster())));
        }
        if short_inodes > 0 {
            told += &format!("; {short_inodes} more inodes are needed (mkfs -N)");
        }
        told + " (--keep-going copies what fits)"
    }

    /// The needs of all sources. Unreadable entries count as nothing.
    fn need_of(&self, sources: &[OsString]) -> Need {
        let mut need = Need::default();
        let mut seen = HashSet::new();
        for entry in sources.iter().flat_map(WalkDir::new).flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if self.itself == Some((metadata.dev(), metadata.ino())) {
                continue;
            }
            if !metadata.is_dir() && metadata.nlink() > 1 && !seen.insert((metadata.dev(), metadata.ino())) {
                need.add_name();
                continue;
            }
            need.add(&metadata, self.cluster());
        }
        need
    }
}

/// A byte count for people.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    units::bytes(count_as_f64(bytes))
}
