//! Sources that are read to their end: standard input, pipes, devices.
//!
//! A separate thread reads them, because a read, or opening a pipe without a writer, can block for
//! ever. A signal must still end the work.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::Result;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{NewInode, SetAttributes};

use super::{CHUNK, Copy};
use crate::commands::host::{HostError, OnHost};
use crate::commands::interrupt;
use crate::commands::volume::{AtPath, Entry, Place};

/// The longest time between two checks for a signal while no data arrives.
const PATIENCE: Duration = Duration::from_millis(100);

/// The source of the bytes.
pub(super) enum Stream {
    StandardInput,
    /// A pipe or device of the host.
    Of(PathBuf),
}

impl Stream {
    /// Starts reading. Sends pieces until the end or an error.
    fn pieces(self) -> Receiver<Result<Vec<u8>, HostError>> {
        let (sender, receiver) = sync_channel(2);
        std::thread::spawn(move || {
            let read = || -> Result<(), HostError> {
                let (mut input, path): (Box<dyn Read>, PathBuf) = match self {
                    Self::StandardInput => (Box::new(std::io::stdin()), "standard input".into()),
                    Self::Of(path) => (Box::new(File::open(&path).on_host(&path)?), path),
                };
                loop {
                    let piece = piece(&mut *input, &path)?;
                    // If the copy failed, it has dropped the receiver.
                    if piece.is_empty() || sender.send(Ok(piece)).is_err() {
                        return Ok(());
                    }
                }
            };
            if let Err(error) = read() {
                let _ = sender.send(Err(error));
            }
        });
        receiver
    }
}

/// The next piece, filled as far as possible; empty at the end.
fn piece(input: &mut dyn Read, path: &Path) -> Result<Vec<u8>, HostError> {
    let mut bytes = Vec::with_capacity(CHUNK);
    input.take(u64_from_usize(CHUNK)).read_to_end(&mut bytes).on_host(path)?;
    Ok(bytes)
}

impl Copy<'_, '_> {
    /// Copies the stream to a file named DEST.
    pub(super) fn stream(&mut self, stream: Stream, dest: &[u8]) -> Result<()> {
        let place = self.volume.exactly(dest, Entry::Other)?;
        self.stream_to(stream, &place)
    }

    /// Copies the stream to a file with permissions 644. It belongs to `--owner` or to root, not to
    /// the owner of the pipe.
    pub(super) fn stream_to(&mut self, stream: Stream, place: &Place) -> Result<()> {
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let (uid, gid) = (self.owner.uid.unwrap_or(0), self.owner.gid.unwrap_or(0));
        let pieces = stream.pieces();
        let inode = self.install(place, |copy, made| {
            let inode = copy.create(made, &new)?;
            let written = copy.fill(inode, &place.path, |copy| copy.append_all(inode, &place.path, &pieces));
            copy.or_unlink(made, written)?;
            let changes = SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() };
            let owned = copy.volume.fs.set_attributes(&copy.volume.ctx, inode, &changes).at(&place.path);
            copy.or_unlink(made, owned.map_err(Into::into))?;
            Ok(inode)
        })?;
        self.made(&place.path, inode)
    }

    fn append_all(
        &mut self,
        inode: InodeNr,
        path: &[u8],
        pieces: &Receiver<Result<Vec<u8>, HostError>>,
    ) -> Result<()> {
        loop {
            let piece = match pieces.recv_timeout(PATIENCE) {
                Ok(piece) => piece?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    interrupt::check()?;
                    continue;
                }
            };
            interrupt::check()?;
            self.volume.fs.append(&self.volume.ctx, inode, &piece).at(path)?;
            self.bytes += u64_from_usize(piece.len());
            self.volume.progress.add_bytes(piece.len());
        }
    }
}
