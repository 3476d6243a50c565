//! The whole measurement of level 2: a table with a cell for each combination of trace kind, image
//! kind and mount options.
//!
//! A cell sums up the runs with all seeds. An aged image is made once for each kind of image and
//! seed, under the mount options of the first cell that needs it. Traces of the kind `near-full`
//! use smaller images, which are made anew for each cell.

mod table;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use blockyard_device::MemoryDevice;
use blockyard_lab::age::Ageing;
use blockyard_lab::figures::states::{FRESH, Stated};
use blockyard_lab::trace::make::{KINDS, Recipe, make};
use blockyard_trace::Line;

use super::{Agreement, Loading, Other, Plan, Session};

pub use table::{Rows, summary, table};

/// A kind of image that agreement is measured on.
#[derive(Clone, Copy, Debug)]
pub struct ImageKind {
    /// Name in the table.
    pub name: &'static str,
    /// Arguments of mke2fs, blank-separated.
    pub mke2fs: &'static str,
    /// Size in MiB.
    pub mib: u64,
    /// Arguments of mke2fs for an image of [`FULL_MIB`] MiB.
    full: &'static str,
}

/// The kinds of image: the defaults of mke2fs, no flex groups, blocks of 1 KiB, and bigalloc.
/// `full` names the block size, because mke2fs would choose smaller blocks for a small image.
pub const IMAGES: [ImageKind; 4] = [
    ImageKind { name: "default", mke2fs: "", mib: 4096, full: "-b 4096" },
    ImageKind { name: "no-flex", mke2fs: "-O ^flex_bg", mib: 4096, full: "-b 4096 -O ^flex_bg" },
    ImageKind { name: "1k", mke2fs: "-b 1024", mib: 1024, full: "-b 1024" },
    ImageKind {
        name: "bigalloc64k",
        mke2fs: "-O bigalloc -C 65536 -N 100000",
        mib: 65_536,
        full: "-b 4096 -O bigalloc -C 65536 -N 8192",
    },
];

/// Both scan modes, with and without delayed allocation.
pub const MOUNTS: [&str; 4] = [
    "mb_optimize_scan=0,nodelalloc",
    "mb_optimize_scan=1,nodelalloc",
    "mb_optimize_scan=0",
    "mb_optimize_scan=1",
];

/// Size in MiB of the images that a `near-full` trace fills.
pub const FULL_MIB: u64 = 256;

/// MiB of file space that a trace may fill on other images.
const SPACE_MIB: u64 = 256;

/// Most MiB of file space that an ageing trace may fill. The limit is a quarter of the image if
/// that is less, and [`FULL_MIB`] for `near-full`.
const AGED_MIB: u64 = 1024;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Kinds of traces; empty for all.
    pub kinds: Vec<String>,
    /// Names of images; empty for all.
    pub images: Vec<String>,
    /// Seeds of traces and content; each cell is played once for each.
    pub seeds: Vec<u64>,
    /// Approximate number of operations of each trace.
    pub operations: u64,
    /// Workers that take turns.
    pub workers: u32,
    /// Operations of the trace that the kernel plays first, to age the images; 0 for fresh images.
    pub aged: u64,
    /// How to age the images in the engine instead.
    pub lived: Option<Ageing>,
    /// Takes only every n-th cell; 0 and 1 take all.
    pub every: usize,
    /// Whether the ceiling of each cell is measured, too.
    pub ceiling: bool,
    /// Directory for images.
    pub scratch: PathBuf,
    /// Directory under which each cell keeps the images of its last seed, as `IMAGE/TRACE/MOUNT`.
    /// The last name ends in `.2-workers` if two workers took turns, and in `.aged` if the images
    /// are aged. So the cells of one report do not overwrite each other's images.
    pub keep: Option<PathBuf>,
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state().as_str() {
            FRESH => f.write_str("Fresh images")?,
            state => write!(f, "Images aged by {state}")?,
        }
        match self.workers {
            0 | 1 => f.write_str(", one worker"),
            workers => write!(f, ", {workers} workers in turns"),
        }
    }
}

