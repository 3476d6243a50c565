//! From a tree to the plan of an image: its size, and the position of everything.

use crate::attributes::Homes;
use crate::error::{Error, Result};
use crate::inline;
use crate::inode::{LINKS_MAX, device_number};
use crate::layout::{self, Content, Kinds, Placed, Space};
use crate::mapping::Mapping;
use crate::numbering::Order;
use crate::placement::Placement;
use crate::shape::Shape;
use crate::times::MovedTimes;
use crate::tree::{NO_OWNER, Node, NodeId, Tree};
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::dirblock::DirLayout;
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::indirect;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u32_from_usize, u64_from_u32, usize_from_u32};
use blockyard_disk::whole_directory::Indexing;
use blockyard_disk::{Compat, Incompat, InodeNr, RoCompat};
use blockyard_engine::mkfs::{self, Blank, Filled, Options};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Two GiB: files of this size and more need the feature `large_file`.
const LARGE_FILE: u64 = 1 << 31;

/// The first size to try, in blocks: it holds an empty file system and little more.
const BLOCKS_FIRST: u64 = 16;

/// The fewest inodes of an image: the smallest multiple of eight that holds the reserved inodes.
const INODES_MIN: u32 = 16;

/// The most attempts to find a size. Each attempt adds what the previous one lacked, so far fewer
/// should be enough.
const STEPS_MAX: usize = 200;

/// How near the search for a size comes: the image may exceed the smallest possible image by about
/// 1/`NEAR` of its own size. Coming nearer would cost more attempts, and each lays out the content.
const NEAR: u64 = 256;

/// The search assumes that an image can shrink by at most twice its spare blocks plus this many
/// blocks.
const SAVED: u64 = 64;

/// The size of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// About the smallest size that holds the content and some free space.
    Auto(Room),
    /// A size in bytes.
    Bytes(u64),
}

/// Space to leave free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Bytes.
    Bytes(u64),
    /// Percent of the image.
    Percent(u8),
}

impl Room {
    /// How many of `all` blocks, each of `block` bytes, to leave free.
    fn blocks(self, all: u64, block: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.div_ceil(block),
            Self::Percent(percent) => all * u64::from(percent.min(99)) / 100,
        }
    }

    /// The size in blocks of the smallest image that leaves enough free when `used` blocks are
    /// taken.
    fn blocks_with(self, used: u64, block: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => used + bytes.div_ceil(block),
            Self::Percent(percent) => used.saturating_sub(1) * 100 / (100 - u64::from(percent.min(99))) + 1,
        }
    }
}

/// How to make an image from a tree.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The options of the file system. The builder sets the size, the number of inodes and the
    /// time, and adds the feature `ext_attr` if the content needs it. A missing `hash_seed` is
    /// derived from the names. If the UUID is [`mkfs::UuidChoice::Random`], the UUID is derived
    /// from all the content and the image's size.
    pub options: Options,
    /// The size.
    pub size: Size,
    /// The least number of inodes; `None` for as many as the tree needs.
    pub inodes: Option<u32>,
    /// The latest modification time that is kept, in seconds since 1970. Later times are reduced to
    /// this one. It is also the creation time of the file system. With `None` no time changes, and
    /// the creation time is the newest time of the tree, but at most 2^31 - 1. A creation time
    /// before 1970 becomes 0.
    pub time: Option<i64>,
    /// Threads that read and write.
    pub threads: usize,
    /// Paths whose content comes before that of all other files, in this order. A directory stands
    /// for everything in it. Paths that are not in the tree are skipped; see [`Plan::missing`].
    pub ahead: Vec<Vec<u8>>,
    /// The order of the other content.
    pub placement: Placement,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            options: Options {
                reserved_percent: Some(0.0),
                ..Options::ext4().block_size(4096).features("^resize_inode")
            },
            size: Size::Auto(Room::Bytes(0)),
            inodes: None,
            time: None,
            threads: 1,
            ahead: Vec::new(),
            placement: Placement::default(),
        }
    }
}

