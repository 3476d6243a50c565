//! Level-1 agreement: the running kernel's block allocator is recorded request by request, the same inputs go to
//! ours, and every placement, candidate count, scanned count, criterion and goal must be equal; at the end so must
//! `mb_groups`, `mb_structs_summary` and the counts of `mb_stats`.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

mod agree {
    pub(crate) mod kernel;
    pub(crate) mod loads;
    pub(crate) mod trace;
}

use std::collections::HashMap;
use std::sync::Arc;

use agree::kernel::{Kernel, Kind};
use agree::loads::{LOADS, Load, Loader};
use agree::trace::{Event, Request, Search, parse};
use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, AllocEvent, Allocator, BlockRequest, EventExtent, EventKind, EventRings,
    FreeContext, InitMode, InodeAlloc, Mapping, Neighbour, Policy, RequestFlags, Tunable,
};
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::CpuSlot;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const KINDS: [Kind; 17] = [
    kind("4k flex", &["-O", "^has_journal"], "4G", "", false),
    kind("4k rotational", &["-O", "^has_journal"], "4G", "", true),
    kind("4k linear", &["-O", "^has_journal"], "4G", ",mb_optimize_scan=0", false),
    kind("4k no flex", &["-O", "^has_journal,^flex_bg"], "4G", "", false),
    kind("4k small groups", &["-O", "^has_journal", "-g", "2048"], "512M", "", false),
    kind("1k", &["-O", "^has_journal", "-b", "1024"], "512M", "", false),
    kind("1k rotational linear", &["-O", "^has_journal", "-b", "1024"], "512M", ",mb_optimize_scan=0", true),
    kind("stripe 48", &["-O", "^has_journal"], "4G", ",stripe=48", false),
    kind("stripe 128", &["-O", "^has_journal", "-g", "8192"], "2G", ",stripe=128", false),
    kind("bigalloc 16k", &["-O", "^has_journal,bigalloc", "-C", "16384"], "16G", "", false),
    kind(
        "bigalloc 64k",
        &["-O", "^has_journal,bigalloc", "-C", "65536"],
        "64G",
        ",mb_optimize_scan=1",
        false,
    ),
    kind("nearly full", &["-O", "^has_journal", "-g", "1024"], "96M", "", false),
    kind("journal", &["-J", "size=16"], "4G", "", false),
    kind("indirect maps", &["-O", "^has_journal,^extent,^64bit"], "4G", "", false),
    Kind { lazy: true, ..kind("lazy flex", &["-O", "^has_journal"], "4G", "", false) },
    Kind { lazy: true, ..kind("lazy rotational no flex", &["-O", "^has_journal,^flex_bg"], "4G", "", true) },
    Kind { lazy: true, ..kind("lazy 1k", &["-O", "^has_journal", "-b", "1024"], "512M", "", false) },
];

const fn kind(
    name: &'static str,
    mke2fs: &'static [&'static str],
    size: &'static str,
    mount: &'static str,
    rotational: bool,
) -> Kind {
    Kind { name, mke2fs, size, mount, rotational, lazy: false }
}

/// The value after `name:` in dumpe2fs's output.
fn dumped<'a>(dump: &'a str, name: &str) -> Option<&'a str> {
    dump.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim))
}

fn dumped_number(dump: &str, name: &str) -> u64 {
    dumped(dump, name).unwrap_or_else(|| panic!("{name}")).parse().unwrap()
}

fn geometry(dump: &str) -> Geometry {
    let block = dumped_number(dump, "Block size");
    let cluster = dumped(dump, "Cluster size").map_or(block, |text| text.parse().unwrap());
    let clusters = dumped(dump, "Clusters per group")
        .map_or_else(|| dumped_number(dump, "Blocks per group"), |t| t.parse().unwrap());
    let flex = dumped(dump, "Flex block group size").map_or(1u64, |text| text.parse().unwrap());
    Geometry::new(GeometryFields {
        block_bits: block.trailing_zeros(),
        cluster_ratio_bits: (cluster / block).trailing_zeros(),
        blocks_count: BlockCount::new(dumped_number(dump, "Block count")),
        first_data_block: BlockNr::new(dumped_number(dump, "First block")),
        clusters_per_group: clusters as u32,
        inodes_per_group: dumped_number(dump, "Inodes per group") as u32,
        inode_size: dumped_number(dump, "Inode size") as u16,
        flex_bits: flex.trailing_zeros(),
    })
    .unwrap()
}

/// The bitmaps as dumpe2fs prints them: everything used but the free runs (which it gives in blocks).
fn bitmaps(dump: &str, geometry: Geometry) -> Arc<MemoryBitmaps> {
    let disk = MemoryBitmaps::new(geometry, 0);
    for group in geometry.all_groups() {
        disk.write(group, 0, geometry.clusters_in_group(group), true);
    }
    for line in dump.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for run in line.split(',').map(str::trim).filter(|run| !run.is_empty()) {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
            let (group, start) = geometry.locate(BlockNr::new(first));
            let (_, end) = geometry.locate(BlockNr::new(last));
            disk.write(group, start.raw(), end.raw() - start.raw() + 1, false);
        }
    }
    disk
}

