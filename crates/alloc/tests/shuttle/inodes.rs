//! Inode claims, commits, frees, loads and evictions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use blockyard_alloc::inode::{
    BitmapLoad, ClusterCounts, InodeAllocator, InodeConfig, InodeDirAlloc, InodeError, InodeGroupFacts,
    InodeRequest, InodeSource, InodeUpdate,
};
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry, GroupNr, InodeNr};
use blockyard_sync::{CpuSlot, Shuttle};

use crate::explore::{explore, together};

const GROUPS: u32 = 2;
const PER_GROUP: u32 = 8;

type Body = crate::explore::Body<Yard>;

/// Bitmaps on disk, changed by updates only.
#[derive(Debug, Default)]
struct Disk(Mutex<BTreeMap<(u32, u32), bool>>);

impl InodeSource for Disk {
    fn load(
        &self,
        group: GroupNr,
        bits: &mut [u8],
    ) -> Result<BitmapLoad, Box<dyn std::error::Error + Send + Sync>> {
        // The read takes time: other threads may commit, free and evict before and after it.
        shuttle::thread::yield_now();
        for (&(_, index), _) in self.0.lock().unwrap().range((group.raw(), 0)..(group.raw() + 1, 0)) {
            bits[index as usize / 8] |= 1 << (index % 8);
        }
        shuttle::thread::yield_now();
        Ok(BitmapLoad::Filled)
    }
}

impl Disk {
    fn write(&self, update: &InodeUpdate) {
        let place = (update.group.raw(), update.index);
        let mut bits = self.0.lock().unwrap();
        let before = if update.used { bits.insert(place, true) } else { bits.remove(&place) };
        assert_eq!(before.is_some(), !update.used, "{update:?}");
        let used = bits.range((update.group.raw(), 0)..(update.group.raw() + 1, 0)).count() as u32;
        assert_eq!(update.free_inodes, PER_GROUP - used, "{update:?}");
    }
}

struct Yard {
    allocator: InodeAllocator<Shuttle>,
    disk: Arc<Disk>,
}

impl Yard {
    /// Inodes 1 to 10 are in use.
    fn new() -> Arc<Self> {
        let geometry = Geometry::new(GeometryFields {
            block_bits: 10,
            cluster_ratio_bits: 0,
            blocks_count: BlockCount::new(u64::from(GROUPS) * 64 + 1),
            first_data_block: BlockNr::new(1),
            clusters_per_group: 64,
            inodes_per_group: PER_GROUP,
            inode_size: 256,
            flex_bits: 1,
        })
        .unwrap();
        let disk = Arc::new(Disk::default());
        (0..10).for_each(|at| _ = disk.0.lock().unwrap().insert((at / PER_GROUP, at % PER_GROUP), true));
        let facts: [InodeGroupFacts; GROUPS as usize] = [0, 6].map(|free| InodeGroupFacts {
            free_inodes: free,
            itable_unused: free,
            used_dirs: 0,
            inode_uninit: false,
        });
        let clusters = Arc::new(ClusterCounts::<Shuttle>::new(&geometry, &[60, 60], 2));
        let config = InodeConfig { cpus: 2, ..InodeConfig::default() };
        let allocator =
            InodeAllocator::new(geometry, config, &facts, clusters, Arc::clone(&disk) as _).unwrap();
        Arc::new(Self { allocator, disk })
    }

    fn create(&self, who: u32) -> Result<InodeNr, InodeError> {
        let request = InodeRequest {
            parent: InodeNr::ROOT,
            parent_is_top: false,
            directory: who == 0,
            name_hash: None,
            goal: None,
            slot: CpuSlot::new(who),
            now: 0,
        };
        let claim = self.allocator.allocate(&request, &mut InodeDirAlloc::default())?;
        Ok(claim.commit(|update| {
            self.disk.write(update);
            update.inode
        }))
    }

    fn remove(&self, inode: InodeNr, who: u32) {
        let slot = CpuSlot::new(who);
        self.allocator.free(inode, who == 0, slot, |update| self.disk.write(update)).unwrap();
    }

    fn evict(&self) {
        (0..GROUPS).for_each(|group| _ = self.allocator.evict(GroupNr::new(group), CpuSlot::ZERO));
    }
}

/// Creates and removes race with evictions. Afterwards the number of used inodes on disk and the
/// counts are as at the start. They would differ if a load installed a bitmap that it had read
/// before the last commit or free.
#[test]
fn creates_removes_and_evictions() {
    explore(1500, || {
        let yard = Yard::new();
        let worker = |who: u32| -> Body {
            Box::new(move |yard| {
                let first = yard.create(who).unwrap();
                let second = yard.create(who).unwrap();
                yard.remove(first, who);
                yard.remove(second, who);
            })
        };
        let evicter: Body = Box::new(|yard| (0..3).for_each(|_| yard.evict()));
        together(&yard, vec![worker(0), worker(1), evicter]);
        assert_eq!(yard.allocator.free_total(), 6);
        assert_eq!(yard.disk.0.lock().unwrap().len(), 10);
        assert_eq!(yard.allocator.directories_in_group(GroupNr::new(1)), 0);
    });
}

/// Two threads create three inodes each, where six are free. All six creates succeed. Then no inode
/// is left.
#[test]
fn the_last_inodes() {
    explore(1500, || {
        let yard = Yard::new();
        let worker = |who: u32| -> Body {
            Box::new(move |yard| (0..3).for_each(|_| assert!(yard.create(who).is_ok())))
        };
        together(&yard, vec![worker(0), worker(1)]);
        assert!(matches!(yard.create(0), Err(InodeError::NoInodes)));
        assert_eq!(yard.allocator.free_total(), 0);
    });
}

/// While a claim is open, evictions are tried. The claim is then released. Another thread creates
/// the other five inodes meanwhile. Afterwards the released number can be claimed again.
#[test]
fn dropped_claims() {
    explore(1500, || {
        let yard = Yard::new();
        let dropper: Body = Box::new(|yard| {
            let request = InodeRequest {
                parent: InodeNr::ROOT,
                parent_is_top: false,
                directory: true,
                name_hash: None,
                goal: None,
                slot: CpuSlot::ZERO,
                now: 0,
            };
            let claim = yard.allocator.allocate(&request, &mut InodeDirAlloc::default()).unwrap();
            yard.evict();
            claim.release();
        });
        let keeper: Body = Box::new(|yard| {
            (0..5).for_each(|_| assert!(yard.create(1).is_ok()));
            yard.evict();
        });
        together(&yard, vec![dropper, keeper]);
        assert!(yard.create(1).is_ok());
        assert!(matches!(yard.create(1), Err(InodeError::NoInodes)));
    });
}
