//! Names and attributes: after a cut, all operations up to some point have taken effect completely,
//! and no later one at all.

use anyhow::Result;
use blockyard_disk::InodeNr;
use blockyard_disk::num::{low32, u32_from_usize, usize_from_u64};
use blockyard_engine::{RenameMode, XattrMode};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::super::facts::{Value, stamps};
use super::super::stage::{DIRECTORY, REGULAR, Stage, owner};
use super::{long_name, tolerate};
use crate::target::engine::context;

/// Number of operations of a [`storm`].
const STORM: u32 = 700;

/// Random operations on random names in a few directories.
pub(super) fn storm(stage: &Stage) -> Result<()> {
    let mut random = stage.random(1);
    let mut directories = vec![InodeNr::ROOT];
    stage.step()?;
    for name in ["one", "two", "three"] {
        directories.push(stage.directory(name)?);
        stage.step()?;
    }
    stage.sync()?;
    for n in 0..STORM {
        name_operation(stage, &mut random, &directories, n)?;
        stage.step()?;
        if random.random_range(0..9) == 0 {
            stage.sync()?;
        }
    }
    Ok(())
}

fn name(random: &mut ChaCha8Rng) -> Vec<u8> {
    let number = random.random_range(0..24);
    if number % 4 == 0 { long_name(number).into_bytes() } else { format!("name-{number}").into_bytes() }
}

fn name_operation(stage: &Stage, random: &mut ChaCha8Rng, directories: &[InodeNr], n: u32) -> Result<()> {
    let ctx = context(0);
    let fs = &stage.fs;
    let pick = |random: &mut ChaCha8Rng| *directories.choose(random).unwrap_or(&InodeNr::ROOT);
    let (parent, other) = (pick(random), pick(random));
    let (one, two) = (name(random), name(random));
    let id = u16::try_from(n).unwrap_or(u16::MAX).saturating_add(1);
    match random.random_range(0..16) {
        0..=3 => {
            if let Some(file) = tolerate(fs.create(&owner(id, 0), parent, &one, &REGULAR))? {
                fs.write(&ctx, file, 0, &stamps(id, 0, 0, random.random_range(1..500) * 8))?;
            }
        }
        4 => drop(tolerate(fs.create(&ctx, parent, &one, &DIRECTORY))?),
        5 => drop(tolerate(fs.symlink(&ctx, parent, &one, &vec![b't'; random.random_range(1..300)]))?),
        6 => {
            if let Some(inode) = tolerate(fs.lookup(parent, &one))? {
                tolerate(fs.link(&ctx, inode, other, &two))?;
            }
        }
        7..=9 => drop(tolerate(fs.unlink(&ctx, parent, &one))?),
        10 => drop(tolerate(fs.rmdir(&ctx, parent, &one))?),
        11 => drop(tolerate(fs.rename(&ctx, (parent, &one), (other, &two), RenameMode::Exchange))?),
        12 => drop(tolerate(fs.rename(&ctx, (parent, &one), (other, &two), RenameMode::NoReplace))?),
        _ => drop(tolerate(fs.rename(&ctx, (parent, &one), (other, &two), RenameMode::Replace))?),
    }
    Ok(())
}

/// Attributes of a directory and some files. Some are in the inode, others in attribute blocks, and
/// inodes can share an attribute block.
pub(super) fn attributes(stage: &Stage) -> Result<()> {
    let mut random = stage.random(2);
    let ctx = context(0);
    stage.step()?;
    let mut inodes = vec![stage.directory("directory")?];
    stage.step()?;
    for n in 0..10u16 {
        inodes.push(stage.file(n + 1, &format!("file-{n}"), 0, 4000)?.0);
        stage.step()?;
    }
    stage.sync()?;
    // Some values fit in the inode. A block has room for only one of the largest values.
    let block = usize_from_u64(stage.block());
    let lengths = [5, 20, 60, 200, block / 2 - 12, block - 224];
    for n in 0..700u32 {
        let inode = *inodes.choose(&mut random).unwrap_or(&InodeNr::ROOT);
        let attribute = format!("user.{}", random.random_range(0..7));
        let length = *lengths.choose(&mut random).unwrap_or(&1);
        // Inodes with equal attributes share a block.
        let value = vec![u8::try_from(n % 3).unwrap_or(0); length];
        let name = attribute.as_bytes();
        match random.random_range(0..8) {
            0..=1 => drop(tolerate(stage.fs.remove_xattr(&ctx, inode, name))?),
            2 => drop(tolerate(stage.fs.set_xattr(&ctx, inode, name, &value, XattrMode::Create))?),
            3 => drop(tolerate(stage.fs.set_xattr(&ctx, inode, name, &value, XattrMode::Replace))?),
            _ => drop(tolerate(stage.fs.set_xattr(&ctx, inode, name, &value, XattrMode::Set))?),
        }
        stage.step()?;
        if random.random_range(0..7) == 0 {
            stage.sync()?;
        }
    }
    Ok(())
}