/// An image that is ready to be written.
pub struct Plan {
    pub(crate) tree: Tree,
    pub(crate) order: Order,
    pub(crate) shape: Shape,
    /// The blocks of each directory, and whether it is indexed.
    pub(crate) directories: Vec<(u64, bool)>,
    pub(crate) homes: Homes,
    pub(crate) space: Space,
    /// The position of each inode's blocks in the row of free blocks: the root first, attribute
    /// values last.
    pub(crate) places: Vec<u64>,
    kinds: Kinds,
    pub(crate) filled: Filled,
    /// Whether the UUID is derived from the content.
    pub(crate) draws_uuid: bool,
    pub(crate) threads: usize,
    missing: Vec<Vec<u8>>,
    moved_times: Option<MovedTimes>,
}

/// A summary of what was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Regular files; hard links count once.
    pub files: u64,
    /// Directories, the root included, but not lost+found.
    pub directories: u64,
    /// The sum of the files' sizes in bytes, holes included.
    pub file_bytes: u64,
    /// Bytes of the blocks for the content: files, directories, maps and attributes.
    pub content_bytes: u64,
    /// Bytes of unused blocks.
    pub free_bytes: u64,
    /// What the space that holds no file content is used for.
    pub overhead: Overhead,
    /// Time taken by each stage of the writing; zero if nothing is written yet.
    pub took: Took,
    /// The file system.
    pub file_system: mkfs::Summary,
}

/// Bytes that are used, but hold no file content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Directories.
    pub directories: u64,
    /// Extent tree nodes and indirect blocks.
    pub maps: u64,
    /// Extended attributes outside inodes.
    pub attributes: u64,
    /// Space in the blocks of files that holds no file content, mostly behind the ends of files.
    pub slack: u64,
    /// Inode tables.
    pub inode_tables: u64,
    /// The journal.
    pub journal: u64,
    /// Superblocks, descriptors, bitmaps, lost+found, and what the options ask for.
    pub other: u64,
}

/// Time taken by each stage of the writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Reading, hashing and writing the content of files.
    pub data: Duration,
    /// Directories and inodes.
    pub metadata: Duration,
    /// Everything else, including the flush to the device.
    pub finish: Duration,
}

/// A layout that fits.
struct Found {
    blank: Blank,
    order: Order,
    shape: Shape,
    directories: Vec<(u64, bool)>,
    homes: Homes,
    space: Space,
    placed: Placed,
}

impl Found {
    /// Free blocks.
    fn free(&self) -> u64 {
        self.space.len() - self.placed.taken
    }
}