/// One cell of the table.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Cell {
    /// Kind of the trace.
    pub trace: String,
    /// Name of the image.
    pub image: String,
    /// State of the image, as [`Matrix::state`].
    pub state: String,
    /// Workers that took turns.
    pub workers: u32,
    /// Mount options.
    pub mount: String,
    /// Agreement of the engine with the kernel.
    pub agreement: Agreement,
    /// Agreement of the kernel with itself.
    pub ceiling: Option<Agreement>,
}

impl Stated for Cell {
    fn state(&self) -> &str {
        &self.state
    }

    fn as_fresh(&self) -> Self {
        Self { state: FRESH.to_owned(), ..self.clone() }
    }
}

impl Matrix {
    /// The state of the images: `fresh`, the ageing in the engine, or the number of operations of
    /// the ageing trace.
    #[must_use]
    pub fn state(&self) -> String {
        match (self.aged, &self.lived) {
            (_, Some(life)) => life.to_string(),
            (0, None) => FRESH.to_owned(),
            (operations, None) => format!("{operations} operations"),
        }
    }

    /// The name of a cell's own directory in `keep`.
    fn folder(&self, mount: &str) -> String {
        let workers = if self.workers > 1 { format!(".{}-workers", self.workers) } else { String::new() };
        let aged = if self.aged > 0 || self.lived.is_some() { ".aged" } else { "" };
        debug_assert!(!mount.contains('/'), "the name is one component of a path");
        format!("{mount}{workers}{aged}")
    }

    /// The matrices that share a table. If the engine ages the images (`lived`), the same matrix on
    /// fresh images comes first.
    #[must_use]
    pub fn beside_fresh(self) -> Vec<Self> {
        let fresh = self.lived.is_some().then(|| Self { aged: 0, lived: None, ..self.clone() });
        fresh.into_iter().chain([self]).collect()
    }

    /// Checks that all names are known.
    ///
    /// # Errors
    /// When a name is unknown. The message lists the known names.
    pub fn check(&self) -> Result<()> {
        let check = |what: &str, wanted: &[String], known: Vec<&str>| {
            let unknown = wanted.iter().find(|name| !known.contains(&name.as_str()));
            ensure!(
                unknown.is_none(),
                "{what} `{}` is unknown; kinds: {}",
                unknown.map_or("", |n| n),
                known.join(", ")
            );
            Ok(())
        };
        check("trace kind", &self.kinds, KINDS.iter().map(|kind| kind.name).collect())?;
        check("image kind", &self.images, IMAGES.iter().map(|image| image.name).collect())
    }

    /// Image, kind of trace and mount of every cell, in order.
    fn places(&self) -> Vec<(&'static ImageKind, &'static str, &'static str)> {
        let is_wanted =
            |names: &[String], name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
        let images = IMAGES.iter().filter(|image| is_wanted(&self.images, image.name));
        let all = images.flat_map(|image| {
            let kinds = KINDS.iter().filter(|kind| is_wanted(&self.kinds, kind.name));
            kinds.flat_map(move |kind| MOUNTS.map(|mount| (image, kind.name, mount)))
        });
        all.step_by(self.every.max(1)).collect()
    }

    /// How many cells there are.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.places().len()
    }
}

/// Measures all cells. `progress` is called before each cell with its number (from 1) and name;
/// `each` gets every cell as soon as it is measured.
///
/// # Errors
/// As [`Session::start`] and [`Session::compare`], and for unknown names.
pub fn run(
    matrix: &Matrix,
    mut progress: impl FnMut(usize, &str),
    mut each: impl FnMut(&Cell),
) -> Result<Vec<Cell>> {
    matrix.check()?;
    let mut cells = Vec::new();
    let mut runs: Option<Runs<'_>> = None;
    for (image, kind, mount) in matrix.places() {
        let life = matrix.lived.as_ref().map_or(String::new(), |life| format!("; {life}"));
        let name = format!("{kind} on {} with {mount}{life}", image.name);
        progress(cells.len() + 1, &name);
        // Aged images are kept for one kind of image at a time.
        let mut of_image = runs.take().filter(|runs| runs.image.name == image.name).unwrap_or(Runs {
            matrix,
            image,
            aged: Vec::new(),
        });
        let cell = of_image.cell(kind, mount).with_context(|| name)?;
        runs = Some(of_image);
        each(&cell);
        cells.push(cell);
    }
    Ok(cells)
}