/// In each round the directory gets many names, and then three quarters of these are removed.
pub(super) fn split(stage: &Stage) -> Result<()> {
    let ctx = context(0);
    let mut random = stage.random(3);
    let dir = stage.directory("directory")?;
    stage.sync()?;
    for round in 0..7 {
        // Enough names to split directory blocks of this size.
        let count = random.random_range(60..140) * low32(stage.growth());
        for n in 0..count {
            let name = long_name(round * 10_000 + n);
            let path = format!("directory/{name}");
            stage.allow(&path, &[Value::Absent, Value::Present]);
            stage.fs.create(&ctx, dir, name.as_bytes(), &REGULAR)?;
            if random.random_range(0..10) == 0 {
                stage.sync()?;
                stage.allow(&path, &[Value::Present]);
            }
        }
        let (first, last) = (count / 8, count - count / 8);
        for n in first..last {
            let name = long_name(round * 10_000 + n);
            let path = format!("directory/{name}");
            stage.allow(&path, &[Value::Absent, Value::Present]);
            stage.fs.unlink(&ctx, dir, name.as_bytes())?;
            if random.random_range(0..12) == 0 {
                stage.sync()?;
                stage.allow(&path, &[Value::Absent]);
            }
        }
    }
    Ok(())
}

/// The longest value of an attribute.
const VALUE_MAX: usize = 65_536;

/// Attributes, most of them with values in inodes of their own: set, replaced by larger and smaller
/// values, shared, removed, and deleted with their files.
pub(super) fn values(stage: &Stage) -> Result<()> {
    let mut random = stage.random(10);
    let ctx = context(0);
    stage.step()?;
    for n in 0..220u32 {
        let name = format!("file-{}", random.random_range(0..6));
        let name = name.as_bytes();
        match (tolerate(stage.fs.lookup(InodeNr::ROOT, name))?, random.random_range(0..10)) {
            (None, _) => drop(stage.fs.create(&ctx, InodeNr::ROOT, name, &REGULAR)?),
            (Some(_), 0) => stage.fs.unlink(&ctx, InodeNr::ROOT, name)?,
            (Some(inode), choice) => change_value(stage, &mut random, inode, choice, n)?,
        }
        stage.step()?;
        if random.random_range(0..8) == 0 {
            stage.sync()?;
        }
    }
    Ok(())
}

fn change_value(stage: &Stage, random: &mut ChaCha8Rng, inode: InodeNr, choice: u32, n: u32) -> Result<()> {
    let attribute = format!("user.{}", random.random_range(0..3));
    if choice < 3 {
        tolerate(stage.fs.remove_xattr(&context(0), inode, attribute.as_bytes()))?;
        return Ok(());
    }
    // The last three lengths do not fit in an attribute block, the others do. That is so even with
    // blocks of 64 KiB, where these three are cut to `VALUE_MAX`: the block also has a header.
    let block = usize_from_u64(stage.block());
    let lengths = [20, 300, block + 76, 2 * block + 452, 6 * block - 144];
    let length = (*lengths.choose(random).unwrap_or(&1)).min(VALUE_MAX);
    // Most values differ, so that there are many different hashes. Some are equal, so that value
    // inodes are shared.
    let seed = if choice == 3 { 0 } else { n };
    let value: Vec<u8> =
        (0..length).map(|at| (seed * 31 + u32_from_usize(at) / 5).to_le_bytes()[0]).collect();
    tolerate(stage.fs.set_xattr(&context(0), inode, attribute.as_bytes(), &value, XattrMode::Set))?;
    Ok(())
}
