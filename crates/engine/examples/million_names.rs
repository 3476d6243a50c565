//! Compares a large directory with small ones: `million_names [NAMING] [NAMES] [BLOCK-SIZE]
//! [CACHE-MIB] [IMAGE-GIB] [JOURNAL] [BESIDE]`.
//!
//! NAMING is how names are made:
//!
//! - `counted` (the default): `file0000001` and so on, in order;
//! - `scattered`: `name-` and eight hexadecimal digits, in no order;
//! - `any`: sixteen hexadecimal digits, in no order;
//! - `long`: 48 bytes, in order.
//!
//! JOURNAL is `ignored` (the default) or `used`.
//!
//! Creates files in directories of a memory image, one after the other. Prints how many names were
//! created and looked up per second of CPU time: in small directories, in a directory of NAMES
//! names (1,000,000 by default, at least 40,000), and the ratio of the two.
//!
//! - Creates: twenty small directories grow from 10,000 names to 20,000. In the large directory,
//!   the creation of the last fifth of the names (at least 10,000) is measured. If NAMES is
//!   1,000,000, both rates are thus measured over 200,000 names. Commits during the measured time
//!   are included.
//! - Lookups: measured in one small directory with 20,000 names and in the large one, with names
//!   from all over the directory. The rate of lookups is the median of 20 rounds.
//!
//! Times are CPU time of this thread, so that other work on the machine has little influence.
//!
//! BESIDE is a directory of a mounted file system. If it is given, the same is done there by system
//! calls (mknodat and statat), with one small directory. Our rates are then also printed as
//! multiples of the rates of that file system.
//!
//! Lookups in a small and in a large `HashMap` with the same names are measured, too. The ratio of
//! these two rates hints at how much of our ratio is due to the machine's caches.

use blockyard_device::MemoryDevice;
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::{FileSystem, JournalUse, NewInode, OpContext, OpenOptions, mkfs};
use rustix::fs::{AtFlags, FileType as NodeType, Mode, OFlags};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How many names a small directory has when measuring begins, and how many are then created in it.
const SAMPLE: u32 = 10_000;
/// How many small directories there are.
const DIRECTORIES: u32 = 20;
/// Lookups for one figure. In a small directory each name is looked up several times.
const LOOKUPS: u32 = 200_000;
/// How many rounds the lookups are divided into. The figure is the median of the rounds' rates.
const ROUNDS: u32 = 20;

/// How names are made from numbers.
#[derive(Clone, Copy)]
enum Naming {
    Counted,
    Scattered,
    Any,
    Long,
}

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Answer<()> {
    let mut arguments = std::env::args().skip(1);
    let naming = match arguments.next().as_deref() {
        None | Some("counted") => Naming::Counted,
        Some("scattered") => Naming::Scattered,
        Some("any") => Naming::Any,
        Some("long") => Naming::Long,
        Some(other) => return Err(format!("{other}: names are counted, scattered, any or long").into()),
    };
    let names: u32 = number_or(arguments.next(), "NAMES", 1_000_000)?;
    let block_size: u32 = number_or(arguments.next(), "BLOCK-SIZE", 4096)?;
    let cache_mib: usize = number_or(arguments.next(), "CACHE-MIB", 64)?;
    let image_gib: u64 = number_or(arguments.next(), "IMAGE-GIB", 64)?;
    let journal = match arguments.next().as_deref() {
        None | Some("ignored") => JournalUse::Ignored,
        Some("used") => JournalUse::Journaled,
        Some(other) => return Err(format!("{other}: the journal is ignored or used").into()),
    };
    let device = Arc::new(MemoryDevice::new(image_gib << 30));
    let format =
        mkfs::Options::ext4().block_size(block_size).features("large_dir").identity(1, 1_700_000_000);
    mkfs::format(&*device, &format)?;
    let ctx = OpContext::system();
    let options = OpenOptions { cache_bytes: cache_mib << 20, journal, ..OpenOptions::default() };
    let fs = FileSystem::open(device, options, &ctx)?;
    let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    let directory = |name: String| fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &new);

    let (mut seconds, mut first, mut small) = (0.0, 0.0, InodeNr::ROOT);
    for number in 0..DIRECTORIES {
        small = directory(format!("small-{number}"))?;
        make(&fs, naming, small, 0..SAMPLE)?;
        seconds += make(&fs, naming, small, SAMPLE..2 * SAMPLE)?;
        if number == 0 {
            first = seconds;
        }
    }
    let early = (f64::from(DIRECTORIES * SAMPLE) / seconds, lookups(&fs, naming, small, 2 * SAMPLE)?);

    let large = directory("large".to_owned())?;
    let names = names.max(4 * SAMPLE);
    let last = SAMPLE.max(names / 5);
    make(&fs, naming, large, 0..names - last)?;
    let created = f64::from(last) / make(&fs, naming, large, names - last..names)?;
    let late = (created, lookups(&fs, naming, large, names)?);
    println!("block size {block_size}: in small directories, at {names} names, ratio");
    println!("creates a second in the first directory, before any commit: {:.0}", f64::from(SAMPLE) / first);
    let map = (map_lookups(naming, 2 * SAMPLE)?, map_lookups(naming, names)?);
    let rows = [
        ("creates", early.0, late.0),
        ("look-ups", early.1, late.1),
        ("look-ups in a HashMap", map.0, map.1),
    ];
    for (what, early, late) in rows {
        println!("{what} a second: {early:.0}, {late:.0}, {:.2}", late / early);
    }
    fs.close(&ctx)?;
    if let Some(beside) = arguments.next() {
        let (theirs_early, theirs_late) = beside_rates(Path::new(&beside), naming, names)?;
        println!("creates beside: {:.0}, {:.0} a second", theirs_early.0, theirs_late.0);
        println!("look-ups beside: {:.0}, {:.0} a second", theirs_early.1, theirs_late.1);
        println!("creates, times theirs: {:.2}, {:.2}", early.0 / theirs_early.0, late.0 / theirs_late.0);
        println!("look-ups, times theirs: {:.2}, {:.2}", early.1 / theirs_early.1, late.1 / theirs_late.1);
    }
    Ok(())
}