impl Builder {
    /// Lays the image out. Nothing is written.
    ///
    /// # Errors
    /// [`Error::Mkfs`] for invalid options; [`Error::TooSmall`]; [`Error::Refused`] for content
    /// that the options cannot hold, for a file without an owner, and for a lost+found that is not
    /// an empty directory.
    pub fn plan(&self, mut tree: Tree) -> Result<Plan> {
        tree.settle_lost_found()?;
        tree.check_owners()?;
        let newest = tree.clamp_times(self.time.unwrap_or(i64::MAX));
        let mut options = self.options.clone();
        // 128-byte inodes cannot hold times after 2038.
        options.time = u64::try_from(self.time.unwrap_or(newest.min(i64::from(i32::MAX)))).unwrap_or(0);
        let draws_uuid = options.uuid == mkfs::UuidChoice::Random;
        if options.hash_seed.is_none() {
            options.hash_seed = Some(tree.digest_of_names());
        }
        let (ahead, missing) = tree.in_order(&self.ahead);
        let how = How { builder: self, options: &options, ahead: &ahead };
        let found = match self.size {
            Size::Bytes(bytes) => match how.find(&mut tree, bytes) {
                Ok(Ok(found)) => found,
                // The content does not fit, or not even the file system's own metadata.
                Ok(Err(_)) | Err(Error::Mkfs(mkfs::Error::Size(_))) => {
                    return Err(how.too_small(&mut tree, bytes));
                }
                Err(error) => return Err(error),
            },
            Size::Auto(room) => how.smallest(&mut tree, room, BLOCKS_FIRST)?,
        };
        let Found { blank, order, shape, directories, homes, space, placed } = found;
        let Placed { places, taken, kinds } = placed;
        tree.check_sizes(&order, &shape)?;
        if options.revision == Some(0) {
            tree.check_without_features(&order, &homes)?;
        }
        tree.check_links(&order, blank.features().ro_compat.contains(RoCompat::DIR_NLINK))?;
        let geometry = *blank.geometry();
        let mut of_groups = vec![0; usize_from_u32(geometry.groups())];
        let mut has_large_file = false;
        for &id in &order.inodes {
            let node = tree.node(id);
            has_large_file |= node.kind == FileType::Regular && node.size >= LARGE_FILE;
            if node.kind == FileType::Directory {
                let (group, _) = geometry.locate_inode(InodeNr::new(node.inode));
                of_groups[usize_from_u32(group.raw())] += 1;
            }
        }
        let content = mkfs::Content {
            blocks: space.taken(taken),
            inodes: u32_from_usize(order.inodes.len() + homes.values.len()),
            directories: of_groups,
            has_large_file,
        };
        let filled = blank.fill(content)?;
        let threads = self.threads.max(1);
        let moved_times = MovedTimes::of(&tree, &shape);
        Ok(Plan {
            tree,
            order,
            shape,
            directories,
            homes,
            space,
            places,
            kinds,
            filled,
            draws_uuid,
            threads,
            missing,
            moved_times,
        })
    }
}

/// What stays constant during the search for a size.
struct How<'a> {
    builder: &'a Builder,
    options: &'a Options,
    /// Files whose content comes first.
    ahead: &'a [NodeId],
}

