//! Repairs: makes the plan and writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use blockyard_check::{
    Action, Code, Cost, Finding, Options, Place, Plan, Preening, RepairOptions, Report, Shared, Watch, Wish,
};
use blockyard_device::{BlockDevice, FileDevice, ImagePath, in_use};
use blockyard_inspect::units::counted;
use blockyard_recovery::{OnDamage, Session};

use super::super::longer::Longer;
use super::super::other_hosts::Unshared;
use super::super::progress::Progress;
use super::super::{EXIT_OPERATIONAL, Output, image, mounted, names};
use super::lost::{self, Lost};
use super::{
    Args, EXIT_CANCELED, EXIT_UNCORRECTED, EXIT_USAGE, Extended, figures, found_journal, print, watch,
};

/// A question names at most this many paths.
const PATHS_MAX: usize = 3;

/// Plans a repair. Carries it out unless only the plan is wanted.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<ExitCode> {
    // With -f, the option journal_only has no effect, as in e2fsck.
    let only_replays = args.extended.contains(&Extended::JournalOnly) && !args.force;
    let device = opened(args, &args.image)?;
    let journal = args.journal_device.as_ref();
    let journal = journal.map(|path| found_journal(path).and_then(|path| opened(args, path))).transpose()?;
    if args.superblock.is_none() && !image::has_magic(&device) {
        image::refuse_partitioned(&args.image, &device)?;
    }
    let device = if args.preen || only_replays {
        Longer::as_it_is(device)
    } else {
        Longer::as_file_can_be(device, &args.image)
    };
    let unshared = if args.plan { None } else { Some(Unshared::new(&args.image, &device, output)?) };
    let devices = Devices { image: &device, journal: journal.as_ref(), unshared: unshared.as_ref() };
    let undo = if args.plan { None } else { undo_file(args)? };
    if needs_no_check(args, output, &devices, undo.as_deref())? {
        if output.json {
            println!("{}", serde_json::json!({ "summary": true, "clean": true, "skipped": true }));
        } else if !output.quiet {
            println!("{}: clean", args.image.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if undo.is_some() && args.extended.contains(&Extended::Discard) {
        eprintln!("blockyard: check -E discard: what is discarded cannot be undone; give --no-undo");
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    let lost = lost_file(args, undo.as_deref())?;
    if only_replays {
        return replay_only(args, output, &devices, undo.as_deref());
    }
    plan_and_write(args, output, &devices, (undo, lost))
}

fn plan_and_write(
    args: &Args,
    output: &Output,
    devices: &Devices<'_>,
    (undo, lost): (Option<PathBuf>, Option<Lost>),
) -> anyhow::Result<ExitCode> {
    let name = args.image.display();
    let progress = Progress::counting(output, "check", "inodes");
    let mut options = options(args, devices.image.cut_at(), &progress)?;
    let mut planned = devices.plan(&options);
    drop(progress);
    if let (Some(undo), Ok(plan)) = (&undo, &planned)
        && !plan.is_empty()
    {
        refuse_existing(args, undo)?;
    }
    if args.asks() {
        options.check.watch = Watch::default();
        let Some(answered) = questions(devices, &mut options, planned, output)? else {
            eprintln!("blockyard: {name}: input ended before the last question; nothing was written");
            return Ok(ExitCode::from(EXIT_CANCELED));
        };
        planned = answered;
    }
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("blockyard: {name}: {error}");
            return Ok(ExitCode::from(EXIT_OPERATIONAL));
        }
    };
    if let Some(action) = plan.actions.iter().find(|action| options.declined.contains(&action.code)) {
        let (code, text) = (action.code, action.code.text());
        eprintln!(
            "blockyard: {name}: {code} ({text}) was declined, and the rest needs it; nothing was written"
        );
        return Ok(ExitCode::from(EXIT_UNCORRECTED));
    }
    if args.times > 0 || args.stats {
        figures::print_costs(&plan.costs, &name.to_string(), args.is_by_pass(), output);
    }
    if args.preen {
        return preen(args, output, &plan, devices, (undo, lost));
    }
    let left = plan.after.as_ref().unwrap_or(&plan.before);
    if left.findings.iter().any(|finding| finding.code == Code::DEVICE_SHORT) {
        eprintln!("blockyard: {name}: shorter than its file system; make it longer first (truncate -s)");
        return Ok(ExitCode::from(EXIT_OPERATIONAL));
    }
    print_and_write(args, output, &plan, devices, (undo, lost))
}

fn options(args: &Args, cut_at: Option<u64>, progress: &Progress) -> anyhow::Result<RepairOptions> {
    let superblock = args.superblock.map(|block| Place { block, block_size: args.block_size });
    let watch = args.lines()?.unwrap_or_else(|| watch(progress));
    let check = Options { superblock, watch, ..args.threads_and_depth() };
    let drops = args.extended.contains(&Extended::SharedDrop);
    let shared = if drops { Shared::Drop } else { Shared::Clone };
    let (now, wishes) = (now(), wishes(args));
    Ok(RepairOptions { check, now, wishes, shared, cut_at, ..RepairOptions::default() })
}

/// Says what was found and decided. Writes the repair unless only the plan is wanted.
fn print_and_write(
    args: &Args,
    output: &Output,
    plan: &Plan<'_>,
    devices: &Devices<'_>,
    (undo, lost): (Option<PathBuf>, Option<Lost>),
) -> anyhow::Result<ExitCode> {
    let name = args.image.display();
    // If the user was asked, the findings were printed before the first question.
    if !args.asks() {
        print(&plan.before, output);
    }
    if let Some(finding) = plan.refusal().filter(|_| !args.plan) {
        eprintln!("blockyard: {name}: {}; nothing was written", finding.detail);
        return Ok(ExitCode::from(plan.ending().exit_code()));
    }
    print_actions(&plan.actions, output);
    if plan.sets_mark() && !output.json && !output.quiet {
        println!("{MARK_ONLY}");
    }
    if args.plan {
        return only_plan(args, plan, devices.image, lost, output);
    }
    let done = carry_out(args, plan, devices, (undo, lost), output)?;
    summary(output, plan, &done);
    print_vitals(args, plan, output);
    Ok(ExitCode::from(plan.ending().exit_code()))
}

/// `--plan`: says what would be written. The exit code is that of a check.
fn only_plan(
    args: &Args,
    plan: &Plan<'_>,
    device: &Longer,
    lost: Option<Lost>,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    write_lost(lost, &plan.actions, output)?;
    let changed = plan.changed_blocks(device)?;
    summary(output, plan, &Done { blocks: changed.len(), changed: Some(changed), ..Done::default() });
    print_vitals(args, plan, output);
    Ok(match (plan.before.examined, plan.before.is_clean()) {
        (false, _) => ExitCode::from(EXIT_OPERATIONAL),
        (true, false) => ExitCode::from(EXIT_UNCORRECTED),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// Whether `-p` can skip the check: the file system is marked clean, or will be once its journal is
/// replayed. In the second case, this function replays the journal. In both cases, it corrects the
/// totals of free blocks and inodes in the superblock, unless there is an undo file.
fn needs_no_check(
    args: &Args,
    output: &Output,
    devices: &Devices<'_>,
    undo: Option<&Path>,
) -> anyhow::Result<bool> {
    // As in e2fsck, 0 and 1 name the primary superblock.
    if !args.preen || args.force || args.superblock.is_some_and(|block| block > 1) {
        return Ok(false);
    }
    if blockyard_check::is_marked_clean(devices.image) {
        // With an undo file, the totals stay as they are, because that file would not cover this
        // write.
        if undo.is_none() {
            devices.confirm_unshared(args)?;
            blockyard_check::refresh_totals(devices.image)?;
        }
        return Ok(true);
    }
    if !devices.is_clean_once_replayed() {
        return Ok(false);
    }
    replay_only(args, output, devices, undo)?;
    if undo.is_none() {
        blockyard_check::refresh_totals(devices.image)?;
    }
    Ok(true)
}

/// Opens an image or its journal for a repair.
fn opened(args: &Args, path: &ImagePath) -> anyhow::Result<FileDevice> {
    image::refuse_no_image(path)?;
    if args.plan {
        mounted::warn_of_check(path);
        return Ok(path.open_read_only()?);
    }
    image::refuse_in_use(path)?;
    // e2fsck -f also repairs a file system that is mounted read-only, such as the root. We refuse:
    // the kernel would go on with what it has cached.
    let mount_of = |file: &Path| in_use::kernel_mount(file).or_else(|| in_use::read_only_mount(file));
    path.open().map_err(|error| match mount_of(path.file()).filter(|_| error.is_busy()) {
        Some(mount) => {
            let place = mount.place.map(|place| format!(" at {place}")).unwrap_or_default();
            anyhow!("{}: is mounted{place}; unmount it first", path.display())
        }
        None => error.into(),
    })
}

/// The image, and the device of its journal if that is separate.
struct Devices<'d> {
    image: &'d Longer,
    journal: Option<&'d FileDevice>,
    /// `None` with `--plan`, which writes nothing.
    unshared: Option<&'d Unshared<'d>>,
}

impl<'d> Devices<'d> {
    fn journal(&self) -> Option<&'d dyn BlockDevice> {
        self.journal.map(|journal| -> &dyn BlockDevice { journal })
    }

    /// Refuses to write if another host has begun to use the image since [`Unshared::new`].
    fn confirm_unshared(&self, args: &Args) -> anyhow::Result<()> {
        let confirmed = self.unshared.map_or(Ok(()), |unshared| unshared.confirm(self.image));
        confirmed.with_context(|| args.image.display().to_string())
    }

    fn is_clean_once_replayed(&self) -> bool {
        blockyard_check::is_clean_once_replayed(self.image, self.journal())
    }

    fn plan(&self, options: &RepairOptions) -> Planned<'d> {
        blockyard_check::plan_with_journal(self.image, self.journal(), options)
    }
}

/// With `-v`, prints the counts after the repair. With `--plan`, prints the counts that the repair
/// would leave.
fn print_vitals(args: &Args, plan: &Plan<'_>, output: &Output) {
    let report = plan.after.as_ref().unwrap_or(&plan.before);
    if let Some(vitals) = report.vitals.as_ref().filter(|_| args.verbose) {
        figures::print_vitals(vitals, output);
    }
}

fn wishes(args: &Args) -> BTreeSet<Wish> {
    let asked = |option: Extended| args.extended.contains(&option);
    let packs = !args.preen && !asked(Extended::NoOptimizeExtents) && !asked(Extended::FixesOnly);
    let wishes = [
        (args.rebuild_directories, Wish::RebuildDirectories),
        (asked(Extended::BlockMapsToExtents), Wish::BlockMapsToExtents),
        (asked(Extended::UnshareBlocks), Wish::UnshareBlocks),
        (packs, Wish::PackExtentTrees),
    ];
    wishes.into_iter().filter(|wish| wish.0).map(|wish| wish.1).collect()
}

/// Replays the journal and does nothing else: for `-E journal_only`, and for `-p` if the file
/// system need not be checked afterwards. If the log is damaged, replays its good part.
fn replay_only(
    args: &Args,
    output: &Output,
    devices: &Devices<'_>,
    undo: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    devices.confirm_unshared(args)?;
    if let Some(path) = undo {
        save_undo_of_replay(args, devices, path)?;
    }
    let options = blockyard_recovery::Options { on_damage: OnDamage::ReplayGood, ..Default::default() };
    let session = match devices.journal() {
        Some(journal) => Session::open_with_journal(devices.image, journal),
        None => Session::open(devices.image),
    };
    let report = session
        .and_then(|session| session.replay(&options))
        .with_context(|| args.image.display().to_string())?;
    for damage in &report.damage {
        eprintln!("blockyard: {}: {damage}", args.image.display());
    }
    if output.json {
        println!("{}", serde_json::json!({ "replayed": report.transactions }));
    } else if !output.quiet {
        println!("{} replayed", counted(report.transactions, "transaction"));
    }
    Ok(ExitCode::SUCCESS)
}

/// A plan, or the error of planning.
type Planned<'d> = Result<Plan<'d>, blockyard_check::Error>;

/// Says what was found, then asks once for each kind of finding that the plan repairs. If repairs
/// are declined, the plan is made again without them. `None` if input ends before the last
/// question.
fn questions<'d>(
    devices: &Devices<'d>,
    options: &mut RepairOptions,
    mut planned: Planned<'d>,
    output: &Output,
) -> anyhow::Result<Option<Planned<'d>>> {
    let mut asked = BTreeSet::new();
    if let Ok(plan) = &planned {
        print(&plan.before, output);
    }
    loop {
        let Ok(plan) = &planned else { return Ok(Some(planned)) };
        let mut kinds: BTreeMap<Code, Vec<&Action>> = BTreeMap::new();
        // Bitmaps and counts are written together, so one question is about all of them.
        let of_last_pass =
            plan.actions.iter().map(|action| action.code).filter(|code| code.pass() == 5).min();
        let is_last_pass_asked = asked.iter().any(|code: &Code| code.pass() == 5);
        let is_asked = |code: Code| asked.contains(&code) || is_last_pass_asked && code.pass() == 5;
        for action in plan.actions.iter().filter(|action| !is_asked(action.code)) {
            let kind = of_last_pass.filter(|_| action.code.pass() == 5).unwrap_or(action.code);
            kinds.entry(kind).or_default().push(action);
        }
        let declined_before = options.declined.len();
        for (code, actions) in kinds {
            let codes = actions.iter().map(|action| action.code);
            asked.extend(codes.clone());
            print!("{} Repair? [Y/n] ", at_stake(code, &actions));
            match answer()? {
                None => return Ok(None),
                Some(Answer::Yes) => {}
                Some(Answer::No) => options.declined.extend(codes),
            }
        }
        if options.declined.len() == declined_before {
            return Ok(Some(planned));
        }
        planned = devices.plan(options);
    }
}

