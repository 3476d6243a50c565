//! Progress on a terminal, for commands that take longer than a second, drawn by indicatif on
//! standard error.
//!
//! Nothing is drawn with --quiet, if standard error is not a terminal, or if JSON goes to a
//! terminal. The line is removed at the end, and hidden during other output ([`Progress::beside`]).

use std::cell::Cell;
use std::io::IsTerminal;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use blockyard_device::{BlockDevice, Result as DeviceResult};
use blockyard_disk::num::u64_from_usize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Output;
use crate::terminal;

/// Work that takes less time shows no progress.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two redraws while the counts do not change.
const TICK: Duration = Duration::from_millis(250);

/// Bytes cleared at a time.
const PIECE: u64 = 1 << 30;

/// Templates of the line if the total is known: work done, total, and remaining time.
const OF_BYTES: &str = "{prefix}: {msg}{bytes} of {total_bytes} ({percent} %), {bytes_per_sec}, {eta} left";
const OF_NAMES: &str = "{prefix}: {human_pos} of {human_len} {msg} ({percent} %), {per_sec}, {eta} left";
const OF_PARTS: &str = "{prefix}: {msg} ({percent} %), {elapsed}, {eta} left";
/// Templates of the line if the total is unknown: only the work done.
const SO_FAR: &str = "{prefix}: {msg}{bytes}, {bytes_per_sec}, {elapsed}";
const NAMES_SO_FAR: &str = "{prefix}: {human_pos} {msg}, {per_sec}, {elapsed}";

/// One line of progress, which is removed on drop.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// There is no terminal, or progress is not wanted.
    is_off: bool,
    counts: Counts,
    names: Cell<u64>,
    names_in_all: Cell<Option<u64>>,
    patience: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What the line counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Bytes,
    Names,
    Parts,
}

impl Progress {
    /// For copies: counts names, and bytes of their content.
    pub(crate) fn copying(output: &Output, command: &'static str) -> Self {
        Self::new(output, command, Counts::Bytes, SO_FAR)
    }

    /// For work that counts one kind of thing, which `nouns` names, such as `files`.
    pub(crate) fn counting(output: &Output, command: &'static str, nouns: &'static str) -> Self {
        let progress = Self::new(output, command, Counts::Names, NAMES_SO_FAR);
        progress.bar.set_message(nouns);
        progress
    }

    /// For work that consists of parts, done one after the other.
    pub(crate) fn parts(output: &Output, command: &'static str, parts: usize) -> Self {
        let progress = Self::new(output, command, Counts::Parts, OF_PARTS);
        progress.bar.set_length(u64_from_usize(parts));
        progress
    }

    /// For work that shows no progress.
    pub(crate) fn none() -> Self {
        Self::start(true, "", Counts::Names, NAMES_SO_FAR)
    }

    fn new(output: &Output, command: &'static str, counts: Counts, style: &str) -> Self {
        let is_off =
            output.quiet || (output.json && terminal::is_terminal()) || !std::io::stderr().is_terminal();
        Self::start(is_off, command, counts, style)
    }

    fn start(is_off: bool, command: &'static str, counts: Counts, style: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_prefix(command);
        bar.set_style(styled(style));
        let patience = (!is_off).then(|| show_later(&bar));
        Self { bar, is_off, counts, names: Cell::new(0), names_in_all: Cell::new(None), patience }
    }

    /// Whether anything is drawn. If not, there is no need to count the total in advance.
    pub(crate) const fn is_wanted(&self) -> bool {
        !self.is_off
    }

    /// Sets the totals of names and bytes. `bytes` is used only if [`Self::copying`] made this.
    pub(crate) fn expect(&self, names: u64, bytes: u64) {
        self.names_in_all.set(Some(names));
        let (length, style) = match self.counts {
            Counts::Bytes => (bytes, OF_BYTES),
            _ => (names, OF_NAMES),
        };
        self.bar.set_length(length);
        self.bar.set_style(styled(style));
    }

    /// Counts one more name.
    pub(crate) fn add_name(&self) {
        if self.is_off {
            return;
        }
        let names = self.names.get() + 1;
        self.names.set(names);
        match (self.counts, self.names_in_all.get()) {
            (Counts::Bytes, _) if names % 32 != 1 => {}
            (Counts::Bytes, Some(all)) => self.bar.set_message(format!("{names} of {all} names, ")),
            (Counts::Bytes, None) => self.bar.set_message(format!("{names} names, ")),
            _ => self.bar.inc(1),
        }
    }

    /// Counts more bytes.
    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.bar.inc(u64_from_usize(bytes));
    }

    /// Part `number` (from 1) begins.
    pub(crate) fn begin(&self, number: usize, name: &str) {
        let all = self.bar.length().unwrap_or_default();
        self.bar.set_position(u64_from_usize(number.saturating_sub(1)));
        let name = terminal::escaped(name.as_bytes());
        self.bar.set_message(format!("{number} of {all}: {name}"));
    }

    /// The bar behind the line, with the length `shares`. It is for work that advances the bar from
    /// several threads and sets the message itself.
    pub(crate) fn bar_of_shares(&self, shares: u64) -> ProgressBar {
        self.bar.set_style(styled(OF_PARTS));
        self.bar.set_length(shares);
        self.bar.clone()
    }

    /// Prints something while the line is hidden.
    pub(crate) fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((told, thread)) = self.patience.take() {
            drop(told);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

fn styled(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows the line after a second, unless the returned sender has been dropped by then.
fn show_later(bar: &ProgressBar) -> (Sender<()>, JoinHandle<()>) {
    let (told, end) = channel();
    let bar = bar.clone();
    let thread = std::thread::spawn(move || {
        if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    });
    (told, thread)
}

/// A device that is cleared and then written sequentially, with progress.
pub(crate) struct Watched<'a, D> {
    device: &'a D,
    bar: ProgressBar,
}

impl<'a, D: BlockDevice> Watched<'a, D> {
    pub(crate) fn new(device: &'a D, progress: &Progress) -> Self {
        progress.expect(0, device.size());
        Self { device, bar: progress.bar.clone() }
    }

    fn show(&self, what: &'static str, end: u64) {
        if self.bar.message() != what {
            self.bar.set_message(what);
        }
        self.bar.set_position(end);
    }
}

impl<D: BlockDevice> BlockDevice for Watched<'_, D> {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> DeviceResult<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.show("writing ", offset + u64_from_usize(data.len()));
        self.device.write_at(offset, data)
    }

    fn write_durable_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.device.write_durable_at(offset, data)
    }

    fn share_from(&self, offset: u64, length: u64, file: BorrowedFd<'_>, from: u64) -> DeviceResult<bool> {
        self.show("writing ", offset + length);
        self.device.share_from(offset, length, file, from)
    }

    /// Clears in pieces, to show progress: clearing takes long if the storage must be filled with
    /// zeroes.
    fn write_zeroes(&self, offset: u64, length: u64) -> DeviceResult<()> {
        let mut at = offset;
        while at < offset + length {
            self.show("clearing ", at);
            let piece = PIECE.min(offset + length - at);
            self.device.write_zeroes(at, piece)?;
            at += piece;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> DeviceResult<()> {
        self.device.discard(offset, length)
    }

    fn flush(&self) -> DeviceResult<()> {
        self.device.flush()
    }
}
