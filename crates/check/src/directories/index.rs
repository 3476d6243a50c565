//! The index of one directory: root and nodes read top-down, and what they say about every block.

use std::collections::{BTreeMap, HashMap};

use blockyard_disk::checksum::verify_htree;
use blockyard_disk::dirblock::decode_rec_len;
use blockyard_disk::dirhash::{DirHasher, HashVersion};
use blockyard_disk::htree::{CONTINUES, HtreeDefect, Index, IndexKind, RootInfo};
use blockyard_disk::num::{u32_from_u64, u32_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, Incompat};

use super::fetch::Window;
use super::{Visit, physical, runs_len};
use crate::code::Code;
use crate::finding::{Finding, Sink, Site};
use crate::map::Run;

/// The end of a finding's detail: e2fsck drops the index at this fault before it has read all index
/// nodes, and then takes the unread ones for leaves.
pub(crate) const NODES_BEHIND: &str = "index nodes lie behind it";

/// Hashes that a block may hold, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) low: u32,
    /// Above this, Linux looks in another leaf.
    pub(super) high: u32,
    /// e2fsck accepts hashes up to this one, which is the key of the next leaf. In the last leaf of
    /// a node it accepts every hash that is not above the lowest hash of the next node
    /// ([`DirIndex::check_spans`]).
    pub(super) tolerated: u32,
    /// The node that refers to the block, counted from the left.
    pub(super) node: u32,
}

/// What a block is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// A block whose names are not compared with an index: the directory has no index, some part of
    /// the index cannot be read, or the hash that the index uses is not computed.
    Linear,
    /// The root: only `.` and `..` are names.
    Root,
    /// An index node: no names.
    Node,
    /// A leaf with names in these bounds.
    Leaf(DirHasher, Bounds),
    /// A block that the index does not refer to.
    Unreferenced,
}

/// What the index says about the blocks of its directory.
pub(super) struct DirIndex {
    hasher: Option<DirHasher>,
    nodes: HashMap<u64, ()>,
    leaves: HashMap<u64, Bounds>,
    /// The logical blocks of the nodes that refer to leaves, from the left; only the root's if
    /// there are no other nodes.
    lowest: Vec<u64>,
    /// Whether some part could not be read. Then unreferenced blocks are not reported.
    damaged: bool,
    /// Faults of root and nodes that make e2fsck drop the index, with the logical block of each.
    dropping: Vec<(u64, Finding)>,
}

impl DirIndex {
    /// Reports the faults of root and nodes, once it is known which nodes there are. The detail of
    /// a fault ends with [`NODES_BEHIND`] if e2fsck has not read all nodes when it finds the fault:
    /// it reads the root first, then blocks by their position.
    fn report_faults(&mut self, runs: &[Run], levels: u8, sink: &mut Sink) {
        let places: Vec<BlockNr> = self.nodes.keys().filter_map(|&node| physical(runs, node)).collect();
        for (logical, mut fault) in std::mem::take(&mut self.dropping) {
            let behind = match fault.site.block {
                Some(block) if logical > 0 => places.iter().any(|place| *place > block),
                // The root comes first, wherever it lies.
                _ => levels > 0,
            };
            if behind {
                let separator = if fault.detail.is_empty() { "" } else { "; " };
                fault.detail = format!("{}{separator}{NODES_BEHIND}", fault.detail);
            }
            sink.add(fault.code, fault.site, fault.detail);
        }
    }

    /// Records a fault of the root or a node.
    fn fault(&mut self, logical: u64, code: Code, site: Site, detail: String) {
        self.dropping.push((logical, Finding { pass: code.pass(), site, code, detail, path: None }));
    }

    pub(super) fn role(&self, logical: u64) -> Role {
        if logical == 0 {
            return Role::Root;
        }
        if self.nodes.contains_key(&logical) {
            return Role::Node;
        }
        match (self.leaves.get(&logical), self.hasher) {
            (Some(bounds), Some(hasher)) => Role::Leaf(hasher, *bounds),
            (Some(_), None) => Role::Linear,
            (None, _) if self.damaged => Role::Linear,
            (None, _) => Role::Unreferenced,
        }
    }

