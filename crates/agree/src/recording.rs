//! A recording as JSON Lines: every input that the kernel's block allocator saw in one run, and
//! what it decided.
//!
//! A recording is self-contained. [`Image`] (the first line) describes the file system, its
//! tunables and every free extent at the start. The events follow in the order in which they
//! happened in the kernel. [`End`] (the last line) holds the kernel's own view of the groups after
//! the run. A recording can be replayed without root and without the kernel.
//!
//! | line (`"t"`) | what it is |
//! |---|---|
//! | `image` | [`Image`] |
//! | `req` | [`Request`]: one block request, inputs and outcome |
//! | `drop` | [`DropInode`]: all preallocations of an inode are released (close, truncate, eviction ...) |
//! | `free` | [`Free`]: clusters freed in one group |
//! | `inode` | [`NewInode`]: an inode was created, so its group's block bitmap is no longer uninitialised |
//! | `commit` | [`Commit`]: a transaction is durable, so what it freed may be reused |
//! | `delayed` | [`Delayed`]: the number of reserved but unallocated clusters changed |
//! | `end` | [`End`] |
//!
//! Where the inputs come from:
//!
//! - Length, logical block, goal, neighbours, flags, inode and CPU: from the tracepoints.
//! - Transaction of a free: from the handle that the same thread started or restarted last.
//! - File size: from the write-end tracepoints, and from the load generator, which reports the size
//!   after each operation that can change it.
//! - Whether a writer has the file open: from the load generator's opens and closes.
//!
//! No input is derived from the outcome.

use std::io::{BufRead, Write};

use anyhow::{Context, bail};
use blockyard_lab::figures::states::FRESH;
use serde::{Deserialize, Serialize};

/// Version of the format, in every [`Image`] line.
pub const FORMAT: u32 = 2;

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Line {
    /// The file system at the start.
    Image(Box<Image>),
    /// A block request.
    Req(Request),
    /// The preallocations of an inode were released.
    Drop(DropInode),
    /// Clusters were freed.
    Free(Free),
    /// An inode was created.
    Inode(NewInode),
    /// A transaction became durable.
    Commit(Commit),
    /// The number of reserved but unallocated clusters changed.
    Delayed(Delayed),
    /// The file system at the end.
    End(Box<End>),
}

/// The file system at the start of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the load.
    pub load: String,
    /// Name of the image kind.
    pub image: String,
    /// State at the start: `fresh`, or the ageing of the image. A recording without this field was
    /// made on a fresh image.
    #[serde(default = "fresh")]
    pub state: String,
    /// Seed of the ageing and of the load.
    pub seed: u64,
    /// Release of the kernel that was recorded.
    pub kernel: String,
    /// log2 of the block size.
    pub block_bits: u32,
    /// log2 of blocks per cluster.
    pub cluster_ratio_bits: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// First data block.
    pub first_data_block: u64,
    /// Clusters in a group.
    pub clusters_per_group: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Bytes of an inode.
    pub inode_size: u16,
    /// log2 of groups in a flex group.
    pub flex_bits: u32,
    /// Whether files are mapped by extents (otherwise by indirect blocks).
    pub extents: bool,
    /// Whether there is a journal.
    pub journal: bool,
    /// Blocks reserved for root.
    pub root_blocks: u64,
    /// `reserved_clusters` of sysfs.
    pub reserved_clusters: u64,
    /// One more than the highest number of a possible CPU.
    pub possible_cpus: u32,
    /// `mb_optimize_scan` as the kernel reports it.
    pub optimize_scan: bool,
    /// Stripe in blocks, 0 for none.
    pub stripe: u32,
    /// The `mb_*` files of sysfs.
    pub tunables: Tunables,
    /// Free extents of every group: (first cluster, clusters), ascending.
    pub free: Vec<Vec<(u32, u32)>>,
    /// Whether the kernel read groups on demand. Otherwise it had read all of them when the load
    /// started.
    pub lazy: bool,
    /// Groups whose block bitmap was never written, ascending.
    pub block_uninit: Vec<u32>,
}

