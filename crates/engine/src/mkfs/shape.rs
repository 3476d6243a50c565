//! The shape of the file system: the number and size of its groups, and their inodes and descriptor
//! blocks.
//!
//! Does no I/O. The wanted inodes are spread evenly over the groups. Each group gets whole blocks
//! of inode table, and a number of inodes that is a multiple of eight. If a group's inode bitmap
//! cannot hold the group's share, groups are made smaller, eight blocks at a time; with bigalloc,
//! this is an error. A last group that is too short for its own metadata and 50 more blocks is
//! dropped.

use blockyard_disk::num::u32_from_u64;
use blockyard_disk::{BlockCount, BlockNr, Geometry, geometry::GeometryFields};

use super::error::{Error, Result};
use super::feature::BIGALLOC;
use super::heads::Heads;
use super::params::{CLUSTERS_PER_GROUP_MAX as COUNTED_MAX, Params};

/// How many blocks a last group must have beyond its metadata.
const LAST_GROUP_FREE_MIN: u64 = 50;

/// Geometry and what follows directly from it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) geometry: Geometry,
    pub(super) heads: Heads,
    /// Blocks kept for privileged users.
    pub(super) reserved_blocks: u64,
}

impl Shape {
    /// Finds the shape. If the descriptor table and the blocks reserved for its growth need more
    /// than three quarters of a group, adds meta_bg to the features and removes resize_inode.
    pub(super) fn find(params: &mut Params) -> Result<Self> {
        let reserved_at_first = percent_of(params.blocks_asked, params.reserved_percent);
        let mut reserved_blocks = reserved_at_first;
        let mut clusters = params.clusters_per_group;
        loop {
            let mut blocks = params.blocks;
            let attempt = loop {
                let Some(geometry) = spread_inodes(params, blocks, clusters)? else { break None };
                let heads = Heads::plan(params, &geometry)?;
                check_room(&geometry, &heads)?;
                let remainder = (blocks - params.first_block) % geometry.blocks_per_group();
                if remainder == 0 || remainder >= last_group_need(&geometry, &heads) {
                    break Some((geometry, heads));
                }
                if geometry.groups() == 1 {
                    return Err(Error::Size(format!(
                        "{blocks} blocks do not hold the file system's own metadata; ask for more, or fewer inodes"
                    )));
                }
                blocks -= remainder;
                reserved_blocks = scaled(reserved_at_first, blocks, params.blocks);
            };
            if let Some((geometry, heads)) = attempt {
                return Ok(Self { geometry, heads, reserved_blocks });
            }
            if params.features.contains(BIGALLOC) || clusters < 256 + 8 {
                return Err(Error::Size(format!(
                    "{} inodes do not fit the groups' bitmaps; raise -i or lower -N",
                    params.inodes
                )));
            }
            clusters -= 8;
        }
    }
}

/// Checks that a group can hold the longest head and its own bitmaps and inode table.
fn check_room(geometry: &Geometry, heads: &Heads) -> Result<()> {
    let own = heads.full_head_blocks() + 2 + geometry.inode_table_blocks();
    if own <= geometry.blocks_per_group() {
        return Ok(());
    }
    Err(Error::Size(format!(
        "a group of {} blocks does not hold {own} blocks of its own metadata; raise -i or -g, or lower -N",
        geometry.blocks_per_group()
    )))
}

/// How many blocks the last group must have, so that it is not dropped.
fn last_group_need(geometry: &Geometry, heads: &Heads) -> u64 {
    let last = blockyard_disk::GroupNr::new(geometry.groups() - 1);
    // mke2fs counts a whole table of descriptors even with meta_bg.
    let head = if heads.has_backup(last) { 1 + heads.desc_blocks() + heads.reserved_gdt() } else { 0 };
    2 + geometry.inode_table_blocks() + head + LAST_GROUP_FREE_MIN
}

/// Geometry with the wanted inodes spread over all groups; `None` if a group's share exceeds its
/// bitmap.
fn spread_inodes(params: &Params, blocks: u64, clusters: u32) -> Result<Option<Geometry>> {
    let block_size = params.block_size();
    let per_group = u64::from(clusters) << params.cluster_ratio_bits;
    let groups = (blocks.saturating_sub(params.first_block)).div_ceil(per_group);
    if groups == 0 {
        return Err(Error::Size(format!("{blocks} blocks are too few for a file system; ask for more")));
    }
    let wanted = params.inodes.max(12);
    let share = wanted.div_ceil(groups);
    let most = block_size * 8;
    if share > most {
        return Ok(None);
    }
    let inode_size = u64::from(params.inode_size);
    let most_counted = most.min(u64::from(COUNTED_MAX));
    let mut table = (share.min(most_counted) * inode_size).div_ceil(block_size);
    if table * block_size / inode_size > most_counted {
        table -= 1;
    }
    let inodes = (table * block_size / inode_size).max(8) & !7;
    let fields = GeometryFields {
        block_bits: params.block_bits,
        cluster_ratio_bits: params.cluster_ratio_bits,
        blocks_count: BlockCount::new(blocks),
        first_data_block: BlockNr::new(params.first_block),
        clusters_per_group: clusters,
        inodes_per_group: u32_from_u64(inodes),
        inode_size: u16::try_from(params.inode_size).expect("checked to be at most 32768"),
        flex_bits: params.flex_bits,
    };
    Geometry::new(fields).map(Some).map_err(|error| Error::Size(format!("{error}; ask for another size")))
}

/// `part * now / whole`, rounded down.
fn scaled(part: u64, now: u64, whole: u64) -> u64 {
    let scaled = u128::from(part) * u128::from(now) / u128::from(whole);
    u64::try_from(scaled).expect("now is at most whole, so the result is at most part")
}

/// A percentage of a block count, rounded down.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
#[expect(
    clippy::as_conversions,
    reason = "the percentage is a fraction; below 2^53 the product is exact enough"
)]
fn percent_of(blocks: u64, percent: f64) -> u64 {
    (blocks as f64 * percent / 100.0) as u64
}