    /// Compares neighbouring nodes: the highest hash below one must not exceed the lowest hash
    /// below the next. The keys do not ensure that: a node's key is only a lower bound for its
    /// hashes.
    pub(super) fn check_spans(&self, visit: &Visit<'_, '_>, spans: &Spans, sink: &mut Sink) {
        let spans: Vec<_> = spans.iter().collect();
        for pair in spans.windows(2) {
            let ((node, (_, highest)), (_, (lowest, _))) = (pair[0], pair[1]);
            if highest > lowest {
                let logical = self.lowest.get(usize_from_u32(*node)).copied().unwrap_or_default();
                let detail = format!("{highest:#010x} above {lowest:#010x} of the next node");
                sink.add(Code::HTREE_ABOVE_MAXIMUM, visit.site().at_logical(logical), detail);
            }
        }
    }
}

/// The lowest and the highest hash of the names below each node, by the node's number from the
/// left.
pub(super) type Spans = BTreeMap<u32, (u32, u32)>;

/// What a block is for when the index cannot be read, judged by its bytes. Block 0 is always the
/// root.
pub(super) fn role_without_index(visit: &Visit<'_, '_>, logical: u64, bytes: &[u8]) -> Role {
    let size = visit.volume.block_size();
    let rec_len = decode_rec_len(u16::from_le_bytes([bytes[4], bytes[5]]), size);
    // Without checksums an empty leaf looks the same; it holds no names either.
    let node = bytes[..4] == [0; 4] && rec_len == size && bytes[6] == 0;
    match logical {
        0 => Role::Root,
        _ if node => Role::Node,
        _ => Role::Linear,
    }
}

/// An index block to be read.
struct Pending {
    logical: u64,
    levels_below: u8,
    bounds: Bounds,
}

/// Reads the index of a directory; `None` when its root is unusable, which is reported.
pub(super) fn read(
    visit: &Visit<'_, '_>,
    window: &mut Window<'_, '_>,
    runs: &[Run],
    sink: &mut Sink,
) -> Option<DirIndex> {
    let largedir = visit.volume.incompat.contains(Incompat::LARGE_DIR);
    let place = physical(runs, 0)?;
    let root = window.block(place, 0).ok()?;
    let site = visit.site().at_logical(0).at_block(place);
    let info = match RootInfo::verify(root, &visit.layout, largedir) {
        Ok(info) => info,
        Err(defect) => {
            sink.add(root_code(defect), site, defect.to_string());
            if verify_htree(visit.fact.seed, root, IndexKind::Root.entries_at()).is_err() {
                sink.add(Code::HTREE_ROOT_CHECKSUM, site, "");
            }
            return None;
        }
    };
    let wants_siphash = visit.fact.casefold && visit.fact.encrypted;
    match (info.hash_version == HashVersion::SIPHASH_RAW, wants_siphash) {
        (true, false) => sink.add(Code::HTREE_SIPHASH, site, ""),
        (false, true) => sink.add(Code::HTREE_SIPHASH_MISSING, site, ""),
        _ => {}
    }
    let mut index = DirIndex {
        hasher: if visit.fact.casefold { None } else { visit.hasher(info.hash_version) },
        nodes: HashMap::new(),
        leaves: HashMap::new(),
        lowest: Vec::new(),
        damaged: false,
        dropping: Vec::new(),
    };
    let all = Bounds { low: 0, high: u32::MAX, tolerated: u32::MAX, node: 0 };
    let first = Pending { logical: 0, levels_below: info.indirect_levels, bounds: all };
    let blocks = u32_from_u64(runs_len(runs).min(u64::from(u32::MAX)));
    let mut pending = vec![first];
    // The loop ends, because every block is pushed at most once.
    while let Some(next) = pending.pop() {
        let bytes = physical(runs, next.logical).and_then(|place| {
            let bytes = window.block(place, 0).ok()?;
            Some((bytes, visit.site().at_logical(next.logical).at_block(place)))
        });
        let Some((bytes, site)) = bytes else {
            index.damaged = true;
            sink.add(Code::HTREE_OUTSIDE, visit.site().at_logical(next.logical), "");
            continue;
        };
        read_block(visit, (bytes, site), blocks, &next, &mut index, &mut pending, sink);
    }
    index.report_faults(runs, info.indirect_levels, sink);
    Some(index)
}