/// The text of the one question about all codes of pass 5.
const LAST_PASS: &str = "bitmaps and counts of groups are wrong";

/// What a question says about a kind of finding: how many changes repair it, the highest cost of
/// such a change, and the paths where a change has that cost.
fn at_stake(code: Code, actions: &[&Action]) -> String {
    let cost = actions.iter().map(|action| action.cost).max().unwrap_or(Cost::Nothing);
    let changes = counted(u64::try_from(actions.len()).unwrap_or(u64::MAX), "change");
    let costly = actions.iter().filter(|action| action.cost == cost);
    let paths: BTreeSet<&[u8]> = costly.filter_map(|action| action.path.as_deref()).collect();
    let mut named: Vec<String> =
        paths.iter().take(PATHS_MAX).map(|path| crate::terminal::escaped(path)).collect();
    if paths.len() > PATHS_MAX {
        named.push(format!("and {} more", paths.len() - PATHS_MAX));
    }
    let named = if named.is_empty() { String::new() } else { format!(" [{}]", named.join(", ")) };
    let is_one = actions.iter().all(|action| action.code == code);
    let text = if is_one { code.text() } else { LAST_PASS };
    format!("{code} {text}: {changes}, cost: {}{named}.", cost.text())
}

/// An answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
}

/// Reads an answer, and asks again until there is one; `None` at the end of input.
fn answer() -> anyhow::Result<Option<Answer>> {
    loop {
        std::io::stdout().flush()?;
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line)? == 0 {
            println!();
            return Ok(None);
        }
        match line.trim().to_ascii_lowercase().as_str() {
            "" | "y" | "yes" => return Ok(Some(Answer::Yes)),
            "n" | "no" => return Ok(Some(Answer::No)),
            _ => print!("y or n? [Y/n] "),
        }
    }
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The result of writing a plan, or of making one.
#[derive(Default)]
struct Done {
    blocks: usize,
    /// The blocks that would be written, if only a plan is wanted.
    changed: Option<Vec<u64>>,
    written: bool,
    undo: Option<PathBuf>,
}

