//! The tree of the published check: a home machine of 2009 with a mailbox (each folder is a
//! directory), packages and kernel trees.
//!
//! The counts that determine what the passes read are the published ones: how many inodes of each
//! kind there are, how many files are too long for an inode's direct pointers, and how many blocks
//! directories have (mails have long names). Symbolic links, devices, pipes and sockets are grouped
//! as packages create them, because pass 2 checks them one by one, and reads much more if they are
//! scattered. The names and the sizes of files are made up, but the sum of the sizes is published.

use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::PassPlan;
use crate::workload::scale::{normal, whole};

/// Regular files. [`LONG_FILES`] of them have more than the 12 blocks that an inode points to
/// directly.
const FILES: u64 = 263_549;
const LONG_FILES: u64 = 14_000;
/// Number of short files that are mails.
const MAILS: u64 = 180_000;
/// Directories, except those that mkfs creates.
const DIRECTORIES: u64 = 28_020;
/// Symbolic links. [`SLOW_SYMLINKS`] of them do not fit in their inodes.
const SYMLINKS: u64 = 20_618;
const SLOW_SYMLINKS: u64 = 1_168;
/// Symbolic links that one package creates in a directory.
const SYMLINKS_TOGETHER: u64 = 200;
/// Additional names of files.
const HARD_LINKS: u64 = 615;
/// Devices, pipes and sockets, all in one directory.
const SPECIAL: [(FileType, u64); 4] =
    [(FileType::CharDevice, 5), (FileType::BlockDevice, 1), (FileType::Fifo, 5), (FileType::Socket, 5)];
/// Blocks of all files.
const BLOCKS: f64 = 4_177_000.0;
/// Bytes of a block.
const BLOCK: f64 = 4096.0;
/// Directories in the root.
const TOP: [&str; 20] = [
    "bin", "boot", "dev", "etc", "home", "lib", "media", "mnt", "opt", "proc", "root", "sbin", "selinux",
    "srv", "sys", "tmp", "usr", "var", "windows", "work",
];
/// Directories of the root in which other directories are created, besides the user's home
/// directory.
const GROWING: [&str; 4] = ["usr", "var", "etc", "lib"];
/// Folders of the mailbox.
const MAIL_FOLDERS: u64 = 22;
/// Largest depth of directories.
const DEPTH_MAX: u32 = 9;

/// A directory and its content.
#[derive(Debug, Default)]
pub(super) struct Directory {
    name: String,
    depth: u32,
    /// Its subdirectories, by number.
    directories: Vec<usize>,
    /// Files with their sizes, in the order of their names.
    files: Vec<(String, u64)>,
    /// Lengths of the targets of symbolic links.
    symlinks: Vec<usize>,
    special: Vec<FileType>,
}

impl Directory {
    /// What a copy creates in this directory, except subdirectories.
    fn contents<'t>(&'t self, number: usize, steps: &mut Vec<Step<'t>>) {
        let directory = number;
        let file = |(name, bytes): &'t (String, u64)| Step::File { directory, name, bytes: *bytes };
        steps.extend(self.files.iter().map(file));
        let symlink = |(number, length): (usize, &usize)| Step::Symlink {
            directory,
            name: format!("link{number:04}"),
            target: "x".repeat(*length),
        };
        steps.extend(self.symlinks.iter().enumerate().map(symlink));
        let special = |(number, kind): (usize, &FileType)| Step::Special {
            directory,
            name: format!("special{number:02}"),
            kind: *kind,
        };
        steps.extend(self.special.iter().enumerate().map(special));
    }
}

/// All directories; the first is the root.
#[derive(Debug)]
pub(super) struct HomeTree {
    pub(super) directories: Vec<Directory>,
    hard_links: u64,
}

/// One thing that a copy of the tree creates. Directories are given by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<'t> {
    Directory {
        number: usize,
        parent: usize,
        name: &'t str,
    },
    File {
        directory: usize,
        name: &'t str,
        bytes: u64,
    },
    Symlink {
        directory: usize,
        name: String,
        target: String,
    },
    Special {
        directory: usize,
        name: String,
        kind: FileType,
    },
    /// `file` is the number of a [`Step::File`], counted from 0.
    HardLink {
        directory: usize,
        file: usize,
        name: String,
    },
}

