//! `blockyard check`: verify an image without writing to it, or repair it.

mod figures;
mod lines;
mod lost;
mod repair;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use blockyard_check::{Finding, Options, Part, Place, Report, Step, Watch};
use blockyard_device::{BlockDevice, FileDevice, ImagePath};
use blockyard_inspect::units::counted;
use indicatif::HumanBytes;

use super::progress::Progress;
use super::{EXIT_OPERATIONAL, Output, image, names};

/// Exit code for an image with errors, as in e2fsck -n.
const EXIT_UNCORRECTED: u8 = 4;
/// Exit code for wrong usage, as in e2fsck.
const EXIT_USAGE: u8 = 16;
/// Exit code for a check that the user ended, as in e2fsck.
const EXIT_CANCELED: u8 = 32;
/// The largest value of `--io-depth`. Each read in flight blocks a thread.
const IO_DEPTH_MAX: usize = 1024;
/// The largest value of `--threads`: more threads would only cost memory.
const THREADS_MAX: usize = 1024;

/// Arguments of `blockyard check`.
#[derive(clap::Args)]
#[command(
    after_help = "JSON: one object per finding: code (as in e2fsck's problem log), severity (error or note), pass, message, \
                  and, where they apply, group, inode, logical, block, offset, detail, path (if that is not UTF-8, path_bytes \
                  has its bytes in hexadecimal); then one object: summary \
                  (true), clean, examined, errors, findings, suppressed. With -y, --plan or questions also one object per decision: \
                  action (true), code, message, what, cost (nothing, moved, doubtful, cut, removed), and, where they apply, group, inode, block, path, bytes (first and last of each range of the file); then one object: repair (true), actions, blocks (how many are written, or with --plan would be), \
                  changed (with --plan: first and last of each run of blocks), complete, written, undo. \
                  With -p, there are objects for decisions only if something is repaired. If -p stops, one object has repair (true), written, undo and \
                  stopped_by (the code of the finding). If no check is needed, one object has summary (true), clean and \
                  skipped (true). If only the journal is replayed, one object: replayed (transactions). \
                  With -v there is one more object: vitals (true) and the counts. With -t there is one for all passes together, and with -tt before it one per pass: cost (true), \
                  pass, reads, bytes, seeks, real_s, user_s, system_s.\n\nExit codes (those of e2fsck): 0 clean, 1 all errors corrected, 4 errors left, 8 the image \
                  cannot be checked, 16 wrong usage, 32 input ended before the last question (nothing is written)."
)]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Only look, change nothing (the default, except on a terminal, where check asks before each
    /// kind of repair)
    #[arg(short = 'n', long)]
    no: bool,
    /// Check even if the image is marked clean. Only -p skips the check of such an image
    #[arg(short = 'f', long)]
    force: bool,
    /// Repair what is safe, without questions and with little output, as at boot. Even if nothing
    /// is repaired, -p may replay the journal, and write the state and the counters in the
    /// superblock. Without -z, no undo file keeps the blocks that these writes replace
    #[arg(short = 'p', short_alias = 'a', long, conflicts_with_all = ["no", "yes"])]
    preen: bool,
    /// Repair everything
    #[arg(short = 'y', long, conflicts_with = "no")]
    yes: bool,
    /// Show what a repair would do and cost, and write nothing
    #[arg(long, conflicts_with_all = ["preen", "yes"])]
    plan: bool,
    /// Rewrite directories: packed, in hash order. Inline directories, those with case folding, and
    /// lost+found stay as they are
    #[arg(short = 'D', long)]
    rebuild_directories: bool,
    /// Extended options of e2fsck. journal_only: only replay the journal (no effect with -f).
    /// bmap2extent: convert block maps to extents. unshare_blocks: give files copies of the blocks
    /// that they share, and clear the feature shared_blocks. discard: discard free space. If
    /// several inodes claim the same blocks, one keeps them; with shared=clone (the default) the
    /// others get copies, and with shared=drop they lose the blocks, and --lost lists what they
    /// lost. fixes_only, no_optimize_extents: leave extent trees wider or deeper than they need be
    /// (-p always does)
    #[arg(short = 'E', long = "extended", value_name = "OPTION", value_delimiter = ',')]
    extended: Vec<Extended>,
    /// List in a file what the repair costs, one change per line: cost, inode, path, what, and the
    /// bytes of the file if known. The cost is removed (a name or an inode), cut (a part of content
    /// or attributes), doubtful (content may be damaged or another file's), or moved (a name or a
    /// place). Corrected metadata is not listed. A lost inode table is one line, and each name of
    /// an inode in that table is one more. The list is durable before the image is written to; a
    /// file that has content already is refused
    #[arg(long, value_name = "FILE")]
    lost: Option<PathBuf>,
    /// Save overwritten blocks in this file, for `blockyard undo` [default with -y and with
    /// questions: IMAGE.undo for a file]. Blocks of a separate journal device are saved in
    /// FILE.journal. With -z, a check that finds nothing to repair does not record its time in the
    /// superblock
    #[arg(short = 'z', long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// Do not save overwritten blocks
    #[arg(long, conflicts_with = "undo")]
    no_undo: bool,
    /// Use the superblock in this block, and the descriptors after it
    #[arg(short = 'b', long, value_name = "BLOCK")]
    superblock: Option<u64>,
    /// Block size in bytes for -b [default: try every size]
    #[arg(short = 'B', long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// The device or file that holds the journal, when it is not in the image
    #[arg(short, long, value_name = "DEVICE", value_parser = image::operand())]
    journal_device: Option<ImagePath>,
    /// Write the progress of the check to this file descriptor. Each line has the pass, how far it
    /// is, where it ends, and the image. With 0, no lines are written
    #[arg(short = 'C', long, value_name = "FD")]
    progress_fd: Option<u32>,
    /// Count what the image holds, as e2fsck -v does; with a repair or --plan, count what remains
    /// after the repair
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Show the memory, time and reads of the check, and with -tt also of each pass. With a repair,
    /// this is the check before the repair
    #[arg(short = 't', action = clap::ArgAction::Count)]
    times: u8,
    /// The same as -tt
    #[arg(long)]
    stats: bool,
    /// Worker threads [default: one per CPU]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Reads in flight, for a device that serves many at once, such as a network disk [default: one
    /// per thread]
    #[arg(long, value_name = "N")]
    io_depth: Option<usize>,
}

