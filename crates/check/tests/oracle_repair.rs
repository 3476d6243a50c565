//! Repairs of seeded damages, judged by a second check, by `e2fsck -fn`, and by what `e2fsck -fy` keeps of a copy.
//!
//! 32 damages of four images by default, 2,000 of all with `BLOCKYARD_FULL=1`; `REPAIRS=n` sets another number,
//! `PROFILE=name,name` the images, and `KEEP=folder` where images that fail are kept. What e2fsck cannot repair either is
//! counted apart.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use blockyard_check::{Options, RepairOptions, check, plan};
use blockyard_device::FileDevice;
use blockyard_testkit::images::{
    MORE_PROFILES, PROFILES, Profile, RARE_PROFILES, make_filled, profile_named,
};
use blockyard_testkit::mutate::Inventory;
use blockyard_testkit::{e2fsck_bounded, full_matrix, require, run, seed};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use support::draw::damage;
use support::kept::{Files, compare, files};

/// The time that repairs get.
const NOW: u64 = 1_700_000_000;

fn copy(from: &Path, to: &Path) {
    let output = run("cp", &["--sparse=always", from.to_str().unwrap(), to.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
}

/// What came of one repair.
#[derive(Debug, Default)]
struct Outcome {
    /// What is wrong with it.
    faults: Vec<String>,
    better: usize,
    /// Whether e2fsck leaves it unclean, too.
    beyond_e2fsck: bool,
}

fn repair(image: &Path) -> Result<String, String> {
    let device = FileDevice::open(image).map_err(|error| error.to_string())?;
    let options = Options { threads: Some(2), ..Options::default() };
    let plan = plan(&device, &RepairOptions { check: options, now: NOW, ..RepairOptions::default() })
        .map_err(|error| error.to_string())?;
    plan.apply(&device).map_err(|error| error.to_string())?;
    let actions: Vec<String> = plan
        .actions
        .iter()
        .take(12)
        .map(|action| format!("{} {}: {} ({})", action.code, action.site, action.what, action.cost.text()))
        .collect();
    Ok(actions.join("\n      "))
}

fn judge(work: &Path, before: &Files) -> Outcome {
    let mut outcome = Outcome::default();
    let theirs = work.with_extension("theirs");
    copy(work, &theirs);
    let done = repair(work);
    let device = FileDevice::open_read_only(work).unwrap();
    let second = check(&device, &Options { threads: Some(2), ..Options::default() });
    match &second {
        Ok(report) if report.examined && report.is_clean() => {}
        Ok(report) => {
            let first = report.findings.iter().find(|finding| finding.is_error());
            outcome.faults.push(format!("second check: {first:?}"));
        }
        Err(error) => outcome.faults.push(format!("second check: {error}")),
    }
    let verdict = e2fsck_bounded(work);
    if verdict.code != Some(0) {
        outcome.faults.push(format!(
            "e2fsck -fn gives {:?}: {:?}",
            verdict.code,
            verdict.lines().take(4).collect::<Vec<_>>()
        ));
    }
    run("prlimit", &["--as=4294967296", "timeout", "60", "e2fsck", "-fy", theirs.to_str().unwrap()]);
    let (worse, better) = compare(before, &files(work), &files(&theirs));
    outcome.better = better;
    if !worse.is_empty() {
        outcome.faults.push(format!(
            "{} files lost that e2fsck keeps: {:?}",
            worse.len(),
            &worse[..worse.len().min(3)]
        ));
    }
    if !outcome.faults.is_empty() && worse.is_empty() {
        outcome.beyond_e2fsck = e2fsck_bounded(&theirs).code != Some(0);
    }
    if !outcome.faults.is_empty() {
        outcome.faults.push(format!("actions: {done:?}").replace("\\n", "\n"));
    }
    outcome
}

fn wanted() -> usize {
    let asked = std::env::var("REPAIRS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if full_matrix() { 2000 } else { 32 })
}

fn profiles() -> Vec<&'static Profile> {
    if let Ok(only) = std::env::var("PROFILE") {
        return only.split(',').map(profile_named).collect();
    }
    if full_matrix() {
        return PROFILES.iter().chain(MORE_PROFILES).chain(RARE_PROFILES).collect();
    }
    ["ext4-1k", "ext3-1k", "ea_inode", "bigalloc"].map(profile_named).to_vec()
}

fn keep(work: &Path) -> PathBuf {
    let folder = std::env::var("KEEP").unwrap_or_else(|_| "/tmp".to_owned());
    let (_, kept) = tempfile::Builder::new().suffix(".img").tempfile_in(folder).unwrap().keep().unwrap();
    copy(work, &kept);
    kept
}

#[test]
fn repaired_images_are_clean_and_hold_what_e2fsck_keeps() {
    if !require(&["root", "mke2fs", "e2fsck", "timeout", "prlimit"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(22));
    let (wanted, profiles) = (wanted(), profiles());
    let directory = tempfile::tempdir().unwrap();
    let mut classes: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let (mut failed, mut better, mut beyond) = (0, 0, 0);
    for (n, profile) in profiles.iter().enumerate() {
        let image = make_filled(profile, directory.path());
        let inventory = Inventory::read(&image);
        let before = files(&image);
        let work = directory.path().join("work.img");
        for _ in 0..(wanted * (n + 1)) / profiles.len() - (wanted * n) / profiles.len() {
            copy(&image, &work);
            let (class, what) = damage(&inventory, &mut random, &work);
            let damaged = directory.path().join("damaged.img");
            copy(&work, &damaged);
            let outcome = judge(&work, &before);
            let counts = classes.entry(class).or_default();
            counts.0 += 1;
            better += usize::from(outcome.better > 0);
            if !outcome.faults.is_empty() {
                counts.1 += 1;
                failed += usize::from(!outcome.beyond_e2fsck);
                beyond += usize::from(outcome.beyond_e2fsck);
                let who = if outcome.beyond_e2fsck { " (e2fsck neither)" } else { "" };
                println!("--- {}{who}: {what}\n    kept in {}", profile.name, keep(&damaged).display());
                outcome.faults.iter().for_each(|fault| println!("    {fault}"));
            }
        }
        std::fs::remove_file(image).unwrap();
    }
    for (class, (all, bad)) in &classes {
        println!("{class}: {} of {all}", all - bad);
    }
    let passed = wanted - failed - beyond;
    println!(
        "{wanted} damages: {passed} pass, {failed} fail, {beyond} neither repairs; {better} better than e2fsck"
    );
    assert_eq!(failed, 0);
}