/// Comparisons on one kind of image.
struct Runs<'a> {
    matrix: &'a Matrix,
    image: &'a ImageKind,
    /// Aged images by seed.
    aged: Vec<(u64, Arc<MemoryDevice>)>,
}

impl Runs<'_> {
    /// Measures one cell. Each cell starts a session of its own, so that other comparisons get
    /// their turn during a long measurement.
    fn cell(&mut self, kind: &str, mount: &str) -> Result<Cell> {
        let session = Session::start()?;
        let mut cell = self.unmeasured(kind, mount);
        for &seed in &self.matrix.seeds {
            let lines = self.lines(kind, seed)?;
            let plan = self.plan(kind, mount, seed)?;
            let start = self.start(&session, kind, &plan)?;
            cell.agreement.add(&session.compare_from(&plan, &start, &lines)?);
            if self.matrix.ceiling {
                let plan = Plan { other: Other::Kernel, keep: None, ..plan };
                let most = session.compare_from(&plan, &start, &lines)?;
                cell.ceiling.get_or_insert_with(Agreement::default).add(&most);
            }
        }
        Ok(cell)
    }

    /// A cell with its names, but without figures.
    fn unmeasured(&self, kind: &str, mount: &str) -> Cell {
        Cell {
            trace: kind.to_owned(),
            image: self.image.name.to_owned(),
            state: self.matrix.state(),
            workers: self.matrix.workers,
            mount: mount.to_owned(),
            agreement: Agreement::default(),
            ceiling: None,
        }
    }

    fn lines(&self, kind: &str, seed: u64) -> Result<Vec<Line>> {
        let space = if kind == "near-full" { FULL_MIB } else { SPACE_MIB };
        let Matrix { operations, workers, .. } = *self.matrix;
        make(kind, &Recipe { seed, ops: operations, space: space << 20, workers })
    }

    fn plan(&self, kind: &str, mount: &str, seed: u64) -> Result<Plan> {
        let full = kind == "near-full";
        let (mke2fs, mib) =
            if full { (self.image.full, FULL_MIB) } else { (self.image.mke2fs, self.image.mib) };
        let ageing = match self.matrix.aged {
            0 => None,
            ops => {
                let space = if full { FULL_MIB } else { (mib / 4).min(AGED_MIB) };
                Some(make("ageing", &Recipe { seed: !seed, ops, space: space << 20, workers: 1 })?)
            }
        };
        let folder = self.matrix.folder(mount);
        Ok(Plan {
            mke2fs: mke2fs.to_owned(),
            size: mib << 20,
            mount: mount.to_owned(),
            loading: Loading::All,
            rotational: false,
            seed,
            other: Other::Engine,
            ageing,
            lived: self.matrix.lived.clone(),
            scratch: self.matrix.scratch.clone(),
            start: None,
            keep: self.matrix.keep.as_ref().map(|keep| keep.join(self.image.name).join(kind).join(folder)),
        })
    }

    /// The start image. An aged image is kept for later cells, unless the trace is `near-full`.
    fn start(&mut self, session: &Session, kind: &str, plan: &Plan) -> Result<Arc<MemoryDevice>> {
        if plan.ageing.is_none() && plan.lived.is_none() || kind == "near-full" {
            return session.start_image(plan);
        }
        if let Some((_, kept)) = self.aged.iter().find(|(seed, _)| *seed == plan.seed) {
            return Ok(Arc::clone(kept));
        }
        let made = session.start_image(plan)?;
        self.aged.push((plan.seed, Arc::clone(&made)));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(kinds: &[&str], images: &[&str], every: usize) -> Matrix {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Matrix {
            kinds: names(kinds),
            images: names(images),
            seeds: vec![1],
            operations: 10,
            workers: 1,
            aged: 0,
            lived: None,
            every,
            ceiling: false,
            scratch: PathBuf::new(),
            keep: None,
        }
    }

    /// The first cell is taken, and then each third one. 0 takes all cells, as 1 does.
    #[test]
    fn only_each_nth_cell_is_taken() {
        let [all, third] = [1, 3].map(|every| matrix(&[], &["1k", "default"], every));
        let expected: Vec<_> = all.places().into_iter().step_by(3).collect();
        let names = |places: &[(&'static ImageKind, &'static str, &'static str)]| {
            places.iter().map(|(image, kind, mount)| (image.name, *kind, *mount)).collect::<Vec<_>>()
        };
        assert_eq!(all.cells(), 2 * KINDS.len() * MOUNTS.len());
        assert_eq!(third.cells(), all.cells().div_ceil(3));
        assert_eq!(names(&third.places()), names(&expected));
        assert_eq!(matrix(&[], &[], 0).cells(), matrix(&[], &[], 1).cells());
    }

    /// Fresh images are measured as well only if the engine ages the images (`lived`). Images that
    /// a trace on the kernel ages (`aged`) are measured alone.
    #[test]
    fn a_life_is_measured_beside_fresh_images() {
        let plain = || matrix(&["untar"], &["1k"], 1);
        let life = Some("mail:9".parse::<Ageing>().unwrap());
        let states = |matrix: Matrix| {
            let all = matrix.beside_fresh();
            all.iter().map(|one| (one.state(), one.to_string())).collect::<Vec<_>>()
        };
        let told = |state: &str, text: &str| (state.to_owned(), text.to_owned());
        let fresh = told("fresh", "Fresh images, one worker");
        assert_eq!(states(plain()), std::slice::from_ref(&fresh));
        assert_eq!(
            states(Matrix { aged: 7, ..plain() }),
            [told("7 operations", "Images aged by 7 operations, one worker")]
        );
        let lived = Matrix { lived: life, ..plain() };
        let aged = told("mail:9", "Images aged by mail:9, one worker");
        assert_eq!(states(lived), [fresh, aged]);
    }

    /// A regression: the parts of a report overwrote the images that earlier parts had kept.
    #[test]
    fn what_is_kept_is_named_after_workers_and_ageing() {
        let plain = || matrix(&["untar"], &["1k"], 1);
        let kept = |matrix: Matrix| {
            let matrix = Matrix { keep: Some(PathBuf::from("kept")), ..matrix };
            let runs = Runs { matrix: &matrix, image: &IMAGES[2], aged: Vec::new() };
            let keep = runs.plan("untar", "data=ordered", 1).unwrap().keep.unwrap();
            keep.strip_prefix("kept/1k/untar").unwrap().to_str().unwrap().to_owned()
        };
        let lived = || Matrix { lived: Some("mail:9".parse::<Ageing>().unwrap()), ..plain() };
        assert_eq!(kept(plain()), "data=ordered");
        assert_eq!(kept(Matrix { workers: 2, ..plain() }), "data=ordered.2-workers");
        assert_eq!(kept(Matrix { aged: 7, ..plain() }), "data=ordered.aged");
        assert_eq!(kept(lived()), "data=ordered.aged");
        assert_eq!(kept(Matrix { workers: 2, ..lived() }), "data=ordered.2-workers.aged");
    }

    /// A regression: rows measured with one worker looked the same as rows with two.
    #[test]
    fn rows_as_json_tell_the_parts_of_a_report_apart() {
        let plain = || matrix(&["untar"], &["1k"], 1);
        let row = |matrix: &Matrix| {
            let runs = Runs { matrix, image: &IMAGES[2], aged: Vec::new() };
            let cell = runs.unmeasured("untar", "data=ordered");
            let row = serde_json::to_value(cell).unwrap();
            (row["state"].as_str().unwrap().to_owned(), row["workers"].as_u64().unwrap())
        };
        let told = |state: &str, workers| (state.to_owned(), workers);
        assert_eq!(row(&plain()), told("fresh", 1));
        assert_eq!(row(&Matrix { workers: 2, ..plain() }), told("fresh", 2));
        assert_eq!(row(&Matrix { aged: 7, ..plain() }), told("7 operations", 1));
    }

    #[test]
    fn unknown_names_are_refused_with_those_that_are_known() {
        let of = |kinds: &[&str], images: &[&str]| {
            matrix(kinds, images, 1).check().map_err(|error| error.to_string())
        };
        assert_eq!(of(&[], &[]), Ok(()));
        assert_eq!(of(&["untar"], &["1k"]), Ok(()));
        let refused = of(&["untar", "tar"], &[]).unwrap_err();
        assert!(refused.starts_with("trace kind `tar` is unknown; kinds: tree-copy, "), "{refused}");
        let refused = of(&[], &["2k"]).unwrap_err();
        assert!(refused.starts_with("image kind `2k` is unknown; kinds: default, "), "{refused}");
    }
}
