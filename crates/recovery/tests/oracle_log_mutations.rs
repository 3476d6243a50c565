//! Dirty journals that the kernel left, each with one field changed. In most of them, the checksums
//! that cover the field are corrected. Our recovery must leave the same image as e2fsck. The blocks
//! of the superblock and of the journal are not compared, and the function `agree` accepts a few
//! other differences.
//!
//! By default, 60 changes are tested, on three of the seven journals. With `BLOCKYARD_FULL=1`,
//! 3,000 changes are tested, on all seven. `MUTATIONS=n` sets another number of changes, and
//! `CASE=name` chooses one journal.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::jbd2::{
    BlockKind, JournalSuperblock, LogFormat, RawHeader, RawJournalSuperblock, TagFlags, TagLayout, tags,
};
use blockyard_disk::{BlockNr, CorruptionKind, TxnId};
use blockyard_recovery::{Damage, Error, OnDamage, Options, Report, Session};
use blockyard_testkit::crash::{CrashImage, Stop};
use blockyard_testkit::mutate::other_value;
use blockyard_testkit::{LoopDevice, full_matrix, mke2fs, require, run, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use zerocopy::{FromBytes, IntoBytes};

struct Case {
    name: &'static str,
    mke2fs: &'static [&'static str],
    mount: &'static str,
    is_external: bool,
}

