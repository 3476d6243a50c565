//! Blocks that change owners: freed by one file and allocated to another, with crashes in between.

use anyhow::Result;
use blockyard_disk::InodeNr;
use blockyard_disk::num::usize_from_u64;
use blockyard_engine::{Fallocate, RenameMode};
use rand::Rng;

use super::super::facts::{Value, stamps};
use super::super::stage::{REGULAR, Stage, owner};
use super::long_name;
use crate::target::engine::context;

/// Files are deleted while they are open, some of them after a truncation. Some are closed
/// immediately, some later, some never.
pub(super) fn orphans(stage: &Stage) -> Result<()> {
    let mut random = stage.random(6);
    let ctx = context(0);
    let fs = &stage.fs;
    let block = stage.block();
    stage.ballast(stage.fewer(2000))?;
    let mut held: Vec<InodeNr> = Vec::new();
    for round in 0..120u16 {
        let name = format!("file-{round}");
        let id = round + 1;
        let (file, bytes) = stage.file(id, &name, 0, random.random_range(100..6000) * 8 * stage.growth())?;
        // Unless the file is short, the holes make enough extents for a tree block, which is
        // revoked when the file is deleted.
        if round % 3 == 0 {
            for hole in 0..12 {
                fs.fallocate(&ctx, file, Fallocate::PunchHole, hole * 4 * block, block)?;
            }
            stage.release(&name);
            fs.fsync(&ctx, file)?;
        } else {
            stage.promise(file, &name, &bytes)?;
        }
        fs.open_inode(file, true)?;
        stage.release(&name);
        if round % 4 == 1 {
            fs.truncate(&ctx, file, random.random_range(0..200) * 8)?;
            fs.fsync(&ctx, file)?;
        }
        if round % 5 == 4 {
            let (over, _) = stage.file(id + 1000, "over", 0, 4000)?;
            fs.fsync(&ctx, over)?;
            fs.rename(&ctx, (InodeNr::ROOT, b"over"), (InodeNr::ROOT, name.as_bytes()), RenameMode::Replace)?;
        }
        stage.allow(&name, &[Value::Absent, Value::Present]);
        fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes())?;
        held.push(file);
        if random.random_range(0..4) == 0 {
            stage.sync()?;
            stage.allow(&name, &[Value::Absent]);
        }
        while held.len() > 7 {
            let next = held.swap_remove(random.random_range(0..held.len()));
            fs.release_inode(&ctx, next, true)?;
        }
    }
    Ok(())
}

/// The free space consists of single blocks and one long run. So the best place for the next file
/// is the run that another file has just freed, in a transaction that has not committed yet.
pub(super) fn tight(stage: &Stage) -> Result<()> {
    let mut random = stage.random(7);
    let ctx = context(0);
    let fs = &stage.fs;
    // Makes more single free blocks than the file system reserves for itself.
    let (block, run) = (stage.block(), stage.fewer(64));
    let single = stage.kept_back() + stage.fewer(100);
    let (sieve_blocks, filler_blocks) = (2 * single + stage.fewer(20), stage.fewer(160));
    stage.ballast(sieve_blocks + filler_blocks + stage.fewer(100) + 10)?;
    let sieve = fs.create(&ctx, InodeNr::ROOT, b"sieve", &REGULAR)?;
    fs.fallocate(&ctx, sieve, Fallocate::Allocate, 0, sieve_blocks * block)?;
    for number in 0..single {
        fs.fallocate(&ctx, sieve, Fallocate::PunchHole, (2 * number + 1) * block, block)?;
    }
    let filler = fs.create(&ctx, InodeNr::ROOT, b"filler", &REGULAR)?;
    fs.fallocate(&ctx, filler, Fallocate::AllocateKeepSize, 0, filler_blocks * block)?;
    stage.sync()?;
    for round in 0..40u16 {
        let id = 1 + round * 2;
        let (giver, bytes) = stage.file(id, "giver", round, run * block)?;
        stage.promise(giver, "giver", &bytes)?;
        stage.release("giver");
        match round % 3 {
            0 => fs.unlink(&ctx, InodeNr::ROOT, b"giver")?,
            1 => fs.truncate(&ctx, giver, random.random_range(0..run * block / 64) * 8)?,
            _ => fs.fallocate(&ctx, giver, Fallocate::PunchHole, 2 * block, (run - 4) * block)?,
        }
        let (taker, bytes) = stage.file(id + 1, "taker", round, run * block)?;
        fs.write_back_file(&ctx, taker)?;
        if random.random_range(0..2) == 0 {
            stage.promise(taker, "taker", &bytes)?;
        }
        stage.release("taker");
        fs.unlink(&ctx, InodeNr::ROOT, b"taker")?;
        if round % 3 != 0 {
            fs.unlink(&ctx, InodeNr::ROOT, b"giver")?;
        }
        stage.sync()?;
    }
    Ok(())
}

