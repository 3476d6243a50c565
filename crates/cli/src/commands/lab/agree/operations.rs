//! Level 2 of `blockyard lab agree`: plays whole operations on the kernel and in the engine, and
//! compares the results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use blockyard_agree::operations::matrix::{self, Cell, Matrix, Rows};
use blockyard_agree::operations::{Agreement, Loading, Other, Plan, Session};
use blockyard_lab::age::Ageing;
use blockyard_lab::figures::Table;
use blockyard_lab::trace::make;
use blockyard_trace::{Line, read};

use super::{EXIT_BELOW, Form, wrong_usage};
use crate::commands::Output;
use crate::commands::progress::Progress;

/// The default of `--mib`.
pub(super) const MIB: u64 = 4096;
/// The default of `--space`.
pub(super) const SPACE_MIB: u64 = 256;

/// Options of level 2. Level 1 takes only one of them: `--aged` with a profile.
#[derive(clap::Args)]
pub(crate) struct OperationArgs {
    /// Play this operation trace (JSON Lines) on the kernel and in the engine
    #[arg(long, conflicts_with_all = ["loads", "images", "replay", "every"])]
    pub(super) trace: Option<PathBuf>,
    /// Generate a trace of this kind and play it, instead of --trace (see `lab trace make`)
    #[arg(long, conflicts_with_all = ["trace", "loads", "images", "replay", "every"])]
    pub(super) make: Option<String>,
    /// Arguments of mke2fs for the start image
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub(super) mkfs: String,
    /// Start from a copy of this image, such as `start` in a folder of --keep, instead of a new one
    #[arg(long, conflicts_with_all = ["loads", "images", "replay", "every", "mkfs", "mib", "age", "aged"])]
    pub(super) start: Option<PathBuf>,
    /// Size of the start image in MiB; the file is sparse
    #[arg(long, default_value_t = MIB)]
    pub(super) mib: u64,
    /// MiB of file space that a generated trace may fill
    #[arg(long, default_value_t = SPACE_MIB)]
    pub(super) space: u64,
    /// Mount options of both sides. The engine follows mb_optimize_scan, delalloc, nodelalloc, data
    /// and stripe, and takes commits from the kernel's recording, whatever commit says. Other
    /// options are refused, except with --ceiling
    #[arg(long, default_value = "")]
    pub(super) mount: String,
    /// First play this trace on the start image, in the kernel
    #[arg(long)]
    pub(super) age: Option<PathBuf>,
    /// Age the start image first. With PROFILE[:N][:P%], the engine ages it by that profile (see
    /// lab age), and tables have columns for fresh images next to those for aged ones. With a
    /// number N (only at level 2), the kernel ages it by playing N operations of a trace of the
    /// kind `ageing`
    #[arg(long, default_value = "0", conflicts_with = "age")]
    aged: Aged,
    /// Number of workers of generated traces. They take turns, each on its own CPU slot and in its
    /// own directory
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) workers: u32,
    /// Seeds of the table, comma-separated: each cell is the sum over them [default: --seed]
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["trace", "make", "seed"])]
    pub(super) seeds: Vec<u64>,
    /// Print the whole document of tables, as Markdown: fresh images, two workers, aged images (as
    /// --aged says, else by 200000 operations); --ceiling adds the ceilings
    #[arg(long, conflicts_with_all = ["trace", "make", "workers"])]
    pub(super) report: bool,
    /// Load bitmaps on demand, not all of them after each mount
    #[arg(long)]
    pub(super) lazy: bool,
    /// Let the device report seek times (with --trace or --make). Then Linux's allocator tries a
    /// few groups in order before it uses an index (the linear prefix)
    #[arg(long)]
    pub(super) rotational: bool,
    /// Compare the kernel with itself, to see how much agreement can be reached at most. A table
    /// shows both this and the comparison with the engine
    #[arg(long)]
    pub(super) ceiling: bool,
    /// Folder for the images [default: /dev/shm if it exists, else the folder for temporary files]
    #[arg(long)]
    pub(super) scratch: Option<PathBuf>,
}

/// The values of `--aged`.
#[derive(Clone, Debug)]
enum Aged {
    Operations(u64),
    Life(Box<Ageing>),
}