fn read_block(
    visit: &Visit<'_, '_>,
    (bytes, site): (&[u8], Site),
    blocks: u32,
    at: &Pending,
    index: &mut DirIndex,
    pending: &mut Vec<Pending>,
    sink: &mut Sink,
) {
    let kind = if at.logical == 0 { IndexKind::Root } else { IndexKind::Node };
    if verify_htree(visit.fact.seed, bytes, kind.entries_at()).is_err() {
        let root = kind == IndexKind::Root;
        let code = if root { Code::HTREE_ROOT_CHECKSUM } else { Code::HTREE_NODE_CHECKSUM };
        index.fault(at.logical, code, site, String::new());
    }
    let parsed = match Index::parse(bytes, kind, &visit.layout, blocks) {
        Ok(parsed) => parsed,
        Err(defect) => {
            index.damaged = true;
            return index.fault(at.logical, node_code(defect), site, defect.to_string());
        }
    };
    let entries: Vec<_> = parsed.entries().collect();
    let node = u32_from_usize(index.lowest.len());
    if at.levels_below == 0 {
        index.lowest.push(at.logical);
    }
    debug_assert!(index.lowest.len() <= index.nodes.len() + 1, "more nodes above leaves than nodes");
    let first_pending = pending.len();
    for (nth, entry) in entries.iter().enumerate() {
        let low = if nth == 0 { at.bounds.low } else { entry.key & !CONTINUES };
        let (high, tolerated) = match entries.get(nth + 1).map(|entry| entry.key) {
            None => (at.bounds.high, u32::MAX),
            Some(key) if key & CONTINUES == 0 => (key.saturating_sub(1), key),
            Some(key) => (key & !CONTINUES, key & !CONTINUES),
        };
        let bounds = Bounds { low, high, tolerated, node };
        let logical = u64::from(entry.block);
        if index.leaves.contains_key(&logical) || index.nodes.contains_key(&logical) {
            sink.add(Code::HTREE_TWICE, site.at_logical(logical), "");
        } else if at.levels_below == 0 {
            index.leaves.insert(logical, bounds);
        } else {
            let earlier = index.nodes.insert(logical, ());
            assert!(earlier.is_none(), "node {logical} is read twice");
            pending.push(Pending { logical, levels_below: at.levels_below - 1, bounds });
        }
    }
    // `pending` is a stack: reverse the new nodes, so that the leftmost one is read next.
    pending[first_pending..].reverse();
}

fn root_code(defect: HtreeDefect) -> Code {
    match defect {
        HtreeDefect::HashVersion(_) => Code::HTREE_VERSION,
        HtreeDefect::Flags(_) => Code::HTREE_FLAGS,
        HtreeDefect::Levels(_) => Code::HTREE_DEPTH,
        _ => Code::HTREE_ROOT_STRUCTURE,
    }
}

fn node_code(defect: HtreeDefect) -> Code {
    match defect {
        HtreeDefect::Limit(_) => Code::HTREE_LIMIT,
        HtreeDefect::Count(_) => Code::HTREE_COUNT,
        HtreeDefect::Order(_) => Code::HTREE_ORDER,
        HtreeDefect::Block(_) => Code::HTREE_OUTSIDE,
        HtreeDefect::NodeHeader => Code::HTREE_LEAF_DEPTH,
        _ => Code::HTREE_ROOT_STRUCTURE,
    }
}