/// Blocks go from directories to file data and back, while files grow and are truncated and
/// deleted.
pub(super) fn recycle(stage: &Stage) -> Result<()> {
    stage.ballast(stage.kept_back() + stage.fewer(370))?;
    let (steady, first) = stage.file(1, "steady", 0, 2000)?;
    stage.promise(steady, "steady", &first)?;
    for round in 0..10u16 {
        cycle(stage, steady, &first, round)?;
    }
    Ok(())
}

fn cycle(stage: &Stage, steady: InodeNr, first: &[u8], round: u16) -> Result<()> {
    let ctx = context(0);
    let fs = &stage.fs;
    let (id, growth) = (10 + round * 10, stage.growth());
    let name = format!("directory-{round}");
    let dir = stage.directory(&name)?;
    for n in 0..40 {
        fs.create(&ctx, dir, long_name(n).as_bytes(), &REGULAR)?;
    }
    fs.fsync(&ctx, dir)?;
    stage.release("doomed");
    let (doomed, old) = stage.file(id, "doomed", round, 60_000 * growth)?;
    stage.promise(doomed, "doomed", &old)?;
    // The size on disk must not cover appended data that is not written back. Write-back goes piece
    // by piece, so any prefix of the new data may be found.
    let tail = stamps(1, round + 1, 2000, 7000.max(3 * stage.block()));
    let grown = [first, &tail].concat();
    stage.allow_beginning("steady", &grown, first.len());
    fs.write(&ctx, steady, 2000, &tail)?;
    let (other, bytes) = stage.file(id + 1, "other", round, 104)?;
    stage.promise(other, "other", &bytes)?;
    // The deleted file is complete or absent, whoever gets its blocks.
    stage.allow("doomed", &[Value::holds(&old), Value::Absent]);
    fs.unlink(&ctx, InodeNr::ROOT, b"doomed")?;
    for n in 0..40 {
        fs.unlink(&ctx, dir, long_name(n).as_bytes())?;
    }
    fs.rmdir(&ctx, InodeNr::ROOT, name.as_bytes())?;
    let (early, _) = stage.file(id + 2, "early", round, 80_000 * growth)?;
    fs.write_back_file(&ctx, early)?;
    fs.fsync(&ctx, other)?;
    let (heir, new) = stage.file(id + 3, "heir", round, 150_000 * growth)?;
    stage.promise(heir, "heir", &new)?;
    stage.promise(steady, "steady", &grown)?;
    stage.release("heir");
    stage.release("other");
    for name in ["heir", "early", "other"] {
        fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes())?;
    }
    // Truncation zeroes the rest of the last block in place before the size shrinks. A cut may tear
    // this write.
    let mut zeroed = grown.clone();
    let block_end = 2000_usize.next_multiple_of(usize_from_u64(stage.block()));
    let end = block_end.min(zeroed.len());
    zeroed[2000..end].fill(0);
    stage.allow_mixed("steady", &[grown.into(), zeroed.into(), first.into()]);
    fs.truncate(&ctx, steady, 2000)?;
    stage.promise(steady, "steady", first)?;
    // Another inode takes the freed name.
    let again = fs.create(&owner(id + 4, 0), InodeNr::ROOT, b"other", &REGULAR)?;
    fs.fsync(&ctx, again)?;
    Ok(fs.unlink(&ctx, InodeNr::ROOT, b"other")?)
}