impl FromStr for Aged {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(operations) => Ok(Self::Operations(operations)),
            Err(_) => Ok(Self::Life(Box::new(text.parse()?))),
        }
    }
}

impl Aged {
    fn operations(&self) -> u64 {
        match self {
            Self::Operations(count) => *count,
            Self::Life(_) => 0,
        }
    }

    fn life(&self) -> Option<Ageing> {
        match self {
            Self::Operations(_) => None,
            Self::Life(life) => Some(Ageing::clone(life)),
        }
    }
}

/// Options of both levels.
pub(crate) struct Common {
    pub(crate) loads: Vec<String>,
    pub(crate) images: Vec<String>,
    pub(crate) every: usize,
    pub(crate) seed: u64,
    pub(crate) ops: u32,
    pub(crate) keep: Option<PathBuf>,
    pub(crate) at_least: f64,
    pub(crate) summary: bool,
    pub(super) form: Form,
}

impl OperationArgs {
    /// Whether the kernel ages the start image by playing a trace, which level 1 does not do.
    pub(super) fn ages_by_trace(&self) -> bool {
        self.age.is_some() || self.aged.operations() > 0
    }

    /// The profile by which the engine ages the start image, if one is given.
    pub(super) fn lived(&self) -> Option<Ageing> {
        self.aged.life()
    }

    /// Whether `--trace` or `--make` is given, which implies level 2.
    pub(crate) fn are_given(&self) -> bool {
        self.trace.is_some() || self.make.is_some()
    }

    pub(crate) fn run(self, common: &Common, output: &Output) -> Result<ExitCode> {
        if !self.are_given() {
            return self.run_matrix(common, output);
        }
        let lines = self.lines(common)?;
        let scratch = self.scratch.clone().unwrap_or_else(fast_scratch);
        let plan = Plan {
            mke2fs: self.mkfs.clone(),
            size: self.mib << 20,
            mount: self.mount.clone(),
            loading: if self.lazy { Loading::Lazy } else { Loading::All },
            rotational: self.rotational,
            seed: common.seed,
            other: if self.ceiling { Other::Kernel } else { Other::Engine },
            ageing: self.ageing(common)?,
            lived: self.aged.life(),
            scratch: scratch.clone(),
            start: self.start.clone(),
            keep: common.keep.clone(),
        };
        let progress = Progress::parts(output, "lab agree", 2);
        let session = Session::start()?;
        progress.begin(1, "make the start image");
        let start = session.start_image(&plan)?;
        progress.begin(2, "play and compare");
        let agreement = session.compare_from(&plan, &start, &lines)?;
        drop(progress);
        if output.json {
            println!("{}", serde_json::json!(agreement));
        } else {
            show(&agreement, common.form, output.quiet);
            self.say_limit(output);
        }
        let reached = agreement.shares.extents.percent() >= common.at_least;
        Ok(if reached { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BELOW) })
    }

    /// Runs every kind of trace on every image with all mount options, or what the options of the
    /// command select.
    fn run_matrix(self, common: &Common, output: &Output) -> Result<ExitCode> {
        let matrix = Matrix {
            kinds: common.loads.clone(),
            images: common.images.clone(),
            seeds: if self.seeds.is_empty() { vec![common.seed] } else { self.seeds },
            operations: common.ops.into(),
            workers: self.workers,
            aged: self.aged.operations(),
            lived: self.aged.life(),
            every: common.every,
            ceiling: self.ceiling,
            scratch: self.scratch.unwrap_or_else(fast_scratch),
            keep: common.keep.clone(),
        };
        if let Err(error) = matrix.check() {
            return Ok(wrong_usage(&error));
        }
        let parts: Vec<Vec<Matrix>> = if self.report {
            of_report(matrix).into_iter().map(|part| vec![part]).collect()
        } else {
            vec![matrix.beside_fresh()]
        };
        let form = if self.report { Form::Markdown } else { common.form };
        let mut reached = true;
        if !output.json {
            print!("{}", preamble());
        }
        for part in &parts {
            let cells = run_part(part, (form, common.summary), output)?;
            reached &= cells.iter().all(|cell| cell.agreement.shares.extents.percent() >= common.at_least);
        }
        if !parts.iter().flatten().all(|matrix| matrix.ceiling) && !output.json && !output.quiet {
            println!("{LIMIT}");
        }
        Ok(if reached { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BELOW) })
    }

    /// Prints what limits a comparison with the kernel, unless the kernel was compared with itself.
    fn say_limit(&self, output: &Output) {
        if !self.ceiling && !output.json && !output.quiet {
            println!("{LIMIT}");
        }
    }

    /// The trace to play on the start image first.
    fn ageing(&self, common: &Common) -> Result<Option<Vec<Line>>> {
        match (&self.age, self.aged.operations()) {
            (Some(path), _) => read_trace(path).map(Some),
            (None, 0) => Ok(None),
            (None, ops) => {
                let (seed, space) = (!common.seed, (self.mib << 20) / 4);
                make::make("ageing", &make::Recipe { seed, ops, space, workers: 1 }).map(Some)
            }
        }
    }

    fn lines(&self, common: &Common) -> Result<Vec<Line>> {
        match (&self.trace, &self.make) {
            (Some(path), _) => read_trace(path),
            (None, Some(kind)) => {
                let (seed, ops) = (common.seed, common.ops.into());
                let recipe = make::Recipe { seed, ops, space: self.space << 20, workers: self.workers };
                make::make(kind, &recipe)
            }
            (None, None) => bail!("no trace: --trace FILE, or --make KIND"),
        }
    }
}