fn fresh() -> String {
    FRESH.to_owned()
}

/// The allocator's tunables, as `/sys/fs/ext4/<dev>/` gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// Candidates after which the search stops.
    pub max_to_scan: u32,
    /// Candidates after which a sufficient one is accepted.
    pub min_to_scan: u32,
    /// Smallest `log2(length) + 1` for which the power-of-two criterion is used.
    pub order2_req: u32,
    /// Files up to this many blocks are small.
    pub stream_req: u32,
    /// Clusters of a locality preallocation.
    pub group_prealloc: u32,
    /// Groups visited linearly before the index is used.
    pub max_linear_groups: u32,
    /// How many orders the best-available criterion trims at most.
    pub best_avail_max_trim_order: u32,
}

/// A position and a length, as the kernel prints them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot(
    /// Group.
    pub u32,
    /// Offset of the first cluster in the group; -1 for none.
    pub i32,
    /// Number of clusters.
    pub u32,
    /// Logical block.
    pub u32,
);

/// One block request and its outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Inode number.
    pub ino: u32,
    /// CPU the request ran on.
    pub cpu: u32,
    /// Number of clusters requested, before admission. Without bigalloc, a cluster is one block.
    pub len: u32,
    /// First logical block.
    pub log: u32,
    /// Goal block.
    pub goal: u64,
    /// The left neighbour's last logical block, and its physical block; physical 0 for none.
    pub left: (u32, u64),
    /// The right neighbour's first logical block, and its physical block; physical 0 for none.
    pub right: (u32, u64),
    /// Request flags of the kernel.
    pub flags: u32,
    /// File size in bytes when the request was made.
    pub size: u64,
    /// Whether somebody has the file open for writing.
    pub open: bool,
    /// What the kernel did.
    pub did: Outcome,
}

/// What the kernel did with a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How the request was served.
    pub via: Via,
    /// The request after admission and clamping.
    pub orig: Spot,
    /// The goal when the search ended (searches only). Normalisation, the stream goal and trimming
    /// may have changed it.
    pub goal: Spot,
    /// What was found (searches) or taken (preallocations).
    pub result: Spot,
    /// Number of candidates, modulo 65,536.
    pub found: u16,
    /// Number of groups scanned, modulo 65,536.
    pub groups: u16,
    /// Number of the criterion, 0 to 4; 5 when all were exhausted.
    pub cr: u8,
    /// Request flags at the end.
    pub flags: u32,
    /// First block, first logical block and clusters of the new preallocation, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<(u64, u64, u32)>,
    /// First block allocated.
    pub block: u64,
    /// Clusters allocated.
    pub len: u32,
}

/// How a request was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Not served, and no search was made: no space.
    #[default]
    Failed,
    /// From a preallocation that existed.
    Prealloc,
    /// By a search, or not at all because the search found nothing.
    Search,
}

/// Preallocations of one inode are released.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropInode {
    /// Inode number.
    pub ino: u32,
    /// What the kernel released, in its order: first block, clusters.
    pub released: Vec<(u64, u32)>,
}

/// Clusters of one group are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Free {
    /// Inode number.
    pub ino: u32,
    /// Group.
    pub group: u32,
    /// First cluster in the group.
    pub start: u32,
    /// Clusters.
    pub len: u32,
    /// The transaction whose commit makes them reusable; `None` if they can be reused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
}

/// An inode is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInode {
    /// Inode number.
    pub ino: u32,
}

/// A transaction is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Transaction id.
    pub tid: u32,
}

/// The number of reserved but unallocated clusters changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delayed {
    /// The change, in clusters.
    pub delta: i64,
}

