//! Allocation on many logical CPUs in virtual time. Before the scalability series the CPUs queue up
//! for locks of the whole file system (`LockCensus::shared`). After the series they acquire none of
//! these.

#![allow(clippy::unwrap_used, clippy::as_conversions, reason = "a test binary")]

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{AllocConfig, Allocator, BlockRequest, InitMode, InodeAlloc, Policy, RequestFlags};
use blockyard_disk::{GroupNr, InodeNr, LogicalBlock};
use blockyard_sync::virtual_time::{Costs, Program, Report, simulate};
use blockyard_sync::{CpuSlot, Virtual};

const CPUS: u32 = 16;
const REQUESTS: u32 = 60;

/// Every CPU appends 64-block pieces to its own file. One constant stands for all other costs of a
/// write. Returns the report, and how often shared locks were acquired.
fn append(policy: &str) -> (Report, u64) {
    let geometry = MemoryBitmaps::plain_geometry(64, 4);
    let disk = MemoryBitmaps::new(geometry, 100);
    let config = AllocConfig {
        policy: Policy::parse(policy).unwrap(),
        cpus: CPUS,
        init: InitMode::AtOpen,
        reserved: Some(0),
        ..AllocConfig::new(geometry)
    };
    let allocator: Allocator<Virtual> = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
    let (allocator, disk) = (&allocator, &disk);
    let programs = (0..CPUS).map(|cpu| -> Program<'_> {
        Box::new(move || {
            let inode = InodeAlloc::new();
            for at in 0..REQUESTS {
                let request = BlockRequest {
                    cpu: CpuSlot::new(cpu),
                    file_size: u64::from(at + 1) << 18,
                    flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
                    ..BlockRequest::data(
                        InodeNr::new(100 + cpu),
                        GroupNr::ZERO,
                        LogicalBlock::new(at * 64),
                        64,
                    )
                };
                disk.commit(allocator.allocate(&request, &inode).unwrap());
                Virtual::work(500);
            }
        })
    });
    let report = simulate(&Costs::default(), programs.collect());
    (report, allocator.lock_census().shared_acquisitions())
}

#[test]
fn many_cpus_queue_up_before_the_series_and_not_after_it() {
    let (before, shared_before) = append("linux-6.16:scan=optimized");
    let (after, shared_after) = append("linux-6.18:scan=optimized");
    println!("linux-6.16: {} ns, {:?}", before.elapsed_ns(), before.total());
    println!("linux-6.18: {} ns, {:?}", after.elapsed_ns(), after.total());
    assert!(shared_before >= u64::from(2 * CPUS * REQUESTS), "{shared_before}");
    assert_eq!(shared_after, 0);
    assert!(before.total().lock_waits > 10 * after.total().lock_waits.max(1));
    assert!(before.elapsed_ns() > 2 * after.elapsed_ns());
    assert_eq!(append("linux-6.18:scan=optimized").0, after);
}
