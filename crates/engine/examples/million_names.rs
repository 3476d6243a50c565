//! A directory that grows large: `million_names [NAMES] [BLOCK-SIZE] [CACHE-MIB]`.
//!
//! Makes NAMES (1,000,000) files in one directory of a memory image and prints, when it holds 10,000 names and at the
//! end, how many names a second of CPU time were made and looked up, and the ratio of the two. Times are CPU time of
//! this thread, so that other work on the machine counts little; look-ups are the median of 20 rounds. At the end, the last
//! tenth of all names counts, so that commits do.
//!
//! Beside it stands what a `HashMap` in memory makes of the same names: how much of the ratio is the machine's caches.

use blockyard_device::MemoryDevice;
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::{FileSystem, JournalUse, NewInode, OpContext, OpenOptions, mkfs};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Names made for one figure.
const SAMPLE: u32 = 10_000;
/// Names looked up for one figure: over and over in a small directory.
const LOOKUPS: u32 = 200_000;
/// Rounds of which the median counts.
const ROUNDS: u32 = 20;

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Answer<()> {
    let mut arguments = std::env::args().skip(1);
    let names: u32 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let block_size: u32 = arguments.next().map_or(Ok(4096), |text| text.parse())?;
    let device = Arc::new(MemoryDevice::new(64 << 30));
    let format =
        mkfs::Options::ext4().block_size(block_size).features("large_dir").identity(1, 1_700_000_000);
    mkfs::format(&*device, &format)?;
    let ctx = OpContext::system();
    let cache_mib: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let options =
        OpenOptions { cache_bytes: cache_mib << 20, journal: JournalUse::Ignored, ..OpenOptions::default() };
    let fs = FileSystem::open(device, options, &ctx)?;
    let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    let dir = fs.create(&ctx, InodeNr::ROOT, b"large", &new)?;

    make(&fs, dir, 0..SAMPLE)?;
    let early = measure(&fs, dir, SAMPLE, SAMPLE)?;
    let names = names.max(4 * SAMPLE);
    let last = SAMPLE.max(names / 10);
    make(&fs, dir, 2 * SAMPLE..names - last)?;
    let late = measure(&fs, dir, names - last, last)?;
    println!("block size {block_size}: at {SAMPLE} names, at {names} names, ratio");
    let map = (map_lookups(SAMPLE)?, map_lookups(names)?);
    let rows = [
        ("creates", early.0, late.0),
        ("look-ups", early.1, late.1),
        ("look-ups in a HashMap", map.0, map.1),
    ];
    for (what, early, late) in rows {
        println!("{what} a second: {early:.0}, {late:.0}, {:.2}", late / early);
    }
    fs.close(&ctx)?;
    Ok(())
}

fn name(number: u32) -> String {
    // Spread, so that look-ups in order are no walk along the leaves.
    format!("name-{:08x}", number.wrapping_mul(0x9E37_79B1))
}

fn make(fs: &FileSystem, dir: InodeNr, numbers: std::ops::Range<u32>) -> Answer<()> {
    let ctx = OpContext::system();
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    for number in numbers {
        fs.create(&ctx, dir, name(number).as_bytes(), &new)?;
    }
    Ok(())
}

/// Creates a second of CPU time of `more` names in a directory of `held`, and look-ups when they are there.
fn measure(fs: &FileSystem, dir: InodeNr, held: u32, more: u32) -> Answer<(f64, f64)> {
    let begin = cpu_seconds();
    make(fs, dir, held..held + more)?;
    let created = cpu_seconds();
    let found = median_lookups(held + more, |name| fs.lookup(dir, name.as_bytes()).is_ok())?;
    Ok((f64::from(more) / (created - begin), found))
}

/// Look-ups a second in a map of `held` names.
fn map_lookups(held: u32) -> Answer<f64> {
    let map: HashMap<String, u32> = (0..held).map(|number| (name(number), number)).collect();
    median_lookups(held, |name| map.contains_key(name))
}

/// Look-ups a second of CPU time of names all over the `held` ones: the median of the rounds.
fn median_lookups(held: u32, find: impl Fn(&str) -> bool) -> Answer<f64> {
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let begin = cpu_seconds();
        for number in round * (LOOKUPS / ROUNDS)..(round + 1) * (LOOKUPS / ROUNDS) {
            let picked = u32::try_from(u64::from(number) * 7919 % u64::from(held))?;
            assert!(find(&name(picked)), "every name is there");
        }
        rates.push(f64::from(LOOKUPS / ROUNDS) / (cpu_seconds() - begin));
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

/// CPU time of this thread so far.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)).as_secs_f64()
}