/// The kernel's view at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// `mb_groups`, for each group: free clusters, fragments, first free cluster, then the number
    /// of chunks of each order.
    pub groups: Vec<Vec<u32>>,
    /// From `mb_structs_summary`: for each order, the number of groups whose largest free chunk is
    /// of that order.
    pub largest: Vec<u32>,
    /// From `mb_structs_summary`: for each order, the number of groups whose average fragment is of
    /// that order.
    pub average: Vec<u32>,
    /// The lines of `mb_stats`, as the kernel prints them.
    pub stats: Vec<String>,
    /// Number of requests that began while a request of another thread was open. A failed request
    /// counts as open until its thread requests, releases or frees something. If the number is not
    /// 0, the recorded order of events may be wrong.
    pub overlaps: u32,
}

/// A whole recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The first line.
    pub image: Image,
    /// The events.
    pub events: Vec<Line>,
    /// The last line.
    pub end: End,
}

impl Recording {
    /// Writes JSON Lines.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let mut put = |line: &Line| -> anyhow::Result<()> {
            serde_json::to_writer(&mut *out, line)?;
            out.write_all(b"\n")?;
            Ok(())
        };
        put(&Line::Image(Box::new(self.image.clone())))?;
        self.events.iter().try_for_each(&mut put)?;
        put(&Line::End(Box::new(self.end.clone())))
    }

    /// Reads JSON Lines.
    ///
    /// # Errors
    /// When the input cannot be read, a line does not follow the format (the error gives its
    /// number), the first or last line is missing, or the format is not [`FORMAT`].
    pub fn read(input: impl BufRead) -> anyhow::Result<Self> {
        let (mut image, mut end, mut events) = (None, None, Vec::new());
        for (index, text) in input.lines().enumerate() {
            let line =
                serde_json::from_str(&text?).with_context(|| format!("recording, line {}", index + 1))?;
            match line {
                Line::Image(first) => image = Some(*first),
                Line::End(last) => end = Some(*last),
                event => events.push(event),
            }
        }
        let image: Image = image.context("recording has no `image` line")?;
        if image.format != FORMAT {
            bail!("recording has format {}, this program reads {FORMAT}", image.format);
        }
        Ok(Self { image, events, end: end.context("recording has no `end` line: it was cut")? })
    }

    /// The block requests.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.events.iter().filter_map(|line| match line {
            Line::Req(request) => Some(request),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_survives_its_text_form() {
        let recording = Recording {
            image: Image { format: FORMAT, free: vec![vec![(5, 7)], vec![]], ..Image::default() },
            events: vec![
                Line::Req(Request {
                    ino: 12,
                    did: Outcome { new: Some((1, 2, 3)), ..Outcome::default() },
                    ..Request::default()
                }),
                Line::Free(Free { ino: 12, group: 1, start: 2, len: 3, tid: Some(4) }),
                Line::Inode(NewInode { ino: 13 }),
                Line::Commit(Commit { tid: 4 }),
                Line::Drop(DropInode { ino: 12, released: vec![(9, 1)] }),
                Line::Delayed(Delayed { delta: -2 }),
            ],
            end: End { groups: vec![vec![1, 2, 3]], ..End::default() },
        };
        let mut text = Vec::new();
        recording.write(&mut text).unwrap();
        assert_eq!(Recording::read(text.as_slice()).unwrap(), recording);
        // Earlier versions wrote no state.
        let aged = Image { state: "mail:9".to_owned(), ..recording.image.clone() };
        let mut line = serde_json::to_value(Line::Image(Box::new(aged))).unwrap();
        let read = |line: &serde_json::Value| match serde_json::from_value(line.clone()).unwrap() {
            Line::Image(image) => image.state,
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&line), "mail:9");
        line.as_object_mut().unwrap().remove("state");
        assert_eq!(read(&line), "fresh");
        let cut = text.split(|&byte| byte == b'\n').next().unwrap();
        assert!(Recording::read(cut).unwrap_err().to_string().contains("cut"));
    }
}