const fn case(name: &'static str, mke2fs: &'static [&'static str], mount: &'static str) -> Case {
    Case { name, mke2fs, mount, is_external: false }
}

const CASES: &[Case] = &[
    case("v3", &["-t", "ext4", "-b", "1024", "-J", "size=1"], ""),
    case("none", &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"], ""),
    Case { is_external: true, ..case("external", &["-t", "ext4", "-b", "4096"], "") },
    case("ext3", &["-t", "ext3", "-b", "1024", "-I", "128"], ""),
    case("v1", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "journal_checksum"),
    case("async", &["-t", "ext4", "-b", "4096"], "data=writeback,journal_checksum,journal_async_commit"),
    case("data", &["-t", "ext4", "-b", "1024"], "data=journal"),
];

/// How many of [`CASES`], from the first on, run by default: two formats of tags, and a journal on
/// its own device.
const SAMPLE: usize = 3;

/// Which checksum covers a field. Positions are byte offsets on the device that holds the journal.
#[derive(Clone, Debug)]
enum Seal {
    /// The checksum at the end of this descriptor or revoke block.
    Tail(Range<usize>),
    Commit(Range<usize>),
    /// For a field in a logged block: the checksum in the block's tag. The checksum at the end of
    /// the descriptor block covers the tag.
    Data {
        block: Range<usize>,
        tag: usize,
        descriptor: Range<usize>,
        tid: TxnId,
    },
    Superblock(usize),
}

#[derive(Clone, Debug)]
struct Field {
    name: &'static str,
    /// Byte offset on the device that holds the journal.
    at: usize,
    size: usize,
    seal: Seal,
}

/// The bytes of a file system and of its external journal.
#[derive(Clone)]
struct Bytes {
    image: Vec<u8>,
    journal: Option<Vec<u8>>,
}

impl Bytes {
    fn log(&mut self) -> &mut Vec<u8> {
        self.journal.as_mut().unwrap_or(&mut self.image)
    }
}

/// A dirty file system, and the fields that can be changed.
struct Base {
    name: &'static str,
    bytes: Bytes,
    format: LogFormat,
    /// The crc32c of the journal's UUID: the seed of the checksums of log blocks.
    seed: u32,
    fields: Vec<Field>,
    /// Numbers of the 1 KiB pieces of the image that belong to the journal or the superblock.
    own: BTreeSet<usize>,
}

fn make_dirty(case: &Case, seed: u64, directory: &Path) -> (PathBuf, Option<PathBuf>) {
    let image = directory.join("dirty");
    let journal = case.is_external.then(|| directory.join("dirty-journal"));
    if let Some(journal) = &journal {
        mke2fs(journal, &["-O", "journal_dev", "-b", "4096"], "8M");
        let device = LoopDevice::new(journal);
        let place = format!("device={}", device.path());
        mke2fs(&image, &[case.mke2fs, &["-J", &place]].concat(), "24M");
    } else {
        mke2fs(&image, case.mke2fs, "24M");
    }
    CrashImage {
        image: &image,
        journal: journal.as_deref(),
        options: [case.mount, "noinit_itable"].join(",").trim_start_matches(','),
        seed,
        operations: 300,
        stop: Stop::CutAfterCommit,
        orphans: false,
    }
    .make_dirty();
    (image, journal)
}

fn open<'a>(image: &'a dyn BlockDevice, journal: Option<&'a dyn BlockDevice>) -> Result<Session<'a>, Error> {
    match journal {
        Some(journal) => Session::open_with_journal(image, journal),
        None => Session::open(image),
    }
}

impl Base {
    fn make(case: &Case, seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (image, journal) = make_dirty(case, seed, directory.path());
        let mut bytes =
            Bytes { image: fs::read(image).unwrap(), journal: journal.map(|path| fs::read(path).unwrap()) };
        let device = MemoryDevice::from_bytes(&bytes.image);
        let external = bytes.journal.as_deref().map(MemoryDevice::from_bytes);
        let session =
            open(&device, external.as_ref().map(|journal| -> &dyn BlockDevice { journal })).unwrap();
        let place = session.into_journal().unwrap();
        let superblock = *place.superblock();
        let block_size = superblock.format().block_size();
        let at = |log: u32| place.physical(log).raw() as usize * block_size;
        let mut own = BTreeSet::from([1]);
        if bytes.journal.is_none() {
            let pieces = |log: u32| at(log) / 1024..(at(log) + block_size) / 1024;
            own.extend((0..superblock.blocks()).flat_map(pieces));
        }
        let fields = Lister { log: bytes.log(), superblock, at: &at, fields: Vec::new() }
            .list(at(place.superblock_at()));
        assert!(fields.len() > 100, "{}: {} fields", case.name, fields.len());
        let seed = crc32c_raw(!0, &superblock.raw().s_uuid);
        Self { name: case.name, format: *superblock.format(), seed, bytes, fields, own }
    }
}

/// Lists fields of the journal's superblock and of the records in its log.
struct Lister<'a> {
    log: &'a [u8],
    superblock: JournalSuperblock,
    at: &'a dyn Fn(u32) -> usize,
    fields: Vec<Field>,
}

impl Lister<'_> {
    fn list(mut self, superblock_at: usize) -> Vec<Field> {
        for (name, offset) in [("s_sequence", 0x18), ("s_start", 0x1C), ("s_head", 0x58)] {
            self.add(name, superblock_at + offset, 4, &Seal::Superblock(superblock_at));
        }
        let ring = self.superblock.ring();
        let block_size = self.superblock.format().block_size();
        let mut number = self.superblock.start().expect("the log is not empty");
        let mut tid = self.superblock.sequence();
        loop {
            let at = (self.at)(number);
            let block = self.log[at..at + block_size].to_vec();
            let kind = match RawHeader::read(&block) {
                Some((Some(kind), found)) if found == tid => kind,
                _ => return self.fields,
            };
            number = ring.advance(number, 1);
            match kind {
                BlockKind::Descriptor => number = self.descriptor(at, &block, number, tid),
                BlockKind::Revoke => self.revoke(at, &block),
                BlockKind::Commit => {
                    self.commit(at, block_size);
                    tid = tid.next();
                }
                _ => return self.fields,
            }
        }
    }

    fn add(&mut self, name: &'static str, at: usize, size: usize, seal: &Seal) {
        self.fields.push(Field { name, at, size, seal: seal.clone() });
    }

    fn header(&mut self, at: usize, seal: &Seal) {
        for (name, offset) in [("h_magic", 0), ("h_blocktype", 4), ("h_sequence", 8)] {
            self.add(name, at + offset, 4, seal);
        }
    }

    fn descriptor(&mut self, at: usize, block: &[u8], mut number: u32, tid: TxnId) -> u32 {
        let format = *self.superblock.format();
        let layout = format.tag_layout();
        let tail = Seal::Tail(at..at + block.len());
        self.header(at, &tail);
        let mut tag_at = at + RawHeader::SIZE;
        for (n, tag) in tags(&format, block).enumerate() {
            let data = (self.at)(number);
            if n < 3 || tag.flags.contains(TagFlags::LAST) {
                for (name, offset, size) in tag_fields(layout) {
                    self.add(name, tag_at + offset, size, &tail);
                }
                let data = data..data + block.len();
                let descriptor = at..at + block.len();
                let seal = Seal::Data { block: data.clone(), tag: tag_at, descriptor, tid };
                self.add("first word", data.start, 4, &seal);
                self.add("data", data.start + 100, 1, &seal);
            }
            let uuid = if tag.flags.contains(TagFlags::SAME_UUID) { 0 } else { 16 };
            tag_at += layout.size() + uuid;
            number = self.superblock.ring().advance(number, 1);
        }
        number
    }

    fn revoke(&mut self, at: usize, block: &[u8]) {
        let tail = Seal::Tail(at..at + block.len());
        self.header(at, &tail);
        self.add("r_count", at + 12, 4, &tail);
        let size = if self.superblock.format().is_64bit() { 8 } else { 4 };
        let used = u32::from_be_bytes(block[12..16].try_into().unwrap()) as usize;
        for record in (16..used).step_by(size).take(4) {
            self.add("record", at + record, size, &tail);
        }
    }

    fn commit(&mut self, at: usize, block_size: usize) {
        let seal = Seal::Commit(at..at + block_size);
        self.header(at, &seal);
        for (name, offset, size) in
            [("h_chksum_type", 12, 1), ("h_chksum_size", 13, 1), ("h_chksum", 16, 4), ("h_commit_sec", 48, 8)]
        {
            self.add(name, at + offset, size, &seal);
        }
    }
}