/// Extended options of e2fsck.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Extended {
    JournalOnly,
    FixesOnly,
    NoOptimizeExtents,
    #[value(name = "bmap2extent")]
    BlockMapsToExtents,
    UnshareBlocks,
    #[value(name = "shared=clone")]
    SharedClone,
    #[value(name = "shared=drop")]
    SharedDrop,
    Discard,
}

impl Args {
    /// Checks the image and prints the findings.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        let asks = !self.no && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let repairs = self.preen || self.yes || self.plan || asks;
        if let Some(what) = self.misuse(repairs) {
            eprintln!("blockyard: check {what}");
            return Ok(ExitCode::from(EXIT_USAGE));
        }
        if repairs {
            return repair::run(&self, output);
        }
        let open = |path: &ImagePath| -> anyhow::Result<FileDevice> {
            image::refuse_no_image(path)?;
            super::mounted::warn_of_check(path);
            Ok(path.open_read_only()?)
        };
        let device = open(&self.image)?;
        if self.superblock.is_none() && !image::has_magic(&device) {
            // Without its primary superblock, an image can still be checked with a backup. But a
            // partitioned disk is no image: the user must choose a partition.
            image::refuse_partitioned(&self.image, &device)?;
        }
        let journal = self.journal_device.as_ref();
        let journal = journal.map(|path| found_journal(path).and_then(open)).transpose()?;
        let superblock = self.superblock.map(|block| Place { block, block_size: self.block_size });
        let progress = Progress::counting(output, "check", "inodes");
        let lines = self.lines()?;
        let options = Options {
            superblock,
            watch: lines.unwrap_or_else(|| watch(&progress)),
            ..self.threads_and_depth()
        };
        let journal = journal.as_ref().map(|journal| -> &dyn BlockDevice { journal });
        let checked = blockyard_check::measure(&device, journal, &options);
        drop(progress);
        let (report, costs) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                eprintln!("blockyard: {}: {error}", self.image.display());
                return Ok(ExitCode::from(EXIT_OPERATIONAL));
            }
        };
        if self.times > 0 || self.stats {
            figures::print_costs(&costs, &self.image.display().to_string(), self.is_by_pass(), output);
        }
        print(&report, output);
        if let Some(vitals) = report.vitals.as_ref().filter(|_| self.verbose) {
            figures::print_vitals(vitals, output);
        }
        if !report.examined {
            return Ok(ExitCode::from(EXIT_OPERATIONAL));
        }
        Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNCORRECTED) })
    }
}

