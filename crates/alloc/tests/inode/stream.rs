//! A seeded stream of operations, done by the kernel and by the replica in step.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blockyard_alloc::inode::{FreeClusters, InodeConfig, InodeError};
use blockyard_disk::dirhash::HashSeed;
use blockyard_disk::{BlockNr, FlexNr, Geometry, GroupNr, InodeNr};
use blockyard_testkit::{LoopMount, run, stay_on_one_cpu};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::image::{Descriptors, HASH_SEED, Image, Layout};
use crate::replica::Replica;

/// How many operations the stream makes from the first create on that the kernel refuses.
const AFTER_FULL: u32 = 300;

/// The kind of inode created for a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Directory,
    File,
    Symlink,
    Fifo,
}

struct Entry {
    path: PathBuf,
    parent: u32,
    kind: Kind,
    children: u32,
    /// `st_blocks`, in 512-byte units.
    sectors: u64,
}

/// The state of one run.
pub(crate) struct Stream {
    random: ChaCha8Rng,
    replica: Replica,
    /// What exists now, by inode number.
    entries: BTreeMap<u32, Entry>,
    names: u64,
    sectors_per_cluster: u64,
    agreed: u32,
    refused: u32,
    /// Whether deletion times matter.
    without_journal: bool,
    /// The file of the tunable `inode_goal`, if it is used.
    goal: Option<PathBuf>,
    /// Directories whose extent tree has a block of its own, and the group where that block is
    /// assumed to lie.
    guessed: BTreeMap<u32, GroupNr>,
}

impl Stream {
    /// Makes an image. Runs the stream until `creates` inodes were created, or for [`AFTER_FULL`]
    /// operations from the first refused create on. Then compares.
    pub(crate) fn run(layout: &Layout<'_>, seed: u64, creates: u32) {
        let image = Image::make(layout);
        let before = Descriptors::read(&image.path);
        let mount = LoopMount::new(&image.path, layout.options).unwrap();
        stay_on_one_cpu();
        let mut stream = Self::new(&before, seed, mount.path());
        stream.goal = layout.goals.then(|| goal_file(mount.path()));
        let mut left_after_full = AFTER_FULL;
        for step in 1.. {
            if stream.agreed >= creates || left_after_full == 0 {
                break;
            }
            if stream.without_journal {
                stream.keep_time(step % 150 == 0);
            }
            stream.step();
            left_after_full -= u32::from(stream.refused > 0);
        }
        drop(mount);
        stream.compare(&Descriptors::read(&image.path), &image.path);
        println!(
            "all {} inode numbers equal, {} refused alike: {} {}",
            stream.agreed,
            stream.refused,
            layout.arguments.join(" "),
            layout.size
        );
    }