/// Printed if the only thing to repair is the state that the superblock records.
const MARK_ONLY: &str = "nothing is wrong except the mark of errors or of a file system that was not closed";

/// Makes only safe repairs.
///
/// - If nothing is wrong, only records the check, and with `-E discard` discards free space.
/// - If anything needs more than a safe repair, only replays the journal and writes the error mark.
/// - In the cases of [`Preening::Unusable`] and [`Preening::Refuses`], writes nothing: for example,
///   if the descriptors are unusable, or if MMP says that the file system is in use.
fn preen(
    args: &Args,
    output: &Output,
    plan: &Plan<'_>,
    devices: &Devices<'_>,
    (undo, lost): (Option<PathBuf>, Option<Lost>),
) -> anyhow::Result<ExitCode> {
    let device = devices.image;
    let name = args.image.display();
    // Computed before anything is written, because the results depend on what the device holds.
    let (preening, ending) = (plan.preening(), plan.preened_ending());
    if preening == Preening::Clean {
        devices.confirm_unshared(args)?;
        record_check(plan, device, undo.as_deref())?;
        discard(args, plan, device)?;
    }
    if output.json {
        print(&plan.before, output);
    } else {
        tell_preening(&preening, plan, &name, output);
    }
    let mut done = Done::default();
    match preening {
        Preening::Stops(_) => {
            devices.confirm_unshared(args)?;
            if let Some(path) = &undo {
                save_undo(args, plan, devices, path)?;
            }
            plan.stop(device, devices.journal())?;
            done = Done { written: true, undo, ..done };
        }
        Preening::Mends => {
            done = carry_out(args, plan, devices, (undo, lost), output)?;
        }
        Preening::Unusable | Preening::Refuses(_) | Preening::Clean => {}
    }
    if output.json {
        print_preened(&preening, plan, &done, output);
    }
    if !matches!(preening, Preening::Stops(_)) {
        print_vitals(args, plan, output);
    }
    Ok(ExitCode::from(ending.exit_code()))
}