impl Args {
    /// An error in the values or the combination of options, if any.
    fn misuse(&self, repairs: bool) -> Option<String> {
        let bad_size = |size: &u32| !size.is_power_of_two() || !(1 << 10..=1 << 16).contains(size);
        if let Some(size) = self.block_size.filter(bad_size) {
            return Some(format!("-B {size}: a block has 1024 to 65536 bytes, a power of two"));
        }
        if let Some(threads) = self.threads.filter(|threads| !(1..=THREADS_MAX).contains(threads)) {
            return Some(format!("--threads {threads}: 1 to {THREADS_MAX} threads are possible"));
        }
        if let Some(depth) = self.io_depth.filter(|depth| !(1..=IO_DEPTH_MAX).contains(depth)) {
            return Some(format!("--io-depth {depth}: 1 to {IO_DEPTH_MAX} reads are possible"));
        }
        let asked = |option| self.extended.contains(&option);
        if asked(Extended::SharedDrop) && (asked(Extended::SharedClone) || asked(Extended::UnshareBlocks)) {
            return Some("-E shared=drop excludes -E shared=clone and unshare_blocks".to_owned());
        }
        let rewrites = self.rebuild_directories || asked(Extended::BlockMapsToExtents);
        if asked(Extended::FixesOnly) && rewrites {
            return Some("-E fixes_only excludes -D and -E bmap2extent".to_owned());
        }
        if !repairs && (self.undo.is_some() || self.lost.is_some()) {
            return Some(
                "-z and --lost belong to a repair: -y, -p, --plan or a terminal for questions is needed"
                    .to_owned(),
            );
        }
        let changes = self.rebuild_directories || !self.extended.is_empty();
        (changes && !repairs).then(|| {
            "-D and -E change the image: -y, -p, --plan or a terminal for questions is needed".to_owned()
        })
    }

    /// Whether the cost of each pass is shown.
    const fn is_by_pass(&self) -> bool {
        self.times > 1 || self.stats
    }

    /// Whether a repair asks before each kind of change.
    fn asks(&self) -> bool {
        !(self.preen || self.yes || self.plan)
    }

    fn threads_and_depth(&self) -> Options {
        Options { threads: self.threads, io_depth: self.io_depth, ..Options::default() }
    }

    /// The receiver of progress with `-C`. Returns `None` for descriptor 0, which asks for the
    /// progress line: it needs no option here.
    fn lines(&self) -> anyhow::Result<Option<Watch>> {
        let descriptor = self.progress_fd.filter(|descriptor| *descriptor > 0);
        let open = |descriptor| {
            lines::watch(descriptor, self.image.display().to_string())
                .with_context(|| format!("check -C {descriptor}"))
        };
        descriptor.map(open).transpose()
    }
}

/// The path of a journal device. Fails if nothing is there.
fn found_journal(path: &ImagePath) -> anyhow::Result<&ImagePath> {
    let shown = path.display();
    std::fs::metadata(path.file()).with_context(|| format!("{shown}: the journal of -j"))?;
    Ok(path)
}

/// Where a part begins and ends, in thousandths of the whole check. The weights are those that
/// e2fsck gives its passes.
const fn share_of(part: Part) -> (u64, u64) {
    match part {
        Part::Inodes => (0, 700),
        Part::Directories => (700, 900),
        Part::Connectivity => (900, 920),
        Part::Links => (920, 950),
        Part::Groups => (950, 1000),
    }
}

