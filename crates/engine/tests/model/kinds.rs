//! The kinds of image on which random sequences of operations run.

use blockyard_engine::mkfs;
use blockyard_ranges::Edges;

const BLOCKS: [u64; 5] = [1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10];

/// Most ranges stay within this many bytes, or within twelve clusters if those are longer.
const NEAR: u64 = 400_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Bytes of the image.
    pub(crate) size: u64,
    pub(crate) block: u64,
    pub(crate) features: &'static str,
    pub(crate) cluster: u64,
    pub(crate) extents: bool,
    pub(crate) delayed: bool,
    pub(crate) follow_page_cache: bool,
    /// Whether the image is so small that space runs out.
    pub(crate) full: bool,
    /// The preset that places blocks and inodes.
    pub(crate) policy: &'static str,
}

impl Kind {
    fn new(name: &'static str, block: u64, features: &'static str) -> Self {
        Self {
            name,
            size: 16_384 * block,
            block,
            features,
            cluster: block,
            extents: true,
            delayed: true,
            follow_page_cache: false,
            full: false,
            policy: "linux-6.18",
        }
    }

    /// An image for an older preset, with features that images had at its time.
    fn older(policy: &'static str, features: &'static str) -> Self {
        Self { policy, ..Self::new(policy, 1 << 10, features) }
    }

    fn maps(block: u64) -> Self {
        Self { extents: false, ..Self::new("block maps", block, "^extents,^64bit") }
    }

    fn clusters(block: u64) -> Self {
        let cluster = 16 * block;
        Self { cluster, size: 4096 * cluster, ..Self::new("clusters", block, "bigalloc") }
    }

    fn full(name: &'static str, block: u64, features: &'static str) -> Self {
        Self { size: 1024 * block, full: true, ..Self::new(name, block, features) }
    }

    pub(crate) fn options(&self) -> mkfs::Options {
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap();
        let options = mkfs::Options::ext4().block_size(narrow(self.block)).features(self.features);
        let options = if self.full { options } else { options.inodes(2048) };
        let options = options.identity(1, 1);
        if self.cluster > self.block { options.cluster_size(narrow(self.cluster)) } else { options }
    }

    /// The edges at which ranges are drawn, up to the end of the largest file.
    pub(crate) fn edges(&self) -> Edges {
        let edges = if self.extents { Edges::extents(self.block) } else { Edges::indirect(self.block) };
        let edges = edges.clusters(self.cluster);
        if self.features.contains("inline_data") { edges.inline_data(256) } else { edges }
    }

    /// As [`Kind::edges`], but only those near the start of a file.
    pub(crate) fn near_edges(&self) -> Edges {
        self.edges().up_to(NEAR.max(12 * self.cluster))
    }
}

/// Every way of storing content with each block size of [`BLOCKS`]; then single images with other
/// settings, images on which space runs out, and images for older presets.
pub(crate) fn kinds() -> Vec<Kind> {
    let each = BLOCKS.into_iter().flat_map(|block| {
        let inline = Kind::new("inline", block, "inline_data");
        [Kind::new("extents", block, ""), Kind::maps(block), Kind::clusters(block), inline]
    });
    let followed = Kind { follow_page_cache: true, ..Kind::new("page cache followed", 16 << 10, "") };
    let at_once = Kind { delayed: false, ..Kind::new("nodelalloc", 1 << 10, "") };
    let full = Kind::full("full", 1 << 10, "^has_journal");
    let full_maps = Kind::full("full, block maps", 1 << 10, "^has_journal,^extents,^64bit");
    each.chain([
        followed,
        Kind { block: 4 << 10, cluster: 4 << 10, ..followed },
        at_once,
        Kind { block: 16 << 10, cluster: 16 << 10, size: 16_384 << 14, ..at_once },
        Kind::new("orphan file", 1 << 10, "orphan_file"),
        full,
        Kind { name: "full, nodelalloc", delayed: false, ..full },
        Kind { extents: false, ..full_maps },
        Kind::full("full", 16 << 10, "^has_journal"),
        Kind {
            extents: false,
            ..Kind::older(
                "ext3",
                "^extents,^64bit,^metadata_csum,^flex_bg,^huge_file,^dir_nlink,^extra_isize",
            )
        },
        Kind::older("ext4-2008", "^64bit,^metadata_csum,uninit_bg"),
        Kind::older("ext4-2009", "^64bit,^metadata_csum,uninit_bg"),
    ])
    .collect()
}