/// Says what `-p` found and what it is about to do.
fn tell_preening(preening: &Preening<'_>, plan: &Plan<'_>, name: &impl std::fmt::Display, output: &Output) {
    let needs_journal = |finding: &Finding| finding.code.is_about_external_journal();
    match preening {
        Preening::Unusable if plan.before.findings.iter().any(needs_journal) => {
            println!("{name}: its journal is on another device: name it with -j; nothing was written");
        }
        Preening::Unusable => println!(
            "{name}: its superblock, descriptors or journal are unusable, and -p uses no backup: run check -y"
        ),
        Preening::Refuses(finding) => println!("{name}: {}; nothing was written", finding.detail),
        Preening::Stops(finding) => {
            tell_corrupt_log(plan, name);
            println!("{name}: {} {}: {}", finding.code, finding.site, finding.code.text());
            println!("{name}: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY (blockyard check, without -p)");
        }
        Preening::Clean if output.quiet => {}
        Preening::Clean => println!("{name}: clean"),
        Preening::Mends => {
            tell_corrupt_log(plan, name);
            if plan.sets_mark() && !output.quiet {
                println!("{name}: {MARK_ONLY}");
            }
            for action in plan.actions.iter().filter(|_| !output.quiet) {
                println!("{name}: {}", text(action));
            }
        }
    }
}

