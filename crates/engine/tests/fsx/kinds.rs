//! The kinds of image on which the random operations run. Each function makes one kind, for a given
//! block size in bytes.

use blockyard_engine::mkfs;
use blockyard_ranges::Edges;

pub(crate) const BLOCKS: [u64; 5] = [1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10];

/// On most images, ranges are drawn within this many bytes: more than two of the largest folios,
/// and few enough to compare the whole file.
const SMALL: u64 = 5 << 20;

/// A kind of image, how it is opened, and which ranges of its file are drawn.
#[derive(Clone)]
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) options: mkfs::Options,
    /// Bytes of the device.
    pub(crate) image: u64,
    pub(crate) edges: Edges,
    pub(crate) extents: bool,
    pub(crate) follow_page_cache: bool,
    /// The most bytes of one allocation or zeroed range.
    pub(crate) ahead: u64,
    /// Bytes of data that may be dirty.
    pub(crate) dirty: usize,
    /// Bytes of clean data to keep.
    pub(crate) clean: usize,
}

impl Kind {
    /// The name without the block size.
    pub(crate) fn label(&self) -> &str {
        self.name.split(", blocks").next().unwrap()
    }
}

fn kind(name: &str, block: u64, features: &str, edges: Edges) -> Kind {
    let block_size = u32::try_from(block).unwrap();
    Kind {
        name: format!("{name}, blocks of {block}"),
        options: mkfs::Options::ext4().block_size(block_size).features(features).identity(1, 1),
        // A journal of 64 KiB blocks alone takes 64 MiB.
        image: (64 << 20) + block * 4096,
        edges,
        extents: true,
        follow_page_cache: false,
        ahead: 3 << 20,
        dirty: 64 << 20,
        clean: 0,
    }
}

pub(crate) fn extents(block: u64) -> Kind {
    kind("extents", block, "", Edges::extents(block).up_to(SMALL))
}

pub(crate) fn page_cache(block: u64) -> Kind {
    let edges = Edges::extents(block).up_to(SMALL);
    Kind { follow_page_cache: true, ..kind("page cache followed", block, "", edges) }
}

/// The limits for dirty and clean data are so low that data is often written back and evicted.
pub(crate) fn clean_data(block: u64) -> Kind {
    let edges = Edges::extents(block).up_to(SMALL);
    Kind { dirty: 1 << 20, clean: 1 << 20, ..kind("clean data kept", block, "", edges) }
}

fn clustered(name: &str, block: u64, blocks: u64) -> Kind {
    let edges = Edges::extents(block).clusters(blocks * block).up_to(SMALL);
    let kind = kind(name, block, "bigalloc", edges);
    let cluster = u32::try_from(blocks * block).unwrap();
    Kind { options: kind.options.cluster_size(cluster), image: 2 * kind.image, ..kind }
}

pub(crate) fn clusters(block: u64) -> Kind {
    clustered("clusters of 16", block, 16)
}

pub(crate) fn small_clusters(block: u64) -> Kind {
    clustered("clusters of 2", block, 2)
}

pub(crate) fn inline_data(block: u64) -> Kind {
    kind("inline data", block, "inline_data", Edges::extents(block).inline_data(256).up_to(4 * block))
}

pub(crate) fn indirect(block: u64) -> Kind {
    let edges = Edges::indirect(block).up_to(SMALL);
    Kind { extents: false, ..kind("indirect blocks", block, "^extents,^64bit", edges) }
}

/// One allocation may be a block longer than the longest extent. The image has room for four such
/// allocations.
pub(crate) fn largest(block: u64) -> Kind {
    let ahead = 32_769 * block;
    let kind = kind("largest file", block, "", Edges::extents(block));
    Kind { image: kind.image + 4 * ahead, ahead, ..kind }
}

pub(crate) fn largest_indirect(block: u64) -> Kind {
    let edges = Edges::indirect(block);
    Kind { extents: false, ..kind("largest file of indirect blocks", block, "^extents,^64bit", edges) }
}