impl How<'_> {
    /// About the smallest image of at least `first` blocks for the content. Each attempt adds what
    /// the previous one lacked. The first size that fits may be larger than necessary, so smaller
    /// sizes are tried after it.
    fn smallest(&self, tree: &mut Tree, room: Room, first: u64) -> Result<Found> {
        let block = self.block_size();
        // A requested journal may take at most half of the free blocks, so the image has at least
        // twice the size of the journal. The search must not start below that: a file system too
        // small for any journal would be made without one.
        let journal = u64::from(self.options.journal_mib.unwrap_or(0)) << 20;
        // If the block size is 0, the first attempt fails.
        let mut blocks = first.max((2 * journal).checked_div(block).unwrap_or(0));
        // This size and smaller ones are not tried: they are below `first`, known to be too small,
        // or unlikely to fit.
        let mut below = blocks.saturating_sub(1);
        // Whether the previous size was too small for any file system with these options.
        let mut is_refused = false;
        for _ in 0..STEPS_MAX {
            let bytes = blocks.checked_mul(block).ok_or_else(|| {
                mkfs::Error::Size(format!("{blocks} blocks of {block} bytes are too many; ask for less"))
            })?;
            match self.find(tree, bytes) {
                Ok(Ok(found)) if found.free() >= room.blocks(blocks, block) => {
                    if !is_refused {
                        let spare = found.free() - room.blocks(blocks, block);
                        below = below.max(blocks.saturating_sub(2 * spare + SAVED));
                    }
                    return self.nearer(tree, room, below, (blocks, found));
                }
                Ok(Ok(found)) => {
                    (is_refused, below) = (false, below.max(blocks));
                    blocks = room.blocks_with(blocks - found.free(), block);
                }
                Ok(Err(lacking)) => {
                    (is_refused, below) = (false, below.max(blocks));
                    blocks = room.blocks_with(blocks + lacking, block);
                }
                // Too small for any file system with these options.
                Err(Error::Mkfs(mkfs::Error::Size(reason))) => {
                    if blocks >> 48 > 0 {
                        return Err(Error::Mkfs(mkfs::Error::Size(reason)));
                    }
                    (is_refused, below) = (true, below.max(blocks));
                    blocks += blocks / 4 + 16;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Mkfs(mkfs::Error::Size("no size was found that holds the content".to_owned())))
    }

    /// A layout near the smallest one. Bisects between `below`, which is not tried, and a size that
    /// fits.
    fn nearer(&self, tree: &mut Tree, room: Room, below: u64, fits: (u64, Found)) -> Result<Found> {
        let block = self.block_size();
        let (mut below, (mut blocks, mut found)) = (below, fits);
        while blocks - below > (blocks / NEAR).max(1) {
            let middle = below + (blocks - below) / 2;
            match self.find(tree, middle * block) {
                Ok(Ok(smaller)) if smaller.free() >= room.blocks(middle, block) => {
                    (blocks, found) = (middle, smaller);
                }
                Ok(_) | Err(Error::Mkfs(mkfs::Error::Size(_))) => below = middle,
                Err(error) => return Err(error),
            }
        }
        // The last attempt may have left other inode numbers in the tree.
        found.order = Order::number(tree, found.order.first, self.ahead, self.builder.placement);
        Ok(found)
    }

    fn block_size(&self) -> u64 {
        u64::from(self.options.block_size.unwrap_or(4096))
    }

    /// The error for `asked` bytes, which do not hold the content. It names a larger size that
    /// does. If a smaller size holds the content, the error names that size, too: the default
    /// journal grows in steps with the image, so a smaller image can have more room.
    fn too_small(&self, tree: &mut Tree, asked: u64) -> Error {
        let mut bytes_from = |first| {
            let found = self.smallest(tree, Room::Bytes(0), first)?;
            let geometry = found.blank.geometry();
            Ok(geometry.blocks_count().raw() << geometry.block_bits())
        };
        let sizes =
            bytes_from(asked / self.block_size()).and_then(|needed| Ok((needed, bytes_from(BLOCKS_FIRST)?)));
        match sizes {
            Ok((needed, least)) => {
                debug_assert!(needed > asked, "{needed} bytes are needed, {asked} asked for");
                Error::TooSmall { asked, needed, smaller: (least < asked).then_some(least) }
            }
            Err(error) => error,
        }
    }

    /// Lays out the content in an image of `bytes` bytes, or returns the number of missing blocks.
    fn find(&self, tree: &mut Tree, bytes: u64) -> Result<std::result::Result<Found, u64>> {
        let mut options = self.options.clone();
        options.size = Some(mkfs::Amount::Bytes(bytes));
        // The content's first inode usually has number 12. If this file system has another first
        // inode, the inodes are numbered again below.
        let placement = self.builder.placement;
        let mut order = Order::number(tree, 12, self.ahead, placement);
        let mut asked = (u32_from_usize(order.inodes.len()) + 12).max(self.builder.inodes.unwrap_or(0));
        // mkfs may round a smaller number down to 8, which is less than the reserved inodes.
        asked = asked.max(INODES_MIN);
        let (blank, homes) = loop {
            options.inodes = Some(asked);
            let blank = Blank::plan(&options, bytes)?;
            let homes = Homes::find(tree, &order, shape(&blank, &options).attribute_room())?;
            // An inode may have an attribute block only with the feature `ext_attr`. Revision 0 has
            // no features, so an inode that needs such a block is refused later.
            let has_feature = blank.features().compat.contains(Compat::EXT_ATTR);
            if !homes.blocks.is_empty() && !has_feature && options.revision != Some(0) {
                options.features.push("ext_attr".to_owned());
                continue;
            }
            let needed = u32_from_usize(order.inodes.len() + homes.values.len());
            let have = blank.geometry().inodes_count() - (blank.first_inode() - 1);
            if have >= needed {
                break (blank, homes);
            }
            // The inodes per group are rounded to a multiple of eight, so there may be fewer than
            // asked for.
            asked = asked.saturating_add((needed - have).max(8));
        };
        if blank.first_inode() != order.first {
            order = Order::number(tree, blank.first_inode(), self.ahead, placement);
        }
        let shape = shape(&blank, &options);
        let content = Content::new(tree, shape, homes, self.builder.threads.max(1))?;
        let space = Space::new(blank.free());
        let placed = layout::place_all(&content, &order, &space, placement);
        if placed.taken > space.len() {
            return Ok(Err(placed.taken - space.len()));
        }
        let (directories, homes) = (content.directories.into_owned(), content.homes.into_owned());
        Ok(Ok(Found { blank, order, shape, directories, homes, space, placed }))
    }
}

/// The [`Shape`] of a planned file system.
fn shape(blank: &Blank, options: &Options) -> Shape {
    let (geometry, features) = (blank.geometry(), blank.features());
    let block_size = 1 << geometry.block_bits();
    let directories = DirLayout {
        block_size: usize_from_u32(block_size),
        tail: features.ro_compat.contains(RoCompat::METADATA_CSUM),
        file_types: features.incompat.contains(Incompat::FILETYPE),
        inodes_count: geometry.inodes_count(),
    };
    let seed = HashSeed::from_bytes(options.hash_seed.unwrap_or_default());
    let indexing = features.compat.contains(Compat::DIR_INDEX).then(|| Indexing {
        hasher: DirHasher::new(HashVersion::HalfMd4, seed),
        largedir: features.incompat.contains(Incompat::LARGE_DIR),
    });
    Shape {
        block_size: u64_from_u32(block_size),
        cluster: u64_from_u32(geometry.cluster_ratio()),
        inode_size: geometry.inode_size(),
        has_value_inodes: features.incompat.contains(Incompat::EA_INODE),
        has_inline_data: features.incompat.contains(Incompat::INLINE_DATA),
        mapping: if features.incompat.contains(Incompat::EXTENTS) {
            Mapping::Extents
        } else {
            Mapping::Blocks
        },
        directories,
        indexing,
    }
}

impl Tree {
    /// The files that paths stand for, and the paths that do not exist.
    fn in_order(&self, paths: &[Vec<u8>]) -> (Vec<NodeId>, Vec<Vec<u8>>) {
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        for path in paths {
            let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
            let plain = names.collect::<Vec<_>>().join(&b'/');
            let mut waiting = match self.find(&plain) {
                Some(id) => vec![id],
                None if plain.is_empty() => self.children(0),
                None => {
                    missing.push(path.clone());
                    continue;
                }
            };
            while let Some(id) = waiting.pop() {
                let node = self.node(id);
                if node.kind == FileType::Directory {
                    waiting.extend(self.children(node.directory));
                } else {
                    files.push(id);
                }
            }
        }
        (files, missing)
    }

    /// Bytes of the files that have blocks, without holes; hard links count once.
    fn bytes_of(&self, order: &Order, shape: &Shape) -> u64 {
        let has_blocks = |id| self.node(id).kind == FileType::Regular && !inline::is_inline(self, shape, id);
        let files = order.inodes.iter().filter(|&&id| has_blocks(id));
        let data = files.map(|id| match self.directory(id.directory).data(id.child) {
            Some(data) => data.iter().map(|range| range.end - range.start).sum(),
            None => self.node(*id).size,
        });
        data.sum()
    }

    /// The entries of a directory, the last name first.
    fn children(&self, directory: u32) -> Vec<NodeId> {
        let count = u32_from_usize(self.directory(directory).nodes.len());
        (0..count).rev().map(|child| NodeId { directory, child }).collect()
    }

    /// Reduces modification times later than `latest` to `latest`. Returns the newest time.
    fn clamp_times(&mut self, latest: i64) -> i64 {
        let mut newest = i64::MIN;
        let nodes = self.directories.iter_mut().flat_map(|directory| &mut directory.nodes);
        for node in nodes.chain([&mut self.root]) {
            if node.modified.seconds >= latest {
                node.modified = blockyard_disk::Timestamp::from_seconds(latest);
            }
            newest = newest.max(node.modified.seconds);
        }
        newest
    }

    /// Refuses content that needs a feature. This is for file systems that have no features.
    fn check_without_features(&self, order: &Order, homes: &Homes) -> Result<()> {
        let is_large = |id: &&NodeId| {
            let node = self.node(**id);
            node.kind == FileType::Regular && node.size >= LARGE_FILE
        };
        let (path, what) = if let Some(&large) = order.inodes.iter().find(is_large) {
            (self.host_path_of(large), "it has 2 GiB or more")
        } else if let Some(shared) = homes.blocks.first() {
            let path = shared.owner.map_or_else(|| self.host_path(b""), |id| self.host_path_of(id));
            (path, "it has extended attributes")
        } else {
            return Ok(());
        };
        Err(Error::Refused { path, reason: format!("{what}, which needs a feature; leave -r 0 out") })
    }

    /// Refuses files with more blocks than can be numbered or than a block map can hold, device
    /// numbers that are too large, and link targets that do not fit in a block.
    fn check_sizes(&self, order: &Order, shape: &Shape) -> Result<()> {
        for &id in &order.inodes {
            let node = self.node(id);
            let reason = match node.kind {
                FileType::Regular if shape.blocks(node.size) >= u64::from(u32::MAX) => {
                    format!(
                        "its {} bytes are more than a file can have with blocks of {} bytes",
                        node.size, shape.block_size
                    )
                }
                FileType::Regular
                    if shape.mapping == Mapping::Blocks
                        && shape.blocks(node.size) > map_max(shape.block_size) =>
                {
                    format!(
                        "its {} bytes are more than a block map can hold with blocks of {} bytes; ask for -O extents",
                        node.size, shape.block_size
                    )
                }
                FileType::CharDevice | FileType::BlockDevice
                    if device_number(node.size).to_disk().is_none() =>
                {
                    let DeviceNumber { major, minor } = device_number(node.size);
                    format!(
                        "its device number {major}:{minor} is too large; majors go up to 4095, minors up to \
                         1048575"
                    )
                }
                FileType::Symlink if u64::from(node.target.len) >= shape.block_size => {
                    format!(
                        "its target of {} bytes does not fit in a block; ask for larger blocks",
                        node.target.len
                    )
                }
                _ => continue,
            };
            return Err(Error::Refused { path: self.host_path_of(id), reason });
        }
        Ok(())
    }

    /// Leaves out the tree's lost+found if it is an empty directory, because the new file system
    /// has its own. Anything else of that name is refused.
    fn settle_lost_found(&mut self) -> Result<()> {
        let Some(id) = self.find(b"lost+found") else { return Ok(()) };
        let node = self.node(id);
        if node.kind != FileType::Directory || !self.directory(node.directory).nodes.is_empty() {
            let reason = "every image has an empty directory of this name; move this one elsewhere, or leave \
                          it out (--exclude /lost+found)";
            return Err(Error::Refused { path: self.host_path_of(id), reason: reason.to_owned() });
        }
        self.forget(b"lost+found");
        Ok(())
    }

    /// Refuses files without an owner or a group.
    fn check_owners(&self) -> Result<()> {
        let is_nobodys = |node: &Node| node.uid == NO_OWNER || node.gid == NO_OWNER;
        let first = (0..).zip(&self.directories).find_map(|(number, directory)| {
            let child = u32_from_usize(directory.nodes.iter().position(is_nobodys)?);
            Some(NodeId { directory: number, child })
        });
        let path = match first {
            _ if is_nobodys(&self.root) => self.host_path(b""),
            Some(id) => self.host_path_of(id),
            None => return Ok(()),
        };
        let reason = format!(
            "its user or group is {NO_OWNER}, which means none at all; give another (--owner-map, --squash)"
        );
        Err(Error::Refused { path, reason })
    }

    /// Refuses inodes with too many links. If `may_not_count`, a directory may have more: its links
    /// are then not counted.
    fn check_links(&self, order: &Order, may_not_count: bool) -> Result<()> {
        for &id in &order.inodes {
            let node = self.node(id);
            let is_uncounted = may_not_count && node.kind == FileType::Directory;
            if node.links > LINKS_MAX && !is_uncounted {
                let reason = format!("it has {} links and at most {LINKS_MAX} are possible", node.links);
                return Err(Error::Refused { path: self.host_path_of(id), reason });
            }
        }
        Ok(())
    }

    /// A hash seed for directories, derived from the names.
    fn digest_of_names(&self) -> [u8; 16] {
        let mut digest = Sha256::new();
        for directory in &self.directories {
            for node in &directory.nodes {
                digest.update(directory.text(node.name));
                digest.update([0]);
            }
            digest.update([b'/']);
        }
        as_uuid(&digest.finalize())
    }
}

/// The most data blocks that we allow in a file with a block map. The map has an end, and the
/// 32-bit count of sectors (`i_blocks`) limits the sum of data blocks and indirect blocks.
fn map_max(block_size: u64) -> u64 {
    let bits = block_size.trailing_zeros();
    let counted = (1 << 32) / (block_size / 512) - 1;
    let mapped = indirect::blocks_max(bits);
    mapped.min(counted - indirect::arrays_of(bits, mapped.min(counted)))
}

/// Sixteen bytes of a digest, marked as a random UUID (version 4).
pub(crate) fn as_uuid(digest: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

impl Plan {
    /// Bytes of the image.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let summary = self.filled.summary();
        summary.blocks * u64::from(summary.block_size)
    }

    /// Paths in [`Builder::ahead`] that the tree does not have.
    #[must_use]
    pub fn missing(&self) -> &[Vec<u8>] {
        &self.missing
    }

    /// Names whose modification times the image cannot hold. They get the nearest possible time.
    /// `None` if there are no such names.
    #[must_use]
    pub const fn moved_times(&self) -> Option<&MovedTimes> {
        self.moved_times.as_ref()
    }

    /// A summary of the image that will be made. The UUID may still change.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let file_system = self.filled.summary();
        let block = u64::from(file_system.block_size);
        let nodes = self.order.inodes.iter().map(|&id| self.tree.node(id));
        let files = nodes.filter(|node| node.kind == FileType::Regular);
        let (mut count, mut bytes) = (0, 0);
        for file in files {
            (count, bytes) = (count + 1, bytes + file.size);
        }
        let free_bytes = file_system.free_blocks * block;
        let content_bytes = self.space.len() * block - free_bytes;
        let tables = self.filled.inode_table_blocks() * block;
        let journal = file_system.journal_blocks * block;
        let Kinds { files, directories, maps, attributes } = self.kinds;
        let overhead = Overhead {
            directories: directories * block,
            maps: maps * block,
            attributes: attributes * block,
            slack: (files * block).saturating_sub(self.tree.bytes_of(&self.order, &self.shape)),
            inode_tables: tables,
            journal,
            other: (self.bytes() - content_bytes - free_bytes).saturating_sub(tables + journal),
        };
        Summary {
            image_bytes: self.bytes(),
            files: count,
            directories: self.order.directories.len().try_into().unwrap_or(u64::MAX),
            file_bytes: bytes,
            content_bytes,
            free_bytes,
            overhead,
            took: Took::default(),
            file_system,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_map_ends_with_its_last_pointer_or_at_the_last_sector_that_is_counted() {
        assert_eq!(map_max(1024), 12 + 256 + 256 * 256 + 256 * 256 * 256);
        let (blocks, sectors) = (map_max(4096), (1_u64 << 32) - 1);
        let used = |blocks| (blocks + indirect::arrays_of(12, blocks)) * 8;
        assert!(used(blocks) <= sectors);
        assert!(sectors - used(blocks) < 2 * 8 * 1024, "{} sectors are left", sectors - used(blocks));
    }
}
