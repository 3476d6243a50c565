//! `blockyard lab agree`: compares block allocation with that of the running kernel.

mod belonging;
mod operations;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use blockyard_agree::matrix::{self, Plan};
use blockyard_agree::recording::Recording;
use blockyard_agree::replay::{Agreement, replay};
use blockyard_lab::figures::Table;

use crate::commands::Output;
use crate::commands::progress::Progress;
use crate::terminal;

/// Exit code if the share of equal placements (level 2: of equal extents) is below `--at-least`.
const EXIT_BELOW: u8 = 1;
/// The default of `--seed`.
const SEED: u64 = 1;
/// The default of `--ops`.
const OPS: u32 = 300;

/// Level 1 records decisions of the running kernel's allocator on loop images (needs root), replays
/// them, and compares each one. Level 2 plays whole operations on the kernel and in the engine, and
/// compares the results.
#[derive(clap::Args)]
#[command(after_help = "\
Keys of --json, level 1, one object per recording: load, image, state (fresh, or the life of --aged), optimize_scan,
seed, requests, searches, placements (how many of the requests have an equal one), criteria, candidates, groups,
decisions (in how many of the searches each is equal), mb_groups, summary, stats (whether equal at the end), overlaps,
first (the first difference).
Level 2, one object per comparison: lines, outcomes_differ, shares and decisions (each of objects with equal and of),
own_commits, stats (the kernel's, ours), first (the first difference in what was chosen; if there is none, in an
outcome or a file; else in how a choice was found), files; of a table: trace, image, state (as above; after --aged N
the text `N operations`), workers, mount, agreement and ceiling (two such objects; ceiling is null without --ceiling).

Exit codes: 0 done; 1 fewer equal placements (level 2: extents) than --at-least; 2 wrong usage; 8 failed.")]
pub(crate) struct Args {
    /// What to compare: 1 = requests into the block allocator, 2 = whole operations. --trace and
    /// --make imply 2. With 2 but neither of these, every kind of trace is compared on every image,
    /// and a table is printed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    level: u8,
    /// Only this load (repeatable)
    #[arg(long = "load")]
    loads: Vec<String>,
    /// Only this image kind (repeatable)
    #[arg(long = "image")]
    images: Vec<String>,
    /// Seed of the loads, of the content and of generated traces
    #[arg(long, default_value_t = SEED)]
    seed: u64,
    /// Approximate number of operations of each load or generated trace
    #[arg(long, default_value_t = OPS)]
    ops: u32,
    /// Take only every n-th pair of load and image kind
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Keep the recordings (JSON Lines) in this directory; at level 2 the start image, and both
    /// results with their decisions
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Replay these recordings instead of making new ones (needs neither root nor ext4)
    #[arg(long, num_args = 1.., conflicts_with_all = ["loads", "images", "keep"])]
    replay: Vec<PathBuf>,
    /// Print one row per image kind and one per load, instead of one per recording. At level 2,
    /// print one row per trace, instead of one per trace and image
    #[arg(long)]
    summary: bool,
    /// Exit with 1 if less than this percentage of the placements (level 2: of the extents) is
    /// equal
    #[arg(long, default_value_t = 0.0)]
    at_least: f64,
    /// Print Markdown, as in docs/experiments/agreement.md. At level 2, each row is printed once it
    /// is measured, unless there are columns of aged images
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    operations: operations::OperationArgs,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let rotational = ("--rotational", self.operations.rotational);
        let refused = match self.level {
            _ if self.operations.are_given() => Ok(()),
            2 => super::run::refuse("--trace and --make", &[rotational]),
            _ => self.check_level_1(rotational),
        };
        if let Err(error) = refused.and_then(|()| self.ensure_all_belong()) {
            return Ok(wrong_usage(&error));
        }
        if self.level == 2 || self.operations.are_given() {
            let common = operations::Common {
                loads: self.loads,
                images: self.images,
                every: self.every,
                seed: self.seed,
                ops: self.ops,
                keep: self.keep,
                at_least: self.at_least,
                summary: self.summary,
                form: Form::of(self.markdown),
            };
            return self.operations.run(&common, output);
        }
        let results = if self.replay.is_empty() { self.measure(output)? } else { self.replay_files(output)? };
        if !output.json && !output.quiet {
            let table = if self.summary { matrix::summary } else { matrix::table };
            print!("{}", Form::of(self.markdown).text(&table(&results)));
        }
        let reached = matrix::total(&results).percent() >= self.at_least;
        Ok(if reached { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BELOW) })
    }

    /// Refuses, before anything runs, unknown loads and images, and what level 1 does not have:
    /// ageing by a trace, and `--rotational`.
    fn check_level_1(&self, rotational: (&str, bool)) -> Result<()> {
        let ages = ("--age, --aged with a number", self.operations.ages_by_trace());
        super::run::refuse("--level 2", &[ages, rotational])?;
        if !self.replay.is_empty() {
            return super::run::refuse("new recordings", &[("--aged", self.operations.lived().is_some())]);
        }
        self.plan().recordings().map(drop)
    }

    fn plan(&self) -> Plan {
        Plan {
            loads: self.loads.clone(),
            images: self.images.clone(),
            aged: self.operations.lived(),
            seed: self.seed,
            operations: self.ops,
            scratch: std::env::temp_dir(),
            keep: self.keep.clone(),
            every: self.every,
        }
    }

    fn measure(&self, output: &Output) -> Result<Vec<Agreement>> {
        let plan = self.plan();
        let progress = Progress::parts(output, "lab agree", plan.recordings()?.len());
        matrix::run(
            &plan,
            |part, name| progress.begin(part, name),
            |result| progress.beside(|| show(result, output)),
        )
    }

    fn replay_files(&self, output: &Output) -> Result<Vec<Agreement>> {
        let progress = Progress::parts(output, "lab agree", self.replay.len());
        let mut results = Vec::new();
        for (index, path) in self.replay.iter().enumerate() {
            progress.begin(index + 1, &path.to_string_lossy());
            let file = std::fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
            let recording = Recording::read(std::io::BufReader::new(file))?;
            let result = replay(&recording).with_context(|| format!("replay {}", path.display()))?;
            progress.beside(|| show(&result, output));
            results.push(result);
        }
        Ok(results)
    }
}

fn wrong_usage(error: &anyhow::Error) -> ExitCode {
    eprintln!("blockyard: {error:#}");
    ExitCode::from(super::run::EXIT_USAGE)
}

fn show(result: &Agreement, output: &Output) {
    if output.json {
        println!("{}", serde_json::json!(result));
    } else if let (Some(first), false) = (&result.first, output.quiet) {
        println!("{} on {} ({}): first difference: {first}", result.load, result.image, result.state);
    }
}

/// How to print tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Terminal,
    Markdown,
}

impl Form {
    const fn of(markdown: bool) -> Self {
        if markdown { Self::Markdown } else { Self::Terminal }
    }

    fn text(self, table: &Table) -> String {
        match self {
            Self::Terminal => table.terminal(terminal::columns()),
            Self::Markdown => table.markdown(),
        }
    }
}
