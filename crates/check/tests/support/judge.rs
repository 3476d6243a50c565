//! Judges of one repair: a second check, `e2fsck -fn`, the files that the damage did not touch, and
//! what e2fsck keeps of a copy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_check::{Action, Cost, Options, Plan, Preening, RepairOptions, check, plan};
use blockyard_device::MemoryDevice;
use blockyard_testkit::{e2fsck_bounded, run};

use super::base::Base;
use super::draw::Drawn;
use super::kept::{Files, Worse, compare, files, files_on, missing};

/// The present time for repairs, in seconds since 1970.
const NOW: u64 = 1_700_000_000;
/// The most actions that are listed with a fault.
const ACTIONS_TOLD: usize = 40;

/// The result of one repair.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What is wrong with the repair.
    pub(crate) faults: Vec<String>,
    /// Whether we keep a file better than e2fsck does, if that was compared.
    pub(crate) better: bool,
    /// Whether the faults are beyond e2fsck, too: e2fsck leaves its copy unclean, and our repair
    /// loses no file that e2fsck keeps. False if there are no faults.
    pub(crate) beyond_e2fsck: bool,
    /// How many of the files that e2fsck keeps better our repair lists as lost.
    pub(crate) named_losses: usize,
    /// How our `-p` differs from e2fsck's; `None` if it does not, or was not compared.
    pub(crate) preened: Option<String>,
}

/// Whether `-p` is judged too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preen {
    Skipped,
    Judged,
}

/// The two paths at which a judge saves the images that e2fsck reads.
#[derive(Debug)]
pub(crate) struct Bench {
    ours: PathBuf,
    theirs: PathBuf,
}

impl Bench {
    pub(crate) fn in_folder(folder: &Path, number: usize) -> Self {
        Self {
            ours: folder.join(format!("ours-{number}.img")),
            theirs: folder.join(format!("theirs-{number}.img")),
        }
    }
}

fn options() -> Options {
    Options { threads: Some(1), ..Options::default() }
}

/// Bit of e2fsck's exit code: it gave up.
const GAVE_UP: i32 = 8;

/// Repairs a damaged image and judges what is left.
pub(crate) fn judge(base: &Base, drawn: &Drawn, bench: &Bench, preen: Preen) -> Outcome {
    let mut outcome = Outcome::default();
    let damaged = base.device.duplicate();
    drawn.apply(&damaged);
    let how = RepairOptions { check: options(), now: NOW, ..RepairOptions::default() };
    let planned = catch_unwind(AssertUnwindSafe(|| plan(&damaged, &how)));
    let planned = match planned {
        Err(_) => {
            outcome.faults.push("panic while planning".to_owned());
            return outcome;
        }
        Ok(planned) => planned,
    };
    let repaired = damaged.duplicate();
    let mut actions: &[Action] = &[];
    match &planned {
        Ok(plan) => {
            plan.apply(&repaired).expect("memory takes every write");
            actions = &plan.actions;
        }
        Err(error) => outcome.faults.push(format!("no plan: {error}")),
    }
    second_check(&repaired, &mut outcome);
    repaired.save(&bench.ours).expect("space for an image");
    let verdict = e2fsck_bounded(&bench.ours);
    if verdict.code != Some(0) {
        let lines: Vec<&str> = verdict.lines().take(4).collect();
        outcome.faults.push(format!("e2fsck -fn gives {:?}: {lines:?}", verdict.code));
    }
    if preen == Preen::Judged {
        let plan = planned.as_ref().ok();
        outcome.preened = preened(&damaged, plan, verdict.code, bench);
    }
    let left = files_on(Arc::new(repaired));
    let gone = missing(&base.untouched(drawn), &left);
    let gone: Vec<_> = gone.iter().filter(|path| !is_lost_found(path)).collect();
    if !gone.is_empty() {
        let named: Vec<_> = gone.iter().take(3).map(|path| shortened(path)).collect();
        outcome.faults.push(format!("{} untouched files are not kept: {named:?}", gone.len()));
    }
    if !outcome.faults.is_empty() || !missing(&base.files, &left).is_empty() {
        beside_e2fsck(base, &damaged, &left, actions, bench, &mut outcome);
    }
    if !outcome.faults.is_empty() {
        for action in actions.iter().take(ACTIONS_TOLD) {
            let told = format!("{} {}: {} ({})", action.code, action.site, action.what, action.cost.text());
            outcome.faults.push(format!("  action {told}"));
        }
    }
    outcome
}

/// lost+found may be made anew, with another inode number.
fn is_lost_found(path: &[u8]) -> bool {
    path == b"/lost+found"
}

fn shortened(path: &[u8]) -> String {
    String::from_utf8_lossy(path).chars().take(60).collect()
}

