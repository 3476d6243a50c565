//! The load generators: operations on a file system whose allocator is recorded.
//!
//! The driver's seed, its operation count and the image determine what a load does. Sizes are
//! chosen so that an operation makes one block request or a few. With 300 operations, a load writes
//! about 140 MiB or less, not counting what it allocates with `fallocate`.

use blockyard_ranges::Ranges;

use super::driver::{Done, Driver, Open};

/// A load by name.
#[derive(Clone, Copy)]
pub struct Load {
    /// Name in tables and on the command line.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Whether the load needs `fallocate`, and so cannot run on files mapped by indirect blocks.
    /// (The load `mixed` does not need it: on such files it leaves `fallocate` out.)
    pub(super) allocates: bool,
    pub(super) run: fn(&mut Driver) -> anyhow::Result<()>,
}

const fn load(name: &'static str, about: &'static str, run: fn(&mut Driver) -> anyhow::Result<()>) -> Load {
    Load { name, about, allocates: false, run }
}

const fn allocating(load: Load) -> Load {
    Load { allocates: true, ..load }
}

/// All loads.
pub const LOADS: [Load; 18] = [
    load("small-fsync", "files of 1 byte to 64 KiB, each synced", small_fsync),
    load(
        "sequential",
        "files of 1 to 20 MiB by large buffered writes, synced at the end and sometimes before",
        sequential,
    ),
    load("direct-append", "direct appends of 4 KiB to 1 MiB to four files at random", direct_append),
    allocating(load("fallocate-small", "fallocate of 1 to 64 blocks on new and old files", fallocate_small)),
    allocating(load("fallocate-large", "fallocate of 1 to 200 MiB", fallocate_large)),
    allocating(load("fallocate2", "128 appends of 8 KiB by fallocate, truncate, again", fallocate2)),
    allocating(load("append64", "fallocate of 8 KiB to 64 files in turn", append64)),
    load("sparse", "short and long writes to sparse files, most at edges of blocks and maps", sparse),
    load("log-rotate", "appends with syncs, rename, a new log, the oldest removed", log_rotate),
    load("untar", "bursts of directories, files and links, a sync after each hundred", untar),
    load("directories", "many names in one directory, and many directories, some nested", directories),
    load("attributes", "attribute blocks of different content", attributes),
    load("refill", "write files, remove every second one, write larger ones", refill),
    allocating(load("fill", "synced files and fallocate until the space is used up, twice", fill)),
    allocating(load("punch", "write, fallocate, punch, truncate at edges of blocks and maps", punch)),
    load("deep-extents", "every second block of a file, so that its extent tree grows", deep_extents),
    load("closed-tails", "files closed before they are written back", closed_tails),
    load("mixed", "a random mix of the operations above", mixed),
];

/// Fills part of the free space with one file, so that the load finds the file system nearly full.
pub(super) fn fill_part(driver: &mut Driver, percent: u32) -> anyhow::Result<()> {
    let Some(open) = driver.open("filler")? else { return Ok(()) };
    let bytes = driver.free_bytes()? / 100 * u64::from(percent);
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(16 << 20);
        if !driver.allocate(&open, at, piece)? {
            break;
        }
        at += piece;
    }
    driver.close(open)?;
    driver.sync_all()?;
    Ok(())
}

fn small_fsync(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..driver.operations {
        let len = if driver.below(4) == 0 { driver.below(64 << 10) } else { driver.below(12 << 10) } + 1;
        driver.put(&format!("small-{number}"), len, true)?;
    }
    Ok(())
}

fn sequential(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..(driver.operations / 12).max(2) {
        let Some(open) = driver.open(&format!("sequential-{number}"))? else { return Ok(()) };
        let size = (1 << 20) + driver.below(if number % 4 == 0 { 19 << 20 } else { 3 << 20 });
        let piece = (driver.below(64) + 1) << 14;
        let mut at = 0;
        while at < size && driver.write(&open, at, piece.min(size - at))? {
            at += piece;
            if driver.below(8) == 0 {
                driver.sync(&open)?;
            }
        }
        driver.sync(&open)?;
        driver.close(open)?;
    }
    Ok(())
}