fn tag_fields(layout: TagLayout) -> Vec<(&'static str, usize, usize)> {
    match layout {
        TagLayout::V3 { .. } => {
            vec![("t_blocknr", 0, 4), ("t_flags", 4, 4), ("t_blocknr_high", 8, 4), ("t_checksum", 12, 4)]
        }
        TagLayout::Narrow { .. } => vec![("t_blocknr", 0, 4), ("t_checksum", 4, 2), ("t_flags", 6, 2)],
        TagLayout::Wide { .. } => {
            vec![("t_blocknr", 0, 4), ("t_checksum", 4, 2), ("t_flags", 6, 2), ("t_blocknr_high", 8, 4)]
        }
    }
}

/// Corrects the checksums that cover a changed field.
fn reseal(base: &Base, log: &mut [u8], seal: &Seal) {
    let format = &base.format;
    match seal {
        Seal::Tail(block) => format.seal_tail(&mut log[block.clone()]),
        Seal::Commit(block) if format.has_block_checksums() => {
            let block = &mut log[block.clone()];
            block[16..20].fill(0);
            let sum = crc32c_raw(base.seed, block);
            block[16..20].copy_from_slice(&sum.to_be_bytes());
        }
        Seal::Commit(_) => {}
        Seal::Data { block, tag, descriptor, tid } => {
            if let TagLayout::V3 { .. } = format.tag_layout() {
                let sum = format.data_checksum(*tid, &log[block.clone()]);
                log[tag + 12..tag + 16].copy_from_slice(&sum.to_be_bytes());
                format.seal_tail(&mut log[descriptor.clone()]);
            }
        }
        Seal::Superblock(at) => {
            let bytes = &mut log[*at..at + RawJournalSuperblock::SIZE];
            let mut raw = RawJournalSuperblock::read_from_bytes(bytes).unwrap();
            raw.seal();
            bytes.copy_from_slice(raw.as_bytes());
        }
    }
}

impl Base {
    /// Changes one field. Returns a description of the change, and the bytes after it.
    fn mutate(&self, random: &mut ChaCha8Rng) -> (String, Bytes) {
        let mut bytes = self.bytes.clone();
        loop {
            // The name is chosen first, so that the few fields of commits and revokes are chosen as
            // often as those of the many tags.
            let names: BTreeSet<&str> = self.fields.iter().map(|field| field.name).collect();
            let name = *names.into_iter().collect::<Vec<_>>().choose(random).unwrap();
            let named: Vec<&Field> = self.fields.iter().filter(|field| field.name == name).collect();
            let field = named.choose(random).unwrap();
            let place = field.at..field.at + field.size;
            let old = bytes.log()[place.clone()].to_vec();
            let new = other_value(&old, random);
            if new == old {
                continue;
            }
            bytes.log()[place].copy_from_slice(&new);
            let resealed = random.random_bool(0.75);
            if resealed {
                reseal(self, bytes.log(), &field.seal);
            }
            let sealed = if resealed { ", resealed" } else { "" };
            let what = format!("{}: {name} at {:#x}: {old:02x?} -> {new:02x?}{sealed}", self.name, field.at);
            return (what, bytes);
        }
    }

