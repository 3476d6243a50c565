//! A file system of names only, whose inodes the allocator places. The tests compare its inode
//! numbers with those of a kernel or with expected ones.
//!
//! Bitmaps and descriptors "on disk" change only through the updates that commits and frees report,
//! as in an engine. After an eviction, the allocator reads the bitmap back.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use blockyard_alloc::inode::{
    BitmapLoad, ClusterCounts, DirBlocks, InodeAllocator, InodeConfig, InodeDirAlloc, InodeError,
    InodeGroupFacts, InodeRequest, InodeSource, InodeUpdate, RecentDeletion, goal_for_inode, top_name_hash,
};
use blockyard_disk::dirhash::HashSeed;
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{Geometry, GroupNr, InodeNr};
use blockyard_sync::CpuSlot;

/// Inode bitmaps and descriptors as written by updates.
#[derive(Debug)]
pub(crate) struct MemoryInodes {
    groups: Mutex<Vec<OnDisk>>,
    deletions: Mutex<HashMap<(u32, u32), RecentDeletion>>,
}

/// One group on disk.
#[derive(Clone, Debug)]
pub(crate) struct OnDisk {
    pub(crate) bits: Vec<u8>,
    pub(crate) facts: InodeGroupFacts,
}

impl MemoryInodes {
    /// Groups whose used inodes are the lowest ones, as mke2fs leaves them.
    pub(crate) fn fresh(inodes_per_group: u32, facts: &[InodeGroupFacts]) -> Self {
        let groups = facts.iter().map(|f| {
            let mut bits = vec![0u8; inodes_per_group.div_ceil(8) as usize];
            (0..inodes_per_group - f.free_inodes).for_each(|i| bits[i as usize / 8] |= 1 << (i % 8));
            OnDisk { bits, facts: *f }
        });
        Self { groups: Mutex::new(groups.collect()), deletions: Mutex::default() }
    }

    pub(crate) fn group(&self, group: u32) -> OnDisk {
        self.groups.lock().unwrap()[group as usize].clone()
    }

    /// Applies an update to bitmap and descriptor.
    pub(crate) fn write(&self, update: &InodeUpdate) {
        let mut groups = self.groups.lock().unwrap();
        let on_disk = &mut groups[usize_from_u32(update.group.raw())];
        let (byte, mask) = (usize_from_u32(update.index / 8), 1u8 << (update.index % 8));
        assert_eq!(update.initialise_bitmap, on_disk.facts.inode_uninit && update.used);
        assert_ne!(on_disk.bits[byte] & mask != 0, update.used, "{update:?}: the bit does not change");
        on_disk.bits[byte] ^= mask;
        assert!(update.itable_unused <= on_disk.facts.itable_unused, "{update:?}: itable_unused grew");
        on_disk.facts = InodeGroupFacts {
            free_inodes: update.free_inodes,
            used_dirs: update.used_dirs,
            itable_unused: update.itable_unused,
            inode_uninit: false,
        };
    }

    /// Records when an inode was deleted.
    pub(crate) fn deleted(&self, group: GroupNr, index: u32, deletion: RecentDeletion) {
        self.deletions.lock().unwrap().insert((group.raw(), index), deletion);
    }
}

impl InodeSource for MemoryInodes {
    fn load(
        &self,
        group: GroupNr,
        bits: &mut [u8],
    ) -> Result<BitmapLoad, Box<dyn std::error::Error + Send + Sync>> {
        bits.copy_from_slice(&self.groups.lock().unwrap()[usize_from_u32(group.raw())].bits);
        Ok(BitmapLoad::Filled)
    }

    fn deletion(&self, group: GroupNr, index: u32) -> Option<RecentDeletion> {
        self.deletions.lock().unwrap().get(&(group.raw(), index)).copied()
    }
}

/// One directory.
#[derive(Debug, Default)]
struct Directory {
    alloc: InodeDirAlloc,
    top: bool,
    /// The group of each cluster of the directory.
    blocks: Vec<GroupNr>,
}

/// The file system of names.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) allocator: InodeAllocator,
    pub(crate) clusters: Arc<ClusterCounts>,
    pub(crate) disk: Arc<MemoryInodes>,
    directories: HashMap<u32, Directory>,
    seed: HashSeed,
    operations: u32,
    /// The time in seconds since 1970. Without a journal, deletion times are compared with it.
    pub(crate) now: u32,
}