fn direct_append(driver: &mut Driver) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for number in 0..4 {
        if let Some(open) = driver.open_direct(&format!("direct-{number}"))? {
            files.push((open, 0));
        }
    }
    for _ in 0..driver.operations {
        if files.is_empty() {
            break;
        }
        let index = usize::try_from(driver.below(u64::try_from(files.len())?))?;
        let len = if driver.below(8) == 0 { driver.below(256) + 1 } else { driver.below(16) + 1 } << 12;
        let (open, at) = &mut files[index];
        if driver.write_direct(open, *at, len)? {
            *at += len;
        }
    }
    close_all(driver, files.into_iter().map(|(open, _)| open))
}

fn close_all(driver: &mut Driver, files: impl Iterator<Item = Open>) -> anyhow::Result<()> {
    for open in files {
        driver.close(open)?;
    }
    Ok(())
}

fn fallocate_small(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..driver.operations {
        let name = if driver.below(3) == 0 { driver.below(u64::from(number) + 1) } else { u64::from(number) };
        let Some(open) = driver.open(&format!("reserved-{name}"))? else { continue };
        let at = driver.below(200) * driver.block;
        let len = (driver.below(64) + 1) * driver.block;
        if driver.below(4) == 0 {
            driver.allocate_keep_size(&open, at, len)?;
        } else {
            driver.allocate(&open, at, len)?;
        }
        driver.close(open)?;
    }
    driver.sync_all().map(drop)
}

fn fallocate_large(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..(driver.operations / 16).max(2) {
        let Some(open) = driver.open(&format!("large-{number}"))? else { return Ok(()) };
        let len = (driver.below(if number % 4 == 0 { 200 } else { 40 }) + 1) << 20;
        driver.allocate(&open, 0, len)?;
        driver.close(open)?;
        if number > 4 && driver.below(3) == 0 {
            let victim = driver.below(u64::from(number));
            driver.remove(&format!("large-{victim}"))?;
        }
        if driver.below(6) == 0 {
            driver.sync_all()?;
        }
    }
    Ok(())
}

fn fallocate2(driver: &mut Driver) -> anyhow::Result<()> {
    let Some(open) = driver.open("fallocate2")? else { return Ok(()) };
    for round in 0..(driver.operations / 128).max(2) {
        for step in 0..128 {
            driver.allocate(&open, step * 8192, 8192)?;
        }
        driver.truncate(&open, 0)?;
        if round % 3 == 2 {
            driver.sync(&open)?;
        }
    }
    driver.close(open)
}

fn append64(driver: &mut Driver) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for number in 0..64 {
        files.extend(driver.open(&format!("append-{number}"))?);
    }
    for round in 0..u64::from(driver.operations / 64).max(2) {
        for open in &files {
            driver.allocate(open, round * 8192, 8192)?;
        }
    }
    close_all(driver, files.into_iter())
}

fn sparse(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..(driver.operations / 64).max(1) {
        let Some(open) = driver.open(&format!("sparse-{number}"))? else { return Ok(()) };
        let mut ranges = driver.ranges(16 << 20);
        for step in 0..64 {
            let longest = if driver.below(3) == 0 { 256 << 10 } else { 8 << 10 };
            let (at, len) = driver.range(&mut ranges, &open, longest)?;
            driver.write(&open, at, len)?;
            if step % 7 == 6 {
                driver.sync(&open)?;
            }
        }
        driver.sync(&open)?;
        driver.close(open)?;
    }
    Ok(())
}

fn log_rotate(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..(driver.operations / 24).max(2) {
        let Some(open) = driver.open("log")? else { return Ok(()) };
        let mut at = 0;
        for _ in 0..24 {
            let len = driver.below(40 << 10) + 1;
            if driver.write(&open, at, len)? {
                at += len;
            }
            driver.sync(&open)?;
        }
        driver.close(open)?;
        driver.rename("log", &format!("log.{number}"))?;
        if number >= 3 {
            driver.remove(&format!("log.{}", number - 3))?;
        }
    }
    Ok(())
}

