//! File content: appended, truncated, punched, moved.

use anyhow::Result;
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_engine::Fallocate;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::facts::{Value, stamps};
use super::super::stage::Stage;
use super::tolerate;
use crate::target::engine::context;

/// A file with its expected content.
struct File {
    id: u16,
    path: String,
    inode: InodeNr,
    bytes: Vec<u8>,
    /// Number of bytes that an fsync or fdatasync has made durable.
    durable: usize,
}

fn files(stage: &Stage, count: u16) -> Result<Vec<File>> {
    let make = |id: u16| {
        let path = format!("file-{id}");
        let (inode, bytes) = stage.file(id, &path, 0, 800)?;
        stage.promise(inode, &path, &bytes)?;
        Ok(File { id, path, inode, durable: bytes.len(), bytes })
    };
    (1..=count).map(make).collect()
}

pub(super) fn append(stage: &Stage) -> Result<()> {
    append_to(stage, 6, 130, 6000.max(3 * stage.block()))
}

fn append_to(stage: &Stage, count: u16, rounds: u16, most: u64) -> Result<()> {
    let mut random = stage.random(4);
    let ctx = context(0);
    let mut files = files(stage, count)?;
    let choices = files.len();
    for round in 0..rounds {
        let file = &mut files[random.random_range(0..choices)];
        let more =
            stamps(file.id, round, u64_from_usize(file.bytes.len()), random.random_range(1..most / 8) * 8);
        let at = u64_from_usize(file.bytes.len());
        file.bytes.extend_from_slice(&more);
        // Write-back may make a part of the new content durable at any time, but only a prefix.
        stage.allow_beginning(&file.path, &file.bytes, file.durable);
        stage.fs.write(&ctx, file.inode, at, &more)?;
        match random.random_range(0..10) {
            0..=4 => stage.promise(file.inode, &file.path, &file.bytes)?,
            5..=6 => {
                stage.fs.fdatasync(&ctx, file.inode)?;
                stage.allow(&file.path, &[Value::holds(&file.bytes)]);
            }
            7 => {
                stage.fs.write_back_file(&ctx, file.inode)?;
                continue;
            }
            _ => continue,
        }
        file.durable = file.bytes.len();
    }
    Ok(())
}

/// Changes files in random order and makes each change durable.
pub(super) fn change(stage: &Stage) -> Result<()> {
    stage.ballast(stage.fewer(1500))?;
    change_files(stage, 110, stage.block())
}

pub(super) fn clusters(stage: &Stage) -> Result<()> {
    append_to(stage, 4, 40, 20_000.max(3 * stage.block()))?;
    for n in 0..4u16 {
        stage.release(&format!("file-{}", n + 1));
        stage.fs.unlink(&context(0), InodeNr::ROOT, format!("file-{}", n + 1).as_bytes())?;
    }
    let cluster = stage.block() << stage.fs.geometry().cluster_ratio_bits();
    change_files(stage, 60, cluster)
}

/// `unit` is the alignment of collapse and insert.
fn change_files(stage: &Stage, rounds: u16, unit: u64) -> Result<()> {
    let mut random = stage.random(5);
    let mut files = files(stage, 6)?;
    let choices = files.len();
    for round in 0..rounds {
        let file = &mut files[random.random_range(0..choices)];
        stage.release(&file.path);
        change_file(stage, &mut random, file, round + 1, unit)?;
        stage.promise(file.inode, &file.path, &file.bytes)?;
    }
    Ok(())
}

fn change_file(
    stage: &Stage,
    random: &mut ChaCha8Rng,
    file: &mut File,
    version: u16,
    unit: u64,
) -> Result<()> {
    let ctx = context(0);
    let bytes = &mut file.bytes;
    // The longest range has 32,000 bytes, or two units if that is more.
    let at = random.random_range(0..12_000.max(6 * unit / 8)) * 8;
    let len = random.random_range(1..4000.max(2 * unit / 8)) * 8;
    let size_max = usize_from_u64(200_000.max(8 * unit));
    let (from, to) = (usize_from_u64(at), usize_from_u64(at + len));
    let change = |how, at, len| tolerate(stage.fs.fallocate(&ctx, file.inode, how, at, len));
    match random.random_range(0..12) {
        0..=3 => {
            let new = stamps(file.id, version, at, len);
            stage.fs.write(&ctx, file.inode, at, &new)?;
            bytes.resize(bytes.len().max(to), 0);
            bytes[from..to].copy_from_slice(&new);
        }
        4..=5 => {
            stage.fs.truncate(&ctx, file.inode, at)?;
            bytes.resize(from, 0);
        }
        6..=7 => {
            change(Fallocate::PunchHole, at, len)?;
            let end = to.min(bytes.len());
            bytes[from.min(end)..end].fill(0);
        }
        8 => {
            if change(Fallocate::ZeroRange, at, len)?.is_some() {
                bytes.resize(bytes.len().max(to), 0);
                bytes[from..to].fill(0);
            }
        }
        9 => drop(change(Fallocate::AllocateKeepSize, at, len)?),
        10 => {
            let (at, len) = (at / unit * unit, len.next_multiple_of(unit));
            let (from, to) = (usize_from_u64(at), usize_from_u64(at + len));
            if to < bytes.len() && change(Fallocate::CollapseRange, at, len)?.is_some() {
                bytes.drain(from..to);
            }
        }
        _ => {
            let (at, len) = (at / unit * unit, len.next_multiple_of(unit));
            let from = usize_from_u64(at);
            if from < bytes.len()
                && bytes.len() < size_max
                && change(Fallocate::InsertRange, at, len)?.is_some()
            {
                let hole = vec![0; usize_from_u64(len)];
                bytes.splice(from..from, hole);
            }
        }
    }
    Ok(())
}