/// Printed if the kernel was not compared with itself.
const LIMIT: &str = "The kernel itself does not repeat long mixed traces: --ceiling compares it with itself and shows by how much.";

/// How many operations age the images of the report, unless `--aged` is given.
const AGED: u64 = 200_000;

/// The parts of the report: fresh images, two workers on fresh images, and images aged as asked
/// for, or else by [`AGED`] operations of the kernel.
fn of_report(matrix: Matrix) -> Vec<Matrix> {
    let fresh = Matrix { aged: 0, lived: None, ..matrix.clone() };
    let two = Matrix { workers: 2, ..fresh.clone() };
    let is_said = matrix.aged > 0 || matrix.lived.is_some();
    let aged = if is_said { matrix } else { Matrix { aged: AGED, ..matrix } };
    vec![fresh, two, aged]
}

/// Measures matrices that differ only in the state of their images, and prints the result.
///
/// - As JSON: each cell once it is measured.
/// - With `sums_only`: only the sums, at the end.
/// - As Markdown, if all images are in one state: each row once it is measured, then the sums.
/// - Otherwise: the table and the sums, at the end, when the widths of the columns are known.
fn run_part(matrices: &[Matrix], (form, sums_only): (Form, bool), output: &Output) -> Result<Vec<Cell>> {
    let [first, others @ ..] = matrices else { return Ok(Vec::new()) };
    let mut rows = Rows::default();
    let is_streamed = form == Form::Markdown && !output.json && others.is_empty() && !sums_only;
    let seeds: Vec<String> = first.seeds.iter().map(u64::to_string).collect();
    let about = format!("About {} operations a trace; seeds {}.", first.operations, seeds.join(", "));
    if is_streamed {
        print!("## {first}\n\n{about}\n\n{}", Rows::head());
    }
    let progress = Progress::parts(output, "lab agree", matrices.iter().map(Matrix::cells).sum());
    let mut cells = Vec::new();
    for matrix in matrices {
        let done = cells.len();
        let told = |part: usize, name: &str| progress.begin(done + part, name);
        let measured = matrix::run(matrix, told, |cell| {
            progress.beside(|| {
                say(cell, output);
                if is_streamed {
                    print!("{}", rows.add(cell.clone()).map_or_else(String::new, |row| markdown(&row)));
                }
            });
        })?;
        cells.extend(measured);
    }
    drop(progress);
    if is_streamed {
        let last = rows.rest().map_or_else(String::new, |row| markdown(&row));
        println!("{last}\n{}", matrix::summary(&cells).markdown());
    } else if !output.json {
        let title = others.iter().fold(first.to_string(), |title, other| {
            format!("{title}, beside images aged by {}", other.state())
        });
        if sums_only {
            println!("{title}. {about}\n");
        } else {
            println!("{}", form.text(&matrix::table(&format!("{title}. {about}"), &cells)));
        }
        println!("{}", form.text(&matrix::summary(&cells)));
    }
    Ok(cells)
}

