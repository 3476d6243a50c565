//! A device that fails on purpose, at a chosen operation or position. An operation that fails
//! returns an error, and may have transferred nothing, a part, or everything.
//!
//! Operations of each kind are counted from 1, whether they fail or not. So a first run without
//! faults shows how many there are, and later runs can fail each of them in turn.

use std::io;

use crate::{BlockDevice, DeviceError, DeviceId, Result};
use blockyard_sync::{Mutex, rank};

/// The kinds of operation that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `read_at`.
    Read,
    /// `write_at` and `write_durable_at`. `write_vectored_at` counts as one write for each part.
    Write,
    /// `write_zeroes`.
    Zero,
    /// `discard`.
    Discard,
    /// `flush`.
    Flush,
}

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At the n-th operation of its kind, counted from 1, and only then.
    Nth(u64),
    /// At the n-th operation of its kind and every later one.
    From(u64),
    /// At every operation of its kind whose range contains this byte. A flush has no range, so such
    /// a fault never strikes a flush.
    Touching(u64),
}

/// What happens before the operation returns its error. A flush that is struck is carried out only
/// under [`Self::Everything`]; a discard that is struck is never carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is transferred.
    Nothing,
    /// At most this many bytes are transferred, from the first one on.
    Short(usize),
    /// Everything is transferred.
    Everything,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of operation it strikes.
    pub operation: Operation,
    /// At which operations of that kind it strikes.
    pub when: When,
    /// What it does to them.
    pub effect: Effect,
}

/// How many operations of each kind were requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Reads.
    pub reads: u64,
    /// Writes, durable ones included.
    pub writes: u64,
    /// Requests to zero a range.
    pub zeroes: u64,
    /// Discards.
    pub discards: u64,
    /// Flushes.
    pub flushes: u64,
}

impl OperationCounts {
    fn bump(&mut self, operation: Operation) -> u64 {
        let count = match operation {
            Operation::Read => &mut self.reads,
            Operation::Write => &mut self.writes,
            Operation::Zero => &mut self.zeroes,
            Operation::Discard => &mut self.discards,
            Operation::Flush => &mut self.flushes,
        };
        *count += 1;
        *count
    }
}

#[derive(Default)]
struct State {
    counts: OperationCounts,
    faults: Vec<Fault>,
    strikes: u64,
}

/// A device that passes everything on to `below`, except where a fault strikes.
pub struct FaultyDevice<D> {
    below: D,
    state: Mutex<State>,
}

impl<D: BlockDevice> std::fmt::Debug for FaultyDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("FaultyDevice")
            .field("counts", &state.counts)
            .field("faults", &state.faults)
            .finish_non_exhaustive()
    }
}

impl<D: BlockDevice> FaultyDevice<D> {
    /// Wraps a device. No fault strikes until [`Self::add`].
    #[must_use]
    pub fn new(below: D) -> Self {
        Self { below, state: Mutex::new(rank::DEVICE, State::default()) }
    }

    /// The device below.
    pub fn below(&self) -> &D {
        &self.below
    }

    /// Adds a fault. If several match an operation, the one that was added first strikes.
    pub fn add(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults. The counts stay.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// The operations that were requested so far.
    #[must_use]
    pub fn counts(&self) -> OperationCounts {
        self.state.lock().counts
    }

    /// How many operations a fault struck.
    #[must_use]
    pub fn strikes(&self) -> u64 {
        self.state.lock().strikes
    }

    /// Counts an operation. Returns the effect of the fault that strikes it, if one does.
    fn strike(&self, operation: Operation, offset: u64, length: u64) -> Option<Effect> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let number = state.counts.bump(operation);
        let fault = state.faults.iter().find(|fault| {
            fault.operation == operation
                && match fault.when {
                    When::Nth(n) => number == n,
                    When::From(n) => number >= n,
                    When::Touching(byte) => byte >= offset && byte - offset < length,
                }
        });
        let effect = fault.map(|fault| fault.effect);
        state.strikes += u64::from(effect.is_some());
        effect
    }

    fn write_with(
        &self,
        offset: u64,
        data: &[u8],
        write: impl Fn(&D, u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let length = blockyard_disk::num::u64_from_usize(data.len());
        match self.strike(Operation::Write, offset, length) {
            None => return write(&self.below, offset, data),
            Some(Effect::Nothing) => {}
            Some(Effect::Short(count)) => self.below.write_at(offset, &data[..count.min(data.len())])?,
            Some(Effect::Everything) => write(&self.below, offset, data)?,
        }
        Err(injected("write", offset, length))
    }
}

fn injected(operation: &'static str, offset: u64, length: u64) -> DeviceError {
    DeviceError::Io { operation, offset, length, source: io::Error::other("injected fault") }
}

impl<D: BlockDevice> BlockDevice for FaultyDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let length = blockyard_disk::num::u64_from_usize(buf.len());
        match self.strike(Operation::Read, offset, length) {
            None => return self.below.read_at(offset, buf),
            Some(Effect::Nothing) => {}
            Some(Effect::Short(count)) => {
                let count = count.min(buf.len());
                self.below.read_at(offset, &mut buf[..count])?;
            }
            Some(Effect::Everything) => self.below.read_at(offset, buf)?,
        }
        Err(injected("read", offset, length))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_with(offset, data, |below, offset, data| below.write_at(offset, data))
    }

    fn write_durable_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_with(offset, data, |below, offset, data| below.write_durable_at(offset, data))
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        match self.strike(Operation::Zero, offset, length) {
            None => return self.below.write_zeroes(offset, length),
            Some(Effect::Nothing) => {}
            Some(Effect::Short(count)) => {
                let count = blockyard_disk::num::u64_from_usize(count).min(length);
                self.below.write_zeroes(offset, count)?;
            }
            Some(Effect::Everything) => self.below.write_zeroes(offset, length)?,
        }
        Err(injected("write zeroes", offset, length))
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        match self.strike(Operation::Discard, offset, length) {
            None => self.below.discard(offset, length),
            Some(_) => Err(injected("discard", offset, length)),
        }
    }

    fn flush(&self) -> Result<()> {
        match self.strike(Operation::Flush, 0, 0) {
            None => return self.below.flush(),
            Some(Effect::Everything) => self.below.flush()?,
            Some(Effect::Nothing | Effect::Short(_)) => {}
        }
        Err(injected("flush", 0, self.below.size()))
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}