impl HomeTree {
    pub(super) fn new(plan: &PassPlan) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(plan.seed);
        let mut tree = Self { directories: vec![Directory::default()], hard_links: plan.scaled(HARD_LINKS) };
        let top = TOP.map(|name| tree.add(0, name.to_owned()));
        let top_of = |name: &str| TOP.iter().position(|known| *known == name).map_or(0, |at| top[at]);
        let user = tree.add(top_of("home"), "user".to_owned());
        let mail = tree.mailbox(user, plan);
        let first = tree.directories.len();
        let mut growing: Vec<usize> = GROWING.map(top_of).to_vec();
        growing.push(user);
        while u64_from_usize(tree.directories.len()) <= plan.scaled(DIRECTORIES) {
            let parent = tree.parent(random, first, &growing);
            let name = format!("directory{}", tree.directories.len());
            tree.add(parent, name);
        }
        tree.fill(random, plan, first, &mail);
        tree.link(random, plan, first);
        let special = SPECIAL.iter().flat_map(|(kind, count)| (0..*count).map(|_| *kind));
        tree.directories[top_of("dev")].special.extend(special);
        tree
    }

    /// Everything in the order in which it is copied: depth first, in the order of names, files of
    /// a directory before its subdirectories. Hard links come at the end.
    pub(super) fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = Vec::new();
        let mut directories_of_files = Vec::new();
        let mut waiting = vec![(0, 0)];
        while let Some((parent, number)) = waiting.pop() {
            let directory = &self.directories[number];
            if number > 0 {
                steps.push(Step::Directory { number, parent, name: &directory.name });
            }
            directory.contents(number, &mut steps);
            directories_of_files.extend(directory.files.iter().map(|_| number));
            let mut below = directory.directories.clone();
            below.sort_by(|one, other| self.directories[*other].name.cmp(&self.directories[*one].name));
            waiting.extend(below.into_iter().map(|below| (number, below)));
        }
        let every = (directories_of_files.len() / usize_from_u64(self.hard_links)).max(1);
        let linked = directories_of_files.iter().enumerate().step_by(every);
        let link = |(name, (file, directory)): (u64, (usize, &usize))| Step::HardLink {
            directory: *directory,
            file,
            name: format!("hard{name}"),
        };
        steps.extend((0..self.hard_links).zip(linked).map(link));
        steps
    }

    fn add(&mut self, parent: usize, name: String) -> usize {
        let number = self.directories.len();
        let depth = self.directories[parent].depth + 1;
        self.directories[parent].directories.push(number);
        self.directories.push(Directory { name, depth, ..Directory::default() });
        number
    }

    /// Creates the mailbox and returns the `cur` of each folder, which holds the mails.
    fn mailbox(&mut self, user: usize, plan: &PassPlan) -> Vec<usize> {
        let mailbox = self.add(user, "Maildir".to_owned());
        let folder = |tree: &mut Self, number: u64| {
            let folder = tree.add(mailbox, format!(".folder{number:02}"));
            let parts = ["cur", "new", "tmp"].map(|name| tree.add(folder, name.to_owned()));
            parts[0]
        };
        (0..plan.scaled(MAIL_FOLDERS)).map(|number| folder(self, number)).collect()
    }

    /// Draws a parent for the next directory, mostly among the latest, as when trees are unpacked.
    fn parent(&self, random: &mut ChaCha8Rng, first: usize, growing: &[usize]) -> usize {
        let count = self.directories.len();
        for _ in 0..20 {
            let from = if random.random_bool(0.7) { count.saturating_sub(4000).max(first) } else { first };
            if from < count {
                let parent = random.random_range(from..count);
                if self.directories[parent].depth < DEPTH_MAX && random.random_bool(0.95) {
                    return parent;
                }
            }
        }
        growing[random.random_range(0..growing.len())]
    }

    fn fill(&mut self, random: &mut ChaCha8Rng, plan: &PassPlan, first: usize, mail: &[usize]) {
        let (files, long, mails) = (plan.scaled(FILES), plan.scaled(LONG_FILES), plan.scaled(MAILS));
        let short: Vec<u64> = (long..files).map(|_| short_file(random)).collect();
        for (number, bytes) in (0..).zip(&short).take(usize_from_u64(mails)) {
            let folder = mail[random.random_range(0..mail.len())];
            let name = format!(
                "12{number:08}.M{:06}P{number:05}V0000000000000802I{number:016X}.machine,S={bytes}:2,S",
                number % 999_983
            );
            self.directories[folder].files.push((format!("{name:_<80}"), *bytes));
        }
        let weights: Vec<f64> = (0..long).map(|_| (4.85 + 1.15 * normal(random)).exp().max(13.0)).collect();
        // Short files are rounded up to whole blocks. Each long one takes half a block more than
        // its size, on average.
        let short_blocks: u64 = short.iter().map(|bytes| bytes.div_ceil(4096)).sum();
        let taken =
            blockyard_disk::num::count_as_f64(short_blocks) + blockyard_disk::num::count_as_f64(long) / 2.0;
        let factor = (plan.scale * BLOCKS - taken) * BLOCK / weights.iter().sum::<f64>();
        let others = short.into_iter().skip(usize_from_u64(mails));
        let long_file = |weight: &f64| whole((weight * factor).max(13.0 * BLOCK));
        let sizes: Vec<u64> = weights.iter().map(long_file).chain(others).collect();
        for (number, bytes) in sizes.into_iter().enumerate() {
            let directory = random.random_range(first..self.directories.len());
            self.directories[directory].files.push((format!("file{number:06}"), bytes));
        }
        self.directories.iter_mut().for_each(|directory| directory.files.sort());
    }

    /// Adds symbolic links, many to a directory.
    fn link(&mut self, random: &mut ChaCha8Rng, plan: &PassPlan, first: usize) {
        let (all, slow) = (plan.scaled(SYMLINKS), plan.scaled(SLOW_SYMLINKS));
        let mut directory = first;
        for number in 0..all {
            if number % SYMLINKS_TOGETHER == 0 {
                directory = random.random_range(first..self.directories.len());
            }
            self.directories[directory].symlinks.push(if number < slow { 90 } else { 20 });
        }
    }
}