/// Which groups' bitmaps were never written.
fn block_uninit(dump: &str) -> Vec<bool> {
    let heads = dump.lines().filter(|line| line.starts_with("Group ") && line.contains(": (Blocks "));
    heads.map(|line| line.contains("BLOCK_UNINIT")).collect()
}

struct Replay {
    extents: bool,
    allocator: Allocator,
    disk: Arc<MemoryBitmaps>,
    geometry: Geometry,
    rings: Arc<EventRings>,
    inodes: HashMap<u32, InodeAlloc>,
    requests: u32,
    wrong: Vec<String>,
}

impl Replay {
    fn new(kernel: &Kernel, kind: Kind) -> Self {
        let geometry = geometry(&kernel.dump);
        let disk = bitmaps(&kernel.dump, geometry);
        let optimised = kernel.proc("mb_structs_summary").starts_with("optimize_scan: 1");
        let scan = if optimised { "optimized" } else { "linear" };
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
        let stripe = kind.mount.split("stripe=").nth(1).map_or(0, |text| text.parse().unwrap());
        let config = AllocConfig {
            policy: Policy::parse(&format!("linux-6.18:scan={scan}")).unwrap(),
            cpus: possible.trim().rsplit(['-', ',']).next().unwrap().parse::<u32>().unwrap() + 1,
            rotational: kind.rotational,
            stripe,
            reserved: Some(kernel.tunable("reserved_clusters")),
            init: if kind.lazy { InitMode::Lazy } else { InitMode::AtOpen },
            memory_max: u64::MAX,
            ..AllocConfig::new(geometry)
        };
        let rings = Arc::new(EventRings::new(config.cpus, 16));
        let mut facts = disk.facts();
        for (facts, uninit) in facts.iter_mut().zip(block_uninit(&kernel.dump)) {
            facts.block_uninit = uninit;
        }
        let allocator =
            Allocator::open(&config, disk.clone(), &facts).unwrap().with_events(Arc::clone(&rings));
        // Full groups are loaded too, as reading mb_groups does.
        if !kind.lazy {
            allocator.groups().unwrap();
        }
        for &tunable in Tunable::ALL {
            let theirs = kernel.tunable(tunable.name());
            if tunable != Tunable::Stats {
                assert_eq!(u64::from(allocator.tunable(tunable)), theirs, "default of {}", tunable.name());
            }
        }
        allocator.set_tunable(Tunable::Stats, 1).unwrap();
        Self {
            extents: !kind.name.contains("indirect"),
            allocator,
            disk,
            geometry,
            rings,
            inodes: HashMap::new(),
            requests: 0,
            wrong: Vec::new(),
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Request(request) => self.request(request),
            Event::Discard { ino } => {
                if let Some(inode) = self.inodes.get(ino) {
                    self.allocator.discard_inode_preallocations(inode, CpuSlot::ZERO);
                }
            }
            Event::Free { group, start, count, txn } => {
                let group = GroupNr::new(*group);
                let first = self.geometry.block_at(group, blockyard_disk::ClusterOffset::new(*start));
                let end = self.geometry.group_first_block(group).raw() + self.geometry.blocks_in_group(group);
                let blocks = (u64::from(*count) << self.geometry.cluster_ratio_bits()).min(end - first.raw());
                let context = FreeContext { txn: txn.map(TxnId::new), ..FreeContext::default() };
                let freed = self.allocator.free_with(first, blocks, context, |extent| {
                    self.disk.write(extent.group, extent.start, extent.count, false);
                    Ok::<(), AllocError>(())
                });
                if let Err(error) = freed {
                    self.wrong.push(format!("free {group}:{start}+{count}: {error}"));
                }
            }
            Event::Inode { ino } => {
                // Its group's block bitmap is written with it.
                let group = (ino - 1) / self.geometry.inodes_per_group();
                self.allocator.note_bitmap_written(GroupNr::new(group));
            }
            Event::Commit { txn } => self.allocator.commit(TxnId::new(*txn), CpuSlot::ZERO),
        }
    }

