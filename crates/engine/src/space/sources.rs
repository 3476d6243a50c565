//! What the allocators read from the engine: on-disk bitmaps and counts.

use super::Space;
use crate::groups::Groups;
use crate::options::{DataMode, OpenOptions};
use crate::{Error, Refusal, Result};
use blockyard_alloc::inode::{
    BitmapLoad, FreeClusters, InodeAllocator, InodeConfig, InodeGroupFacts, InodeSource, RecentDeletion,
};
use blockyard_alloc::{AllocConfig, Allocator, GroupFacts, GroupSource, SourceError};
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::superblock::Superblock;
use blockyard_disk::{Compat, FlexNr, GroupNr, Incompat};
use blockyard_sync::AtomicU64;
use std::fmt;
use std::sync::Arc;

/// The journaled bitmaps as the source from which the allocators load groups.
struct Bitmaps(Arc<Groups>);

impl GroupSource for Bitmaps {
    fn load(&self, group: GroupNr, bitmap: &mut [u8]) -> std::result::Result<(), SourceError> {
        Ok(self.0.copy_block_bitmap(group, bitmap)?)
    }
}

impl InodeSource for Bitmaps {
    fn load(&self, group: GroupNr, bits: &mut [u8]) -> std::result::Result<BitmapLoad, SourceError> {
        match self.0.copy_inode_bitmap(group, bits) {
            Ok(()) => Ok(BitmapLoad::Filled),
            Err(Error::Corrupt(_)) => Ok(BitmapLoad::Corrupt),
            Err(error) => Err(error.into()),
        }
    }

    fn deletion(&self, group: GroupNr, index: u32) -> Option<RecentDeletion> {
        self.0.deletion(group, index)
    }
}

impl fmt::Debug for Bitmaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bitmaps")
    }
}

/// The counts of free clusters that inode placement needs.
struct Counts {
    groups: Arc<Groups>,
    blocks: Arc<Allocator>,
}

impl FreeClusters for Counts {
    fn in_group(&self, group: GroupNr) -> u32 {
        self.groups.free_clusters_hint(group)
    }

    fn in_flex(&self, flex: FlexNr) -> u64 {
        let geometry = self.groups.geometry();
        let first = flex.raw() << geometry.fields().flex_bits;
        let end = geometry.groups().min(first.saturating_add(geometry.flex_size()));
        (first..end).map(|group| u64::from(self.in_group(GroupNr::new(group)))).sum()
    }

    fn total_approximate(&self) -> u64 {
        self.blocks.free_clusters_approximate()
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counts")
    }
}

impl Space {
    /// Opens both allocators, with the state of the groups on disk.
    pub(crate) fn open(sb: &Superblock, groups: &Arc<Groups>, options: &OpenOptions) -> Result<Self> {
        options.policy.serves(sb.features()).map_err(|refused| Error::Refused(Refusal::Policy(refused)))?;
        let geometry = *sb.geometry();
        let cpus = options.cpus.max(1);
        let config = AllocConfig {
            policy: options.policy,
            cpus,
            rotational: options.rotational,
            stripe: options.instruments.stripe.unwrap_or_else(|| sb.raw().s_raid_stripe_width.get()),
            root_reserved: sb.reserved_blocks_count().raw() >> geometry.cluster_ratio_bits(),
            extents: sb.features().incompat.contains(Incompat::EXTENTS),
            seed: options.seed,
            ..AllocConfig::new(geometry)
        };
        let facts: Vec<GroupFacts> = geometry
            .all_groups()
            .map(|group| {
                let (free, block_uninit) = groups.block_facts(group);
                GroupFacts { free, block_uninit }
            })
            .collect();
        debug_assert_eq!(facts.len(), usize_from_u32(geometry.groups()), "facts of each group");
        let blocks = Allocator::open(&config, Arc::new(Bitmaps(Arc::clone(groups))), &facts)?;
        let blocks = Arc::new(match &options.events {
            Some(events) => blocks.with_events(Arc::clone(&events.0)),
            None => blocks,
        });
        let inodes = open_inodes(sb, groups, &blocks, options)?;
        Ok(Self {
            blocks,
            inodes,
            groups: Arc::clone(groups),
            frees_data_at_once: options.data == DataMode::Writeback
                || (options.instruments.page_cache && !sb.features().compat.contains(Compat::HAS_JOURNAL)),
            broken_rule: options.instruments.broken_rule,
            held: AtomicU64::new(super::NONE_HELD),
        })
    }
}

fn open_inodes(
    sb: &Superblock,
    groups: &Arc<Groups>,
    blocks: &Arc<Allocator>,
    options: &OpenOptions,
) -> Result<InodeAllocator> {
    let config = InodeConfig {
        placement: options.policy.inode,
        switches: options.policy.orlov,
        cpus: options.cpus.max(1),
        first_inode: sb.first_inode().raw(),
        descriptor_checksums: sb.features().has_group_checksum(),
        without_journal: sb.journal_inode().is_none(),
        seed: options.seed,
    };
    let facts: Vec<InodeGroupFacts> = sb
        .geometry()
        .all_groups()
        .map(|group| {
            let facts = groups.inode_facts(group);
            InodeGroupFacts {
                free_inodes: facts.free,
                used_dirs: facts.directories,
                itable_unused: facts.unused,
                inode_uninit: facts.uninit,
            }
        })
        .collect();
    debug_assert_eq!(facts.len(), usize_from_u32(sb.geometry().groups()), "facts of each group");
    let counts = Counts { groups: Arc::clone(groups), blocks: Arc::clone(blocks) };
    let source = Bitmaps(Arc::clone(groups));
    Ok(InodeAllocator::new(*sb.geometry(), config, &facts, Arc::new(counts), Arc::new(source))?)
}