    /// Whether the target of a reported damage is a block of the journal or, with blocks of 1 KiB,
    /// the superblock.
    fn hits_journal(&self, report: &Report) -> bool {
        let pieces = self.format.block_size() / 1024;
        let targets = report.damage.iter().filter_map(|damage| damage.target);
        targets.into_iter().any(|target| self.own.contains(&(target.raw() as usize).wrapping_mul(pieces)))
    }

    /// Numbers of the 1 KiB pieces, outside superblock and journal, in which two images differ.
    fn differences(&self, ours: &[u8], theirs: &[u8]) -> Vec<usize> {
        let pieces = ours.chunks(1024).zip(theirs.chunks(1024)).enumerate();
        let differing = pieces.filter(|(n, (ours, theirs))| ours != theirs && !self.own.contains(n));
        differing.map(|(n, _)| n).collect()
    }
}

/// Our recovery with the checker's options: the report, and the image afterwards.
fn ours(bytes: &Bytes) -> (Result<Report, Error>, Vec<u8>) {
    let image = MemoryDevice::from_bytes(&bytes.image);
    let journal = bytes.journal.as_deref().map(MemoryDevice::from_bytes);
    let options = Options { on_damage: OnDamage::ReplayGood, ..Options::default() };
    let session = open(&image, journal.as_ref().map(|journal| -> &dyn BlockDevice { journal }));
    let report = session.and_then(|session| session.replay(&options));
    let mut after = vec![0; bytes.image.len()];
    image.read_at(0, &mut after).unwrap();
    (report, after)
}

