//! A device that stops answering: every operation (read, write, zeroing, discard, flush) waits
//! until the device is told to answer again.

use crate::{BlockDevice, DeviceId, Result};
use blockyard_sync::{Condvar, Mutex, rank};

#[derive(Default)]
struct State {
    is_silent: bool,
    /// Operations waiting for an answer.
    waiting: usize,
}

/// A device that passes operations on to `below`, but makes them wait while it is silent. Its size
/// and identity can be asked for at any time.
pub struct StallingDevice<D> {
    below: D,
    state: Mutex<State>,
    answers: Condvar,
}

impl<D> std::fmt::Debug for StallingDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("StallingDevice")
            .field("is_silent", &state.is_silent)
            .field("waiting", &state.waiting)
            .finish_non_exhaustive()
    }
}

impl<D: BlockDevice> StallingDevice<D> {
    /// A device that answers.
    #[must_use]
    pub fn new(below: D) -> Self {
        Self { below, state: Mutex::new(rank::DEVICE, State::default()), answers: Condvar::new() }
    }

    /// The device below.
    pub fn below(&self) -> &D {
        &self.below
    }

    /// From now on every operation waits.
    pub fn stop_answering(&self) {
        self.state.lock().is_silent = true;
    }

    /// Answers again: waiting operations continue.
    pub fn answer(&self) {
        self.state.lock().is_silent = false;
        self.answers.notify_all();
    }

    /// Operations waiting for an answer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    fn answering(&self) -> &D {
        let mut state = self.state.lock();
        state.waiting += 1;
        let mut state = self.answers.wait_while(state, |state| state.is_silent);
        state.waiting -= 1;
        &self.below
    }
}

impl<D: BlockDevice> BlockDevice for StallingDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.answering().read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.answering().write_at(offset, data)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.answering().write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.answering().discard(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.answering().flush()
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}
