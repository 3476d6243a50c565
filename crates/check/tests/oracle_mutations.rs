//! Seeded single-field corruptions: the verdict equals that of `e2fsck -fn`, and our findings name
//! at least 95 % of the damaged structures.
//!
//! 400 corruptions by default, 2,000 with `BLOCKYARD_FULL=1`; `MUTATIONS=n` sets another number,
//! `PROFILE=name` selects one image, and `KIND=Superblock` one kind of structure. Choose more than
//! 100: about half of the corruptions are harmless, so 100 of them damage only some 50 structures,
//! and the test fails if three of these happen not to be named.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use blockyard_check::{Code, Finding, Options, check};
use blockyard_device::FileDevice;
use blockyard_testkit::images::{MORE_PROFILES, PROFILES, Profile, RARE_PROFILES, make_filled};
use blockyard_testkit::mutate::{Inventory, Kind, Mutation};
use blockyard_testkit::{Verdict, e2fsck_bounded, full_matrix, require, seed};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The result of one corruption.
struct Outcome {
    profile: &'static str,
    mutation: Mutation,
    e2fsck: Verdict,
    findings: Vec<Finding>,
    clean: bool,
}

impl Outcome {
    fn agrees(&self) -> bool {
        self.clean == (self.e2fsck.code == Some(0))
    }

    /// Whether some finding is about the structure that was damaged.
    fn is_named(&self) -> bool {
        let owner = &self.mutation.owner;
        let backup = [Code::SUPERBLOCK_BACKUP, Code::DESCRIPTORS_BACKUP];
        let telling = |finding: &&Finding| finding.is_error() || backup.contains(&finding.code);
        self.findings.iter().filter(telling).any(|finding| {
            let site = &finding.site;
            let inode = owner.inode.is_some() && site.inode.map(|inode| inode.raw()) == owner.inode;
            let block = owner.block.is_some() && site.block.map(|block| block.raw()) == owner.block;
            let group = owner.group.is_some() && site.group.map(|group| group.raw()) == owner.group;
            let superblock = self.mutation.kind == Kind::Superblock && finding.code.pass() == 0
                || self.mutation.kind == Kind::Superblock && site.inode.is_none() && site.group.is_none();
            inode || block || group || superblock
        })
    }
}

fn examine(image: &Path) -> (Vec<Finding>, bool) {
    let device = FileDevice::open_read_only(image).unwrap();
    match check(&device, &Options { threads: Some(2), ..Options::default() }) {
        Ok(report) => {
            let clean = report.is_clean();
            (report.findings, clean)
        }
        // A file system with refused features gets no verdict, so it does not count as clean.
        Err(error) => {
            let finding =
                Finding::new(Code::SUPERBLOCK_BAD, blockyard_check::Site::NOWHERE, error.to_string());
            (vec![finding], false)
        }
    }
}

fn corrupt(profile: &'static Profile, image: &Path, count: usize, random: &mut ChaCha8Rng) -> Vec<Outcome> {
    let mut inventory = Inventory::read(image);
    if let Ok(kind) = std::env::var("KIND") {
        inventory.structures.retain(|structure| format!("{:?}", structure.kind) == kind);
    }
    if inventory.structures.is_empty() {
        return Vec::new();
    }
    (0..count)
        .map(|_| {
            let mutation = inventory.mutate(random);
            mutation.apply(image);
            let e2fsck = e2fsck_bounded(image);
            let (findings, clean) = examine(image);
            mutation.undo(image);
            Outcome { profile: profile.name, mutation, e2fsck, findings, clean }
        })
        .collect()
}

fn all_profiles() -> impl Iterator<Item = &'static Profile> {
    let (more, rare) = if full_matrix() || std::env::var_os("PROFILE").is_some() {
        (MORE_PROFILES, RARE_PROFILES)
    } else {
        Default::default()
    };
    PROFILES.iter().chain(more).chain(rare)
}

fn print_disagreement(outcome: &Outcome) {
    println!("--- {}: {}", outcome.profile, outcome.mutation.description);
    println!(
        "    e2fsck {:?}, here {}",
        outcome.e2fsck.code,
        if outcome.clean { "clean" } else { "not clean" }
    );
    for line in outcome.e2fsck.lines().take(6) {
        println!("    e2fsck: {line}");
    }
    for finding in outcome.findings.iter().take(6) {
        println!("    here: {} {} {} {}", finding.code, finding.site, finding.code.text(), finding.detail);
    }
}

#[test]
fn verdicts_equal_those_of_e2fsck() {
    if !require(&["root", "mke2fs", "e2fsck", "timeout", "prlimit"]) {
        return;
    }
    let seed = seed(2);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let wanted: usize = std::env::var("MUTATIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(if full_matrix() { 2000 } else { 400 });
    let only = std::env::var("PROFILE").ok();
    let profiles: Vec<&Profile> =
        all_profiles().filter(|profile| only.as_deref().is_none_or(|only| only == profile.name)).collect();
    let directory = tempfile::tempdir().unwrap();
    let mut outcomes = Vec::new();
    for (n, profile) in profiles.iter().enumerate() {
        let image = make_filled(profile, directory.path());
        let share = (wanted * (n + 1)) / profiles.len() - (wanted * n) / profiles.len();
        outcomes.extend(corrupt(profile, &image, share, &mut random));
        std::fs::remove_file(image).unwrap();
    }
    let wrong: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.agrees()).collect();
    wrong.iter().for_each(|outcome| print_disagreement(outcome));
    let mut by_kind: BTreeMap<Kind, (usize, usize, usize, usize)> = BTreeMap::new();
    for outcome in &outcomes {
        let row = by_kind.entry(outcome.mutation.kind).or_default();
        row.0 += 1;
        row.1 += usize::from(outcome.agrees());
        if !outcome.clean {
            row.2 += 1;
            row.3 += usize::from(outcome.is_named());
        }
    }
    println!("{:<14} {:>7} {:>7} {:>7} {:>7}", "structure", "changed", "agree", "damaged", "named");
    for (kind, (all, agree, damaged, named)) in &by_kind {
        println!("{:<14} {all:>7} {agree:>7} {damaged:>7} {named:>7}", format!("{kind:?}"));
    }
    let damaged = outcomes.iter().filter(|outcome| !outcome.clean);
    let unnamed: Vec<&Outcome> = damaged.clone().filter(|outcome| !outcome.is_named()).collect();
    for outcome in &unnamed {
        println!("unnamed: {}", outcome.mutation.description);
        for finding in outcome.findings.iter().take(3) {
            println!("    {} {} {}", finding.code, finding.site, finding.detail);
        }
    }
    let damaged = damaged.count();
    println!(
        "{} corruptions, {} disagreements, {}/{damaged} named",
        outcomes.len(),
        wrong.len(),
        damaged - unnamed.len()
    );
    assert!(wrong.is_empty(), "{} verdicts differ", wrong.len());
    assert!(unnamed.len() * 20 <= damaged, "fewer than 95 % of the damaged structures are named");
}