fn second_check(repaired: &MemoryDevice, outcome: &mut Outcome) {
    match check(repaired, &options()) {
        Ok(report) if report.examined && report.is_clean() => {}
        Ok(report) => {
            let first = report.findings.iter().find(|finding| finding.is_error());
            outcome.faults.push(format!("second check: {first:?}"));
        }
        // Casefolded names are left to e2fsck.
        Err(blockyard_check::Error::Unsupported(what)) if what.ends_with("(nothing else is wrong)") => {}
        Err(error) => outcome.faults.push(format!("second check: {error}")),
    }
}

/// What `e2fsck -fy` keeps of a copy must be there. A loss is a fault even if the repair lists it.
fn beside_e2fsck(
    base: &Base,
    damaged: &MemoryDevice,
    left: &Files,
    actions: &[Action],
    bench: &Bench,
    outcome: &mut Outcome,
) {
    damaged.save(&bench.theirs).expect("space for an image");
    let theirs = bench.theirs.to_str().expect("test paths are UTF-8");
    let ended = run("prlimit", &["--as=4294967296", "timeout", "60", "e2fsck", "-fy", theirs]);
    let (mut worse, better) = compare(&base.files, left, &files(&bench.theirs));
    worse.retain(|file| !is_lost_found(&file.path));
    if ended.status.code().is_some_and(|code| code & GAVE_UP != 0) {
        // e2fsck gave up, so it did not decide to keep these files.
        worse.clear();
    }
    outcome.better = better > 0;
    let (named, silent): (Vec<Worse>, Vec<Worse>) =
        worse.into_iter().partition(|file| is_named(file, actions));
    outcome.named_losses = named.len();
    for (files, how) in [(silent, "silently "), (named, "")] {
        if let Some(first) = files.first() {
            let (path, left) = (shortened(&first.path), first.left);
            let count = files.len();
            outcome.faults.push(format!(
                "{count} files {how}lost that e2fsck keeps, as inode {} {path} {left:?}",
                first.inode
            ));
        }
    }
    if outcome.named_losses == 0 && !outcome.faults.is_empty() {
        let kept = outcome.faults.iter().all(|fault| !fault.contains("e2fsck keeps"));
        outcome.beyond_e2fsck = kept && e2fsck_bounded(&bench.theirs).code != Some(0);
    }
}

/// Whether the list of losses names a file, or a directory above it.
fn is_named(file: &Worse, actions: &[Action]) -> bool {
    actions.iter().filter(|action| action.cost > Cost::Nothing).any(|action| {
        action.site.inode.is_some_and(|inode| inode.raw() == file.inode)
            || action
                .path
                .as_ref()
                .is_some_and(|path| file.path == *path || file.path.starts_with(&[path, &b"/"[..]].concat()))
    })
}

/// Compares `-p` with `e2fsck -fp`: the exit code, and what `e2fsck -fn` says afterwards. `None` if
/// both agree.
fn preened(
    damaged: &MemoryDevice,
    plan: Option<&Plan<'_>>,
    mended: Option<i32>,
    bench: &Bench,
) -> Option<String> {
    let our_code = plan.map_or(8, |plan| plan.preened_ending().exit_code());
    let our_verdict = match plan.map(Plan::preening) {
        Some(Preening::Mends) => mended,
        other => {
            let device = damaged.duplicate();
            if let (Some(plan), Some(Preening::Stops(_))) = (plan, other) {
                plan.stop(&device, None).expect("memory takes every write");
            }
            device.save(&bench.theirs).expect("space for an image");
            e2fsck_bounded(&bench.theirs).code
        }
    };
    damaged.save(&bench.theirs).expect("space for an image");
    let theirs = bench.theirs.to_str().expect("test paths are UTF-8");
    let output = run("prlimit", &["--as=4294967296", "timeout", "60", "e2fsck", "-fp", theirs]);
    // e2fsck adds 4 to 8 if it found errors before it gave up.
    let their_code = output.status.code().map(|code| code.min(8));
    let their_verdict = e2fsck_bounded(&bench.theirs).code;
    let is_clean = |code: Option<i32>| code == Some(0);
    if their_code == Some(i32::from(our_code)) && is_clean(our_verdict) == is_clean(their_verdict) {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let said: Vec<&str> = said.lines().take(4).collect();
    let why = plan.map(|plan| match plan.preening() {
        Preening::Stops(finding) => format!("stops at {} {} {}", finding.code, finding.site, finding.detail),
        other => format!(
            "{other:?} {:?}",
            plan.actions.iter().take(4).map(|action| action.code.to_string()).collect::<Vec<_>>()
        ),
    });
    Some(format!(
        "exit {our_code} here, {their_code:?} there; then {our_verdict:?}, {their_verdict:?}; {why:?}; {said:?}"
    ))
}