impl Replica {
    pub(crate) const ROOT: u32 = 2;

    pub(crate) fn new(
        geometry: Geometry,
        facts: &[InodeGroupFacts],
        free_clusters: &[u32],
        seed: HashSeed,
        config: InodeConfig,
    ) -> Self {
        let clusters = Arc::new(ClusterCounts::new(&geometry, free_clusters, config.cpus));
        let disk = Arc::new(MemoryInodes::fresh(geometry.inodes_per_group(), facts));
        let allocator =
            InodeAllocator::new(geometry, config, facts, Arc::clone(&clusters) as _, Arc::clone(&disk) as _)
                .unwrap();
        let root = Directory { top: true, ..Directory::default() };
        Self {
            allocator,
            clusters,
            disk,
            directories: HashMap::from([(Self::ROOT, root)]),
            seed,
            operations: 0,
            now: 0,
        }
    }

    /// Creates an inode. If it is a directory, the caller charges its blocks ([`Self::charge`]).
    /// Every 97th call, if it succeeds, also evicts the new inode's group.
    pub(crate) fn create(&mut self, parent: u32, name: &str, directory: bool) -> Result<u32, InodeError> {
        self.operations += 1;
        let entry = self.directories.get_mut(&parent).expect("a parent that exists");
        let request = InodeRequest {
            parent: InodeNr::new(parent),
            parent_is_top: entry.top,
            directory,
            name_hash: Some(top_name_hash(name.as_bytes(), self.seed)),
            goal: None,
            slot: CpuSlot::ZERO,
            now: self.now,
        };
        let inode = self
            .allocator
            .allocate(&request, &mut entry.alloc)?
            .commit(|update| {
                self.disk.write(update);
                update.inode
            })
            .raw();
        if directory {
            self.directories.insert(inode, Directory::default());
        }
        if self.operations.is_multiple_of(97) {
            let group = self.allocator.geometry().locate_inode(InodeNr::new(inode)).0;
            self.allocator.evict(group, CpuSlot::ZERO);
        }
        Ok(inode)
    }

    /// The group of the block goal of a directory that has no block yet. The directory's blocks go
    /// to this group while it has room.
    pub(crate) fn goal_group(&self, inode: u32) -> GroupNr {
        let geometry = self.allocator.geometry();
        let (own, _) = geometry.locate_inode(InodeNr::new(inode));
        geometry.group_of(goal_for_inode(geometry, own, false, DirBlocks::FlexFirst, None))
    }

    /// Sets the groups of all clusters of a directory. Clusters that are new are subtracted from
    /// the free counts.
    pub(crate) fn charge(&mut self, inode: u32, groups: Vec<GroupNr>) {
        let directory = self.directories.get_mut(&inode).expect("a directory");
        let mut known = std::mem::replace(&mut directory.blocks, groups);
        for &group in &directory.blocks {
            match known.iter().position(|&other| other == group) {
                Some(at) => drop(known.swap_remove(at)),
                None => self.clusters.changed(group, -1, CpuSlot::ZERO),
            }
        }
        assert!(known.is_empty(), "directory {inode} lost clusters in {known:?}");
    }

    /// Sets the groups of the clusters of a directory that existed from the start. The free counts
    /// do not change.
    pub(crate) fn adopt(&mut self, inode: u32, groups: Vec<GroupNr>) {
        self.directories.get_mut(&inode).expect("a directory").blocks = groups;
    }

    /// Sets or clears a directory's top flag, as `chattr +T` does.
    pub(crate) fn set_top(&mut self, inode: u32, top: bool) {
        self.directories.get_mut(&inode).expect("a directory").top = top;
    }

    /// Removes an inode. If it is a directory, first counts its clusters as free.
    pub(crate) fn remove(&mut self, inode: u32) {
        let directory = self.directories.remove(&inode);
        for &group in directory.iter().flat_map(|d| &d.blocks) {
            self.clusters.changed(group, 1, CpuSlot::ZERO);
        }
        self.allocator
            .free(InodeNr::new(inode), directory.is_some(), CpuSlot::ZERO, |update| {
                self.disk.write(update);
                let deletion = RecentDeletion { deleted_at: self.now, dirty: true };
                self.disk.deleted(update.group, update.index, deletion);
            })
            .unwrap();
    }
}
