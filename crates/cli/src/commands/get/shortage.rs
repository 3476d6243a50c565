//! How much space a full host lacks, and the summary of a run.

use blockyard_inspect::path::LastLink;
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use blockyard_disk::{FileType, Inode};
use blockyard_inspect::units;

use super::Copy;
use crate::commands::host;
use crate::commands::image::path_bytes;
use crate::commands::put::{copied, shown_bytes};

/// Whether an error means that the host's file system is full, or that a quota is exceeded.
pub(super) fn is_full(error: &anyhow::Error) -> bool {
    host::host_error(error).is_some_and(host::HostError::is_full)
}

impl Copy<'_> {
    /// Counts what there is to copy, if progress is shown. Ignores errors, because the copy itself
    /// reports them.
    pub(super) fn expect(&self, sources: &[OsString]) {
        if self.progress.is_wanted() {
            let (names, bytes) = self.need_of(sources);
            self.progress.expect(names, bytes);
        }
    }

    /// Reports the end of the work: what was copied, what was left out, and how much space is
    /// missing if the host was full.
    pub(super) fn tell_end(
        &mut self,
        sources: &[OsString],
        dest: &Path,
        began: Instant,
        ended: Result<()>,
    ) -> Result<()> {
        let mut lines = Vec::new();
        match ended {
            Err(failed) if is_full(&failed) => {
                let told = self.shortage(sources, dest);
                self.report(&format!("{}; {told}", super::super::describe(&failed)));
            }
            Ok(()) if self.args.recursive => lines.push(copied(self.names, self.bytes, began)),
            ended => ended?,
        }
        lines.extend(self.left_out.text());
        if !self.output.json && !self.output.quiet {
            self.progress.beside(|| lines.iter().for_each(|line| println!("{line}")));
        }
        Ok(())
    }

    fn shortage(&self, sources: &[OsString], dest: &Path) -> String {
        let (names, bytes) = self.need_of(sources);
        let (names, bytes) = (names.saturating_sub(self.names), bytes.saturating_sub(self.bytes));
        let place = if dest.is_dir() { dest } else { dest.parent().unwrap_or(dest) };
        let free = rustix::fs::statvfs(place).map_or(0, |data| data.f_bavail.saturating_mul(data.f_frsize));
        format!(
            "{} ({}) were copied, {names} ({}) were not; about {} more are needed (--keep-going copies what fits)",
            units::counted(self.names, "name"),
            shown_bytes(self.bytes),
            shown_bytes(bytes),
            shown_bytes(bytes.saturating_sub(free).max(1 << 16))
        )
    }

    /// The number of names to copy, and an estimate of the bytes of their content. For each file,
    /// this is its size or the space that it occupies, whichever is less. Unreadable inodes and the
    /// entries of unreadable directories are not counted.
    fn need_of(&self, sources: &[OsString]) -> (u64, u64) {
        let found = |source: &OsString| self.reader.resolve(path_bytes(source), LastLink::Keep).ok();
        let mut left: Vec<Inode> = sources.iter().filter_map(found).collect();
        let (mut names, mut bytes, mut seen) = (0, 0, HashSet::new());
        while let Some(inode) = left.pop() {
            names += 1;
            if !seen.insert(inode.number()) {
                continue;
            }
            if inode.file_type() == FileType::Regular {
                bytes += inode.size().min(inode.sectors().saturating_mul(512));
            } else if inode.is_directory() {
                let Ok(entries) = self.reader.entries(&inode) else { continue };
                let below = entries.flatten().filter(|entry| entry.name != b"." && entry.name != b"..");
                left.extend(below.filter_map(|entry| self.reader.inode(entry.inode).ok()));
            }
        }
        (names, bytes)
    }
}
