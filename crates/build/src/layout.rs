//! Where the content's blocks go: all content forms one sequence, which is laid over the free
//! blocks of a new file system. By default, directories come first, then files in the order of
//! their inodes; see [`Placement`]. Attribute values with inodes of their own come last.

use crate::attributes::Homes;
use crate::error::{Error, Result};
use crate::inline;
use crate::numbering::Order;
use crate::parallel;
use crate::placement::Placement;
use crate::shape::{Shape, names};
use crate::tree::{NodeId, Tree};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u64_from_usize, usize_from_u32};
use blockyard_disk::whole_directory::WholeDirectory;
use blockyard_engine::mkfs::Run;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most blocks that one extent can have.
const EXTENT_MAX: u64 = 32_768;

/// The free blocks of a file system, numbered consecutively. This sequence is called the row.
#[derive(Debug)]
pub(crate) struct Space {
    /// Ranges of blocks, each with the position of its first block in the row.
    free: Vec<(u64, Range<u64>)>,
    len: u64,
}

impl Space {
    pub(crate) fn new(ranges: Vec<Range<u64>>) -> Self {
        let mut len = 0;
        let free = ranges
            .into_iter()
            .map(|range| {
                let before = len;
                len += range.end - range.start;
                (before, range)
            })
            .collect();
        Self { free, len }
    }

    /// The length of the row in blocks.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// The block ranges of a part of the row, as start and length. Anything beyond the end of the
    /// row is left out.
    pub(crate) fn pieces(&self, part: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let first =
            self.free.partition_point(|(before, range)| before + (range.end - range.start) <= part.start);
        self.free[first..].iter().map_while(move |(before, range)| {
            let start = part.start.max(*before);
            let end = part.end.min(before + (range.end - range.start));
            (start < end).then(|| (range.start + (start - before), end - start))
        })
    }

    /// The block ranges of the first `len` blocks of the row.
    pub(crate) fn taken(&self, len: u64) -> Vec<Range<u64>> {
        self.pieces(0..len).map(|(place, len)| place..place + len).collect()
    }
}

/// The blocks of one inode.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Runs of the file, in file order.
    pub(crate) runs: Vec<Run>,
    /// The blocks of the mapping: extent tree nodes or indirect blocks. Each is the first block of
    /// its cluster.
    pub(crate) nodes: Vec<u64>,
    /// The attribute block that the inode owns.
    pub(crate) attributes: Option<u64>,
    /// The position of the inode's data in the row.
    pub(crate) data_at: u64,
    /// Blocks of the row that the inode occupies.
    pub(crate) len: u64,
}

/// The content to lay out.
pub(crate) struct Content<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) shape: Shape,
    /// The blocks of each directory (none if it is inline), and whether it is indexed.
    pub(crate) directories: Cow<'a, [(u64, bool)]>,
    pub(crate) homes: Cow<'a, Homes>,
}

impl<'a> Content<'a> {
    /// Computes the size of all directories.
    pub(crate) fn new(tree: &'a Tree, shape: Shape, homes: Homes, threads: usize) -> Result<Self> {
        let sizes: Vec<AtomicU64> = tree.directories.iter().map(|_| AtomicU64::new(0)).collect();
        parallel::each(
            threads,
            sizes.len().div_ceil(64),
            || (),
            |(), part| {
                let some = tree.directories.iter().zip(&sizes).enumerate().skip(part * 64).take(64);
                for (number, (directory, size)) in some {
                    if directory.own.is_some_and(|id| inline::is_inline(tree, &shape, id)) {
                        continue;
                    }
                    let names = names(directory, number == 0);
                    let plan = WholeDirectory::plan(&names, shape.directories, shape.indexing);
                    let Some(plan) = plan else {
                        let own = directory.own.map(|id| tree.path(id)).unwrap_or_default();
                        return Err(Error::Refused {
                            path: tree.host_path(&own),
                            reason: format!(
                                "its {} names are more than a directory can hold with blocks of {} bytes; ask for -O large_dir, or larger blocks",
                                directory.nodes.len(),
                                shape.block_size
                            ),
                        });
                    };
                    // Relaxed is enough: the threads are joined before the sizes are read.
                    size.store(plan.blocks() << 1 | u64::from(plan.is_indexed()), Ordering::Relaxed);
                }
                Ok(())
            },
        )?;
        let sizes = sizes.into_iter().map(AtomicU64::into_inner);
        let directories = sizes.map(|size| (size >> 1, size & 1 == 1)).collect();
        Ok(Self { tree, shape, directories, homes: Cow::Owned(homes) })
    }

    /// Whether the content of an inode is inline.
    pub(crate) fn is_inline(&self, id: NodeId) -> bool {
        inline::is_inline(self.tree, &self.shape, id)
    }

