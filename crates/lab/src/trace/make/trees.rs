//! Kinds of traces with directory trees.

use blockyard_trace::Op;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Pen, Recipe};

/// Draws the size of a file in bytes. Sizes are as in trees of source code and documents: most
/// files are small, few are large.
pub(super) fn tree_file_size(rng: &mut ChaCha8Rng) -> u64 {
    match rng.random_range(0..100) {
        0..5 => 0,
        5..60 => rng.random_range(1..8 << 10),
        60..90 => rng.random_range(8 << 10..64 << 10),
        90..99 => rng.random_range(64 << 10..1 << 20),
        _ => rng.random_range(1 << 20..4 << 20),
    }
}

/// Creates directories, files and symbolic links below `root`, in random order, until `percent` per
/// cent of the wanted operations are written.
fn tree(pen: &mut Pen, rng: &mut ChaCha8Rng, root: &str, percent: u64, space: &mut u64) {
    pen.mkdir(root);
    let mut directories = vec![root.to_owned()];
    let mut serial = 0;
    while pen.is_below(percent) {
        serial += 1;
        let parent = directories[rng.random_range(0..directories.len())].clone();
        if rng.random_range(0..8) == 0 {
            let path = format!("{parent}/d{serial:05}");
            pen.mkdir(&path);
            directories.push(path);
            continue;
        }
        let path = format!("{parent}/file-{serial:05}");
        if rng.random_range(0..40) == 0 {
            pen.op(Op::Symlink { target: format!("../target-{serial}"), path });
            continue;
        }
        let size = tree_file_size(rng).min(*space);
        *space -= size;
        pen.file(&path, size, 128 << 10);
    }
}

/// Writes one tree three times. The second and the third copy replace the files of the copy before.
pub(super) fn tree_copy(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    let mut space = recipe.space / 2;
    tree(pen, rng, "/tree", 33, &mut space);
    pen.op(Op::Sync);
    let first = pen.written();
    for _ in 1..3 {
        for op in &first {
            match op {
                Op::Mkdir { .. } | Op::Symlink { .. } | Op::Sync => {}
                Op::Open { path, .. } => drop(pen.reopen(path)),
                other => pen.repeat(other),
            }
        }
        pen.op(Op::Sync);
    }
}

/// A burst of files in many directories, with a single `sync` at the end.
pub(super) fn untar(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    let mut space = recipe.space;
    tree(pen, rng, "/untar", 100, &mut space);
    pen.op(Op::Sync);
}

/// Directories that grow: on average, two names are added for each name that is removed. With
/// enough operations, they get an index (htree).
pub(super) fn directories(pen: &mut Pen, rng: &mut ChaCha8Rng, _: &Recipe) {
    let roots = ["/wide", "/long", "/deep"];
    roots.iter().for_each(|root| pen.mkdir(root));
    let mut names: Vec<(String, bool)> = Vec::new();
    let mut serial = 0;
    while pen.wants_more() {
        serial += 1;
        let remove = !names.is_empty() && rng.random_range(0..3) == 0;
        if remove {
            let (path, is_directory) = names.swap_remove(rng.random_range(0..names.len()));
            pen.op(if is_directory { Op::Rmdir { path } } else { Op::Unlink { path } });
            continue;
        }
        let path = match rng.random_range(0..3) {
            0 => format!("/wide/n{serial}"),
            1 => format!("/long/{serial:0>width$}", width = rng.random_range(40..240)),
            _ => format!("/deep/sub{serial}"),
        };
        let is_directory = path.starts_with("/deep");
        if is_directory {
            pen.mkdir(&path);
        } else {
            pen.op(Op::Mknod { path: path.clone(), mode: 0o010_644, major: 0, minor: 0 });
        }
        names.push((path, is_directory));
        if serial % 500 == 0 {
            pen.op(Op::Sync);
        }
    }
}