    fn request(&mut self, theirs: &Request) {
        self.requests += 1;
        let neighbour = |(logical, physical): (u32, u64)| {
            (physical != 0)
                .then(|| Neighbour { logical: LogicalBlock::new(logical), physical: BlockNr::new(physical) })
        };
        let inode_group = (theirs.ino - 1) / self.geometry.inodes_per_group();
        let request = BlockRequest {
            inode: InodeNr::new(theirs.ino),
            inode_group: GroupNr::new(inode_group),
            mapping: if self.extents { Mapping::Extents } else { Mapping::Indirect },
            logical: LogicalBlock::new(theirs.logical),
            clusters: theirs.len,
            goal: BlockNr::new(theirs.goal),
            left: neighbour(theirs.left),
            right: neighbour(theirs.right),
            file_size: theirs.size,
            writer_open: theirs.open,
            cpu: CpuSlot::new(theirs.cpu),
            colour: 0,
            flags: RequestFlags::from_bits_truncate(theirs.flags),
        };
        let inode = self.inodes.entry(theirs.ino).or_default();
        let ours = match self.allocator.allocate(&request, inode) {
            Ok(claim) => {
                let place = (claim.first_block().raw(), claim.clusters());
                self.disk.commit(claim);
                Some(place)
            }
            Err(AllocError::NoSpace(_)) => None,
            Err(error) => panic!("{error}"),
        };
        let event = self.rings.drain().0.pop();
        let described = event.as_ref().map(describe);
        let same_search = match (&theirs.search, &described) {
            (Some(theirs), Some(ours)) => {
                // The kernel's counts are 16 bits wide; a preallocation hit has no goal.
                theirs.orig == ours.orig
                    && theirs.result == ours.result
                    && (theirs.goal.is_empty() || {
                        theirs.goal == ours.goal
                            && theirs.found == ours.found & 0xffff
                            && theirs.scanned == ours.scanned
                            && theirs.criterion == ours.criterion
                            && theirs.flags == ours.flags
                    })
            }
            (None, _) => true,
            (Some(_), None) => false,
        };
        if theirs.given != ours || !same_search {
            self.wrong.push(format!("request {} {theirs:?}\n  ours {ours:?} {described:?}", self.requests));
        }
    }
}

fn describe(event: &AllocEvent) -> Search {
    let place = |extent: EventExtent| {
        format!("{}/{}/{}@{}", extent.group, extent.start.cast_signed(), extent.len, extent.logical)
    };
    let hit = event.kind == EventKind::Prealloc;
    Search {
        orig: place(event.original),
        goal: if hit { String::new() } else { place(event.goal) },
        result: place(event.result),
        found: event.found,
        scanned: u32::from(event.scanned),
        criterion: u32::from(event.criterion),
        flags: u32::from(event.flags),
    }
}

/// Records one load on one image kind and replays it: requests compared, and what differed.
fn compare(kind: Kind, load: Load, seed: u64, steps: u32) -> (u32, Vec<String>) {
    let mut kernel = Kernel::new(kind);
    let mut replay = Replay::new(&kernel, kind);
    let block = replay.geometry.block_size() as u64;
    let rng = ChaCha8Rng::seed_from_u64(seed);
    Loader::new(&mut kernel, rng, block).load(load, steps);
    if kind.name == "nearly full" {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ 1);
        Loader::new(&mut kernel, rng, block).load(Load::FillUp, 150);
    }
    let _ = rustix::fs::syncfs(std::fs::File::open(kernel.mount()).unwrap());
    let journal = kind.name == "journal";
    for event in parse(&kernel.trace(), journal) {
        replay.event(&event);
    }
    let mut wrong = replay.wrong;
    let mut same = |what: &str, theirs: String, ours: String| {
        let differing =
            theirs.lines().zip(ours.lines()).find(|(theirs, ours)| theirs.trim_end() != ours.trim_end());
        if let Some((theirs, ours)) = differing {
            wrong.push(format!("{what}:\n  kernel {theirs}\n  ours   {ours}"));
        }
    };
    same("mb_groups", kernel.proc("mb_groups"), replay.allocator.mb_groups().unwrap());
    same("mb_structs_summary", kernel.proc("mb_structs_summary"), replay.allocator.mb_structs_summary());
    let counts = |text: String| {
        text.lines()
            .filter(|line| !line.contains("buddies"))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    same("mb_stats", counts(kernel.proc("mb_stats")), counts(replay.allocator.mb_stats()));
    (replay.requests, wrong)
}

#[test]
fn the_kernel_and_we_place_every_request_alike() {
    if !blockyard_testkit::require(&["root", "mke2fs", "dumpe2fs", "losetup"]) {
        return;
    }
    // One CPU: a thread that moves between the choice of its slot and the trace point is not repeatable.
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
    let seed = blockyard_testkit::seed(1);
    let only = std::env::var("AGREE_ONLY").unwrap_or_default();
    let full = blockyard_testkit::full_matrix();
    let mut total = 0;
    let mut bad = Vec::new();
    for (number, kind) in KINDS.into_iter().enumerate() {
        for (which, load) in LOADS.into_iter().enumerate() {
            let name = format!("{} {load:?}", kind.name);
            let sampled = (number + which) % 6 == 0 || !only.is_empty();
            if !(full || sampled) || !name.contains(&only) {
                continue;
            }
            let (requests, wrong) = compare(kind, load, seed, if full { 120 } else { 25 });
            println!("{name}: {requests} requests, {} differences", wrong.len());
            total += requests;
            bad.extend(wrong.into_iter().take(3).map(|text| format!("{name}: {text}")));
        }
    }
    println!("{total} requests");
    assert!(bad.is_empty(), "{} differences\n{}", bad.len(), bad[..bad.len().min(12)].join("\n"));
}