/// The size of a short file in bytes: one block plus a draw from an exponential distribution with a
/// mean of 2.2 blocks, at most 12 blocks. Three per cent of short files are empty.
fn short_file(random: &mut ChaCha8Rng) -> u64 {
    if random.random_bool(0.03) {
        return 0;
    }
    let more = -2.2 * random.random::<f64>().max(1e-300).ln();
    whole((1.0 + more).min(12.0) * BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: symbolic links were everywhere, and there were no long names or special files.
    /// Pass 2 read 188 and 251 MB where the published columns have 133.
    #[test]
    fn the_tree_has_the_published_counts_at_full_scale() {
        let plan =
            PassPlan { policy: "linux-6.18".into(), scale: 1.0, seed: 1, rotational: None, aged: Vec::new() };
        let tree = HomeTree::new(&plan);
        let sum = |count: fn(&Directory) -> usize| tree.directories.iter().map(count).sum::<usize>();
        assert_eq!(tree.directories.len() - 1, 28_020, "and the root and lost+found");
        assert_eq!(sum(|directory| directory.files.len()), 263_549);
        assert_eq!(sum(|directory| directory.symlinks.len()), 20_618);
        assert_eq!(sum(|directory| directory.special.len()), 16);
        let linking = tree.directories.iter().filter(|directory| !directory.symlinks.is_empty()).count();
        assert!((90..=104).contains(&linking), "links stand together: in {linking} directories");
        let files = tree.directories.iter().flat_map(|one| &one.files);
        let blocks: u64 = files.map(|(_, bytes)| bytes.div_ceil(4096)).sum();
        assert!((4_170_000..4_184_000).contains(&blocks), "{blocks} blocks");
        let long_names =
            tree.directories.iter().flat_map(|one| &one.files).filter(|(name, _)| name.len() >= 80).count();
        assert_eq!(long_names, 180_000);
        assert!(tree.directories.iter().all(|directory| directory.depth <= DEPTH_MAX));
    }
}
