//! Plans do not depend on the number of threads, and repairs can be undone. After a power cut, a
//! second repair ends clean, and no regular file that the uncut repair keeps is lost. The cut comes
//! after each write or flush of a repair in turn (of a long repair, after every nth one), and at
//! sampled places with writes reordered or torn.
//!
//! 6 repairs of two images by default, 300 of all with `BLOCKYARD_FULL=1`. `REPAIRS=n` sets another
//! number, and `PROFILE=name,name` selects images. If files are lost after a cut, the damaged image
//! and the image that the cut left are saved in `KEEP=folder`.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use blockyard_check::{Action, Code, Options, RepairOptions, check, plan, undo};
use blockyard_device::{BlockDevice, CrashPlan, MemoryDevice, RecorderDevice};
use blockyard_disk::num::usize_from_u64;
use blockyard_disk::superblock::{MAGIC, RawSuperblock};
use blockyard_testkit::images::{
    MORE_PROFILES, PROFILES, Profile, RARE_PROFILES, make_filled, profile_named,
};
use blockyard_testkit::mutate::Inventory;
use blockyard_testkit::{full_matrix, require, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use zerocopy::FromBytes;

use support::draw::damage;
use support::kept::{Files, files_on};

/// The present time for repairs, in seconds since 1970.
const NOW: u64 = 1_700_000_000;
/// Cuts with reordered or torn writes that are tried for one repair.
const SAMPLES: usize = 24;
/// The most cuts without reordering that are tried for one repair.
const PREFIXES_MAX: usize = 128;

fn options(threads: usize) -> Options {
    Options { threads: Some(threads), ..Options::default() }
}

fn how(threads: usize) -> RepairOptions {
    RepairOptions { check: options(threads), now: NOW, ..RepairOptions::default() }
}

/// Repairs a device; returns whether a check then finds it clean.
fn repair(device: &dyn BlockDevice) -> bool {
    plan(device, &how(2)).is_ok_and(|plan| plan.apply(device).is_ok())
        && check(device, &options(2)).is_ok_and(|report| report.examined && report.is_clean())
}

/// The block size in bytes. Without a superblock it is 1024, as in plans.
fn block_size(device: &dyn BlockDevice) -> u64 {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(1024, &mut bytes).unwrap();
    let sb = RawSuperblock::read_from_bytes(&bytes).unwrap();
    1024 << if sb.s_magic.get() == MAGIC { sb.s_log_block_size.get() } else { 0 }
}

/// The actions of a plan, and the blocks that it changes with their new content.
type Shape = (Vec<Action>, Vec<(u64, Vec<u8>)>);

/// The plan for a device in a form that can be compared; `None` if there is none.
fn shape(device: &dyn BlockDevice, threads: usize) -> Option<Shape> {
    let plan = plan(device, &how(threads)).ok()?;
    let size = block_size(plan.result());
    let blocks = plan.changed_blocks(device).unwrap().into_iter();
    let starts = blocks.map(|block| (block, block * size)).filter(|(_, at)| *at < device.size());
    let content = starts.map(|(block, at)| {
        let mut bytes = vec![0; usize_from_u64(size.min(device.size() - at))];
        plan.result().read_at(at, &mut bytes).unwrap();
        (block, bytes)
    });
    let content = content.collect();
    Some((plan.actions.clone(), content))
}

/// Inode, mode, size and content of each file, but no path, so a file that was moved is still
/// there. The content of the inodes in `copied` does not count.
fn contents(files: &Files, copied: &BTreeSet<u32>) -> BTreeSet<(u32, u16, u64, u64)> {
    let content = |inode, content| if copied.contains(&inode) { 0 } else { content };
    files.values().map(|file| (file.inode, file.mode, file.size, content(file.inode, file.content))).collect()
}

/// The files that a repair gives a copy of shared blocks. Their content may differ between repairs:
/// the shared block may be that of the superblock, which every repair changes.
fn copied(damaged: &MemoryDevice) -> BTreeSet<u32> {
    let actions = plan(damaged, &how(2)).map_or(Vec::new(), |plan| plan.actions);
    let copies = actions.iter().filter(|action| action.code == Code::SHARED_BLOCKS);
    copies.filter_map(|action| Some(action.site.inode?.raw())).collect()
}

fn is_undone(damaged: &MemoryDevice, folder: &Path) -> bool {
    let device = damaged.duplicate();
    let file = folder.join("undo");
    let _ = std::fs::remove_file(&file);
    let plan = plan(&device, &how(2)).unwrap();
    if plan.is_empty() {
        return true;
    }
    plan.save_undo(&device, &file).unwrap();
    plan.apply(&device).unwrap();
    undo(&device, &file).unwrap();
    same(&device, damaged)
}

fn same(one: &dyn BlockDevice, other: &dyn BlockDevice) -> bool {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    one.size() == other.size()
        && (0..one.size()).step_by(1 << 20).all(|at| {
            let length = usize_from_u64((one.size() - at).min(1 << 20));
            one.read_at(at, &mut a[..length]).unwrap();
            other.read_at(at, &mut b[..length]).unwrap();
            a[..length] == b[..length]
        })
}

/// What cuts of a repair showed.
struct Cuts {
    /// How many were tried: none if the whole repair does not end clean.
    tried: usize,
    faults: Vec<String>,
}

/// Cuts a repair after each of its writes and flushes (of a long repair, after every nth one), and
/// at sampled places with reordered and torn writes.
fn cut(damaged: &MemoryDevice, random: &mut ChaCha8Rng) -> Cuts {
    let mut cuts = Cuts { tried: 0, faults: Vec::new() };
    let recorder = RecorderDevice::new(damaged.duplicate());
    if !repair(&recorder) {
        return cuts;
    }
    let copied = copied(damaged);
    let whole = contents(&files_on(Arc::new(recorder.below().duplicate())), &copied);
    let log = recorder.log();
    let mut try_again = |device: MemoryDevice, place: &dyn std::fmt::Debug| {
        cuts.tried += 1;
        let kept = std::env::var("KEEP").ok().map(|folder| (folder, device.duplicate()));
        if !repair(&device) {
            cuts.faults.push(format!("not clean after {place:?}"));
            return;
        }
        let left = contents(&files_on(Arc::new(device)), &copied);
        let lost = whole.difference(&left).filter(|file| file.1 >> 12 == 8).count();
        if lost > 0 {
            if let Some((folder, kept)) = kept {
                kept.save(Path::new(&format!("{folder}/cut-{}.img", cuts.tried))).unwrap();
                damaged.save(Path::new(&format!("{folder}/damaged-{}.img", cuts.tried))).unwrap();
            }
            cuts.faults.push(format!("{lost} files lost after {place:?}"));
        }
    };
    let events = log.events().len();
    for count in (0..events).step_by(events / PREFIXES_MAX + 1) {
        let device = damaged.duplicate();
        log.apply_prefix(count, &device).unwrap();
        try_again(device, &format!("{count} of {events} writes and flushes"));
    }
    let plan = CrashPlan { seed: random.random(), ..CrashPlan::default() };
    let states: Vec<_> = log.crash_states(&plan).collect();
    for state in states.choose_multiple(random, SAMPLES) {
        let device = damaged.duplicate();
        state.build(&log, &device).unwrap();
        try_again(device, state);
    }
    cuts
}

fn wanted() -> usize {
    let asked = std::env::var("REPAIRS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if full_matrix() { 300 } else { 6 })
}

fn profiles() -> Vec<&'static Profile> {
    if let Ok(names) = std::env::var("PROFILE") {
        return names.split(',').map(profile_named).collect();
    }
    if full_matrix() {
        return PROFILES.iter().chain(MORE_PROFILES).chain(RARE_PROFILES).collect();
    }
    ["ext4-1k", "ext3-1k"].map(profile_named).to_vec()
}

#[test]
fn cuts_threads_and_undo() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(5));
    let folder = tempfile::tempdir().unwrap();
    let (wanted, profiles) = (wanted(), profiles());
    let (mut faults, mut tried, mut uncut) = (0, 0, 0);
    for (n, profile) in profiles.iter().enumerate() {
        let image = make_filled(profile, folder.path());
        let inventory = Inventory::read(&image);
        let whole = MemoryDevice::load(&image).unwrap();
        for _ in 0..(wanted * (n + 1)) / profiles.len() - (wanted * n) / profiles.len() {
            let drawn = damage(&inventory, &mut random);
            let (what, damaged) = (&drawn.what, whole.duplicate());
            drawn.apply(&damaged);
            let one = shape(&damaged, 1);
            let mut found: Vec<String> = Vec::new();
            for threads in [2, 8] {
                if shape(&damaged, threads) != one {
                    found.push(format!("another plan with {threads} threads"));
                }
            }
            if one.is_some() && !is_undone(&damaged, folder.path()) {
                found.push("not undone".to_owned());
            }
            let cuts = cut(&damaged, &mut random);
            tried += cuts.tried;
            uncut += usize::from(cuts.tried == 0);
            found.extend(cuts.faults);
            faults += found.len();
            for fault in &found {
                println!("--- {}: {what}\n    {}", profile.name, fault.chars().take(300).collect::<String>());
            }
        }
    }
    println!(
        "{wanted} repairs, {tried} cuts, {faults} faults; {uncut} repairs do not end clean and are not cut"
    );
    assert_eq!(faults, 0);
}