/// What the progress line shows.
struct Shown {
    part: Part,
    /// Finished items of the part.
    done: u64,
    read_bytes: u64,
}

/// Advances the progress line through the parts of a check. The line shows the time left for the
/// whole check. The line starts again with each check, because a repair checks more than once.
fn watch(progress: &Progress) -> Watch {
    if !progress.is_wanted() {
        return Watch::default();
    }
    let bar = progress.bar_of_shares(1000);
    let shown = Mutex::new(Shown { part: Part::Groups, done: 0, read_bytes: 0 });
    Watch::new(move |step| {
        let Step { part, more, all, read_bytes, .. } = step;
        let mut now = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if now.part != part {
            if part == Part::Inodes {
                bar.reset();
            }
            (now.part, now.done) = (part, 0);
        }
        now.done += more;
        // Another thread may have reported a later step before this one.
        now.read_bytes = now.read_bytes.max(read_bytes);
        let (what, all) = (noun(part), all.max(1));
        let (first, end) = share_of(part);
        let position = first + (end - first) * now.done.min(all) / all;
        if position != bar.position() || now.done == more {
            let read = HumanBytes(now.read_bytes);
            bar.set_message(format!("{} of {all} {what}, {read} read", now.done));
            bar.set_position(position);
        }
    })
}

const fn noun(part: Part) -> &'static str {
    match part {
        Part::Inodes => "inodes",
        Part::Directories => "directories",
        Part::Connectivity => "directories connected",
        Part::Links => "groups, links",
        Part::Groups => "groups",
    }
}

fn print(report: &Report, output: &Output) {
    for finding in &report.findings {
        if output.json {
            println!("{}", json(finding));
        } else if finding.is_error() || !output.quiet {
            println!("{}", text(finding));
        }
    }
    if output.json {
        let summary = serde_json::json!({
            "summary": true,
            "clean": report.is_clean(),
            "examined": report.examined,
            "errors": report.errors,
            "findings": report.findings.len(),
            "suppressed": report.suppressed,
        });
        println!("{summary}");
    } else if !output.quiet {
        let verdict = match (report.examined, report.is_clean()) {
            (false, _) => "cannot be checked",
            (true, true) => "clean",
            (true, false) => "NOT clean",
        };
        let more = if report.suppressed > 0 {
            format!(", {} not listed", counted(report.suppressed, "more finding"))
        } else {
            String::new()
        };
        println!("{verdict}: {}{more}", counted(report.errors, "error"));
    }
}

fn text(finding: &Finding) -> String {
    let mut line = format!("{} {}: {}", finding.code, finding.site, finding.code.text());
    if !finding.detail.is_empty() {
        line.push_str(&format!(" ({})", finding.detail));
    }
    if let Some(path) = &finding.path {
        line.push_str(&format!(" [{}]", crate::terminal::escaped(path)));
    }
    if !finding.is_error() {
        line.push_str(" -- note");
    }
    line
}

/// The JSON object of a finding; the help lists its keys.
fn json(finding: &Finding) -> serde_json::Value {
    let mut object = serde_json::json!({
        "code": finding.code.to_string(),
        "severity": if finding.is_error() { "error" } else { "note" },
        "pass": finding.pass,
        "message": finding.code.text(),
    });
    let site = &finding.site;
    let mut put = |key: &str, value: Option<serde_json::Value>| {
        if let Some(value) = value {
            object[key] = value;
        }
    };
    put("group", site.group.map(|group| group.raw().into()));
    put("inode", site.inode.map(|inode| inode.raw().into()));
    put("logical", site.logical.map(Into::into));
    put("block", site.block.map(|block| block.raw().into()));
    put("offset", site.offset.map(Into::into));
    put("detail", Some(finding.detail.clone()).filter(|detail| !detail.is_empty()).map(Into::into));
    if let Some(path) = &finding.path {
        names::add(&mut object, "path", path);
    }
    object
}