fn untar(driver: &mut Driver) -> anyhow::Result<()> {
    let mut directory = String::new();
    for number in 0..driver.operations {
        match driver.below(12) {
            0 => {
                enter(driver, &mut directory, format!("tree-{number}"))?;
            }
            1 if directory.len() < 60 && !directory.is_empty() => {
                let below = format!("{directory}/sub-{number}");
                enter(driver, &mut directory, below)?;
            }
            2 => {
                let len = usize::try_from(driver.below(120) + 1)?;
                driver.symlink(format!("{directory}/link-{number}").trim_start_matches('/'), len)?;
            }
            _ => {
                let len = if driver.below(10) == 0 { driver.below(2 << 20) } else { driver.below(30 << 10) };
                driver.put(format!("{directory}/file-{number}").trim_start_matches('/'), len, false)?;
            }
        }
        if number % 100 == 99 {
            driver.sync_all()?;
        }
    }
    driver.sync_all().map(drop)
}

/// Creates a directory and continues in it. When there is no space, the current directory stays.
fn enter(driver: &mut Driver, directory: &mut String, path: String) -> anyhow::Result<()> {
    if driver.make_directory(&path)? {
        *directory = path;
    }
    Ok(())
}

fn directories(driver: &mut Driver) -> anyhow::Result<()> {
    let long = "n".repeat(120);
    driver.make_directory("wide")?;
    for number in 0..driver.operations {
        if number % 3 == 0 {
            let parent = driver.below(u64::from(number) / 3 + 1);
            let nested = format!("nest-{parent}/nest-{number}");
            if driver.below(2) == 0 || !driver.make_directory(&nested).unwrap_or(false) {
                driver.make_directory(&format!("nest-{}", number / 3))?;
            }
        }
        for part in 0..10 {
            driver.put(&format!("wide/{long}-{number}-{part}"), 0, false)?;
        }
        if number % 16 == 15 {
            driver.remove_directory(&format!("nest-{}", number / 3)).ok();
            driver.sync_all()?;
        }
    }
    driver.sync_all().map(drop)
}

fn attributes(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..driver.operations {
        let name = format!("attributed-{number}");
        let len = driver.below(20 << 10);
        if !driver.put(&name, len, number.is_multiple_of(3))? {
            continue;
        }
        let len = usize::try_from(driver.below(driver.block - 200) + 1)?;
        driver.set_attribute(&name, c"user.blockyard", len)?;
        if driver.below(4) == 0 {
            driver.remove(&name)?;
        }
        if number % 40 == 39 {
            driver.sync_all()?;
        }
    }
    driver.sync_all().map(drop)
}

fn refill(driver: &mut Driver) -> anyhow::Result<()> {
    let files = driver.operations / 3;
    for number in 0..files {
        let len = driver.below(100 << 10) + 1;
        driver.put(&format!("old-{number}"), len, number % 8 == 0)?;
    }
    driver.sync_all()?;
    for number in (0..files).step_by(2) {
        driver.remove(&format!("old-{number}"))?;
    }
    driver.sync_all()?;
    for number in 0..files {
        let len = driver.below(300 << 10) + 1;
        driver.put(&format!("new-{number}"), len, true)?;
        if driver.below(5) == 0 {
            let victim = driver.below(u64::from(files));
            driver.remove(&format!("old-{victim}"))?;
        }
    }
    Ok(())
}

fn fill(driver: &mut Driver) -> anyhow::Result<()> {
    // First leave at most 24 MiB free on any image. This load is about how the allocator behaves
    // as the last space is used up.
    let Some(open) = driver.open("bulk")? else { return Ok(()) };
    let left = 24 << 20;
    let mut at = 0;
    while driver.free_bytes()? > left
        && driver.allocate(&open, at, (driver.free_bytes()? - left / 2).min(96 << 20))?
    {
        at += 96 << 20;
    }
    driver.close(open)?;
    driver.sync_all()?;
    for round in 0..2 {
        fill_rest(driver, round)?;
        for number in 0..driver.operations {
            if driver.below(2) == 0 {
                driver.remove(&format!("rest-{round}-{number}"))?;
            }
        }
        driver.sync_all()?;
    }
    Ok(())
}