/// The JSON lines of what `-p` did: its actions and its result. If it stopped, `stopped_by` is the
/// code of the finding that somebody must look at, and `written` says whether the journal was
/// replayed and the error marked.
fn print_preened(preening: &Preening<'_>, plan: &Plan<'_>, done: &Done, output: &Output) {
    match preening {
        Preening::Mends => {
            print_actions(&plan.actions, output);
            summary(output, plan, done);
        }
        Preening::Stops(finding) | Preening::Refuses(finding) => {
            let object = serde_json::json!({
                "repair": true,
                "written": done.written,
                "undo": done.undo.as_ref().map(|path| path.display().to_string()),
                "stopped_by": finding.code.to_string(),
            });
            println!("{object}");
        }
        Preening::Clean | Preening::Unusable => {}
    }
}

/// Says which transactions are lost because the log is corrupt.
fn tell_corrupt_log(plan: &Plan<'_>, name: &impl std::fmt::Display) {
    for finding in plan.before.findings.iter().filter(|finding| finding.code == Code::LOG_CORRUPT) {
        println!("{name}: {}: {}: {}", finding.code, finding.code.text(), finding.detail);
    }
}

/// Saves what will be overwritten and the list of what is lost, then writes the plan.
fn carry_out(
    args: &Args,
    plan: &Plan<'_>,
    devices: &Devices<'_>,
    (undo, lost): (Option<PathBuf>, Option<Lost>),
    output: &Output,
) -> anyhow::Result<Done> {
    let device = devices.image;
    devices.confirm_unshared(args)?;
    if plan.is_empty() {
        write_lost(lost, &plan.actions, output)?;
        let written = record_check(plan, device, args.undo.as_deref())?;
        discard(args, plan, device)?;
        return Ok(Done { blocks: usize::from(written), written, ..Done::default() });
    }
    if let Some(path) = &undo {
        save_undo(args, plan, devices, path)?;
    }
    let ready = write_lost(lost, &plan.actions, output).and_then(|()| device.grow(&args.image));
    if let Err(error) = ready {
        // The image was not written to, so there is nothing to undo, and nothing is lost.
        let of_journal = undo.as_deref().filter(|_| devices.journal().is_some()).map(journal_undo);
        for path in [undo, of_journal].into_iter().flatten() {
            let _ = std::fs::remove_file(path);
        }
        if let Some(list) = &args.lost {
            lost::withdraw(list);
        }
        return Err(error);
    }
    let applied = plan
        .apply_with_journal(device, devices.journal())
        .with_context(|| args.image.display().to_string())?;
    discard(args, plan, device)?;
    let blocks = usize::try_from(applied.blocks).unwrap_or(usize::MAX);
    Ok(Done { blocks, written: true, undo, ..Done::default() })
}

