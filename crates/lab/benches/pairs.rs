//! Allocate/free pairs on a model of 64 GiB (512 groups) in memory. The allocator emits its events.
//! The pairs run under two kernel presets and `yard`, with 1 to 64 threads.
//!
//! The figure is wall time divided by the pairs of all threads. With perfect scaling, it halves
//! when the number of threads doubles, up to the number of CPUs. `blockyard lab pairs` also prints
//! CPU time and lock waits.

#![allow(missing_docs, clippy::unwrap_used, clippy::as_conversions, clippy::cast_precision_loss)]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use blockyard_alloc::{Allocator, Policy};
use blockyard_lab::pairs::worker::{PairWorker, open};
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};

/// Pairs that each thread makes before the clock starts. They find the thread's goal and group, and
/// bring the cache lines of this group into the CPU's cache.
const WARM_UP: u64 = 2000;

/// Minimum number of pairs in one measurement. They take some 100 ms, so that the time to wake the
/// threads is negligible.
const LEAST: u64 = 1_000_000;

/// Wall time of `pairs` pairs shared by `threads` threads, from the first start to the last end.
/// Each thread starts its own clock when the barrier has released all of them. If `pairs` is below
/// [`LEAST`], [`LEAST`] pairs are run and their time is scaled down.
fn timed(allocator: &Allocator, threads: u32, pairs: u64) -> Duration {
    let each = pairs.max(LEAST).div_ceil(u64::from(threads));
    let barrier = Barrier::new(usize::try_from(threads).unwrap());
    let run = |cpu| {
        let mut worker = PairWorker::new(allocator, cpu);
        worker.run(WARM_UP).unwrap();
        barrier.wait();
        let start = Instant::now();
        worker.run(each).unwrap();
        (start, Instant::now())
    };
    let run = &run;
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|cpu| scope.spawn(move || run(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let start = spans.iter().map(|span| span.0).min().unwrap();
    let all = spans.iter().map(|span| span.1).max().unwrap() - start;
    all.mul_f64(pairs as f64 / (each * u64::from(threads)) as f64)
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pairs");
    group.throughput(Throughput::Elements(1)).sample_size(10).measurement_time(Duration::from_secs(3));
    group.warm_up_time(Duration::from_millis(300)).sampling_mode(SamplingMode::Flat);
    for policy in ["linux-6.16", "linux-6.18", "yard"] {
        for threads in [1, 2, 8, 64] {
            let allocator: Allocator = open(Policy::parse(policy).unwrap(), 64).unwrap();
            group.bench_with_input(BenchmarkId::new(policy, threads), &threads, |bencher, &threads| {
                bencher.iter_custom(|pairs| timed(&allocator, threads, pairs));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);
