//! Allocate/free pairs in memory: 64 GiB (512 groups), events on, under each kernel preset and `yard`, with 1 to 64
//! threads. The figure is time per pair over all threads, so a flat line is perfect scaling by CPU.
//!
//! A pair is one `fallocate` of 8 KiB that continues a file, and the free of what it got.

#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, Allocator, BlockRequest, EventRings, FreeContext, InitMode, InodeAlloc, Neighbour, Policy,
    RequestFlags,
};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use blockyard_sync::CpuSlot;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Blocks a file holds when its pair is made: past the small-file limit.
const SIZE: u32 = 64;

fn open(policy: &str, cpus: u32) -> Allocator {
    let geometry = MemoryBitmaps::plain_geometry(512, 4);
    let disk = MemoryBitmaps::new(geometry, 600);
    let config = AllocConfig {
        policy: Policy::parse(policy).unwrap(),
        cpus,
        init: InitMode::AtOpen,
        ..AllocConfig::new(geometry)
    };
    let facts = disk.facts();
    Allocator::open(&config, disk, &facts)
        .unwrap()
        .with_events(EventRings::<blockyard_sync::Native>::new(cpus, 256))
}

/// `pairs` pairs on one CPU slot.
fn work(allocator: &Allocator, cpu: u32, pairs: u64) {
    let inode = InodeAlloc::new();
    let slot = CpuSlot::new(cpu);
    let mut left = None;
    for _ in 0..pairs {
        let request = BlockRequest {
            left,
            file_size: u64::from(SIZE) * 4096,
            cpu: slot,
            flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
            ..BlockRequest::data(InodeNr::new(12 + cpu), GroupNr::ZERO, LogicalBlock::new(SIZE), 2)
        };
        let claim = allocator.allocate(&request, &inode).unwrap();
        let first = claim.first_block();
        claim.commit();
        allocator.free(first, 2, FreeContext { cpu: slot, ..FreeContext::default() }).unwrap();
        left =
            Some(Neighbour { logical: LogicalBlock::new(SIZE - 1), physical: BlockNr::new(first.raw() - 1) });
    }
}

/// Wall time of `pairs` pairs shared by `threads` threads.
fn timed(allocator: &Arc<Allocator>, threads: u32, pairs: u64) -> Duration {
    let each = pairs.div_ceil(u64::from(threads));
    let barrier = Barrier::new(usize::try_from(threads).unwrap() + 1);
    std::thread::scope(|scope| {
        for cpu in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                work(allocator, cpu, each);
            });
        }
        barrier.wait();
        Instant::now()
    })
    .elapsed()
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pairs");
    group.throughput(Throughput::Elements(1)).sample_size(10).measurement_time(Duration::from_secs(2));
    group.warm_up_time(Duration::from_millis(300));
    for policy in ["linux-6.16", "linux-6.18", "yard"] {
        for threads in [1, 2, 8, 64] {
            let allocator = Arc::new(open(policy, 64));
            group.bench_with_input(BenchmarkId::new(policy, threads), &threads, |bencher, &threads| {
                bencher.iter_custom(|pairs| timed(&allocator, threads, pairs));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);
