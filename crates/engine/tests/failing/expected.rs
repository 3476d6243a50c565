//! What a directory may hold: a model of the operations, and every state that an error leaves
//! possible.
//!
//! An operation that ended with an error has either happened or not, so both states stay possible.
//! Each byte of the file that it changes has the value from one of these states.
//!
//! If data could not be written, or if the image was not closed cleanly, unsynced data may be lost.
//! Under `data=writeback` freed blocks are reused at once, as in Linux. If such an image was not
//! closed cleanly, recovery may undo a truncation or removal, and the file may then hold what
//! others wrote into its blocks.

use super::images::Image;
use super::operations::Op;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One file of any kind, in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// `moved`: how often a collapse or an insertion moved the content. A file never holds bytes
    /// from before such a move together with bytes from after it.
    File {
        bytes: Vec<u8>,
        moved: u32,
    },
    Directory,
    Symlink(usize),
    Fifo,
}

/// What a directory holds: paths, and the nodes that they name. Methods return `None` for what is
/// impossible in this state, such as a change of a file that does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) names: BTreeMap<String, u32>,
    pub(crate) nodes: BTreeMap<u32, Arc<Node>>,
    /// The number of the next node. It is the number of the operation that creates it, so it is the
    /// same in all states.
    next: u32,
}