fn fill_rest(driver: &mut Driver, round: u32) -> anyhow::Result<()> {
    let mut refused = 0;
    for number in 0..driver.operations {
        let name = format!("rest-{round}-{number}");
        let len = driver.below(400 << 10) + 1;
        let fits = match driver.below(3) {
            0 => driver.put(&name, len, true)?,
            1 => driver.put(&name, len / 16, true)?,
            _ => {
                let Some(open) = driver.open(&name)? else { continue };
                let fits = driver.allocate(&open, 0, len)?;
                driver.close(open)?;
                fits
            }
        };
        refused += u32::from(!fits);
        if refused > 12 {
            break;
        }
    }
    Ok(())
}

fn punch(driver: &mut Driver) -> anyhow::Result<()> {
    let mut ranges = driver.ranges(4 << 20);
    for number in 0..(driver.operations / 10).max(1) {
        let Some(open) = driver.open(&format!("punched-{}", number % 12))? else { continue };
        for _ in 0..10 {
            let (at, len) = driver.range(&mut ranges, &open, 600 << 10)?;
            match driver.below(6) {
                0 => driver.punch(&open, at, len)?,
                1 => driver.truncate(&open, at)?,
                2 => driver.allocate(&open, at, len)?,
                3 => driver.sync(&open)?,
                _ => driver.write(&open, at, len)?,
            };
        }
        driver.sync(&open)?;
        driver.close(open)?;
    }
    Ok(())
}

fn deep_extents(driver: &mut Driver) -> anyhow::Result<()> {
    let Some(open) = driver.open("deep")? else { return Ok(()) };
    let Some(other) = driver.open("deep-other")? else { return Ok(()) };
    let block = driver.block;
    for number in 0..u64::from(driver.operations) {
        let at = if number % 5 == 0 { driver.below(1 << 16) * 2 * block } else { number * 2 * block };
        driver.write(&open, at, block)?;
        if number % 3 == 0 {
            driver.write(&other, number * 3 * block, block)?;
        }
        if number % 32 == 31 {
            driver.sync(&open)?;
            driver.sync(&other)?;
        }
    }
    driver.sync(&open)?;
    driver.truncate(&open, 1 << 20)?;
    close_all(driver, [open, other].into_iter())
}

fn closed_tails(driver: &mut Driver) -> anyhow::Result<()> {
    for number in 0..driver.operations {
        let len = match driver.below(8) {
            0 => driver.below(4 << 20),
            1..4 => driver.below(600 << 10),
            _ => (driver.below(100) + 1) * driver.block,
        };
        driver.put(&format!("closed-{number}"), len + 1, false)?;
        if number % 25 == 24 {
            driver.sync_all()?;
        }
    }
    driver.sync_all().map(drop)
}

fn mixed(driver: &mut Driver) -> anyhow::Result<()> {
    driver.make_directory("mixed")?;
    let mut ranges = driver.ranges(3 << 20);
    for number in 0..driver.operations {
        let file = format!("mixed/{}", driver.below(40));
        mixed_operation(driver, &mut ranges, &file, number)?;
        if driver.below(60) == 0 {
            driver.sync_all()?;
        }
    }
    driver.sync_all().map(drop)
}

fn mixed_operation(driver: &mut Driver, ranges: &mut Ranges, file: &str, number: u32) -> Done {
    if driver.below(12) == 0 {
        return driver.remove(file);
    }
    if driver.below(12) == 0 {
        return driver.make_directory(&format!("mixed/d{number}"));
    }
    let Some(open) = driver.open(file)? else { return Ok(false) };
    let (at, len) = driver.range(ranges, &open, 200 << 10)?;
    let done = match driver.below(8) {
        0 => driver.truncate(&open, at)?,
        1 if !driver.indirect => driver.allocate(&open, at, len)?,
        2 if !driver.indirect => driver.punch(&open, at, len)?,
        3 => driver.write(&open, 0, len / 8)?,
        4 => driver.write(&open, at, len)? && driver.sync(&open)?,
        _ => driver.write(&open, at / 8, len)?,
    };
    driver.close(open)?;
    Ok(done)
}