/// Prints a cell as JSON, or else the first difference between its two sides.
fn say(cell: &Cell, output: &Output) {
    let Cell { trace, image, state, mount, agreement, .. } = cell;
    if output.json {
        println!("{}", serde_json::json!(cell));
    } else if let (Some(first), false) = (&agreement.first, output.quiet) {
        eprintln!("{trace} on {image} ({state}) with {mount}: first difference: {first}");
    }
}

fn markdown(row: &[String]) -> String {
    format!("| {} |\n", row.join(" | "))
}

/// Says on which machine and how the comparison was made.
fn preamble() -> String {
    let environment = crate::commands::lab::environment();
    format!(
        "Linux {}, blockyard {} ({}), {}.\n\n    {}\n\n",
        environment.kernel, environment.version, environment.commit, environment.machine, environment.command
    )
}

/// A folder on a file system in memory, if there is one, else the folder for temporary files.
fn fast_scratch() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

fn read_trace(path: &Path) -> Result<Vec<Line>> {
    let file = std::fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    read(std::io::BufReader::new(file)).with_context(|| path.display().to_string())
}

fn show(agreement: &Agreement, form: Form, quiet: bool) {
    println!("{}", form.text(&what_is_equal(agreement)));
    if quiet {
        return;
    }
    let mut stats = Table::new("counters of mb_stats", ["counter", "kernel", "other", ""]);
    for (name, (theirs, ours)) in &agreement.stats {
        let differs = if theirs == ours { "" } else { "differs" };
        stats.push([name.clone(), theirs.to_string(), ours.to_string(), differs.to_owned()]);
    }
    println!("{}", form.text(&stats));
    if let Some(first) = &agreement.first {
        println!("first difference: {first}");
    }
    agreement.files.iter().for_each(|file| println!("differs: {file}"));
}

fn what_is_equal(agreement: &Agreement) -> Table {
    let shares = &agreement.shares;
    let decisions = &agreement.decisions;
    let rows = [
        ("inode numbers", shares.inodes),
        ("extents", shares.extents),
        ("bytes", shares.bytes),
        ("directory extents", shares.directory_extents),
        ("tree blocks", shares.tree_blocks),
        ("block bitmaps", shares.block_bitmaps),
        ("inode bitmaps", shares.inode_bitmaps),
        ("placements", decisions.placements),
        ("criteria", decisions.criteria),
        ("whole decisions", decisions.all),
    ];
    let (lines, differ) = (agreement.lines, agreement.outcomes_differ);
    let title = format!("{lines} lines, {differ} ended differently; equal on both sides");
    let mut table = Table::new(title, ["what", "equal", "of", "%"]);
    for (name, share) in rows {
        table.push([name.to_owned(), share.equal.to_string(), share.of.to_string(), share.text()]);
    }
    if agreement.own_commits > 0 {
        table.note(format!("{} commits that the trace does not ask for", agreement.own_commits));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report once ignored `--aged PROFILE` and aged by operations of the kernel.
    #[test]
    fn the_report_ages_as_it_is_told() {
        let fresh = Matrix {
            kinds: Vec::new(),
            images: Vec::new(),
            seeds: vec![1],
            operations: 10,
            workers: 1,
            aged: 0,
            lived: None,
            every: 1,
            ceiling: false,
            scratch: PathBuf::new(),
            keep: None,
        };
        let ways = |matrix: Matrix| {
            let parts = of_report(matrix).into_iter();
            parts
                .map(|part| (part.workers, part.aged, part.lived.map(|life| life.to_string())))
                .collect::<Vec<_>>()
        };
        let plain = [(1, 0, None), (2, 0, None), (1, AGED, None)];
        assert_eq!(ways(fresh.clone()), plain);
        let told = [(1, 0, None), (2, 0, None), (1, 7, None)];
        assert_eq!(ways(Matrix { aged: 7, ..fresh.clone() }), told);
        let lived = Some("mail:9".parse::<Ageing>().unwrap());
        let told = [(1, 0, None), (2, 0, None), (1, 0, Some("mail:9".to_owned()))];
        assert_eq!(ways(Matrix { lived, ..fresh }), told);
    }
}