impl State {
    pub(crate) fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(self.names.get(path)?).map(|node| &**node)
    }

    pub(crate) fn bytes(&self, path: &str) -> Option<&Vec<u8>> {
        match &self.node(path)?.body {
            Body::File { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Adds a node under a path. `None` if the path is taken.
    pub(crate) fn add(&mut self, path: &str, body: Body) -> Option<()> {
        if self.names.contains_key(path) {
            return None;
        }
        self.check_parent(path)?;
        self.names.insert(path.to_owned(), self.next);
        self.nodes.insert(self.next, Arc::new(Node { body, xattrs: BTreeMap::new() }));
        Some(())
    }

    /// Checks that the directory of a path exists and is a directory.
    pub(crate) fn check_parent(&self, path: &str) -> Option<()> {
        let Some((parent, _)) = path.split_once('/') else { return Some(()) };
        self.is_directory(parent)?.then_some(())
    }

    pub(crate) fn is_directory(&self, path: &str) -> Option<bool> {
        Some(self.node(path)?.body == Body::Directory)
    }

    pub(crate) fn has_names_in(&self, path: &str) -> bool {
        self.names.keys().any(|name| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    }

    pub(crate) fn change(&mut self, path: &str) -> Option<&mut Node> {
        self.nodes.get_mut(self.names.get(path)?).map(Arc::make_mut)
    }

    /// The content of a file and how often it was moved.
    pub(crate) fn file(&mut self, path: &str) -> Option<(&mut Vec<u8>, &mut u32)> {
        match &mut self.change(path)?.body {
            Body::File { bytes, moved } => Some((bytes, moved)),
            _ => None,
        }
    }

    /// Removes a name, and its node if that was the node's last name.
    pub(crate) fn drop_name(&mut self, path: &str) -> Option<u32> {
        let id = self.names.remove(path)?;
        if !self.names.values().any(|other| *other == id) {
            self.nodes.remove(&id);
        }
        Some(id)
    }
}

/// What was observed of one node.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) inode: u32,
    pub(crate) body: Body,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What was observed of a directory, by path.
pub(crate) type View = BTreeMap<String, Seen>;

/// What may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Nothing.
    None,
    /// Written data that could not be stored.
    Data,
    /// Everything that was not synced.
    All,
}

/// Everything that a directory may hold, given the operations and their results.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// The possible present states.
    now: Vec<State>,
    /// All states since the last sync, including the state that the sync made durable.
    since_sync: Vec<State>,
    /// Whether data could not be written.
    lost_data: bool,
    /// Nodes whose size may lie between the sizes in the states, because an operation that works
    /// piece by piece failed partway.
    between: BTreeSet<u32>,
    /// Operations so far.
    noted: u32,
    /// Whether writes go folio by folio.
    by_folio: bool,
    /// Whether freed blocks may be reused by another file before the free is durable.
    reuses_at_once: bool,
}

impl Expected {
    /// For an empty directory on a kind of image.
    pub(crate) fn empty(image: &Image) -> Self {
        let (now, since_sync) = (vec![State::default()], vec![State::default()]);
        Self {
            now,
            since_sync,
            lost_data: false,
            between: BTreeSet::new(),
            noted: 0,
            by_folio: image.writes_by_folio(),
            reuses_at_once: image.reuses_at_once(),
        }
    }

    /// Whether an operation can be done in each possible state, and its effect is known. The effect
    /// of an append is not known if the file's size may lie between those of two states.
    pub(crate) fn allows(&self, op: &Op) -> bool {
        let is_known = |state: &State| {
            let id = state.names.get(op.path());
            !matches!(op, Op::Append { .. }) || id.is_none_or(|id| !self.between.contains(id))
        };
        self.now.iter().all(|state| op.after(state).is_some() && is_known(state))
    }

    /// Notes an operation and its result: either it happened, or it failed because a call of the
    /// device failed.
    pub(crate) fn note(&mut self, op: &Op, happened: bool) {
        self.noted += 1;
        self.now.iter_mut().for_each(|state| state.next = self.noted);
        let after: Vec<State> = self.now.iter().filter_map(|state| op.after(state)).collect();
        if !happened {
            self.lost_data |= op.stores_data();
            if op.goes_in_pieces(self.by_folio) {
                let ids = self.now.iter().filter_map(|state| state.names.get(op.path()));
                self.between.extend(ids.copied().collect::<Vec<_>>());
            }
            self.now.extend(after.clone());
        } else {
            self.now = after.clone();
        }
        if let Op::Unnamed { name, .. } = *op {
            // A crash may leave the name without its content, which is stored later.
            let mut empty = after.clone();
            empty.iter_mut().filter_map(|state| state.file(name)).for_each(|(bytes, _)| bytes.clear());
            self.since_sync.extend(empty);
        }
        self.since_sync.extend(after);
        if happened && op.is_sync() && !self.lost_data {
            self.note_synced();
        }
        assert!(!self.now.is_empty(), "{op:?} cannot have succeeded");
    }

    /// As [`Self::note`], while other threads work. A sync of this thread does not report write
    /// errors that a sync of another thread has reported already, so earlier states stay possible.
    pub(crate) fn note_beside_others(&mut self, op: &Op, happened: bool) {
        let since_sync = self.since_sync.clone();
        self.note(op, happened);
        if self.since_sync.len() < since_sync.len() {
            self.since_sync.splice(0..0, since_sync);
        }
    }

    /// Notes that everything is durable.
    pub(crate) fn note_synced(&mut self) {
        self.since_sync = self.now.clone();
    }

    /// Notes that data written earlier could not be stored.
    pub(crate) fn note_lost_data(&mut self) {
        self.lost_data = true;
    }

    /// Checks that a directory is in one of the possible states.
    pub(crate) fn judge(&self, view: &View, loss: Loss) -> Result<(), String> {
        let names: Vec<&State> = match loss {
            Loss::None | Loss::Data => self.now.iter().collect(),
            Loss::All => self.since_sync.iter().chain(&self.now).collect(),
        };
        let contents: Vec<&State> = match loss {
            Loss::None if !self.lost_data => self.now.iter().collect(),
            _ => self.since_sync.iter().chain(&self.now).collect(),
        };
        let is_loose = loss != Loss::None || self.lost_data;
        let mut why = Vec::new();
        for state in names {
            let contents_fit = || self.contents_fit(state, &contents, view, (is_loose, loss));
            match fits(state, view).and_then(|()| contents_fit()) {
                Ok(()) => return Ok(()),
                Err(error) => why.push(error),
            }
        }
        why.dedup();
        Err(why.join("; or: ").chars().take(1500).collect())
    }

    fn contents_fit(
        &self,
        state: &State,
        contents: &[&State],
        view: &View,
        (is_loose, loss): (bool, Loss),
    ) -> Result<(), String> {
        let reuses = self.reuses_at_once && loss == Loss::All;
        for (path, id) in &state.names {
            let versions: Vec<&Node> =
                contents.iter().filter_map(|state| state.nodes.get(id)).map(|node| &**node).collect();
            let seen = &view[path];
            let bounds = Bounds {
                is_loose,
                is_between: is_loose || self.between.contains(id),
                is_reused: reuses && versions.len() < contents.len(),
                may_be_reused: reuses,
            };
            content_fits(&versions, &seen.body, bounds).map_err(|why| format!("{path}: {why}"))?;
            if !versions.iter().any(|version| version.xattrs == seen.xattrs) {
                return Err(format!("{path}: attributes {:?}", lengths(&seen.xattrs)));
            }
        }
        Ok(())
    }
}

fn lengths(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<(String, usize)> {
    xattrs.iter().map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.len())).collect()
}