/// Creates and lookups per second of CPU time.
type Rates = (f64, f64);

/// The rates of a mounted file system with the same names: in one small directory, and in a
/// directory of `names` names.
fn beside_rates(root: &Path, naming: Naming, names: u32) -> Answer<(Rates, Rates)> {
    let at = |what: &str, held: u32, counted: u32| -> Answer<Rates> {
        let directory = root.join(what);
        std::fs::create_dir(&directory)?;
        let place = rustix::fs::open(&directory, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let make = |numbers: std::ops::Range<u32>| -> Answer<f64> {
            let begin = cpu_seconds();
            for number in numbers {
                let name = naming.name(number);
                rustix::fs::mknodat(&place, name, NodeType::RegularFile, Mode::from_raw_mode(0o644), 0)?;
            }
            Ok(cpu_seconds() - begin)
        };
        make(0..held - counted)?;
        let created = f64::from(counted) / make(held - counted..held)?;
        let found = |name: &str| rustix::fs::statat(&place, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        Ok((created, median_lookups(naming, held, found)?))
    };
    Ok((at("small", 2 * SAMPLE, SAMPLE)?, at("large", names, SAMPLE.max(names / 5))?))
}

/// An argument that is a number, or its default.
fn number_or<N: std::str::FromStr>(argument: Option<String>, what: &str, default: N) -> Answer<N> {
    let Some(text) = argument else { return Ok(default) };
    text.parse().map_err(|_| {
        format!("{what} is {text}, which is not a number in range; leave it out for the default").into()
    })
}

impl Naming {
    fn name(self, number: u32) -> String {
        const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
        // The capacity is reserved at once. Otherwise every figure would include reallocations of a
        // growing string.
        let mut name = String::with_capacity(48);
        match self {
            Self::Counted => write!(name, "file{number:07}"),
            Self::Long => write!(name, "a name as users of archives make it, {number:07}.ext"),
            Self::Scattered => write!(name, "name-{:08x}", number.wrapping_mul(0x9E37_79B1)),
            Self::Any => {
                let mixed = u64::from(number + 1).wrapping_mul(FACTOR);
                write!(name, "{:016x}", (mixed ^ mixed >> 29).wrapping_mul(FACTOR))
            }
        }
        .expect("a string takes what is written");
        name
    }
}

/// Creates files. Returns how many seconds of CPU time they took.
fn make(fs: &FileSystem, naming: Naming, dir: InodeNr, numbers: std::ops::Range<u32>) -> Answer<f64> {
    let ctx = OpContext::system();
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let begin = cpu_seconds();
    for number in numbers {
        fs.create(&ctx, dir, naming.name(number).as_bytes(), &new)?;
    }
    Ok(cpu_seconds() - begin)
}

/// Lookups per second of CPU time among the `held` names of a directory.
fn lookups(fs: &FileSystem, naming: Naming, dir: InodeNr, held: u32) -> Answer<f64> {
    median_lookups(naming, held, |name| fs.lookup(dir, name.as_bytes()).is_ok())
}

/// Lookups per second of CPU time in a map of `held` names.
fn map_lookups(naming: Naming, held: u32) -> Answer<f64> {
    let map: HashMap<String, u32> = (0..held).map(|number| (naming.name(number), number)).collect();
    median_lookups(naming, held, |name| map.contains_key(name))
}

/// Lookups per second of CPU time: the median of the rounds. The names looked up are spread over
/// all `held` names.
fn median_lookups(naming: Naming, held: u32, find: impl Fn(&str) -> bool) -> Answer<f64> {
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let begin = cpu_seconds();
        for number in round * (LOOKUPS / ROUNDS)..(round + 1) * (LOOKUPS / ROUNDS) {
            let picked = u32::try_from(u64::from(number) * 7919 % u64::from(held))?;
            assert!(find(&naming.name(picked)), "every name is there");
        }
        rates.push(f64::from(LOOKUPS / ROUNDS) / (cpu_seconds() - begin));
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

/// Seconds of CPU time that this thread has used so far.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)).as_secs_f64()
}
