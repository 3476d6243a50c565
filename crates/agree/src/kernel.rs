//! The kernel as oracle: a loop image mounted with the kernel's ext4, observed through a private
//! trace instance.
//!
//! The image, the mount and the trace instance belong to one [`WorkDirectory`], which removes them
//! when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use blockyard_device::MemoryDevice;
use blockyard_lab::age::Ageing;
use blockyard_lab::figures::states::FRESH;

use super::command::{run, text};
use super::images::ImageKind;
use super::recording::{End, FORMAT, Image, Tunables};
use super::work::WorkDirectory;
use super::{lived, mke2fs};

/// Events that a recording needs.
const EVENTS: [&str; 20] = [
    "ext4/ext4_request_blocks",
    "ext4/ext4_allocate_blocks",
    "ext4/ext4_mballoc_alloc",
    "ext4/ext4_mballoc_prealloc",
    "ext4/ext4_mb_new_inode_pa",
    "ext4/ext4_mb_new_group_pa",
    "ext4/ext4_mb_release_inode_pa",
    "ext4/ext4_discard_preallocations",
    "ext4/ext4_free_blocks",
    "ext4/ext4_mballoc_free",
    "ext4/ext4_allocate_inode",
    "ext4/ext4_da_write_end",
    "ext4/ext4_write_end",
    "ext4/ext4_da_reserve_space",
    "ext4/ext4_da_release_space",
    "ext4/ext4_da_update_reserve_space",
    "ext4/ext4_mb_release_group_pa",
    "jbd2/jbd2_handle_start",
    "jbd2/jbd2_handle_restart",
    "jbd2/jbd2_end_commit",
];

/// KiB of trace buffer for each CPU: about a million events.
const BUFFER_KIB: u32 = 96 * 1024;

/// The first thing that this machine lacks for recording; `None` if it lacks nothing.
#[must_use]
pub fn missing() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = status
        .lines()
        .any(|line| line.strip_prefix("Uid:").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0")));
    if !root {
        return Some("root (loop devices, mounts and tracepoints need it)".to_owned());
    }
    for program in ["mke2fs", "dumpe2fs", "losetup", "mount", "umount"] {
        if Command::new(program).arg("--version").output().is_err() {
            return Some(format!("the program {program}"));
        }
    }
    let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    ["ext4", "tracefs"]
        .into_iter()
        .find(|name| !systems.lines().any(|line| line.split_whitespace().last() == Some(name)))
        .map(|name| format!("the file system {name} in the kernel"))
}

/// The image that a session starts from.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// How the image is made and mounted.
    pub kind: ImageKind,
    /// How the image is aged before it is mounted; `None`: it is not aged.
    pub aged: Option<&'a Ageing>,
    /// Seed of the ageing and of the load.
    pub seed: u64,
}

impl Start<'_> {
    /// `fresh` for an image that is not aged; otherwise the ageing as text.
    #[must_use]
    pub fn state(&self) -> String {
        self.aged.map_or(FRESH.to_owned(), ToString::to_string)
    }

    /// Makes the image at a path, ages it if asked to, and describes it.
    fn image(&self, path: &Path) -> anyhow::Result<Image> {
        fs::File::create(path)?.set_len(self.kind.mib << 20)?;
        mke2fs::make(self.kind.mke2fs, path)?;
        if let Some(ageing) = self.aged {
            lived::aged(MemoryDevice::load(path)?, ageing, self.seed)?.save(path)?;
        }
        Ok(Image { state: self.state(), ..describe(text(path)?)? })
    }
}

/// A mounted image under observation.
pub struct Session {
    work: WorkDirectory,
    device: String,
    kind: ImageKind,
    image: Image,
}

