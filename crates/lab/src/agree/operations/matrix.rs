//! The whole measurement of level 2: kinds of traces by images by mount options, as a table.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::compare::Share;
use super::{Agreement, Loading, Other, Plan, Session};
use crate::trace::make::{KINDS, Recipe, make};

/// An image that agreement is measured on.
#[derive(Clone, Copy, Debug)]
pub struct ImageKind {
    /// Name in the table.
    pub name: &'static str,
    /// Arguments of mke2fs, blank-separated.
    pub mke2fs: &'static str,
    /// Size in MiB.
    pub mib: u64,
}

/// Default, no flex groups, small blocks, clusters.
pub const IMAGES: [ImageKind; 4] = [
    ImageKind { name: "default", mke2fs: "", mib: 4096 },
    ImageKind { name: "no-flex", mke2fs: "-O ^flex_bg", mib: 4096 },
    ImageKind { name: "1k", mke2fs: "-b 1024", mib: 1024 },
    ImageKind { name: "bigalloc64k", mke2fs: "-O bigalloc -C 65536 -N 100000", mib: 65_536 },
];

/// Both scan modes, with and without delayed allocation.
pub const MOUNTS: [&str; 4] = [
    "mb_optimize_scan=0,nodelalloc",
    "mb_optimize_scan=1,nodelalloc",
    "mb_optimize_scan=0",
    "mb_optimize_scan=1",
];

/// MiB of the images that a trace of the kind `near-full` fills.
const FULL_MIB: u64 = 256;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Kinds of traces; empty for all.
    pub kinds: Vec<String>,
    /// Names of images; empty for all.
    pub images: Vec<String>,
    /// Seed of traces and content.
    pub seed: u64,
    /// Operations of each trace, about.
    pub operations: u64,
    /// Take only every n-th cell.
    pub every: usize,
    /// Measure the ceiling of each cell, too.
    pub ceiling: bool,
    /// Where images are made.
    pub scratch: PathBuf,
}

/// One cell of the table.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Cell {
    /// Kind of the trace.
    pub trace: String,
    /// Name of the image.
    pub image: String,
    /// Mount options.
    pub mount: String,
    /// The engine beside the kernel.
    pub agreement: Agreement,
    /// Equal extents of the kernel beside itself.
    pub ceiling: Option<Share>,
}

/// Measures; `each` sees every cell as it comes.
///
/// # Errors
/// As [`Session::start`] and [`Session::compare`]; for names that are not known.
pub fn run(matrix: &Matrix, mut each: impl FnMut(&Cell)) -> Result<Vec<Cell>> {
    for name in &matrix.kinds {
        ensure!(KINDS.iter().any(|kind| kind.name == name), "there is no kind of trace {name:?}");
    }
    for name in &matrix.images {
        ensure!(IMAGES.iter().any(|image| image.name == name), "there is no image {name:?}");
    }
    let is_wanted =
        |names: &[String], name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let session = Session::start(&matrix.scratch)?;
    let mut cells = Vec::new();
    let mut number = 0;
    for kind in KINDS.iter().filter(|kind| is_wanted(&matrix.kinds, kind.name)) {
        for image in IMAGES.iter().filter(|image| is_wanted(&matrix.images, image.name)) {
            for mount in MOUNTS {
                number += 1;
                if (number - 1) % matrix.every.max(1) == 0 {
                    let cell = one(&session, matrix, kind.name, image, mount)
                        .with_context(|| format!("{} on {} with {mount}", kind.name, image.name))?;
                    each(&cell);
                    cells.push(cell);
                }
            }
        }
    }
    Ok(cells)
}

fn one(session: &Session, matrix: &Matrix, kind: &str, image: &ImageKind, mount: &str) -> Result<Cell> {
    let full = kind == "near-full";
    let mib = if full { FULL_MIB } else { image.mib };
    let space = if full { FULL_MIB } else { 256 };
    let lines = make(kind, &Recipe { seed: matrix.seed, ops: matrix.operations, space: space << 20 })?;
    let plan = Plan {
        // A full image is small: as many inodes as its size gives.
        mke2fs: if full { image.mke2fs.replace(" -N 100000", "") } else { image.mke2fs.to_owned() },
        size: mib << 20,
        mount: mount.to_owned(),
        loading: Loading::All,
        seed: matrix.seed,
        other: Other::Engine,
        ageing: None,
        scratch: matrix.scratch.clone(),
        keep: None,
    };
    let agreement = session.compare(&plan, &lines)?;
    let ceiling = if matrix.ceiling {
        Some(session.compare(&Plan { other: Other::Kernel, ..plan }, &lines)?.shares.extents)
    } else {
        None
    };
    Ok(Cell {
        trace: kind.to_owned(),
        image: image.name.to_owned(),
        mount: mount.to_owned(),
        agreement,
        ceiling,
    })
}

/// The cells as a Markdown table, with a last row for all.
#[must_use]
pub fn table(cells: &[Cell]) -> String {
    let mut text = String::from(
        "| trace | image | scan | delalloc | extents | extents % | ceiling % | bytes % | inodes % | tree blocks % | \
         placements % | criteria % | stats beyond 1 % |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for cell in cells {
        let scan = if cell.mount.contains("mb_optimize_scan=0") { "linear" } else { "optimized" };
        let delayed = if cell.mount.contains("nodelalloc") { "no" } else { "yes" };
        row(&mut text, [&cell.trace, &cell.image, scan, delayed], &cell.agreement, cell.ceiling);
    }
    let mut all = Agreement::default();
    let mut ceiling = None;
    for cell in cells {
        all.add(&cell.agreement);
        if let Some(share) = cell.ceiling {
            ceiling.get_or_insert_with(Share::default).add(share);
        }
    }
    row(&mut text, ["all", "all", "both", "both"], &all, ceiling);
    text
}

fn row(text: &mut String, words: [&str; 4], one: &Agreement, ceiling: Option<Share>) {
    let [trace, image, scan, delayed] = words;
    let (shares, decisions) = (&one.shares, &one.decisions);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "| {trace} | {image} | {scan} | {delayed} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        shares.extents.of,
        shares.extents.text(),
        ceiling.map_or("-".to_owned(), Share::text),
        shares.bytes.text(),
        shares.inodes.text(),
        shares.tree_blocks.text(),
        decisions.placements.text(),
        decisions.criteria.text(),
        one.stats_apart().len(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_adds_up() {
        let cell = |equal, of| {
            let mut agreement = Agreement::default();
            agreement.shares.extents = Share { equal, of };
            agreement.stats.insert("hits".to_owned(), (100, 98));
            Cell {
                trace: "untar".to_owned(),
                image: "1k".to_owned(),
                mount: "mb_optimize_scan=0,nodelalloc".to_owned(),
                agreement,
                ceiling: None,
            }
        };
        let text = table(&[cell(999, 1000), cell(1000, 1000)]);
        assert!(text.contains("| untar | 1k | linear | no | 1000 | 99.900 | - |"), "{text}");
        assert!(text.lines().last().is_some_and(|line| line.contains("| 2000 | 99.950 |")), "{text}");
    }
}