    /// The ranges of a file's blocks that are not holes. They are rounded to whole clusters, but do
    /// not go beyond the end of the file.
    pub(crate) fn logical(&self, id: NodeId) -> Vec<Range<u64>> {
        let (tree, shape) = (self.tree, &self.shape);
        if self.is_inline(id) {
            return Vec::new();
        }
        let node = tree.node(id);
        let whole = |len: u64| (len > 0).then_some(0..len).into_iter().collect();
        match node.kind {
            FileType::Directory => whole(self.directories[usize_from_u32(node.directory)].0),
            FileType::Symlink if !node.is_fast_symlink() => whole(1),
            FileType::Regular => match tree.directory(id.directory).data(id.child) {
                None => whole(shape.blocks(node.size)),
                Some(ranges) => self.clusters_of(ranges, shape.blocks(node.size)),
            },
            _ => Vec::new(),
        }
    }

    /// The whole clusters that byte ranges touch, up to the end of the file.
    fn clusters_of(&self, ranges: &[Range<u64>], end: u64) -> Vec<Range<u64>> {
        let bytes = self.shape.block_size * self.shape.cluster;
        let mut blocks: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            let start = range.start / bytes * self.shape.cluster;
            let stop = (range.end.div_ceil(bytes) * self.shape.cluster).min(end);
            match blocks.last_mut() {
                Some(last) if last.end >= start => last.end = last.end.max(stop),
                _ => blocks.push(start..stop),
            }
        }
        blocks
    }

    /// Lays out one inode's blocks from a position in the row: first the attribute block that it
    /// owns, then extent tree nodes or indirect blocks, then the data.
    pub(crate) fn place(&self, space: &Space, id: Option<NodeId>, at: u64) -> Blocks {
        let logical = match id {
            Some(id) => self.logical(id),
            None => std::iter::once(0..self.directories[0].0).collect(),
        };
        self.place_ranges(space, &logical, self.homes.owns_block(id), at)
    }

    /// Lays out the blocks of a value inode.
    pub(crate) fn place_value(&self, space: &Space, value: usize, at: u64) -> Blocks {
        let blocks = self.shape.blocks(u64_from_usize(self.homes.values[value].bytes.len()));
        self.place_ranges(space, std::slice::from_ref(&(0..blocks)), false, at)
    }

    fn place_ranges(&self, space: &Space, logical: &[Range<u64>], owns_block: bool, at: u64) -> Blocks {
        let cluster = self.shape.cluster;
        let mut next = at;
        let mut take = |len: u64| {
            let taken = next;
            next += len.next_multiple_of(cluster);
            taken
        };
        let first = |place: u64| space.pieces(place..place + 1).next().map_or(0, |(block, _)| block);
        let attributes = owns_block.then(|| first(take(1)));
        let data = next;
        let mut nodes = 0;
        loop {
            let from = data + u64_from_usize(nodes) * cluster;
            let (mut runs, end) = self.runs(space, logical, from);
            let nodes_for =
                |runs: &[Run]| self.shape.mapping.nodes_for(logical, runs.len(), self.shape.block_size);
            let needed = nodes_for(&runs);
            if needed <= nodes {
                // The nodes precede the data, so their number decides where the data lies. Behind
                // this many nodes, the data may have so few runs that fewer nodes would be enough.
                // But behind fewer nodes, the data had more runs. So keep the nodes, and split runs
                // until all nodes are needed.
                while nodes_for(&runs) < nodes {
                    cut_longest(&mut runs, cluster);
                }
                let nodes = (0..u64_from_usize(nodes)).map(|node| first(data + node * cluster)).collect();
                return Blocks { runs, nodes, attributes, data_at: from, len: end - at };
            }
            nodes = needed;
        }
    }

    /// The extents of a file's data from a position in the row, and the position after them.
    fn runs(&self, space: &Space, logical: &[Range<u64>], from: u64) -> (Vec<Run>, u64) {
        let longest = EXTENT_MAX / self.shape.cluster * self.shape.cluster;
        let mut runs = Vec::new();
        let mut at = from;
        for range in logical {
            let mut block = range.start;
            for (mut place, mut len) in space.pieces(at..at + (range.end - range.start)) {
                while len > 0 {
                    let part = len.min(longest);
                    runs.push(Run { logical: block, physical: place, len: part });
                    (block, place, len) = (block + part, place + part, len - part);
                }
            }
            at += (range.end - range.start).next_multiple_of(self.shape.cluster);
        }
        (runs, at)
    }
}

/// Splits the first cluster off the longest run.
fn cut_longest(runs: &mut Vec<Run>, cluster: u64) {
    let longest = (0..runs.len()).max_by_key(|&at| runs[at].len);
    let Some(at) = longest.filter(|&at| runs[at].len > cluster) else {
        unreachable!("an earlier attempt had more runs, each with a cluster");
    };
    let run = &mut runs[at];
    let len = run.len - cluster;
    let behind = Run { logical: run.logical + cluster, physical: run.physical + cluster, len };
    run.len = cluster;
    runs.insert(at + 1, behind);
}