impl Session {
    /// Creates an image, ages it if asked to, mounts it, and starts to observe it.
    ///
    /// # Errors
    /// - A program or the kernel refuses something.
    /// - The image cannot be aged.
    /// - The output of a program, or a file of the kernel, does not look as documented.
    /// - The free extents of the image do not match the kernel's counts. (This is not checked if
    ///   groups are read on demand.)
    pub fn start(start: Start<'_>, scratch: &Path) -> anyhow::Result<Self> {
        let kind = start.kind;
        let work = WorkDirectory::new(scratch)?;
        let image = start.image(&work.image())?;
        let device = work.attach(kind.rotational)?;
        let mut session = Self { work, device, kind, image };
        session.mount()?;
        session.read_tunables()?;
        if !kind.lazy {
            // The check reads mb_groups, and so the kernel initialises every group.
            session.check_start()?;
        }
        session.work.observe(&session.device, BUFFER_KIB, &EVENTS)?;
        Ok(session)
    }

    /// Where the file system is mounted.
    #[must_use]
    pub fn mount_point(&self) -> PathBuf {
        self.work.mount_point()
    }

    /// Description of the image. The caller fills in load and seed.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The file to write trace markers to.
    #[must_use]
    pub fn marker(&self) -> PathBuf {
        self.work.marker()
    }

    /// Stops the observation and returns the trace.
    ///
    /// # Errors
    /// When the buffer was too small (a trace with gaps is useless), and those of tracefs.
    pub fn trace(&self) -> anyhow::Result<String> {
        self.work.recorded()
    }

    /// The kernel's own view of the groups, and its statistics. The caller fills in `overlaps`.
    ///
    /// # Errors
    /// When a file of `/proc/fs/ext4` is missing, or `mb_groups` does not look as documented.
    pub fn end(&self) -> anyhow::Result<End> {
        // Read `mb_groups` first: that initialises the remaining groups, and the other files report
        // on these too.
        let groups = self.groups()?;
        let summary = self.proc_file("mb_structs_summary")?;
        Ok(End {
            groups,
            largest: groups_by_order(&summary, "max_free_order_lists"),
            average: groups_by_order(&summary, "avg_fragment_size_lists"),
            stats: self.proc_file("mb_stats")?.lines().map(str::to_owned).collect(),
            overlaps: 0,
        })
    }

    fn proc_file(&self, name: &str) -> anyhow::Result<String> {
        let path = format!("/proc/fs/ext4/{}/{name}", self.device);
        fs::read_to_string(&path).with_context(|| path)
    }

    fn sys_number<T: std::str::FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let path = format!("/sys/fs/ext4/{}/{name}", self.device);
        let value = fs::read_to_string(&path).with_context(|| path.clone())?;
        value.trim().parse().ok().with_context(|| format!("{path} holds {value:?}"))
    }

    fn mount(&self) -> anyhow::Result<()> {
        let common = "no_prefetch_block_bitmaps,noinit_itable,noatime";
        let journal = if self.image.journal { ",commit=3600" } else { "" };
        let options = format!("{common}{journal},{}", self.kind.mount);
        let node = format!("/dev/{}", self.device);
        run("mount", &["-t", "ext4", "-o", &options, &node, text(&self.mount_point())?])?;
        fs::write(format!("/sys/fs/ext4/{}/mb_stats", self.device), "1")?;
        Ok(())
    }

    fn read_tunables(&mut self) -> anyhow::Result<()> {
        let options = self.proc_file("options")?;
        let summary = self.proc_file("mb_structs_summary")?;
        let tunables = Tunables {
            max_to_scan: self.sys_number("mb_max_to_scan")?,
            min_to_scan: self.sys_number("mb_min_to_scan")?,
            order2_req: self.sys_number("mb_order2_req")?,
            stream_req: self.sys_number("mb_stream_req")?,
            group_prealloc: self.sys_number("mb_group_prealloc")?,
            max_linear_groups: self.sys_number("mb_max_linear_groups")?,
            best_avail_max_trim_order: self.sys_number("mb_best_avail_max_trim_order")?,
        };
        let reserved_clusters = self.sys_number("reserved_clusters")?;
        self.image = Image {
            format: FORMAT,
            image: self.kind.name.to_owned(),
            lazy: self.kind.lazy,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            possible_cpus: possible_cpus()?,
            optimize_scan: summary.contains("optimize_scan: 1"),
            stripe: stripe_of(&options),
            reserved_clusters,
            tunables,
            ..std::mem::take(&mut self.image)
        };
        Ok(())
    }

    /// Checks that the free extents read from the image match the kernel's counts.
    fn check_start(&self) -> anyhow::Result<()> {
        for (group, (extents, counts)) in self.image.free.iter().zip(self.groups()?).enumerate() {
            let ours = [extents.iter().map(|extent| extent.1).sum(), u32::try_from(extents.len())?];
            if counts.get(..2) != Some(&ours) {
                bail!(
                    "group {group} starts with {counts:?} in the kernel, {ours:?} (free, fragments) in dumpe2fs"
                );
            }
        }
        Ok(())
    }

    fn groups(&self) -> anyhow::Result<Vec<Vec<u32>>> {
        groups_of(&self.proc_file("mb_groups")?)
    }
}

