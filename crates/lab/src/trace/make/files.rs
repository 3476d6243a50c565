//! Kinds of traces with many files: durable small files, logs, ageing, full file systems, and a
//! mixture of operations.

use blockyard_ranges::Ranges;
use blockyard_trace::Op;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::boundaries::ranges_up_to;
use super::trees::tree_file_size;
use super::{Pen, Recipe};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Small files, each synced before it is closed; every fourth replaces an older one by rename.
pub(super) fn small_fsync(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    pen.mkdir("/mail");
    let mut names: Vec<String> = Vec::new();
    let most = (recipe.space / (32 * KIB)).max(16);
    let mut serial = 0u64;
    while pen.wants_more() {
        serial += 1;
        let path = format!("/mail/m{serial:06}");
        let fd = pen.open(&path, "rw,create");
        pen.write(fd, 0, rng.random_range(1..16 * KIB));
        pen.op(Op::Fsync { fd });
        pen.close(fd);
        if serial.is_multiple_of(4) && !names.is_empty() {
            let to = names[rng.random_range(0..names.len())].clone();
            pen.op(Op::Rename { from: path, to });
            continue;
        }
        names.push(path);
        if blockyard_disk::num::u64_from_usize(names.len()) > most {
            let path = names.swap_remove(rng.random_range(0..names.len()));
            pen.unlink(&path);
        }
    }
}

/// Logs that grow by short appends. They are synced now and then, and rotated at a size limit.
pub(super) fn log_rotate(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    pen.mkdir("/log");
    let logs = 4u64;
    let most = (recipe.space / (logs * 5)).min(MIB);
    let mut open: Vec<(u32, u64)> =
        (0..logs).map(|log| (pen.open(&format!("/log/{log}.log"), "rw,create,append"), 0)).collect();
    while pen.wants_more() {
        let log = rng.random_range(0..open.len());
        let (fd, size) = open[log];
        if size < most {
            let len = rng.random_range(40..3000);
            pen.write(fd, size, len);
            open[log].1 += len;
            if rng.random_range(0..30) == 0 {
                pen.op(Op::Fdatasync { fd });
            }
            continue;
        }
        pen.close(fd);
        for old in (0..3).rev() {
            let name =
                |age: u32| if age == 0 { format!("/log/{log}.log") } else { format!("/log/{log}.log.{age}") };
            pen.op(Op::Rename { from: name(old), to: name(old + 1) });
        }
        open[log] = (pen.open(&format!("/log/{log}.log"), "rw,create,append"), 0);
    }
}

/// Creates files until 70 % of the space is filled or the number of files reaches a limit. Then
/// deletes half of the files at random, and begins again.
pub(super) fn ageing(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    pen.mkdir("/age");
    let mut live: Vec<(String, u64)> = Vec::new();
    let (mut used, mut serial) = (0, 0);
    let most = blockyard_disk::num::usize_from_u64(recipe.ops / 20).max(400);
    while pen.wants_more() {
        while pen.wants_more() && used < recipe.space * 7 / 10 && live.len() < most {
            serial += 1;
            let (path, size) = (format!("/age/f{serial}"), tree_file_size(rng));
            pen.file(&path, size, 256 * KIB);
            used += size;
            live.push((path, size));
        }
        pen.op(Op::Sync);
        for _ in 0..live.len() / 2 {
            let (path, size) = live.swap_remove(rng.random_range(0..live.len()));
            pen.unlink(&path);
            used -= size;
        }
        pen.op(Op::Sync);
    }
}

/// Writes or allocates an eighth more than the recipe's space, so that the last calls fail if the
/// file system has only the recipe's space free. Then deletes half of the files and fills the space
/// again.
pub(super) fn near_full(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    let mut live: Vec<String> = Vec::new();
    let big = (recipe.space / 12).next_multiple_of(4 * KIB);
    let mut serial = 0;
    let mut filled = 0;
    while pen.wants_more() {
        while filled < recipe.space + recipe.space / 8 && pen.wants_more() {
            serial += 1;
            let path = format!("/full-{serial}");
            let size = if serial % 3 == 0 { rng.random_range(1..64 * KIB) } else { big };
            let fd = pen.open(&path, "rw,create");
            if rng.random_range(0..2) == 0 {
                pen.fallocate(fd, "", 0, size);
            } else {
                pen.write(fd, 0, size);
            }
            pen.op(Op::Fsync { fd });
            pen.close(fd);
            filled += size;
            live.push(path);
        }
        pen.op(Op::Sync);
        for _ in 0..live.len() / 2 {
            let path = live.swap_remove(rng.random_range(0..live.len()));
            pen.unlink(&path);
        }
        filled /= 2;
        pen.op(Op::Sync);
    }
}