    fn new(before: &Descriptors, seed: u64, root: &Path) -> Self {
        let hash_seed = u128::from_str_radix(&HASH_SEED.replace('-', ""), 16).unwrap().to_be_bytes();
        let config = InodeConfig {
            descriptor_checksums: before.checksums,
            without_journal: !before.journal,
            ..InodeConfig::default()
        };
        let replica = Replica::new(
            before.geometry,
            &before.inodes,
            &before.free_clusters,
            HashSeed::from_bytes(hash_seed),
            config,
        );
        let entry = Entry {
            path: root.to_owned(),
            parent: 0,
            kind: Kind::Directory,
            children: 1,
            sectors: fs::metadata(root).unwrap().blocks(),
        };
        let cluster = before.geometry.block_size() as u64 * u64::from(before.geometry.cluster_ratio());
        let mut stream = Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            replica,
            entries: BTreeMap::from([(Replica::ROOT, entry)]),
            names: 0,
            sectors_per_cluster: cluster / 512,
            agreed: 0,
            refused: 0,
            without_journal: !before.journal,
            goal: None,
            guessed: BTreeMap::new(),
        };
        let groups = stream.cluster_groups(Replica::ROOT);
        stream.replica.adopt(Replica::ROOT, groups);
        stream
    }

    /// Sets the replica's clock, after a pause of over a second if requested.
    ///
    /// A number counts as recently deleted if it was deleted in one of the 359 seconds before the
    /// present one. So the clocks of the kernel and the replica must show the same second: this
    /// function waits while the time is near the edge of a second.
    fn keep_time(&mut self, pause: bool) {
        if pause {
            std::thread::sleep(Duration::from_millis(1100));
        }
        let mut now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        while !(50..900).contains(&now.subsec_millis()) {
            std::thread::sleep(Duration::from_millis(10));
            now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        }
        self.replica.now = now.as_secs() as u32;
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..12 => self.remove(),
            12 => self.toggle_top(),
            13 => self.toggle_goal(),
            14..38 => self.create(Kind::Directory),
            38..85 => self.create(Kind::File),
            85..97 => self.create(Kind::Symlink),
            _ => self.create(Kind::Fifo),
        }
    }

    fn create(&mut self, kind: Kind) {
        let parent = self.some_directory();
        self.names += 1;
        let name = match self.random.random_range(0..3) {
            0 => format!("{kind:?}{:05}", self.names),
            1 => format!("{:x}.{}", self.random.random::<u64>(), self.names),
            _ => format!("{}\u{e9}{:b}", self.names, self.random.random::<u32>()),
        };
        let path = self.entries[&parent].path.join(&name);
        let made = make(kind, &path);
        let ours = self.replica.create(parent, &name, kind == Kind::Directory);
        let Ok(metadata) = made else {
            let error = made.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{}: {error}", path.display());
            assert!(
                matches!(ours, Err(InodeError::NoInodes)),
                "kernel refused {}, we {ours:?}",
                path.display()
            );
            self.refused += 1;
            return;
        };
        let inode = u32::try_from(metadata.ino()).unwrap();
        let place = |inode| self.replica.allocator.geometry().locate_inode(InodeNr::new(inode));
        let ours = ours.unwrap();
        assert_eq!(
            ours,
            inode,
            "after {} equal numbers: {kind:?} in {parent} {:?}: we {:?}, kernel {:?}",
            self.agreed,
            place(parent),
            place(ours),
            place(inode)
        );
        self.agreed += 1;
        let sectors = metadata.blocks();
        let expected = if kind == Kind::Directory { self.sectors_per_cluster } else { 0 };
        assert_eq!(sectors, expected, "blocks of a new {kind:?}");
        self.entries.insert(inode, Entry { path, parent, kind, children: 0, sectors: 0 });
        self.entries.get_mut(&parent).unwrap().children += 1;
        self.charge_growth(inode);
        self.charge_growth(parent);
    }

    /// Charges the growth of an inode to the groups where its clusters lie. A cluster can lie
    /// outside the goal's group: that group may be full or busy, or its free clusters may wait for
    /// a commit.
    fn charge_growth(&mut self, inode: u32) {
        let entry = self.entries.get_mut(&inode).unwrap();
        let sectors = fs::symlink_metadata(&entry.path).unwrap().blocks();
        if sectors != entry.sectors {
            entry.sectors = sectors;
            let groups = self.cluster_groups(inode);
            self.replica.charge(inode, groups);
        }
    }

    /// Group of every cluster of a directory. A cluster that belongs to no extent holds the block
    /// of the directory's extent tree. Only the unmounted image shows where that block lies. Until
    /// then this function assumes the group of the last data cluster, next to which the block was
    /// requested.
    fn cluster_groups(&mut self, inode: u32) -> Vec<GroupNr> {
        let entry = &self.entries[&inode];
        let mut groups = data_groups(self.replica.allocator.geometry(), &entry.path);
        let clusters = (entry.sectors / self.sectors_per_cluster) as usize;
        assert!((groups.len()..groups.len() + 2).contains(&clusters), "{} of {clusters}", groups.len());
        if groups.len() < clusters {
            let beside = groups.last().copied().unwrap_or_else(|| self.replica.goal_group(inode));
            groups.push(*self.guessed.entry(inode).or_insert(beside));
        }
        groups
    }

    fn remove(&mut self) {
        let candidates: Vec<u32> =
            self.entries.iter().filter(|(_, entry)| entry.children == 0).map(|(&inode, _)| inode).collect();
        let Some(&inode) = candidates.choose(&mut self.random) else { return };
        let entry = self.entries.remove(&inode).unwrap();
        self.guessed.remove(&inode);
        match entry.kind {
            Kind::Directory => fs::remove_dir(&entry.path).unwrap(),
            _ => fs::remove_file(&entry.path).unwrap(),
        }
        self.entries.get_mut(&entry.parent).unwrap().children -= 1;
        self.replica.remove(inode);
    }

    /// In about one call of ten, makes a directory (but not the root) a top directory, so that its
    /// later subdirectories are spread.
    fn toggle_top(&mut self) {
        if self.random.random_bool(0.9) {
            return;
        }
        let inode = self.some_directory();
        if inode != Replica::ROOT {
            let output = run("chattr", &["+T", self.entries[&inode].path.to_str().unwrap()]);
            assert!(output.status.success());
            self.replica.set_top(inode, true);
        }
    }

    /// Sets the tunable `inode_goal`, sometimes beyond the last inode, or (more often) unsets it.
    fn toggle_goal(&mut self) {
        let Some(file) = &self.goal else { return };
        let last = self.replica.allocator.geometry().inodes_count();
        let goal = match self.random.random_range(0..3) {
            0 => self.random.random_range(11..last + last / 8),
            _ => 0,
        };
        fs::write(file, goal.to_string()).unwrap();
        self.replica.allocator.set_goal((goal != 0).then(|| InodeNr::new(goal)));
    }

    /// The root, a directory from the upper half of the numbers, the directory with the highest
    /// number, or any directory.
    fn some_directory(&mut self) -> u32 {
        let directories: Vec<u32> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.kind == Kind::Directory)
            .map(|(&inode, _)| inode)
            .collect();
        match self.random.random_range(0..10) {
            0 => Replica::ROOT,
            1..5 => directories[self.random.random_range(directories.len() / 2..directories.len())],
            5 => directories[directories.len() - 1],
            _ => *directories.choose(&mut self.random).unwrap(),
        }
    }

    /// Compares the unmounted image with the replica: the inode fields of each descriptor, and the
    /// free clusters of each flex group.
    fn compare(&self, after: &Descriptors, image: &Path) {
        for (group, &facts) in (0..).zip(&after.inodes) {
            assert_eq!(self.replica.disk.group(group).facts, facts, "descriptor of group {group}");
        }
        let geometry = &after.geometry;
        let units: Vec<FlexNr> = (0..geometry.flex_groups()).map(FlexNr::new).collect();
        let mut ours: Vec<u64> = units.iter().map(|&unit| self.replica.clusters.in_flex(unit)).collect();
        for (&inode, &guess) in &self.guessed {
            let place = node_group(geometry, image, inode);
            ours[geometry.flex_of(guess).raw() as usize] += 1;
            ours[geometry.flex_of(place).raw() as usize] -= 1;
        }
        let mut theirs = vec![0; units.len()];
        for (group, &free) in geometry.all_groups().zip(&after.free_clusters) {
            theirs[geometry.flex_of(group).raw() as usize] += u64::from(free);
        }
        assert_eq!(ours, theirs, "free clusters of the units");
    }
}