/// Checks that the names are those of the state, and that the same names are links to one file.
fn fits(state: &State, view: &View) -> Result<(), String> {
    let (wanted, found): (Vec<_>, Vec<_>) = (state.names.keys().collect(), view.keys().collect());
    if wanted != found {
        let missing: Vec<_> = wanted.iter().filter(|path| !found.contains(path)).collect();
        let extra: Vec<_> = found.iter().filter(|path| !wanted.contains(path)).collect();
        return Err(format!("missing names {missing:?}, extra ones {extra:?}"));
    }
    let mut inodes: BTreeMap<u32, u32> = BTreeMap::new();
    for (path, id) in &state.names {
        let seen = &view[path];
        if *inodes.entry(*id).or_insert(seen.inode) != seen.inode {
            return Err(format!("{path} is another file"));
        }
    }
    let distinct: BTreeSet<u32> = inodes.values().copied().collect();
    if distinct.len() == inodes.len() { Ok(()) } else { Err("two files are one".to_owned()) }
}

/// How far a file may differ from its versions.
#[derive(Clone, Copy)]
struct Bounds {
    /// Data that was not synced may be missing.
    is_loose: bool,
    /// The size may lie between the sizes of the versions.
    is_between: bool,
    /// The file may have been removed and its blocks reused by another file: it may hold anything.
    is_reused: bool,
    /// Blocks that some version does not have (it has zeroes there) may have been reused by another
    /// file: they may hold anything.
    may_be_reused: bool,
}

fn content_fits(versions: &[&Node], found: &Body, bounds: Bounds) -> Result<(), String> {
    let Body::File { bytes: found, .. } = found else {
        let same = versions.iter().any(|version| version.body == *found);
        return if same { Ok(()) } else { Err(format!("is {found:?}")) };
    };
    let files: Vec<(&[u8], u32)> = versions
        .iter()
        .filter_map(|version| match &version.body {
            Body::File { bytes, moved } => Some((&bytes[..], *moved)),
            _ => None,
        })
        .collect();
    let generations: BTreeSet<u32> = files.iter().map(|(_, moved)| *moved).collect();
    let is_reused = bounds.is_reused || bounds.may_be_reused && generations.len() > 1;
    let bounds = Bounds { is_reused, ..bounds };
    let mut why = Vec::new();
    for generation in generations {
        let mixed: Vec<&[u8]> =
            files.iter().filter(|(_, moved)| *moved == generation).map(|(bytes, _)| *bytes).collect();
        // Data that was not stored before the move may read as zeroes after it.
        let lost = [vec![0; mixed[0].len()]];
        let lost = lost.iter().map(|zeroes| &zeroes[..]).filter(|_| bounds.is_loose && generation > 0);
        let mixed: Vec<&[u8]> = mixed.into_iter().chain(lost).collect();
        match mix_fits(&mixed, found, bounds) {
            Ok(()) => return Ok(()),
            Err(error) => why.push(error),
        }
    }
    Err(why.join(", or "))
}

/// Checks that the size fits the versions, and that each byte has the value that some version has
/// at this offset, unless `bounds` allow any value there. Behind its end, a version counts as
/// zeroes.
fn mix_fits(versions: &[&[u8]], found: &[u8], bounds: Bounds) -> Result<(), String> {
    let sizes: BTreeSet<usize> = versions.iter().map(|bytes| bytes.len()).collect();
    let (least, most) = (sizes.first().copied().unwrap_or(0), sizes.last().copied().unwrap_or(0));
    let size = found.len();
    if !(sizes.contains(&size) || bounds.is_between && (least..=most).contains(&size)) {
        return Err(format!("size {size}, not one of {sizes:?}"));
    }
    let is_wrong = |(at, byte): &(usize, &u8)| {
        let mut wanted = versions.iter().map(|version| version.get(*at).copied().unwrap_or(0));
        let may_be_any = bounds.is_reused || bounds.may_be_reused && wanted.clone().any(|byte| byte == 0);
        !(may_be_any || wanted.any(|wanted| wanted == **byte))
    };
    match found.iter().enumerate().find(is_wrong) {
        None => Ok(()),
        Some((at, byte)) => {
            let wanted: BTreeSet<u8> =
                versions.iter().map(|version| version.get(at).copied().unwrap_or(0)).collect();
            Err(format!("byte {at} of {size} is {byte:#x}, not one of {wanted:x?}"))
        }
    }
}