/// The numbers of each line of `mb_groups`: free clusters, free runs, first free cluster, then free
/// chunks by order.
fn groups_of(text: &str) -> anyhow::Result<Vec<Vec<u32>>> {
    text.lines()
        .skip(1)
        .map(|line| {
            let (_, numbers) = line.split_once(':').with_context(|| format!("mb_groups line {line:?}"))?;
            let words = numbers.split([' ', '[', ']']).filter(|word| !word.is_empty());
            words.map(|word| word.parse().with_context(|| format!("mb_groups line {line:?}"))).collect()
        })
        .collect()
}

/// The number of groups for each order in one list of `mb_structs_summary`.
fn groups_by_order(summary: &str, name: &str) -> Vec<u32> {
    let lines = summary.lines().skip_while(|line| !line.contains(name)).skip(1);
    lines
        .map_while(|line| line.trim().strip_prefix("list_order_")?.rsplit(' ').next()?.parse().ok())
        .collect()
}

/// The device's stripe in blocks, from a mount's options; 0 for none.
fn stripe_of(options: &str) -> u32 {
    option(options, "stripe").unwrap_or(0)
}

/// The numeric value of an active mount option.
fn option(options: &str, name: &str) -> Option<u32> {
    options.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// One more than the highest number of a possible CPU.
pub(crate) fn possible_cpus() -> anyhow::Result<u32> {
    cpus_of(&fs::read_to_string("/sys/devices/system/cpu/possible")?)
}

/// One more than the highest CPU number in a list like `0-3` or `0,2-5`.
fn cpus_of(list: &str) -> anyhow::Result<u32> {
    let last: u32 = list.trim().rsplit(['-', ',']).next().unwrap_or("0").parse()?;
    Ok(last + 1)
}

/// Geometry and free extents of an image, as `dumpe2fs` reports them.
fn describe(image: &str) -> anyhow::Result<Image> {
    described(&run("dumpe2fs", &[image])?)
}

/// Geometry and free extents parsed from the output of `dumpe2fs`.
fn described(dump: &str) -> anyhow::Result<Image> {
    let field = |name: &str| dump.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
    let number = |name: &str| -> anyhow::Result<u64> {
        field(name)
            .and_then(|value| value.parse().ok())
            .with_context(|| format!("dumpe2fs shows no `{name}`"))
    };
    let small = |name: &str| -> anyhow::Result<u32> { Ok(u32::try_from(number(name)?)?) };
    let has = |feature: &str| {
        field("Filesystem features:").is_some_and(|all| all.split_whitespace().any(|word| word == feature))
    };
    let block_size = small("Block size:")?;
    let cluster_size = small("Cluster size:").unwrap_or(block_size);
    let clusters_per_group = small("Clusters per group:").or_else(|_| small("Blocks per group:"))?;
    let flex = if has("flex_bg") { small("Flex block group size:").unwrap_or(1) } else { 1 };
    let mut described = Image {
        block_bits: block_size.ilog2(),
        cluster_ratio_bits: (cluster_size / block_size).ilog2(),
        blocks: number("Block count:")?,
        first_data_block: number("First block:")?,
        clusters_per_group,
        inodes_per_group: small("Inodes per group:")?,
        inode_size: u16::try_from(number("Inode size:")?)?,
        flex_bits: flex.ilog2(),
        extents: has("extent") || has("extents"),
        journal: has("has_journal"),
        root_blocks: number("Reserved block count:")?,
        ..Image::default()
    };
    described.free = free_extents(dump, &described)?;
    let heads = dump.lines().filter(|line| line.starts_with("Group ") && line.contains(": (Blocks "));
    described.block_uninit =
        (0..).zip(heads).filter(|(_, head)| head.contains("BLOCK_UNINIT")).map(|(group, _)| group).collect();
    Ok(described)
}

/// The free extents of every group, from the lines `  Free blocks: A-B, C`. An extent is its first
/// cluster, counted from the start of the group, and its number of clusters.
fn free_extents(dump: &str, image: &Image) -> anyhow::Result<Vec<Vec<(u32, u32)>>> {
    let per_group = u64::from(image.clusters_per_group) << image.cluster_ratio_bits;
    let mut groups = Vec::new();
    for line in dump.lines().filter_map(|line| line.strip_prefix("  Free blocks:")) {
        let first = image.first_data_block + per_group * u64::try_from(groups.len())?;
        let mut extents = Vec::new();
        for range in line.split(',').map(str::trim).filter(|range| !range.is_empty()) {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (low, high) = (low.parse::<u64>()?, high.parse::<u64>()?);
            let start = (low - first) >> image.cluster_ratio_bits;
            let end = (high - first) >> image.cluster_ratio_bits;
            extents.push((u32::try_from(start)?, u32::try_from(end - start + 1)?));
        }
        groups.push(extents);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::IMAGES;

    /// A regression: mke2fs chose the hash seed at random. The hash seed can decide where a
    /// directory goes, so repeating an ageing made a different image.
    #[test]
    fn an_aged_image_is_made_again_as_it_was() {
        if !blockyard_testkit::require(&["mke2fs", "dumpe2fs"]) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let kind = *IMAGES.iter().find(|kind| kind.name == "small-groups").unwrap();
        let ageing: Ageing = "mail:4000:80%".parse().unwrap();
        let made = |name: &str, seed, aged| {
            let image = Start { kind, aged, seed }.image(&folder.path().join(name)).unwrap();
            (image.state, image.free)
        };
        let first = made("first", 1, Some(&ageing));
        assert_eq!(first, made("second", 1, Some(&ageing)));
        assert_ne!(first.1, made("other", 2, Some(&ageing)).1, "the seed decides");
        assert_eq!(made("fresh", 1, None).0, FRESH);
    }

    #[test]
    fn free_extents_become_clusters_of_their_group() {
        let image = Image { clusters_per_group: 8, cluster_ratio_bits: 2, ..Image::default() };
        let dump = "Group 0:\n  Free blocks: 4-11, 16-19\nGroup 1:\n  Free blocks: \nGroup 2:\n  Free blocks: 64-95\n";
        let free = free_extents(dump, &image).unwrap();
        assert_eq!(free, [vec![(1, 2), (4, 1)], vec![], vec![(0, 8)]]);
    }

    /// What dumpe2fs 1.47 prints for `-b 1024 -O bigalloc -C 4096 -G 2 -N 512 -m 3` on 40 MiB,
    /// shortened.
    const DUMP: &str = "\
Filesystem features:      has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg bigalloc metadata_csum
Inode count:              512
Block count:              40960
Reserved block count:     1228
Free blocks:              36544
First block:              0
Block size:               1024
Cluster size:             4096
Blocks per group:         32768
Clusters per group:       8192
Inodes per group:         256
Flex block group size:    2
First inode:              11
Inode size:\t          256

Group 0: (Blocks 0-32767) csum 0x0a86 [ITABLE_ZEROED]
  7109 free clusters, 245 free inodes, 2 directories, 245 unused inodes
  Free blocks: 4332-32764
  Free inodes: 12-256
Group 1: (Blocks 32768-40959) csum 0xaa36 [INODE_UNINIT, ITABLE_ZEROED]
  2027 free clusters, 256 free inodes, 0 directories, 256 unused inodes
  Free blocks: 32852-40956
  Free inodes: 257-512
";

    #[test]
    fn an_image_is_described_by_what_dumpe2fs_prints() {
        let expected = Image {
            block_bits: 10,
            cluster_ratio_bits: 2,
            blocks: 40_960,
            first_data_block: 0,
            clusters_per_group: 8192,
            inodes_per_group: 256,
            inode_size: 256,
            flex_bits: 1,
            extents: true,
            journal: true,
            root_blocks: 1228,
            // Block 4332 is in cluster 1083; block 84 of the second group is in its cluster 21.
            free: vec![vec![(1083, 7109)], vec![(21, 2027)]],
            ..Image::default()
        };
        assert_eq!(described(DUMP).unwrap(), expected);
        let unwritten = DUMP.replace("[INODE_UNINIT,", "[INODE_UNINIT, BLOCK_UNINIT,");
        assert_eq!(described(&unwritten).unwrap(), Image { block_uninit: vec![1], ..expected });
    }

    /// Without bigalloc, the lines about clusters are missing. Without flex_bg, the flex group size
    /// is ignored. With blocks of 1 KiB, the first group begins at block 1.
    #[test]
    fn an_image_without_clusters_is_described_too() {
        let dump = DUMP.replace("Cluster size:             4096\n", "");
        let dump = dump.replace("Clusters per group:       8192\n", "").replace(" flex_bg", "");
        let dump = dump.replace("First block:              0", "First block:              1");
        let dump = dump.replace(" has_journal", "").replace(" extent ", " ");
        let image = described(&dump).unwrap();
        assert_eq!((image.cluster_ratio_bits, image.clusters_per_group, image.flex_bits), (0, 32_768, 0));
        assert_eq!((image.first_data_block, image.journal, image.extents), (1, false, false));
        assert_eq!(image.free, [vec![(4331, 28_433)], vec![(83, 8105)]]);
    }

    #[test]
    fn groups_are_read_behind_the_heads() {
        let text = "\
#group: free  frags first [ 2^0   2^1   2^2   ]
#0    : 64    8     1788  [ 6     5     2     ]
#1    : 0     1     32768 [ 0     0     7     ]
";
        assert_eq!(groups_of(text).unwrap(), [[64, 8, 1788, 6, 5, 2], [0, 1, 32_768, 0, 0, 7]]);
        assert!(groups_of("heads\n#0 : many\n").is_err());
    }

    #[test]
    fn each_list_of_orders_is_read_by_its_name() {
        let text = "optimize_scan: 1\nmax_free_order_lists:\n\tlist_order_0_groups: 0\n\tlist_order_1_groups: 17\n\
                    avg_fragment_size_lists:\n\tlist_order_0_groups: 2\n\tlist_order_1_groups: 33\n\tlist_order_2_groups: 4\n";
        assert_eq!(groups_by_order(text, "max_free_order_lists"), [0, 17]);
        assert_eq!(groups_by_order(text, "avg_fragment_size_lists"), [2, 33, 4]);
    }

    #[test]
    fn options_and_cpus_are_numbers() {
        let options = "rw\ncommit=5\nstripe=48\nstripe_other=3\n";
        assert_eq!(
            (option(options, "stripe"), option(options, "commit"), option(options, "rw")),
            (Some(48), Some(5), None)
        );
        assert_eq!((stripe_of(options), stripe_of("rw\ncommit=5\nstripe_other=3\n")), (48, 0));
        for (list, count) in [("0\n", 1), ("0-3\n", 4), ("0,2-5\n", 6)] {
            assert_eq!(cpus_of(list).unwrap(), count);
        }
    }
}
