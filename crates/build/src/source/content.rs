//! The content of a tree's files, wherever it lies.

use crate::error::Result;
use crate::tree::{NodeId, Origin, Tree};
use blockyard_disk::num::{u32_from_usize, u64_from_usize};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// The parts of a file that are no holes, one after the other.
pub(super) struct Content<'t> {
    file: Holder<'t>,
    /// Where in the file that holds it the content begins.
    start: u64,
    /// What is still to be read, in bytes of the content; the next range last.
    ranges: Vec<Range<u64>>,
}

enum Holder<'t> {
    Own(File),
    Spool(&'t File),
}

impl Tree {
    /// The place of a path below the root.
    pub(super) fn find(&self, path: &[u8]) -> Option<NodeId> {
        let mut found: Option<NodeId> = None;
        for name in path.split(|&byte| byte == b'/') {
            let number = found.map_or(0, |id| self.node(id).directory);
            if number == 0 && found.is_some() {
                return None;
            }
            let directory = self.directory(number);
            let child = directory.nodes.binary_search_by(|node| directory.text(node.name).cmp(name)).ok()?;
            found = Some(NodeId { directory: number, child: u32_from_usize(child) });
        }
        found
    }

    /// The content of a regular file.
    pub(super) fn content(&self, id: NodeId) -> Result<Content<'_>> {
        let directory = self.directory(id.directory);
        let mut ranges = match directory.data(id.child) {
            Some(data) => data.to_vec(),
            None => std::iter::once(0..self.node(id).size).collect(),
        };
        ranges.reverse();
        Ok(match &self.origin {
            Origin::Spool(spool) => {
                let start = directory.stored(id.child).unwrap_or(0);
                Content { file: Holder::Spool(spool), start, ranges }
            }
            Origin::Directory(_) => {
                let opened = self.open_directory(id.directory)?;
                let file = File::from(self.open_file(opened.as_fd(), id)?);
                Content { file: Holder::Own(file), start: 0, ranges }
            }
        })
    }
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(range) = self.ranges.last_mut() else { return Ok(0) };
        let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(into.len());
        let file = match &self.file {
            Holder::Own(file) => file,
            Holder::Spool(file) => file,
        };
        let n = file.read_at(&mut into[..most], self.start + range.start)?;
        range.start += u64_from_usize(n);
        if range.is_empty() {
            self.ranges.pop();
        }
        Ok(n)
    }
}
