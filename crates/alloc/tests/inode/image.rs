//! Images made by mke2fs, and what dumpe2fs says about them.

use std::path::{Path, PathBuf};

use blockyard_alloc::inode::InodeGroupFacts;
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry};
use blockyard_testkit::run;

/// How to create and mount an image.
pub(crate) struct Layout<'a> {
    pub(crate) size: &'a str,
    pub(crate) arguments: Vec<&'a str>,
    pub(crate) options: &'a str,
    /// Whether the tunable `inode_goal` is set now and then.
    pub(crate) goals: bool,
}

/// The hash seed of every image.
pub(crate) const HASH_SEED: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// An image file in its own directory.
pub(crate) struct Image {
    _directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    pub(crate) fn make(layout: &Layout<'_>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let extended = format!("hash_seed={HASH_SEED},lazy_itable_init=1,lazy_journal_init=1,nodiscard");
        let mut arguments = vec!["-t", "ext4", "-q", "-F", "-E", &extended];
        arguments.extend(&layout.arguments);
        arguments.extend([path.to_str().unwrap(), layout.size]);
        let output = run("mke2fs", &arguments);
        assert!(output.status.success(), "mke2fs: {}", String::from_utf8_lossy(&output.stderr));
        Self { _directory: directory, path }
    }
}

/// The descriptors of all groups, as dumpe2fs prints them.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) geometry: Geometry,
    pub(crate) inodes: Vec<InodeGroupFacts>,
    /// Free clusters of each group.
    pub(crate) free_clusters: Vec<u32>,
    pub(crate) checksums: bool,
    pub(crate) journal: bool,
}

impl Descriptors {
    pub(crate) fn read(image: &Path) -> Self {
        let output = run("dumpe2fs", &[image.to_str().unwrap()]);
        assert!(output.status.success(), "dumpe2fs: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let features = field(&text, "Filesystem features:").unwrap();
        let number = |name| field(&text, name).map(|value| value.parse::<u64>().unwrap());
        let block_size = number("Block size:").unwrap();
        let ratio = number("Cluster size:").map_or(1, |cluster| cluster / block_size);
        let fields = GeometryFields {
            block_bits: block_size.ilog2(),
            cluster_ratio_bits: ratio.ilog2(),
            blocks_count: BlockCount::new(number("Block count:").unwrap()),
            first_data_block: BlockNr::new(number("First block:").unwrap()),
            clusters_per_group: (number("Blocks per group:").unwrap() / ratio) as u32,
            inodes_per_group: number("Inodes per group:").unwrap() as u32,
            inode_size: number("Inode size:").unwrap() as u16,
            flex_bits: number("Flex block group size:").unwrap_or(1).ilog2(),
        };
        let mut inodes = Vec::new();
        let mut free_clusters = Vec::new();
        let mut uninit = false;
        for line in text.lines() {
            if line.starts_with("Group ") {
                uninit = line.contains("INODE_UNINIT");
            } else if line.contains(" free inodes, ") {
                let counts: Vec<u32> = line
                    .split(", ")
                    .map(|part| part.split_whitespace().next().unwrap().parse().unwrap())
                    .collect();
                free_clusters.push(counts[0]);
                inodes.push(InodeGroupFacts {
                    free_inodes: counts[1],
                    used_dirs: counts[2],
                    itable_unused: counts.get(3).copied().unwrap_or(0),
                    inode_uninit: uninit,
                });
            }
        }
        let geometry = Geometry::new(fields).unwrap();
        assert_eq!(inodes.len(), geometry.groups() as usize, "groups of {}", image.display());
        Self {
            geometry,
            inodes,
            free_clusters,
            checksums: features.contains("metadata_csum") || features.contains("uninit_bg"),
            journal: features.contains("has_journal"),
        }
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
