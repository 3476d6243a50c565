//! A device that records every change and flush that succeeds, for building the images that a power
//! cut could have left.
//!
//! Changes and flushes are serialised: the log's lock is held while the device below works. So the
//! log's order is the order of events, and what is before a flush in the log had completed before
//! the flush began. Payloads are shared, so a copy of the log is cheap. `crash.rs` defines the
//! possible states after a crash.

use std::sync::Arc;

use crate::{BlockDevice, DeviceId, Result};
use blockyard_sync::{Mutex, rank};

mod crash;

pub use crash::{CrashPlan, CrashState, Piece, Step};

/// One recorded event.
#[derive(Clone, PartialEq, Eq)]
pub enum Event {
    /// A write.
    Write {
        /// First byte.
        offset: u64,
        /// The data written.
        data: Arc<[u8]>,
        /// Whether it was durable when it returned (force unit access).
        is_durable: bool,
    },
    /// A range made zero.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A discarded range.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A flush: everything before it is durable.
    Flush,
    /// A mark that a test sets, for instance where an operation starts or ends.
    Mark(Arc<str>),
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write { offset, data, is_durable } => {
                let how = if *is_durable { "durable write" } else { "write" };
                write!(f, "{how} of {} bytes at {offset}", data.len())
            }
            Self::Zero { offset, length } => write!(f, "zero {length} bytes at {offset}"),
            Self::Discard { offset, length } => write!(f, "discard {length} bytes at {offset}"),
            Self::Flush => f.write_str("flush"),
            Self::Mark(text) => write!(f, "mark {text}"),
        }
    }
}

impl Event {
    /// Applies the recorded event to `device`; a flush or a mark does nothing.
    fn apply(&self, device: &dyn BlockDevice) -> Result<()> {
        match self {
            Self::Write { offset, data, .. } => device.write_at(*offset, data),
            Self::Zero { offset, length } => device.write_zeroes(*offset, *length),
            Self::Discard { offset, length } => device.discard(*offset, *length),
            Self::Flush | Self::Mark(_) => Ok(()),
        }
    }
}

/// A device that passes reads, changes and flushes on to `below`, and logs changes and flushes.
/// [`share_from`](BlockDevice::share_from) always returns `false`, so no change bypasses the log.
pub struct RecorderDevice<D> {
    below: D,
    log: Mutex<Vec<Event>>,
}

impl<D: BlockDevice> std::fmt::Debug for RecorderDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecorderDevice").field("events", &self.log.lock().len()).finish_non_exhaustive()
    }
}

impl<D: BlockDevice> RecorderDevice<D> {
    /// A recorder with an empty log. To rebuild images later, the caller must keep the content that
    /// `below` has now: as a copy, or by passing an [`OverlayDevice`](crate::OverlayDevice) over it
    /// as `below`.
    #[must_use]
    pub fn new(below: D) -> Self {
        Self { below, log: Mutex::new(rank::DEVICE_LOG, Vec::new()) }
    }

    /// The device below.
    pub fn below(&self) -> &D {
        &self.below
    }

    /// Puts a mark into the log.
    pub fn mark(&self, text: &str) {
        self.log.lock().push(Event::Mark(text.into()));
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> WriteLog {
        WriteLog { events: self.log.lock().clone() }
    }

    /// The log so far. Recording continues with an empty one.
    #[must_use]
    pub fn take_log(&self) -> WriteLog {
        WriteLog { events: std::mem::take(&mut *self.log.lock()) }
    }

    /// Runs `operation` on the device below, and logs `event` if the operation succeeds.
    fn record(&self, event: Event, operation: impl FnOnce(&D) -> Result<()>) -> Result<()> {
        let mut log = self.log.lock();
        operation(&self.below)?;
        log.push(event);
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for RecorderDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let event = Event::Write { offset, data: data.into(), is_durable: false };
        self.record(event, |below| below.write_at(offset, data))
    }

    fn write_durable_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let event = Event::Write { offset, data: data.into(), is_durable: true };
        self.record(event, |below| below.write_durable_at(offset, data))
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.record(Event::Zero { offset, length }, |below| below.write_zeroes(offset, length))
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.record(Event::Discard { offset, length }, |below| below.discard(offset, length))
    }

    fn flush(&self) -> Result<()> {
        self.record(Event::Flush, BlockDevice::flush)
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

/// The recorded events, in order.
#[derive(Clone, Debug, Default)]
pub struct WriteLog {
    events: Vec<Event>,
}

impl WriteLog {
    /// The events in the order they happened.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The marks, each with its index in the log.
    pub fn marks(&self) -> impl Iterator<Item = (usize, &str)> {
        self.events.iter().enumerate().filter_map(|(at, event)| match event {
            Event::Mark(text) => Some((at, &**text)),
            _ => None,
        })
    }

    /// Replays the first `count` events onto a device that has the content from before the
    /// recording.
    ///
    /// # Errors
    /// Those of `device`.
    ///
    /// # Panics
    /// When the log has fewer events.
    pub fn apply_prefix(&self, count: usize, device: &dyn BlockDevice) -> Result<()> {
        self.events[..count].iter().try_for_each(|event| event.apply(device))
    }

    /// The states that a power cut during the recording could have left, as `plan` samples them.
    /// Different states may build equal images.
    pub fn crash_states<'a>(&'a self, plan: &'a CrashPlan) -> impl Iterator<Item = CrashState> + 'a {
        crash::states(&self.events, plan)
    }
}