/// A file of the mixed kind.
struct Mixed {
    path: String,
    fd: Option<u32>,
    size: u64,
    ranges: Ranges,
}

/// Writes, fallocate in most modes, truncation, fsync, renames, links and attributes in random
/// order, over a few directories and files.
pub(super) fn mixed(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    let directories: Vec<String> = (0..6).map(|number| format!("/m{number}")).collect();
    directories.iter().for_each(|path| pen.mkdir(path));
    let mut files: Vec<Mixed> = Vec::new();
    let mut serial = 0;
    let most = (recipe.space / 64).clamp(64 * KIB, 2 * MIB);
    while pen.wants_more() {
        serial += 1;
        let fresh = format!("{}/x{serial}", directories[rng.random_range(0..directories.len())]);
        let index = if files.is_empty() { None } else { Some(rng.random_range(0..files.len())) };
        match (rng.random_range(0..100), index) {
            (0..12, _) | (_, None) if files.len() < 40 => {
                let fd = Some(pen.open(&fresh, "rw,create"));
                files.push(Mixed { path: fresh, fd, size: 0, ranges: ranges_up_to(most) });
            }
            (_, Some(index)) => mixed_step(pen, rng, &mut files, index, fresh),
            _ => {}
        }
    }
}

/// One operation on an existing file.
fn mixed_step(pen: &mut Pen, rng: &mut ChaCha8Rng, files: &mut Vec<Mixed>, index: usize, fresh: String) {
    let file = &mut files[index];
    let Some(fd) = file.fd else {
        match rng.random_range(0..10) {
            0..4 => file.fd = Some(pen.open(&file.path, "rw")),
            4..7 => {
                pen.unlink(&file.path);
                files.swap_remove(index);
            }
            7 => {
                pen.op(Op::Rename { from: file.path.clone(), to: fresh.clone() });
                file.path = fresh;
            }
            8 => pen.op(Op::Link { target: file.path.clone(), path: fresh }),
            _ => {
                let name = format!("user.a{}", rng.random_range(0..4));
                pen.op(Op::Setxattr { path: file.path.clone(), name, len: rng.random_range(0..600) });
            }
        }
        return;
    };
    let range = file.ranges.range(rng, file.size, 64 * KIB);
    let (off, len) = (range.start, range.end - range.start);
    let aligned = |value: u64| value / (4 * KIB) * (4 * KIB);
    match rng.random_range(0..20) {
        0..8 => {
            pen.write(fd, off, len);
            file.size = file.size.max(off + len);
        }
        8..10 => {
            pen.fallocate(fd, "", off, len);
            file.size = file.size.max(off + len);
        }
        10 => pen.fallocate(fd, "keep_size,punch_hole", off, len),
        11 => {
            pen.fallocate(fd, "zero_range", off, len);
            file.size = file.size.max(off + len);
        }
        12 if aligned(file.size) > 16 * KIB => {
            pen.fallocate(fd, "collapse_range", 4 * KIB, 8 * KIB);
            file.size -= 8 * KIB;
        }
        13 if aligned(file.size) > 16 * KIB => {
            pen.fallocate(fd, "insert_range", 8 * KIB, 4 * KIB);
            file.size += 4 * KIB;
        }
        14 => {
            pen.op(Op::Ftruncate { fd, len: off });
            file.size = off;
        }
        15 => pen.op(Op::Fsync { fd }),
        16 => pen.op(Op::Symlink { target: "s".repeat(rng.random_range(1..200)), path: fresh }),
        _ => {
            pen.close(fd);
            file.fd = None;
        }
    }
}