/// The numbers of blocks by what they hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kinds {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    /// Extent tree nodes and indirect blocks.
    pub(crate) maps: u64,
    /// Attribute blocks, and values in inodes of their own.
    pub(crate) attributes: u64,
}

impl Kinds {
    /// Adds the blocks of one inode, whose data counts as kind `of`. Returns their number.
    fn add(&mut self, blocks: &Blocks, cluster: u64, of: impl FnOnce(&mut Self) -> &mut u64) -> u64 {
        let attributes = if blocks.attributes.is_some() { cluster } else { 0 };
        let maps = u64_from_usize(blocks.nodes.len()) * cluster;
        self.attributes += attributes;
        self.maps += maps;
        *of(self) += blocks.len - attributes - maps;
        blocks.len
    }
}

/// The positions of all content.
pub(crate) struct Placed {
    /// The position of each inode's content in the row: the root first, attribute values last.
    pub(crate) places: Vec<u64>,
    /// Blocks of the row that are occupied.
    pub(crate) taken: u64,
    pub(crate) kinds: Kinds,
}

/// Lays out all content.
pub(crate) fn place_all(content: &Content<'_>, order: &Order, space: &Space, placement: Placement) -> Placed {
    let places = vec![0; order.inodes.len() + 1 + content.homes.values.len()];
    let placed = Placed { places, taken: 0, kinds: Kinds::default() };
    let mut placing = Placing { content, order, space, placed };
    let (ahead, rest) = order.files.split_at(order.ahead);
    if placement == Placement::WithDirectories {
        placing.files(ahead);
        // The files are sorted by their directories.
        let mut rest = rest.chunk_by(|&one, &next| order.directory_of(one) == order.directory_of(next));
        let mut next = rest.next();
        for &number in &order.directories {
            placing.directory(number);
            if let Some(files) = next.take_if(|files| order.directory_of(files[0]) == number) {
                placing.files(files);
                next = rest.next();
            }
        }
    } else {
        // Directories come first, so that a walk of the tree reads them sequentially.
        order.directories.iter().for_each(|&number| placing.directory(number));
        placing.files(&order.files);
    }
    placing.values()
}

/// The layout while it is made.
struct Placing<'a> {
    content: &'a Content<'a>,
    order: &'a Order,
    space: &'a Space,
    placed: Placed,
}

impl Placing<'_> {
    fn directory(&mut self, number: u32) {
        let id = self.content.tree.directory(number).own;
        let index =
            id.map_or(0, |id| usize_from_u32(self.content.tree.node(id).inode - self.order.first) + 1);
        let Placed { places, taken, kinds } = &mut self.placed;
        places[index] = *taken;
        let blocks = self.content.place(self.space, id, *taken);
        *taken += kinds.add(&blocks, self.content.shape.cluster, |kinds| &mut kinds.directories);
    }

    fn files(&mut self, files: &[u32]) {
        let Placed { places, taken, kinds } = &mut self.placed;
        for index in files.iter().map(|&index| usize_from_u32(index)) {
            let id = self.order.inodes[index];
            places[index + 1] = *taken;
            *taken += match quick_len(self.content, id) {
                Some(len) => {
                    kinds.files += len;
                    len
                }
                None => {
                    let blocks = self.content.place(self.space, Some(id), *taken);
                    kinds.add(&blocks, self.content.shape.cluster, |kinds| &mut kinds.files)
                }
            };
        }
    }

    /// Lays out attribute values, which come last.
    fn values(mut self) -> Placed {
        let Placed { places, taken, kinds } = &mut self.placed;
        for (value, place) in places[self.order.inodes.len() + 1..].iter_mut().enumerate() {
            *place = *taken;
            let blocks = self.content.place_value(self.space, value, *taken);
            *taken += kinds.add(&blocks, self.content.shape.cluster, |kinds| &mut kinds.attributes);
        }
        self.placed
    }
}

/// The number of blocks of an inode that needs no extent tree node, wherever its data lies. Returns
/// `None` if the inode may need such a node, has holes, or owns an attribute block.
fn quick_len(content: &Content<'_>, id: NodeId) -> Option<u64> {
    let node = content.tree.node(id);
    if content.is_inline(id) {
        return Some(0);
    }
    if content.homes.owns_block(Some(id)) || content.tree.directory(id.directory).data(id.child).is_some() {
        return None;
    }
    let len = match node.kind {
        FileType::Regular => content.shape.blocks(node.size),
        FileType::Symlink if !node.is_fast_symlink() => 1,
        _ => 0,
    };
    // There are no more extents than blocks, and the inode holds four.
    (len <= 4).then(|| len.next_multiple_of(content.shape.cluster))
}