/// e2fsck's recovery: its exit code, its output, and the image afterwards. If the journal is in the
/// image and e2fsck did more than replay it, the code and the image are those of debugfs.
fn theirs(bytes: &Bytes, directory: &Path) -> (Option<i32>, String, Vec<u8>) {
    let (image, journal) = (directory.join("theirs"), directory.join("theirs-journal"));
    fs::write(&image, &bytes.image).unwrap();
    let mut arguments = vec!["60", "e2fsck", "-y", "-E", "journal_only"];
    if let Some(bytes) = &bytes.journal {
        fs::write(&journal, bytes).unwrap();
        arguments.extend(["-j", journal.to_str().unwrap()]);
    }
    arguments.push(image.to_str().unwrap());
    let mut output = run("timeout", &arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if ["orphan", "trying backup", "Corrupt group descriptor"].iter().any(|more| text.contains(more))
        && bytes.journal.is_none()
    {
        // e2fsck did more than replay. Either the log ended in the middle of deletions, which
        // e2fsck then finished, or e2fsck used other group descriptors than the replayed ones.
        // debugfs only replays. But first it reads the bitmaps, which may not match their checksums
        // before the replay; `-n` makes it ignore that.
        fs::write(&image, &bytes.image).unwrap();
        output = run("timeout", &["60", "debugfs", "-n", "-w", "-R", "jr", image.to_str().unwrap()]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("Filesystem not open"), "{errors}");
    }
    // Blocks replayed past the end of the image may have made the file longer.
    let mut after = vec![0; bytes.image.len()];
    fs::File::open(image).unwrap().read_exact(&mut after).unwrap();
    (output.status.code(), text, after)
}

/// Whether a transaction with a corrupt descriptor or revoke block ended the log.
fn ends_the_log(report: &Report) -> bool {
    report.damage.iter().any(|damage| damage.kind == CorruptionKind::JournalTransactionChecksum)
}

/// Whether our recovery dropped a copy of the superblock because of its content. A copy that has a
/// wrong checksum in the log, or cannot be read, does not count.
fn drops_superblock(base: &Base, report: &Report) -> bool {
    let place = u64::from(base.format.block_size() == 1024);
    let is_copy = |damage: &&Damage| damage.target.is_some_and(|target| target.raw() == place);
    let by_log = [CorruptionKind::JournalDataChecksum, CorruptionKind::JournalUnreadable];
    report.damage.iter().filter(is_copy).any(|damage| !by_log.contains(&damage.kind))
}

/// Whether both recoveries leave the same image, or differ only in a way that is accepted below.
/// If not, prints what differs.
fn agree(base: &Base, what: &str, bytes: &Bytes, directory: &Path) -> bool {
    let (report, our_image) = ours(bytes);
    let (code, text, their_image) = theirs(bytes, directory);
    let mut differing = base.differences(&our_image, &their_image);
    // Targets of damaged copies are not compared. In e2fsck, the byte offset of a target wraps, so
    // that even a target far beyond the device may become a block inside the image.
    let piece = |target: BlockNr| target.raw().wrapping_mul(base.format.block_size() as u64) / 1024;
    let round: Vec<u64> = report
        .iter()
        .flat_map(|report| &report.damage)
        .filter_map(|damage| damage.target)
        .map(piece)
        .collect();
    let pieces = base.format.block_size() as u64 / 1024;
    differing.retain(|&at| !round.iter().any(|first| (*first..first + pieces).contains(&(at as u64))));
    let has_written = !base.differences(&their_image, &bytes.image).is_empty();
    let same = match &report {
        _ if differing.is_empty() => true,
        // These differences do not come from the log: e2fsck could not write a block, or processed
        // orphans after it replayed an external journal. (If an internal journal leaves orphans,
        // `theirs` uses debugfs.)
        _ if text.contains("Error writing block") || text.contains("orphan") && base.own.len() == 1 => true,
        // A target is in the journal: e2fsck overwrites log blocks that it has not replayed yet,
        // and notices that if there are checksums.
        Ok(report)
            if base.hits_journal(report)
                && (text.contains("Invalid checksum recovering") || !base.format.has_block_checksums()) =>
        {
            true
        }
        // A transaction with a bad checksum or an impossible revoke block: e2fsck then replays
        // nothing. Our recovery replays what was committed before.
        Ok(report) if ends_the_log(report) => !has_written,
        // e2fsck replays the corrupt superblock, too, and then cannot use the file system.
        Ok(report) if drops_superblock(base, report) => code.is_some_and(|code| code & 8 != 0),
        Ok(_) => false,
        // e2fsck writes a new journal superblock and continues with the file system as it is, where
        // our recovery refuses.
        Err(Error::Disk(_)) => text.contains("Journal superblock is corrupt"),
        Err(Error::LoggedSuperblock(_)) => code.is_some_and(|code| code & 8 != 0),
        Err(_) => false,
    };
    if same {
        return true;
    }
    println!("--- {what}");
    println!("    {} pieces differ, first {:?}", differing.len(), &differing[..differing.len().min(4)]);
    println!(
        "    pieces that differ from the dirty image: {} here, {} with e2fsck",
        base.differences(&our_image, &bytes.image).len(),
        base.differences(&their_image, &bytes.image).len()
    );
    match report {
        Ok(report) => println!("    here: {} transactions, damage {:?}", report.transactions, report.damage),
        Err(error) => println!("    here: {error}"),
    }
    println!("    e2fsck: {code:?}");
    text.lines().filter(|line| !line.is_empty()).take(6).for_each(|line| println!("    e2fsck: {line}"));
    false
}

#[test]
fn a_changed_log_is_recovered_as_e2fsck_does() {
    if !require(&["root", "mke2fs", "e2fsck", "debugfs", "losetup", "perl", "timeout"]) {
        return;
    }
    let seed = seed(5);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let asked = std::env::var("MUTATIONS").ok().and_then(|text| text.parse().ok());
    let wanted: usize = asked.unwrap_or(if full_matrix() { 3000 } else { 60 });
    let only = std::env::var("CASE").ok();
    let sampled = if full_matrix() || only.is_some() { CASES } else { &CASES[..SAMPLE] };
    let cases: Vec<&Case> =
        sampled.iter().filter(|case| only.as_deref().is_none_or(|only| only == case.name)).collect();
    let directory = tempfile::tempdir().unwrap();
    let mut differing = 0;
    for (n, case) in cases.iter().enumerate() {
        let base = Base::make(case, seed + n as u64);
        assert!(agree(&base, "unchanged", &base.bytes, directory.path()), "{}: unchanged", case.name);
        for _ in 0..(wanted * (n + 1)) / cases.len() - (wanted * n) / cases.len() {
            let (what, bytes) = base.mutate(&mut random);
            differing += usize::from(!agree(&base, &what, &bytes, directory.path()));
        }
    }
    println!("{wanted} changes, {differing} differ");
    assert_eq!(differing, 0);
}