/// Group of every cluster of a directory in logical order, by its extents.
fn data_groups(geometry: &Geometry, path: &Path) -> Vec<GroupNr> {
    let output = run("filefrag", &["-v", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let ratio = u64::from(geometry.cluster_ratio());
    let extents = text.lines().filter_map(|line| {
        // "   0:        0..       3:      24867..     24870:      4:  ..."
        let cells: Vec<&str> = line.split(':').map(str::trim).collect();
        cells[0].parse::<u32>().ok()?;
        let first: u64 = cells[2].split("..").next()?.parse().ok()?;
        Some((first, cells[3].parse::<u64>().ok()?))
    });
    extents
        .flat_map(|(first, length)| {
            (0..length).step_by(ratio as usize).map(move |at| BlockNr::new(first + at))
        })
        .map(|block| geometry.group_of(block))
        .collect()
}

/// Group of the one block that holds the extents of a directory.
fn node_group(geometry: &Geometry, image: &Path, inode: u32) -> GroupNr {
    let output = run("debugfs", &["-R", &format!("ex -n <{inode}>"), image.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    // " 0/ 1   1/  1     0 -    55  5832             56"
    let line = text.lines().find(|line| line.trim_start().starts_with("0/ 1")).expect(&text);
    let mut cells = line.split_whitespace().skip_while(|cell| *cell != "-");
    let block = cells.nth(2).and_then(|cell| cell.parse().ok()).expect(line);
    geometry.group_of(BlockNr::new(block))
}

/// The file of the tunable `inode_goal` for a mount point.
fn goal_file(mount: &Path) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let device = mounts
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(_, rest)| rest.split(' ').next().is_some_and(|place| Path::new(place) == mount))
        .map(|(device, _)| device.trim_start_matches("/dev/").to_owned());
    Path::new("/sys/fs/ext4").join(device.unwrap()).join("inode_goal")
}

fn make(kind: Kind, path: &Path) -> std::io::Result<fs::Metadata> {
    match kind {
        Kind::Directory => fs::create_dir(path)?,
        Kind::File => drop(fs::File::create_new(path)?),
        Kind::Symlink => std::os::unix::fs::symlink("nowhere", path)?,
        Kind::Fifo => {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)?;
        }
    }
    fs::symlink_metadata(path)
}