/// Records that a check found nothing. With an undo file, records nothing, because that file would
/// not cover the write. Returns whether anything was written.
fn record_check(plan: &Plan<'_>, device: &Longer, undo: Option<&Path>) -> anyhow::Result<bool> {
    Ok(undo.is_none() && plan.record_check(device, now())?)
}

/// Saves what will be overwritten in the image, and in a separate journal device.
fn save_undo(args: &Args, plan: &Plan<'_>, devices: &Devices<'_>, path: &Path) -> anyhow::Result<()> {
    refuse_existing(args, path)?;
    plan.save_undo(devices.image, path).with_context(|| path.display().to_string())?;
    let Some(journal) = devices.journal() else { return Ok(()) };
    let of_journal = journal_undo(path);
    let saved = plan.save_undo_of_journal(journal, &of_journal);
    if saved.is_err() {
        // Nothing is written without both files, so there is nothing to undo.
        let _ = std::fs::remove_file(path);
    }
    saved.map(drop).with_context(|| of_journal.display().to_string())
}

/// As [`save_undo`], for a replay of the journal without a repair.
fn save_undo_of_replay(args: &Args, devices: &Devices<'_>, path: &Path) -> anyhow::Result<()> {
    let of_journal = journal_undo(path);
    let journal = devices.journal().map(|journal| (journal, of_journal.as_path()));
    refuse_existing(args, path)?;
    let saved = blockyard_check::save_undo_of_replay(devices.image, path, journal);
    saved.map(drop).with_context(|| path.display().to_string())
}

/// With `-E discard`, discards free space, whether or not anything was repaired.
fn discard(args: &Args, plan: &Plan<'_>, device: &Longer) -> anyhow::Result<()> {
    if args.extended.contains(&Extended::Discard) {
        plan.discard_free(device).with_context(|| args.image.display().to_string())?;
    }
    Ok(())
}

/// The undo file to write, if any. `-z` names it, and that file must not exist. Without `-z`, an
/// image file gets an undo file beside it, but not with `--no-undo` or `-p`; a device gets none. An
/// existing file beside the image is refused later, and only if there is something to repair.
fn undo_file(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    let file = args.image.file();
    match &args.undo {
        Some(path) => refuse_existing(args, path).map(|()| Some(path.clone())),
        None if args.no_undo || args.preen || !file.is_file() => Ok(None),
        None => Ok(Some(with_ending(file, ".undo"))),
    }
}

/// Refuses to overwrite an existing file, such as the undo file of an earlier repair.
fn refuse_existing(args: &Args, path: &Path) -> anyhow::Result<()> {
    let of_journal = args.journal_device.as_ref().map(|_| journal_undo(path));
    if let Some(there) = [path].into_iter().chain(of_journal.as_deref()).find(|path| path.exists()) {
        if args.undo.is_some() {
            bail!("{}: exists already; name another file with -z", there.display());
        }
        bail!(
            "{there}: is the undo file of an earlier repair. To go on after an interrupted repair, name another \
             file with -z. To take the repair back, use blockyard undo. To keep what it did, remove this file",
            there = there.display()
        );
    }
    Ok(())
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// The undo file of a separate journal device, next to the undo file of the image.
fn journal_undo(undo: &Path) -> PathBuf {
    with_ending(undo, ".journal")
}

fn print_actions(actions: &[Action], output: &Output) {
    for action in actions {
        if output.json {
            println!("{}", json(action));
        } else if !output.quiet {
            println!("{}", text(action));
        }
    }
}

fn text(action: &Action) -> String {
    let mut line = format!("{} {}: {}", action.code, action.site, action.what);
    if action.cost > Cost::Nothing {
        let _ = write!(line, " -- {}", action.cost.text());
    }
    if let Some(path) = &action.path {
        let _ = write!(line, " [{}]", crate::terminal::escaped(path));
    }
    line
}

fn json(action: &Action) -> serde_json::Value {
    let mut object = serde_json::json!({
        "action": true,
        "code": action.code.to_string(),
        "message": action.code.text(),
        "what": action.what,
        "cost": action.cost.text(),
    });
    let site = &action.site;
    let places = [
        ("group", site.group.map(|group| group.raw().into())),
        ("inode", site.inode.map(|inode| inode.raw().into())),
        ("block", site.block.map(|block| serde_json::Value::from(block.raw()))),
    ];
    for (key, value) in places {
        if let Some(value) = value {
            object[key] = value;
        }
    }
    if !action.ranges.is_empty() {
        let pairs = action.ranges.iter().map(|range| [range.start, range.end - 1]);
        object["bytes"] = pairs.collect::<Vec<_>>().into();
    }
    if let Some(path) = &action.path {
        names::add(&mut object, "path", path);
    }
    object
}

/// Opens the file of `--lost`, before anything is written.
fn lost_file(args: &Args, undo: Option<&Path>) -> anyhow::Result<Option<Lost>> {
    let Some(path) = &args.lost else { return Ok(None) };
    let journal = args.journal_device.as_ref().map(|journal| journal.file().to_path_buf());
    let of_undo = undo.into_iter().flat_map(|undo| [undo.to_path_buf(), journal_undo(undo)]);
    let others = std::iter::once(args.image.file().to_path_buf()).chain(journal).chain(of_undo);
    lost::open(path, &others.collect::<Vec<_>>()).map(Some)
}

/// Writes the list of everything that the repair costs.
fn write_lost(lost: Option<Lost>, actions: &[Action], output: &Output) -> anyhow::Result<()> {
    let Some(lost) = lost else { return Ok(()) };
    let mut list = String::new();
    for action in actions.iter().filter(|action| action.cost > Cost::Nothing) {
        let inode = action.site.inode.map_or_else(|| "-".to_owned(), |inode| inode.to_string());
        let name = action.path.as_ref().map_or_else(|| "-".to_owned(), |path| crate::terminal::escaped(path));
        let _ = if output.json {
            writeln!(list, "{}", json(action))
        } else {
            writeln!(list, "{}\t{inode}\t{name}\t{}{}", action.cost.text(), action.what, ranges(action))
        };
    }
    lost.complete(list.as_bytes())
}

/// The byte ranges of a file that an action concerns, as one more column of the list. Each range is
/// given by its first and last byte.
fn ranges(action: &Action) -> String {
    let ranges: Vec<String> =
        action.ranges.iter().map(|range| format!("{}-{}", range.start, range.end - 1)).collect();
    if ranges.is_empty() { String::new() } else { format!("\tbytes {}", ranges.join(",")) }
}

fn summary(output: &Output, plan: &Plan<'_>, done: &Done) {
    let complete = plan.is_complete();
    if output.json {
        let mut object = serde_json::json!({
            "repair": true,
            "actions": plan.actions.len(),
            "blocks": done.blocks,
            "complete": complete,
            "written": done.written,
            "undo": done.undo.as_ref().map(|path| path.display().to_string()),
        });
        if let Some(changed) = &done.changed {
            object["changed"] = runs(changed).into();
        }
        println!("{object}");
        return;
    }
    if output.quiet {
        return;
    }
    let blocks = counted(u64::try_from(done.blocks).unwrap_or(u64::MAX), "block");
    let result = match (&plan.after, complete) {
        (_, true) => "clean".to_owned(),
        (Some(Report { errors, examined: true, .. }), false) => format!("{} left", counted(*errors, "error")),
        _ => "cannot be checked".to_owned(),
    };
    let undo = done.undo.as_ref().filter(|_| done.written);
    let back = undo.map_or_else(String::new, |path| format!("; undo in {}", path.display()));
    let verb = if done.changed.is_none() { "written" } else { "would be written" };
    println!(
        "{} decided, {blocks} {verb}: {result}{back}",
        counted(u64::try_from(plan.actions.len()).unwrap_or(u64::MAX), "change")
    );
}

/// Groups ascending numbers into runs, each given by its first and last number.
fn runs(blocks: &[u64]) -> Vec<[u64; 2]> {
    debug_assert!(blocks.is_sorted(), "blocks out of order");
    blocks.chunk_by(|one, next| one + 1 == *next).map(|run| [run[0], run[run.len() - 1]]).collect()
}
